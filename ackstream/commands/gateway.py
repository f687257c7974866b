"""``ackstream gateway`` and ``ackstream password``: things over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer
from rich.console import Console

from ackstream.errors import LocalError
from ackstream.gateway.passwords import hash_password
from ackstream.gateway.service import Server, connected
from ackstream.interrupts import Interrupts
from ackstream.settings import load


def register(app: typer.Typer) -> None:
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
