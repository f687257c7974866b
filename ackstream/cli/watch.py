"""``ackstream watch``: how requests end, live on the terminal."""

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
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
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
    window: Annotated[str, typer.Option(help="How far back the recent counts reach.")] = "60s",
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; the default when the output is not a terminal.")
    ] = False,
) -> None:
    """Show live how requests end: counts, open requests, latencies, and the lag of the jobs.

    Latency is measured from the request to its reply, by the broker's clock. Counting starts one window (at least the
    default timeout) before now; Ctrl-C stops it.
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
            raise AckstreamError(f"Kafka at {settings.kafka.bootstrap} is no longer available: {error}.") from None
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
                note = f"Kafka does not respond: {error}"
            live.update(screen(meter.snapshot(_now()), lags, note), refresh=True)
            until = time.monotonic() + REFRESH_SECONDS
            while time.monotonic() < until:
                feed.read(meter)


def _now() -> int:
    return time.time_ns() // 1_000_000


STYLES: dict[Verdict, str] = {"answered": "green", "timed out": "yellow", "failed": "red"}
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def requests_table(snapshot: Snapshot) -> Table:
    """Return one row per verdict and one for open requests; fits in 40 columns."""
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
    """Return one row per topic and the consumer group that reads it."""
    table = Table("topic", "lag", "read by", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for lag in lags:
        behind = Text("unknown", style="dim") if lag.records is None else Text(f"{lag.records:,}")
        table.add_row(lag.topic, behind, lag.group)
    return table


def screen(snapshot: Snapshot, lags: Sequence[Lag], note: str = "") -> Group:
    """Return both tables, with a note below them."""
    return Group(requests_table(snapshot), Text(), lag_table(lags), Text(note, style="red"))


def span(milliseconds: int | None) -> str:
    """Format a duration briefly, such as ``12ms``, ``1.24s``, ``2m05s``, ``3h07m``; ``None`` as an empty string."""
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
