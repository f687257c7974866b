"""``ackstream gateway``, ``connect``, ``route``: they run until they are interrupted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import typer

from ackstream.cli.console.terminal import Terminal
from ackstream.errors import LocalError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.transport import Runner
    from ackstream.settings import Settings


def gateway() -> None:
    """Serve things over HTTP and WebSocket, and a live page of all requests; Ctrl-C stops it."""
    import asyncio

    from ackstream.cli.console.interrupts import Interrupts
    from ackstream.gateway.dependencies import connected
    from ackstream.gateway.server import Server
    from ackstream.observe.endpoint import serving

    settings = _logged("gateway")

    def print_address(address: str) -> None:
        line = f"The gateway is at {address}: things at /api/2/things, /ws/2; the live page at /, the API at /doc."
        Terminal(stderr=True, soft_wrap=True).print(line, highlight=False)

    with serving(settings.metrics, "gateway"), connected(settings) as dependencies:
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
    from ackstream.connectivity.connector import Connector

    settings = _logged("connect")
    connections = settings.connections
    names = [connection.id for connection in connections]
    _run(settings, "connect", "connections", names, lambda: Connector(settings, connections))


def route() -> None:
    """Run the routes of the settings: publishers' messages are passed on to other systems. Ctrl-C stops it."""
    from ackstream.connectivity.routes import Router

    settings = _logged("route")
    names = [route.name for route in settings.routes]
    _run(settings, "route", "routes", names, lambda: Router(settings, settings.routes))


def _run(settings: Settings, program: str, key: str, names: list[str], begin: Callable[[], Runner]) -> None:
    from ackstream.cli.console.interrupts import Interrupts
    from ackstream.observe.endpoint import serving

    if not names:
        raise SettingsError(f"The settings define no {key}: add [[{key}]], see conf/ackstream.toml.")
    _quiet()
    console = Terminal(stderr=True)
    with Interrupts(), serving(settings.metrics, program), begin() as runner:
        console.print(f"Running {', '.join(names)}. Ctrl-C stops it.")
        try:
            runner.run()
        except KeyboardInterrupt:
            console.print("Closing.")


def _logged(program: str) -> Settings:
    """Read the settings, and let the process log as they say."""
    from ackstream.observe import logs
    from ackstream.settings import Log, load

    # what is wrong with the settings is logged, too
    logs.configure(Log(), program=program)
    settings = load()
    logs.configure(settings.log, program=program)
    return settings


def _quiet() -> None:
    # other systems are away now and then: the program itself says so, and when it tries again
    logging.getLogger("kafka").setLevel(logging.ERROR)
