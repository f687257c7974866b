"""``ackstream up``, ``down``, ``status``, ``jars``, ``submit``: run the product on one machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from ackstream.cli.console.terminal import PlainTable, Terminal, echo
from ackstream.errors import AckstreamError, LocalError, SettingsError
from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin
from ackstream.local import installation, jars, process
from ackstream.local.broker import Broker
from ackstream.local.secured import SecuredBroker
from ackstream.local.submit import MASKED, archive_classes, run, submit_command
from ackstream.settings import load

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.settings import Settings

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def up(
    *,
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS, and a login and ACLs for each party; prints the settings files.")
    ] = False,
) -> None:
    """Start a one-node Kafka and create the topics."""
    settings = load()
    if not _is_local(settings):
        # one broker would be started, and the topics created on another
        raise SettingsError(
            f"kafka.bootstrap is {settings.kafka.bootstrap}, but `ackstream up` starts Kafka at "
            f"localhost:{settings.local.port}: set one of kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP) and local.port "
            f"(ACKSTREAM_LOCAL_PORT) to agree with the other."
        )
    broker = SecuredBroker(settings) if secure else Broker(settings)
    running = _broker(settings)
    if type(running) is not type(broker) and running.pid() is not None:
        raise LocalError(f"Kafka runs {'without' if secure else 'with'} --secure: stop it first with `ackstream down`.")
    started = broker.start(Terminal(stderr=True))
    if isinstance(broker, SecuredBroker):
        settings = broker.as_operator(settings)
    created = topics.ensure_topics(settings)
    echo(f"Kafka {'is up' if started else 'was already up'} at {broker.bootstrap}; its log is {broker.log}")
    echo(f"Topics: {len(topics.TOPICS)}, {len(created)} of them new")
    if isinstance(broker, SecuredBroker):
        files = broker.admit(settings)
        echo(f"Settings of {len(files)} parties: export ACKSTREAM_CONF={files[0]}, or another one of them:")
        echo("  " + ", ".join(file.name for file in files))


def down() -> None:
    """Stop the one-node Kafka and keep its data."""
    broker = _broker(load())
    if broker.stop():
        echo(f"Kafka is stopped; its data stays in {broker.data}")
    else:
        echo(f"Kafka was not running; its data is in {broker.data}")


def status() -> None:
    """Show what is installed and running; exit 1 if Kafka does not respond."""
    settings = load()
    broker = _broker(settings)
    answers, port = broker.answers(), settings.local.port
    table = PlainTable("part", "state")
    table.add_row("Java", _java())
    for configuration in ("spark", "broker"):
        found = jars.present(configuration)
        missing = "not downloaded yet; `ackstream jars` or the first use does it"
        table.add_row(f"{configuration} jars", f"{len(found)} downloaded" if found else missing)
    if pid := broker.pid():
        kafka = f"process {pid}, {'responding' if answers else 'not responding'} at {broker.bootstrap}"
    else:
        user = "" if process.is_free(port) else process.owner(port) or "another program"
        kafka = "not running" + (f"; port {port} is in use by {user}" if user else "")
    table.add_row("Kafka", kafka)
    known = answers or not _is_local(settings)
    table.add_row("topics", _topics(settings) if known else "unknown while Kafka does not respond")
    table.add_row("data", str(broker.data))
    table.add_row("log", str(broker.log))
    Terminal(soft_wrap=True).print(table)
    raise typer.Exit(0 if answers else 1)


def print_jars(
    configurations: Annotated[
        list[str] | None, typer.Argument(help="`spark` (the default) or `broker`.", metavar="CONFIGURATION…")
    ] = None,
    *,
    comma: Annotated[bool, typer.Option(help="One comma-separated line, as spark-submit --jars expects it.")] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help="Also archive their classes: once 40 s, then jobs start in half the time.")
    ] = False,
) -> None:
    """Download missing JVM jars and print the paths of all."""
    console = Terminal(stderr=True)
    found: list[Path] = []
    for name in configurations or ["spark"]:
        if name not in ("spark", "broker"):
            raise LocalError(f"Unknown jar configuration {name!r}: use spark or broker.")
        found += jars.resolve("spark" if name == "spark" else "broker", console)
    echo(("," if comma else "\n").join(map(str, found)))
    if archive:
        with console.status("Archiving the classes that Spark drivers load"):
            written = archive_classes()
        if not written:
            raise LocalError("This Java writes no archive of classes; jobs run without one, but start more slowly.")


def submit(
    job: Annotated[str, typer.Argument(help="The name of a script in jobs/, such as correlate.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments for the job.", metavar="ARGUMENT…")] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the spark-submit command.")] = False,
) -> None:
    """Print the complete spark-submit command of a job and run it."""
    settings = load()
    command = submit_command(settings, job, *(arguments or ()), console=Terminal(stderr=True))
    echo(shlex.join(command), err=not dry_run)
    for key in settings.spark.conf:
        echo(f"  {key}={MASKED}", err=True)
    if not dry_run:
        run(command)


def _broker(settings: Settings) -> Broker:
    """Return the local Kafka that runs; without one, that of a plain `ackstream up`."""
    secured = SecuredBroker(settings)
    return Broker(settings) if secured.pid() is None else secured


def _is_local(settings: Settings) -> bool:
    host, _, port = settings.kafka.bootstrap.rpartition(":")
    return host in _LOCAL_HOSTS and port == str(settings.local.port)


def _java() -> str:
    try:
        found = installation.find_java()
    except LocalError as error:
        return str(error)
    return f"{found.release}, {found.program}"


def _topics(settings: Settings) -> str:
    try:
        with connect_admin(settings.kafka) as client:
            existing = set(client.list_topics())
    except AckstreamError as error:
        return str(error)
    missing = [name for name in topics.TOPICS if settings.kafka.topic(name) not in existing]
    return f"{len(topics.TOPICS) - len(missing)}" + (f"; missing: {', '.join(missing)}" if missing else "")
