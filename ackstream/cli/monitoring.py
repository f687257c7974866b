"""``ackstream watch``, ``inflight``: what all planes do, and the requests that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ackstream.cli.console.arguments import AsJson, milliseconds
from ackstream.cli.console.terminal import Terminal, echo, echo_json
from ackstream.errors import AckstreamError

if TYPE_CHECKING:
    from ackstream.observe.feeds import Overview, Watching

REFRESH_SECONDS = 1.0
SHOWN = 20
"""The open requests in a table, unless ``--limit`` says otherwise."""


def watch(
    window: Annotated[str, typer.Option(help="How far back the recent counts reach.", metavar="DURATION")] = "60s",
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; the default when the output is not a terminal.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show live what all planes do: requests, jobs, publishers, readers, queues, dead letters, and their trends.

    Latency is measured from the request to its reply, by the broker's clock. Counting starts one window (at least the
    default timeout) before now; Ctrl-C stops it. Example: ackstream watch --once --json
    """
    from kafka.errors import AuthorizationError, KafkaError

    from ackstream.kafka.clients import failure
    from ackstream.observe.feeds import Watching
    from ackstream.settings import load

    span = milliseconds("--window", window)
    settings = load()
    console = Terminal()
    with Watching(settings, span) as watching:
        try:
            watching.read_to_end()
            if as_json or once or not console.is_terminal:
                _show(console, watching.now(), as_json=as_json)
                return
        except AuthorizationError as error:
            raise failure(settings.kafka, error) from None
        except KafkaError as error:
            raise AckstreamError(f"Kafka at {settings.kafka.bootstrap} is no longer available: {error}.") from None
        try:
            _watch(console, watching)
        except KeyboardInterrupt:
            raise typer.Exit from None


def _show(console: Terminal, watched: Overview, *, as_json: bool) -> None:
    from ackstream.cli.console.display import watch_screen

    if as_json:
        shown = watched._asdict()
        note = shown.pop("note")
        echo_json({**shown, "warning": note})
    else:
        console.print(watch_screen(watched))


def _watch(console: Terminal, watching: Watching) -> None:
    from rich.live import Live

    from ackstream.cli.console.display import watch_screen

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(watch_screen(watching.now()), refresh=True)
            watching.follow(REFRESH_SECONDS)


def inflight(
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Show so many at most, oldest first.  [default: {SHOWN}; all with --json]", metavar="N"
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the open requests, read from the checkpoint of the correlate job, whether or not it is running."""
    from ackstream.cli.console.display import inflight_table
    from ackstream.cli.console.session import quiet_session
    from ackstream.jobs.correlate.job import inflight as read
    from ackstream.observe.meter import epoch_milliseconds
    from ackstream.settings import load

    settings = load()
    with quiet_session(settings, "inflight") as spark:
        found: list[Any] = read(spark, settings)
    now = epoch_milliseconds()
    if as_json:
        for entry in found[:limit]:
            echo_json(entry)
        return
    shown = found[: limit or SHOWN]
    Terminal().print(inflight_table(shown, now) if found else "No request is open.")
    if len(found) > len(shown):
        echo(f"{len(found) - len(shown):,} more are open; --limit {len(found)} shows all.")
