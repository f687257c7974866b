"""``ackstream up``, ``down``, ``status``, ``jars``, ``submit``: what a laptop needs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ackstream.errors import AckstreamError, LocalError, SettingsError
from ackstream.kafka import topics
from ackstream.local import jars, java, process
from ackstream.local.broker import Broker
from ackstream.local.submit import run, submit_command
from ackstream.settings import load

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.local.broker import Status
    from ackstream.settings import Settings

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (up, down, status):
        app.command()(command)
    app.command("jars")(_jars)
    app.command(context_settings={"ignore_unknown_options": True})(submit)


def up() -> None:
    """Start the one-node Kafka and create the topics."""
    settings = load()
    _check_bootstrap(settings)
    broker = Broker(settings)
    started = broker.start(Console(stderr=True))
    created = topics.ensure_topics(settings)
    typer.echo(f"Kafka {'is up' if started else 'was up already'} at {broker.bootstrap}; its log is {broker.log}")
    typer.echo(f"Topics: {len(topics.TOPICS)}, {len(created)} of them created now")


def down() -> None:
    """Stop the one-node Kafka; its data stay."""
    broker = Broker(load())
    if broker.stop():
        typer.echo(f"Kafka is stopped; its data stay in {broker.data}")
    else:
        typer.echo(f"Kafka was not running; its data are in {broker.data}")


def status() -> None:
    """Show what is there and what runs; exit 1 when Kafka does not answer."""
    settings = load()
    state = Broker(settings).status()
    table = Table("part", "state", box=None, pad_edge=False)
    table.add_row("Java", _java())
    for configuration in ("spark", "broker"):
        table.add_row(f"{configuration} jars", _fetched(jars.present(configuration)))
    table.add_row("Kafka", _kafka(state, settings.local.port))
    known = state.answers or not _is_local(settings)
    table.add_row("topics", _topics(settings) if known else "unknown while Kafka does not answer")
    table.add_row("data", str(state.data))
    table.add_row("log", str(state.log))
    Console(soft_wrap=True).print(table)
    raise typer.Exit(0 if state.answers else 1)


def _jars(
    configurations: Annotated[
        list[str] | None, typer.Argument(help="`spark` (also when none is named), `broker`.", metavar="CONFIGURATION…")
    ] = None,
    *,
    comma: Annotated[
        bool, typer.Option(help="One line, separated by commas, as --jars of spark-submit wants it.")
    ] = False,
) -> None:
    """Fetch the JVM jars where they are missing, and print their paths."""
    console = Console(stderr=True)
    found: list[Path] = []
    for name in configurations or ["spark"]:
        if name not in ("spark", "broker"):
            raise LocalError(f"There is no jar configuration {name!r}: write spark or broker.")
        found += jars.resolve("spark" if name == "spark" else "broker", console)
    typer.echo(("," if comma else "\n").join(map(str, found)))


def submit(
    job: Annotated[str, typer.Argument(help="A script of jobs/, such as correlate.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the job gets.", metavar="ARGUMENT…")] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the spark-submit line and do not run it.")] = False,
) -> None:
    """Print the whole spark-submit line of a job, and run it."""
    command = submit_command(load(), job, *(arguments or ()), console=Console(stderr=True))
    typer.echo(shlex.join(command), err=not dry_run)
    if not dry_run:
        run(command)


def _check_bootstrap(settings: Settings) -> None:
    """Refuse to start one broker and to create topics on another."""
    if not _is_local(settings):
        raise SettingsError(
            f"kafka.bootstrap is {settings.kafka.bootstrap}, but `ackstream up` starts Kafka at "
            f"localhost:{settings.local.port}: set one of kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP) and local.port "
            f"(ACKSTREAM_LOCAL_PORT) to agree with the other."
        )


def _is_local(settings: Settings) -> bool:
    host, _, port = settings.kafka.bootstrap.rpartition(":")
    return host in _LOCAL_HOSTS and port == str(settings.local.port)


def _kafka(state: Status, port: int) -> str:
    if state.pid:
        return f"process {state.pid}, {'answers' if state.answers else 'does not answer'} at {state.bootstrap}"
    other = "" if process.is_free(port) else f"; port {port} is in use by {process.owner(port) or 'another program'}"
    return f"not running{other}"


def _java() -> str:
    try:
        found = java.find()
    except LocalError as error:
        return str(error)
    return f"{found.release}, {found.program}"


def _fetched(found: list[Path]) -> str:
    return f"{len(found)} fetched" if found else "not fetched yet; `ackstream jars` or the first use does it"


def _topics(settings: Settings) -> str:
    try:
        with topics.admin(settings) as client:
            existing = set(client.list_topics())
    except AckstreamError as error:
        return str(error)
    missing = [name for name in topics.TOPICS if settings.kafka.topic(name) not in existing]
    return f"{len(topics.TOPICS) - len(missing)}" + (f"; missing: {', '.join(missing)}" if missing else "")
