"""``ackstream demo``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from ackstream.settings import load

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    commands: Annotated[int, typer.Option(min=1, help="So many commands are sent.")] = 2_000,
    rate: Annotated[float, typer.Option(min=1, max=2_000, help="So many a second.")] = 50,
) -> None:
    """Send commands to simulated devices and show what becomes of them; exit 1 where the counts do not add up.

    Kafka is started where `ackstream up` has not done so; everything is below the directory `demo` of the local data,
    and nothing is left running. The Delta tables stay.
    """
    from ackstream.cli.demo.run import demo as run  # noqa: PLC0415 - Spark and pandas load slowly

    console = Console()
    try:
        good = run(load(), console, commands, rate)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if good else 1)
