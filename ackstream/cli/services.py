"""``ackstream gateway``, ``connect``, ``route``: they run until they are interrupted."""

from __future__ import annotations

import logging
import threading

import typer

from ackstream.cli.console.terminal import Terminal, log_here
from ackstream.errors import LocalError, SettingsError


def gateway() -> None:
    """Serve things over HTTP and WebSocket, and a live page of all requests; Ctrl-C stops it."""
    import asyncio

    from ackstream.cli.console.interrupts import Interrupts
    from ackstream.gateway.server import Server
    from ackstream.gateway.service import connected
    from ackstream.settings import load

    log_here("%(levelname)s %(name)s: %(message)s", kafka=logging.WARNING)
    settings = load()

    def print_address(address: str) -> None:
        line = f"The gateway is at {address}: things at /api/2/things, /ws/2; the live page at /, the API at /doc."
        Terminal(stderr=True, soft_wrap=True).print(line, highlight=False)

    with connected(settings) as dependencies:
        try:
            with Interrupts():
                asyncio.run(Server(dependencies, print_address).serve())
        except SystemExit:
            # uvicorn has logged the reason
            host, port = settings.gateway.host, settings.gateway.port
            raise LocalError(
                f"The gateway cannot listen at {host}:{port}: stop the program that uses the port, or choose another "
                f"one with gateway.port (ACKSTREAM_GATEWAY_PORT)."
            ) from None
        except KeyboardInterrupt:
            raise typer.Exit from None


def connect() -> None:
    """Run the connections of the settings: commands come in, events and messages go out. Ctrl-C stops it."""
    from ackstream.cli.console.interrupts import Interrupts
    from ackstream.connectivity.connector import Connector
    from ackstream.settings import load

    settings = load()
    connections = settings.connections
    if not connections:
        raise SettingsError("The settings define no connections: add [[connections]], see conf/ackstream.toml.")
    log_here("%(asctime)s %(levelname)s %(message)s", kafka=logging.ERROR)
    console = Terminal(stderr=True)
    with Interrupts(), Connector(settings, connections) as connector:
        console.print(f"Running {', '.join(connection.id for connection in connections)}. Ctrl-C stops it.")
        try:
            connector.run(threading.Event())
        except KeyboardInterrupt:
            console.print("Closing.")


def route() -> None:
    """Run the routes of the settings: publishers' messages are passed on to other systems. Ctrl-C stops it."""
    from ackstream.cli.console.interrupts import Interrupts
    from ackstream.connectivity.routes import Router
    from ackstream.settings import load

    settings = load()
    if not settings.routes:
        raise SettingsError("The settings define no routes: add [[routes]], see conf/ackstream.toml.")
    log_here("%(asctime)s %(levelname)s %(message)s", kafka=logging.ERROR)
    console = Terminal(stderr=True)
    with Interrupts(), Router(settings, settings.routes) as router:
        console.print(f"Running {', '.join(route.name for route in settings.routes)}. Ctrl-C stops it.")
        try:
            router.run()
        except KeyboardInterrupt:
            console.print("Closing.")
