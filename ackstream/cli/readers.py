"""``ackstream readers``: who reads publishers' messages, and how one that will not come back is removed."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from msgspec.structs import asdict

from ackstream.cli.console.arguments import AsJson, Timeout, milliseconds
from ackstream.cli.console.terminal import Terminal, data, echo_json

readers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Readers of publishers' messages.")


@readers.command()
def forget(
    name: Annotated[str, typer.Argument(help="The name of the reader.", metavar="NAME")], timeout: Timeout = "60s"
) -> None:
    """Remove a durable reader that will not come back: no writer waits for it any more.

    One that is running ends with an error. What its required roles have acknowledged still counts.
    """
    from ackstream.client import delete_durable_subscription
    from ackstream.settings import load

    console, seconds = Terminal(), milliseconds("--timeout", timeout) / 1000
    with console.status(data(f"Waiting for the settle job to remove {name}")):
        delete_durable_subscription(load().kafka, name=name, timeout=seconds)
    console.print(data(f"The reader {name} is removed."))


@readers.command("list")
def list_readers(timeout: Timeout = "60s", *, as_json: AsJson = False) -> None:
    """Show the readers, the one that was silent for longest first, and how much is kept for each."""
    from ackstream.cli.console.display import readers_table
    from ackstream.client import known_readers
    from ackstream.settings import load

    console, seconds = Terminal(), milliseconds("--timeout", timeout) / 1000
    with Terminal(stderr=True).status("Waiting for the settle job"):
        found = known_readers(load().kafka, timeout=seconds)
    if as_json:
        for reader in found:
            echo_json(asdict(reader))
        return
    console.print(readers_table(found, time.time_ns() // 1_000_000))
