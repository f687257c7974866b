"""The ``ackstream`` command: the program itself, and the commands that run until they are done or interrupted."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from ackstream.cli import access, local, monitoring, send
from ackstream.cli.console.display import readers_table
from ackstream.cli.console.session import Interrupts
from ackstream.cli.console.terminal import Terminal, data, echo, log_here, show_error
from ackstream.errors import AckstreamError, LocalError, SettingsError
from ackstream.local.process import keep_private
from ackstream.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130
"""The exit code that shells expect of a program ended by Ctrl-C."""


class Commands(TyperGroup):
    """Prints a product error as its sentence, in red on standard error, without a stack trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit 2 for a wrong setting or option, 1 for any other product error."""
        keep_private()
        sys.excepthook = show_error
        try:
            return super().invoke(ctx)
        except AckstreamError as error:
            Terminal(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
            raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Durable acknowledgements for commands over Kafka.",
)


@app.command()
def demo(
    commands: Annotated[int, typer.Option(min=1, help="Number of commands to send.")] = 2_000,
    rate: Annotated[float, typer.Option(min=1, max=2_000, help="Commands per second.")] = 50,
    *,
    secure: Annotated[bool, typer.Option("--secure", help="With TLS, and a login and ACLs for each party.")] = False,
) -> None:
    """Send commands to simulated devices and show how they end; exit 1 if the counts do not add up.

    Kafka is started unless `ackstream up` has already done so. All data is kept in the directory `demo` of the local
    data. Nothing keeps running afterwards; the Delta tables stay.
    """
    from ackstream.cli.demo.run import demo as run  # noqa: PLC0415 - Spark and pandas load slowly

    console = Terminal()
    try:
        good = run(load(), console, commands, rate, secure=secure)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if good else 1)


@app.command()
def gateway() -> None:
    """Serve things over HTTP and WebSocket, and a live page of all requests; Ctrl-C stops it."""
    from ackstream.gateway.server import Server  # noqa: PLC0415 - loads slowly
    from ackstream.gateway.service import connected  # noqa: PLC0415

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


@app.command()
def password(
    text: Annotated[str, typer.Option("--password", prompt="Password", hide_input=True, confirmation_prompt=True)],
) -> None:
    """Print the hash of a password, for gateway.users in the settings."""
    from ackstream.gateway.passwords import hash_password  # noqa: PLC0415

    echo(hash_password(text))


@app.command()
def connect() -> None:
    """Run the connections of the settings: commands come in, events and messages go out. Ctrl-C stops it."""
    from ackstream.connectivity.connector import Connector  # noqa: PLC0415

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


@app.command()
def route() -> None:
    """Run the routes of the settings: publishers' messages are passed on to other systems. Ctrl-C stops it."""
    from ackstream.connectivity.routes import Router  # noqa: PLC0415

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


@app.command()
def conformance(
    paths: Annotated[
        list[Path], typer.Argument(help="Case files (JSON Lines), or directories of them.", metavar="PATH…")
    ],
) -> None:
    """Run Ditto Protocol cases against the library; exit 1 if one fails or its kind is unknown."""
    from ackstream.conformance.runner import main  # noqa: PLC0415

    raise typer.Exit(main(paths))


readers = typer.Typer(no_args_is_help=True, help="Readers of publishers' messages.")
app.add_typer(readers, name="readers")


@readers.command()
def forget(
    name: Annotated[str, typer.Argument(help="The name of the reader.")],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the settle job.")] = 60,
) -> None:
    """Remove a durable reader that will not come back: no writer waits for it any more.

    One that is running ends with an error. What its required roles have acknowledged still counts.
    """
    from ackstream.client import delete_durable_subscription  # noqa: PLC0415

    console = Terminal()
    with console.status(data(f"Waiting for the settle job to remove {name}")):
        delete_durable_subscription(load().kafka, name, timeout)
    console.print(data(f"The reader {name} is removed."))


@readers.command("list")
def list_readers(
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the settle job.")] = 60,
) -> None:
    """Show the readers, the one that was silent for longest first, and how much is kept for each."""
    from ackstream.client import known_readers  # noqa: PLC0415

    console = Terminal()
    with console.status("Waiting for the settle job"):
        found = known_readers(load().kafka, timeout)
    console.print(readers_table(found, time.time_ns() // 1_000_000))


# in the order of the help text
command: Callable[..., None]
for command in (local.up, local.down, local.status):
    app.command()(command)
app.command()(access.acls)
app.command("jars")(local.print_jars)
app.command(context_settings={"ignore_unknown_options": True})(local.submit)
for command in (
    send.send,
    monitoring.watch,
    monitoring.inflight,
    monitoring.outcomes,
    monitoring.maintain,
    monitoring.migrate,
):
    app.command()(command)
