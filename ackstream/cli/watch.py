"""``ackstream watch``: what becomes of requests, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from kafka.errors import KafkaError
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ackstream.errors import AckstreamError
from ackstream.gateway.feed import LedgerFeed
from ackstream.gateway.meter import VERDICTS, Meter
from ackstream.protocol.ditto.errors import DittoError
from ackstream.protocol.durations import Duration
from ackstream.settings import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.gateway.feed import Lag
    from ackstream.gateway.meter import Snapshot, Verdict


REFRESH_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(watch)


def watch(
    window: Annotated[str, typer.Option(help="How far back the counts of the last time go.")] = "60s",
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print the last window once; so too where the output is no terminal.")
    ] = False,
) -> None:
    """Show what becomes of requests, live: ended and open ones, latencies, how far behind the jobs are.

    Latencies are from the request to its answer, by the broker's clock. Counted are the requests of the last window
    (at least of the default timeout) and all that follow; Ctrl-C ends it.
    """
    settings = load()
    try:
        span = Duration.parse(window).milliseconds
    except DittoError as error:
        raise AckstreamError(f"--window is {window!r}: {error.message}") from None
    console = Console()
    meter = Meter(span)
    now = _now()
    with LedgerFeed(settings, now - max(span, settings.correlate.default_timeout)) as feed:
        try:
            feed.read_to_end(meter)
            if once or not console.is_terminal:
                console.print(screen(meter.snapshot(_now()), feed.lags()))
                return
        except KafkaError as error:
            raise AckstreamError(f"Kafka at {settings.kafka.bootstrap} went away: {error}.") from None
        try:
            _watch(console, meter, feed)
        except KeyboardInterrupt:
            raise typer.Exit from None


def _watch(console: Console, meter: Meter, feed: LedgerFeed) -> None:
    lags = feed.lags()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            note = ""
            try:
                lags = feed.lags()
            except KafkaError as error:
                note = f"Kafka does not answer: {error}"
            live.update(screen(meter.snapshot(_now()), lags, note), refresh=True)
            until = time.monotonic() + REFRESH_SECONDS
            while time.monotonic() < until:
                feed.read(meter)


def _now() -> int:
    return time.time_ns() // 1_000_000


# -- A monitor on the terminal: what requests came to, and how far behind the jobs are.


STYLES: dict[Verdict, str] = {"answered": "green", "timed out": "yellow", "failed": "red"}
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def requests_table(snapshot: Snapshot) -> Table:
    """Return a row for each way to end, and one for what is still open; 40 columns are enough."""
    table = Table("", *(f"last {span(snapshot.window)}", "total", "p50", "p95"), box=None, pad_edge=False)
    for number, column in enumerate(table.columns):
        column.justify, column.no_wrap = "right" if number else "left", True
    for how in VERDICTS:
        count = snapshot.counts[how]
        cells = f"{count.recent:,}", f"{count.total:,}", span(count.p50), span(count.p95)
        table.add_row(Text(how, style=STYLES[how]), *cells)
    oldest = "" if snapshot.oldest is None else f"oldest {span(snapshot.oldest)}"
    table.add_row(Text("in flight", style="cyan"), f"{snapshot.in_flight:,}", "", "", "")
    table.caption, table.caption_justify = oldest or None, "left"
    return table


def lag_table(lags: Sequence[Lag]) -> Table:
    """Return a row for each topic that a job reads."""
    table = Table("topic", "lag", "read by", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for lag in lags:
        behind = Text("unknown", style="dim") if lag.records is None else Text(f"{lag.records:,}")
        table.add_row(lag.topic, behind, lag.group)
    return table


def screen(snapshot: Snapshot, lags: Sequence[Lag], note: str = "") -> Group:
    """Return both tables, and a note below where there is one."""
    return Group(requests_table(snapshot), Text(), lag_table(lags), Text(note, style="red"))


def span(milliseconds: int | None) -> str:
    """Write a span of time in few letters, such as ``12ms``, ``1.24s``, ``2m05s``, ``3h07m``; ``None`` as nothing."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    seconds = milliseconds / 1000
    if milliseconds < MINUTE_MS:
        return f"{seconds:.3g}s" if milliseconds % 1000 else f"{seconds:g}s"
    if milliseconds < HOUR_MS:
        minutes, rest = divmod(milliseconds // 1000, 60)
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    hours, rest = divmod(milliseconds // MINUTE_MS, 60)
    return f"{hours}h{rest:02d}m" if rest else f"{hours}h"
