"""``ackstream demo``, ``gateway``, ``password``, ``connect`` and ``conformance``."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import Annotated

import typer
from rich.console import Console

from ackstream.errors import LocalError, SettingsError
from ackstream.settings import load

INTERRUPTED = 130
"""The exit code that shells expect of a program ended by Ctrl-C."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (demo, gateway, password, connect, conformance):
        app.command()(command)


def demo(
    commands: Annotated[int, typer.Option(min=1, help="Number of commands to send.")] = 2_000,
    rate: Annotated[float, typer.Option(min=1, max=2_000, help="Commands per second.")] = 50,
) -> None:
    """Send commands to simulated devices and show how they end; exit 1 if the counts do not add up.

    Kafka is started unless `ackstream up` has already done so. All data is kept in the directory `demo` of the local
    data. Nothing keeps running afterwards; the Delta tables stay.
    """
    from ackstream.cli.demo.run import demo as run  # noqa: PLC0415 - Spark and pandas load slowly

    console = Console()
    try:
        good = run(load(), console, commands, rate)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if good else 1)


def gateway() -> None:
    """Serve things over HTTP and WebSocket, and a live page of all requests; Ctrl-C stops it."""
    from ackstream.cli.terminal import Interrupts  # noqa: PLC0415 - only the commands that serve need these
    from ackstream.gateway.service import Server, connected  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings = load()
    with connected(settings) as dependencies:
        try:
            with Interrupts():
                asyncio.run(Server(dependencies, _print_address).serve())
        except SystemExit:
            # uvicorn has logged the reason
            host, port = settings.gateway.host, settings.gateway.port
            raise LocalError(
                f"The gateway cannot listen at {host}:{port}: stop the program that uses the port, or choose another "
                f"one with gateway.port (ACKSTREAM_GATEWAY_PORT)."
            ) from None
        except KeyboardInterrupt:
            raise typer.Exit from None


def _print_address(address: str) -> None:
    line = f"The gateway is at {address}: things at /api/2/things, /ws/2; the live page at /, the API at /doc."
    Console(stderr=True, soft_wrap=True).print(line, highlight=False)


def password(
    text: Annotated[str, typer.Option("--password", prompt="Password", hide_input=True, confirmation_prompt=True)],
) -> None:
    """Print the hash of a password, for gateway.users in the settings."""
    from ackstream.gateway.authentication import hash_password  # noqa: PLC0415

    typer.echo(hash_password(text))


def connect() -> None:
    """Run all [[connections]] of the settings: commands come in, events and messages go out. Ctrl-C stops it."""
    from ackstream.cli.terminal import Interrupts  # noqa: PLC0415
    from ackstream.connectivity.connector import Connector  # noqa: PLC0415

    settings = load()
    connections = settings.connections
    if not connections:
        raise SettingsError("The settings define no connections: add [[connections]], see conf/ackstream.toml.")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(stderr=True)
    with Interrupts(), Connector(settings, connections) as connector:
        console.print(f"Running {', '.join(connection.id for connection in connections)}. Ctrl-C stops it.")
        try:
            connector.run(threading.Event())
        except KeyboardInterrupt:
            console.print("Closing.")


def conformance(
    paths: Annotated[
        list[Path], typer.Argument(help="Case files (JSON Lines), or directories of them.", metavar="PATH…")
    ],
) -> None:
    """Run Ditto Protocol cases against the library; exit 1 if one fails or its kind is unknown."""
    from ackstream.conformance import main  # noqa: PLC0415

    raise typer.Exit(main(paths))
