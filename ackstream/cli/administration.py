"""Commands of operators: the local Kafka, settings, jars, rights and dead letters."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ackstream.cli.terminal import NO_ANSWER, AsJson, Terminal, echo, echo_json, load
from ackstream.errors import AckstreamError, InputError, LocalError, SettingsError
from ackstream.local import machine

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.settings import Settings

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_CONFIGURATIONS = ("spark", "broker")
SHOWN = 10
"""Maximum number of ids in a line."""


def up(
    *,
    secure: Annotated[
        bool, typer.Option("--secure", help="Use TLS, and a login and ACLs per party; print the settings files.")
    ] = False,
) -> None:
    """Start a one-node Kafka, and create its topics and those that correlate.request_topics names literally."""
    from ackstream.kafka import topics
    from ackstream.kafka.parties import OPERATOR

    settings = load()
    if not _is_local(settings):
        # else one broker would be started, and the topics created on another
        raise SettingsError(
            f"kafka.bootstrap is {settings.kafka.bootstrap}, but `ackstream up` starts Kafka at "
            f"localhost:{settings.local.port}: set one of kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP) and local.port "
            f"(ACKSTREAM_LOCAL_PORT) to agree with the other."
        )
    broker = _secured(settings) if secure else _plain(settings)
    running = _broker(settings)
    if type(running) is not type(broker) and running.pid() is not None:
        raise LocalError(f"Kafka runs {'without' if secure else 'with'} --secure: stop it first with `ackstream down`.")
    started = broker.start(Terminal(stderr=True))
    settings = broker.as_user(settings, OPERATOR)
    names = [*topics.TOPICS, *topics_of_applications(settings)]
    created = machine.shared_with_tests("demo/broker.py").create_topics(settings, names)
    echo(f"Kafka {'is up' if started else 'was already up'} at {broker.bootstrap}; its log is {broker.log}")
    echo(f"Topics: {len(names)}, {len(created)} of them new")
    if files := broker.admit(settings):
        echo(f"Settings of {len(files)} parties: export ACKSTREAM_CONF={files[0]}, or another one of them:")
        echo("  " + ", ".join(file.name for file in files))


def topics_of_applications(settings: Settings) -> list[str]:
    """Return the topics that patterns of correlate name literally: by letters, digits, hyphens and escaped dots."""
    from ackstream.kafka.topics import system_topics
    from ackstream.settings.kafka import real

    patterns = {*settings.correlate.request_topics, *settings.correlate.ack_topics}
    literal = [one.replace("\\", "") for one in patterns if re.fullmatch(r"([\w-]|\\\.)+", one, re.ASCII)]
    return [real(name) for name in sorted(literal) if name not in system_topics(settings.kafka)]


def down() -> None:
    """Stop the one-node Kafka and keep its data."""
    broker = _broker(load())
    if broker.stop():
        echo(f"Kafka is stopped; its data stays in {broker.data}")
    else:
        echo(f"Kafka was not running; its data is in {broker.data}")


def status(*, as_json: AsJson = False) -> None:
    """Show settings file, installed parts and state of Kafka."""
    from ackstream.local import jars
    from ackstream.settings.loading import DEFAULT_FILE, settings_file

    settings, file = load(), settings_file()
    parts = {
        "settings": str(file.absolute())
        if file is not None
        else f"the defaults: there is no {DEFAULT_FILE} here; `ackstream settings` prints one",
        "Java": _java(),
    }
    for configuration in _CONFIGURATIONS:
        found = jars.present(configuration)
        missing = f"not downloaded yet; `ackstream jars {configuration}` or the first use does it"
        parts[f"{configuration} jars"] = f"{len(found)} downloaded" if found else missing
    topics = _topics(settings)
    responds = not isinstance(topics, AckstreamError)
    bootstrap = settings.kafka.bootstrap
    if _is_local(settings):
        broker = _broker(settings)
        parts["Kafka"] = _local_kafka(broker, bootstrap, settings.local.port, responds=responds)
        parts |= {"data": str(broker.data), "log": str(broker.log)}
    else:
        parts["Kafka"] = f"{'responding' if responds else 'not responding'} at {bootstrap}"
    parts |= {"topics": str(topics), "lake": settings.lake.path, "checkpoints": settings.lake.checkpoints}
    if as_json:
        echo_json(parts | {"responds": responds})
    else:
        for part, state in parts.items():
            echo(f"{part:<{max(map(len, parts))}}  {state}")
    raise typer.Exit(0 if responds else NO_ANSWER)


def print_settings() -> None:
    """Print a settings file with all keys, defaults and comments.

    Example: ackstream settings > ackstream.toml && ackstream --settings ackstream.toml status
    """
    echo(machine.conf("ackstream.toml").read_text("utf-8").rstrip())


def print_jars(
    configurations: Annotated[
        list[str] | None, typer.Argument(help="`spark` (the default) or `broker`.", metavar="CONFIGURATION")
    ] = None,
    *,
    comma: Annotated[
        bool, typer.Option("--comma", help="One comma-separated line, as for spark-submit --jars.")
    ] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help="Archive classes: once 40 s, then jobs start in half the time.")
    ] = False,
) -> None:
    """Download missing JVM jars and print all paths."""
    from ackstream.local import jars, submit

    console = Terminal(stderr=True)
    found: list[Path] = []
    for name in configurations or _CONFIGURATIONS[:1]:
        if name not in _CONFIGURATIONS:
            raise InputError(f"Unknown jar configuration {name!r}: use {' or '.join(_CONFIGURATIONS)}.")
        found += jars.resolve(name, console)
    echo(("," if comma else "\n").join(map(str, found)))
    if archive:
        with console.status("Archiving the classes that Spark drivers load"):
            written = submit.archive_classes()
        if not written:
            raise LocalError("This Java writes no archive of classes; jobs run without one, but start more slowly.")


def _broker(settings: Settings) -> Any:
    """Return the local Kafka that runs; if none runs, that of a plain `ackstream up`."""
    secured = _secured(settings)
    return _plain(settings) if secured.pid() is None else secured


def _plain(settings: Settings) -> Any:
    return machine.shared_with_tests("demo/broker.py").Broker(settings)


def _secured(settings: Settings) -> Any:
    return machine.shared_with_tests("demo/secured.py").SecuredBroker(settings)


def _is_local(settings: Settings) -> bool:
    host, _, port = settings.kafka.bootstrap.rpartition(":")
    return host in _LOCAL_HOSTS and port == str(settings.local.port)


def _java() -> str:
    try:
        found = machine.find_java()
    except LocalError as error:
        return str(error)
    return f"{found.release}, {found.program}"


def _local_kafka(broker: Any, bootstrap: str, port: int, *, responds: bool) -> str:
    if pid := broker.pid():
        return f"process {pid}, {'responding' if responds else 'not responding'} at {bootstrap}"
    if machine.is_free(port):
        return "not running"
    user = machine.owner(port) or "another program"
    if responds:
        return f"responding at {bootstrap}: {user}, which was not started from here"
    return f"not running; port {port} is in use by {user}"


def _topics(settings: Settings) -> str | AckstreamError:
    """Return how many topics there are; the error if Kafka does not respond."""
    from ackstream.kafka import topics
    from ackstream.kafka.clients import connect_admin

    if _is_local(settings) and not machine.answers(settings.local.port):
        return LocalError("unknown while Kafka does not respond")
    try:
        with connect_admin(settings.kafka) as client:
            existing = set(client.list_topics())
    except AckstreamError as error:
        return error
    missing = [name for name in topics.TOPICS if settings.kafka.topic(name) not in existing]
    further = f"; missing, or hidden from this login: {', '.join(missing)}" if missing else ""
    return f"{len(topics.TOPICS) - len(missing)}{further}"


def acls(
    principals: Annotated[
        list[str] | None,
        typer.Argument(
            help="Principal of a party, such as correlate=User:CN=correlate; default User:, kafka.topic_prefix, party.",
            metavar="PARTY=PRINCIPAL",
        ),
    ] = None,
    *,
    party: Annotated[
        list[str] | None,
        typer.Option(help="Party; repeatable; default all but the operator.", metavar="PARTY"),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Set them, and create missing topics.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the commands that grant each party its least rights, or set these ACLs.

    JSON: the grants of each principal, or the changes of --apply, which needs an operator's login. Further rights of a
    principal are listed, and stay.
    """
    from ackstream.kafka import parties
    from ackstream.kafka.parties import PARTIES
    from ackstream.kafka.topics import ensure_topics

    settings = load()
    given = dict(text.partition("=")[::2] for text in principals or ())
    who = parties.principals(settings, given)
    names = parties.chosen(party or list(PARTIES))
    if not apply:
        if as_json:
            for name in names:
                for grant in parties.grants(settings, name):
                    echo_json({"party": name, "principal": who[name], **grant._asdict()})
        else:
            for command in parties.acl_commands(settings, who, names):
                echo(command)
        return
    created = ensure_topics(settings)
    added, further = parties.apply_acls(settings, who, names)
    if as_json:
        echo_json({"new_topics": len(created), "new_acls": added, "further": further})
        return
    echo(f"Topics: {len(created)} of them new. ACLs: {added} of them new.")
    if further:
        echo("These principals have more rights than they need, which stay unchanged:", err=True)
        for line in further:
            echo(f"  {line}", err=True)


