"""``ackstream gateway`` and ``ackstream password``: things over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import Annotated

import typer
from rich.console import Console

from ackstream import conformance
from ackstream.cli.terminal import Interrupts
from ackstream.connectivity.connector import Connector
from ackstream.errors import LocalError, SettingsError
from ackstream.gateway.authentication import hash_password
from ackstream.gateway.service import Server, connected
from ackstream.settings import load


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    register_gateway(app)
    register_connect(app)
    register_conformance(app)


def register_gateway(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gateway)
    app.command()(password)


def gateway() -> None:
    """Serve things over HTTP and WebSocket, and a live page about all requests; Ctrl-C ends it."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings = load()
    with connected(settings) as dependencies:
        try:
            with Interrupts():
                asyncio.run(Server(dependencies, _tell).serve())
        except SystemExit:
            # uvicorn has logged why
            host, port = settings.gateway.host, settings.gateway.port
            raise LocalError(
                f"The gateway cannot listen at {host}:{port}: end what uses the port, or choose another with "
                f"gateway.port (ACKSTREAM_GATEWAY_PORT)."
            ) from None
        except KeyboardInterrupt:
            raise typer.Exit from None


def _tell(address: str) -> None:
    line = f"The gateway is at {address}: things at /api/2/things, /ws/2; the live page at /, the API at /doc."
    Console(stderr=True, soft_wrap=True).print(line, highlight=False)


def password(
    text: Annotated[str, typer.Option("--password", prompt="Password", hide_input=True, confirmation_prompt=True)],
) -> None:
    """Print the hash of a password, for gateway.users in the settings."""
    typer.echo(hash_password(text))


# -- ``ackstream connect``: the connections of the settings.


def register_connect(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(connect)


def connect() -> None:
    """Run all [[connections]] of the settings: commands come in, events and messages go out. Ctrl-C ends it."""
    settings = load()
    connections = settings.connections
    if not connections:
        raise SettingsError(
            "There are no connections: write [[connections]] into the settings, see conf/ackstream.toml."
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(stderr=True)
    with Interrupts(), Connector(settings, connections) as connector:
        console.print(f"Running {', '.join(connection.id for connection in connections)}. Ctrl-C ends it.")
        try:
            connector.run(threading.Event())
        except KeyboardInterrupt:
            console.print("Closing.")


# -- ``ackstream conformance``.


def register_conformance(app: typer.Typer) -> None:
    """Add the command."""
    app.command("conformance")(_conformance)


def _conformance(
    paths: Annotated[
        list[Path], typer.Argument(help="Case files (JSON Lines), or directories of them.", metavar="PATH…")
    ],
) -> None:
    """Run protocol cases through the library; exit 1 where one fails or its kind is unknown."""
    raise typer.Exit(conformance.main(paths))
