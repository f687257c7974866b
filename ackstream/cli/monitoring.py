"""``ackstream watch``, ``inflight``, ``outcomes``, ``maintain``, ``migrate``: requests, checkpoints and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from kafka.errors import AuthorizationError, KafkaError
from rich.live import Live

from ackstream.cli.console.display import inflight_table, result_table, watch_screen
from ackstream.cli.console.session import quiet_session
from ackstream.cli.console.terminal import PlainTable, Terminal, echo, echo_json
from ackstream.errors import AckstreamError, StartError
from ackstream.gateway.meter import LedgerFeed, Meter, epoch_milliseconds
from ackstream.kafka.clients import failure
from ackstream.lake import maintenance, questions, tables, things
from ackstream.lake.schemas import TABLES
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.settings import load

if TYPE_CHECKING:
    from ackstream.settings import Settings

REFRESH_SECONDS = 1.0


def watch(
    window: Annotated[str, typer.Option(help="How far back the recent counts reach.")] = "60s",
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; the default when the output is not a terminal.")
    ] = False,
) -> None:
    """Show live how requests end: counts, open requests, latencies, and the lag of the jobs.

    Latency is measured from the request to its reply, by the broker's clock. Counting starts one window (at least the
    default timeout) before now; Ctrl-C stops it.
    """
    settings = load()
    span = _milliseconds("--window", window)
    console = Terminal()
    meter = Meter(span)
    now = epoch_milliseconds()
    with LedgerFeed(settings, now - max(span, settings.correlate.default_timeout)) as feed:
        try:
            feed.read_to_end(meter)
            if once or not console.is_terminal:
                console.print(watch_screen(meter.snapshot(epoch_milliseconds()), feed.lags(), feed.warning()))
                return
        except AuthorizationError as error:
            raise failure(settings.kafka, error) from None
        except KafkaError as error:
            raise AckstreamError(f"Kafka at {settings.kafka.bootstrap} is no longer available: {error}.") from None
        try:
            _watch(console, meter, feed)
        except KeyboardInterrupt:
            raise typer.Exit from None


def _milliseconds(option: str, text: str) -> int:
    try:
        return Duration.parse(text).milliseconds
    except DittoError as error:
        raise AckstreamError(f"{option} is {text!r}: {error.message}") from None


def _watch(console: Terminal, meter: Meter, feed: LedgerFeed) -> None:
    lags = feed.lags()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                lags, note = feed.lags(), feed.warning()
            except KafkaError as error:
                note = f"Kafka does not respond: {error}"
            live.update(watch_screen(meter.snapshot(epoch_milliseconds()), lags, note), refresh=True)
            until = time.monotonic() + REFRESH_SECONDS
            while time.monotonic() < until:
                for record in feed.records():
                    meter.take(record.value, record.timestamp)


def inflight(
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of requests to show, oldest first.")] = 20,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print all fields, one JSON object per line.")] = False,
) -> None:
    """Show the open requests, read from the checkpoint of the correlate job, whether or not it is running."""
    from ackstream.jobs.correlate.inflight import inflight as read  # noqa: PLC0415 - pandas and Spark load slowly

    settings = load()
    with quiet_session(settings, "inflight") as spark:
        found = read(spark, settings)
    now = epoch_milliseconds()
    if as_json:
        for entry in found[:limit]:
            echo_json(entry)
        return
    Terminal().print(inflight_table(found[:limit], now) if found else "No request is open.")
    if len(found) > limit:
        echo(f"{len(found) - limit:,} more are open; --limit {len(found)} shows all.")


def outcomes(
    question: Annotated[str | None, typer.Argument(help="The question; without it, all are listed.")] = None,
    correlation_id: Annotated[str | None, typer.Argument(help="The request that `story` is about.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
) -> None:
    """Answer a predefined question from the Delta tables, such as which labels are slow or missing."""
    if question is None:
        table = PlainTable("question", "")
        for name in questions.QUESTIONS:
            table.add_row(name, questions.about(name))
        Terminal().print(table)
        return
    name = question.replace("-", "_")
    if name not in questions.QUESTIONS:
        raise AckstreamError(f"Unknown question {question!r}; the questions are {', '.join(questions.QUESTIONS)}.")
    about_one = "{correlation_id}" in questions.QUESTIONS[name]
    if about_one != (correlation_id is not None):
        raise AckstreamError(
            f"The question {name} is about one request: add its correlation-id."
            if about_one
            else f"The question {name} is about all requests: leave out the correlation-id."
        )
    columns, rows = ask(load(), name, correlation_id or "")
    if as_json:
        for row in rows:
            echo_json(dict(zip(columns, row, strict=True)))
    else:
        Terminal().print(result_table(columns, rows) if rows else "No rows match.")


def maintain(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables to maintain; all if omitted.", metavar="TABLE…")
    ] = None,
    *,
    journal: Annotated[
        str | None, typer.Option(help="Remove changes of things older than this, such as 90d; no state is lost.")
    ] = None,
    erase: Annotated[
        list[str] | None, typer.Option(help="Remove all changes of this deleted thing first.", metavar="THING")
    ] = None,
) -> None:
    """Compact the Delta tables and delete files no longer needed; the jobs may keep running.

    If a table fails, the others are maintained, and the exit code is 1.
    """
    settings = load()
    journal_ms = None if journal is None else _milliseconds("--journal", journal)
    with quiet_session(settings, "maintain") as spark:
        for thing_id in erase or ():
            things.erase(spark, settings.lake, thing_id)
        reports = maintenance.maintain(spark, settings, names or None, journal_ms=journal_ms)
    rows = [tuple(asdict(report).values())[:-1] for report in reports]
    Terminal().print(result_table(list(asdict(reports[0]))[:-1], rows))
    failed = [report for report in reports if report.failure]
    for report in failed:
        echo(f"The table {report.table} was not maintained: {report.failure} Try again later.", err=True)
    if failed:
        raise typer.Exit(1)


def migrate(
    job: Annotated[str, typer.Argument(help="The stopped job: correlate, settle or queues.", metavar="JOB")],
) -> None:
    """Move the checkpoint of a stopped job to other shards, shuffle partitions or another state store.

    The new values are those of the settings. Open requests, offsets and time are kept; the former checkpoint stays
    beside the new one. A migration that was interrupted can be repeated.
    """
    from ackstream.jobs.correlate.job import JOB as CORRELATE  # noqa: PLC0415 - pandas and Spark load slowly
    from ackstream.jobs.queues.job import JOB as QUEUES  # noqa: PLC0415
    from ackstream.jobs.settle.job import JOB as SETTLE  # noqa: PLC0415
    from ackstream.spark.job import fixed_values  # noqa: PLC0415
    from ackstream.spark.migration import migrate as move  # noqa: PLC0415

    jobs = {known.name: known for known in (CORRELATE, SETTLE, QUEUES)}
    if job not in jobs:
        raise AckstreamError(f"The checkpoint of {job!r} cannot be migrated; the jobs are {', '.join(jobs)}.")
    settings = load()
    with quiet_session(settings, "migrate") as spark:
        found = move(spark, settings, jobs[job])
    if found is None:
        values = ", ".join(f"{key} = {value}" for key, value in fixed_values(settings, jobs[job].movable).items())
        echo(f"The checkpoint of {job} has the values of the settings: {values}.")
        return
    for key, (before, now) in found.changed.items():
        echo(f"{key}: {before} -> {now}")
    echo(f"Start {job} again; delete {found.former} when it runs.")


Answer = tuple[list[str], Sequence[Sequence[Any]]]
"""Columns and rows."""


def ask(settings: Settings, name: str, correlation_id: str = "") -> Answer:
    """Answer a question of :mod:`ackstream.lake.questions`: with DuckDB where possible, else with Spark.

    Both give the same rows, with times in UTC; DuckDB needs no JVM and answers at once.

    :param correlation_id: of the request that ``story`` is about
    :raises StartError: a table does not exist yet
    """
    installed = find_spec("deltalake") is not None and find_spec("duckdb") is not None
    local = "://" not in settings.lake.path
    columns, rows = (ask_duckdb if local and installed else ask_spark)(settings, name, correlation_id)
    # Spark returns naive times in the local zone
    in_utc = [
        [value.astimezone(timezone.utc) if isinstance(value, datetime) else value for value in row] for row in rows
    ]
    return columns, in_utc


def ask_duckdb(settings: Settings, name: str, correlation_id: str = "") -> Answer:
    """Answer without a JVM; needs the packages deltalake and duckdb."""
    import duckdb  # noqa: PLC0415 - optional
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415 - optional

    from ackstream.lake import reading  # noqa: PLC0415 - it needs the latter

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE MACRO explode(list) AS unnest(list)")
        for table in (table for table in TABLES if f"{{{table}}}" in questions.QUESTIONS[name]):
            try:
                connection.register(table, reading.dataset(settings.lake, table))
            except TableNotFoundError:
                location = tables.location(settings.lake, table)
                raise StartError(
                    f"The table {table} does not exist at {location}; start the archive job, or correct lake.path."
                ) from None
        question = questions.sql(name)
        found = connection.execute(question, [correlation_id] * question.count("?"))
        return [column[0] for column in found.description or ()], found.fetchall()


def ask_spark(settings: Settings, name: str, correlation_id: str = "") -> Answer:
    """Answer with Spark, wherever the tables are stored."""
    with quiet_session(settings, "outcomes") as spark:
        frame = questions.ask(spark, settings.lake, name, correlation_id)
        return frame.columns, frame.collect()
