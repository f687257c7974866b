"""``ackstream watch``: how requests end, live on the terminal."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from kafka.errors import KafkaError
from rich.console import Console
from rich.live import Live

from ackstream.cli.console.display import watch_screen
from ackstream.errors import AckstreamError
from ackstream.gateway.meter import LedgerFeed, Meter, epoch_milliseconds
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.settings import load

REFRESH_SECONDS = 1.0


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
    now = epoch_milliseconds()
    with LedgerFeed(settings, now - max(span, settings.correlate.default_timeout)) as feed:
        try:
            feed.read_to_end(meter)
            if once or not console.is_terminal:
                console.print(watch_screen(meter.snapshot(epoch_milliseconds()), feed.lags()))
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
            live.update(watch_screen(meter.snapshot(epoch_milliseconds()), lags, note), refresh=True)
            until = time.monotonic() + REFRESH_SECONDS
            while time.monotonic() < until:
                feed.read(meter)
