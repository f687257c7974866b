"""``ackstream connect``: the connections of the settings."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from rich.console import Console

from ackstream.connectivity.connector import Connector
from ackstream.errors import SettingsError
from ackstream.interrupts import Interrupts
from ackstream.settings import load

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
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
