"""``ackstream watch``: what becomes of requests, live."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from kafka.errors import KafkaError
from rich.console import Console
from rich.live import Live

from ackstream.errors import AckstreamError
from ackstream.monitor.display import screen
from ackstream.monitor.feed import Feed
from ackstream.monitor.meter import Meter
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.settings import load

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
    with Feed(settings, now - max(span, settings.correlate.default_timeout)) as feed:
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


def _watch(console: Console, meter: Meter, feed: Feed) -> None:
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