def password() -> None:
    """Print the hash of a password, for gateway.users in the settings.

    From the terminal, or the first line of standard input: `ackstream password < file`.
    """
    from ackstream.gateway.access.passwords import hash_password

    if sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise InputError("The password is empty: write it at the prompt, or into the first line of standard input.")
    echo(hash_password(text))


def register() -> None:
    """Register the Delta tables, and the predefined questions as views, in the catalog of lake.catalog.

    Repeat it after an upgrade and when a job has made new tables.
    """
    from ackstream.lake import maintenance
    from ackstream.spark.session import quiet_session

    settings = load()
    with quiet_session(settings, "register") as spark:
        tables, views = maintenance.register(spark, settings.lake)
    echo(f"{settings.lake.catalog} has {tables} tables and {views} views.")


def redrive(
    where: Annotated[str, typer.Argument(help="Condition on dead letters in SQL; true for all.", metavar="SQL")],
    *,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Dead letter topic of share groups, Kafka Connect or Spring instead of the tables.",
            metavar="TOPIC",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Kafka topic for all, instead of their own.", metavar="TOPIC")] = None,
    rate: Annotated[str, typer.Option(help="Maximum letters per second.", metavar="N/s")] = "50/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many would be sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters to their origin, each once, even if the command is killed and run again.

    Columns: id, reason, queue, subject, topic, partition, given_up_at, deliveries, correlation_id; with --from: id,
    reason, topic, partition, given_up_at, key, value. Exit 1 if many come back.
    Example: ackstream redrive "queue = 'orders'"
    """
    from ackstream.redriving import redrive as run

    try:
        number = float(rate.removesuffix("/s"))
    except ValueError:
        raise InputError(f"--rate is {rate!r}: write the number of letters a second, such as 50/s.") from None
    console = Terminal(stderr=True)
    with console.status("Reading the dead letters") as status:
        report = run(
            load(), where=where, source=source, to=to, rate=number, dry_run=dry_run,
            progress=lambda so_far: status.update(f"{so_far.redriven:,} of {so_far.chosen - so_far.earlier:,} sent"),
        )  # fmt: skip
    if as_json:
        echo_json(asdict(report))
        return
    verb = "would be" if dry_run else "were"
    back = f" {report.returned:,} of them are dead letters again: remove the cause first." if report.returned else ""
    echo(f"{report.redriven:,} of {report.chosen:,} {verb} sent; {report.earlier:,} were sent before.{back}")
    if not report.chosen:
        hint = "`ackstream outcomes dead-letters-by-reason` lists reasons, to compare by LIKE 'timeout.invalid%'"
        echo(f"No dead letter meets the condition: {hint}.", err=True)
    if report.unavailable:
        shown = ", ".join(report.unavailable[:SHOWN]) + (", …" if len(report.unavailable) > SHOWN else "")
        echo(f"{len(report.unavailable):,} cannot be sent, see docs/operate/recovery.md: {shown}", err=True)
