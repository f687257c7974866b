"""``ackstream outcomes``, ``maintain``, ``migrate``: tables and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ackstream.cli.console.arguments import FAILED, AsJson, milliseconds
from ackstream.cli.console.terminal import PlainTable, Terminal, echo, echo_json
from ackstream.errors import InputError

if TYPE_CHECKING:
    from ackstream.settings import Settings

STORY = "story"
"""The question about one request."""


def _questions(incomplete: str) -> list[str]:
    from ackstream.lake.questions import QUESTIONS

    return [name for name in QUESTIONS if name.startswith(incomplete.replace("-", "_"))]


def outcomes(
    question: Annotated[
        str | None,
        typer.Argument(help="The question; without it, all are listed.", metavar="QUESTION", autocompletion=_questions),
    ] = None,
    argument: Annotated[
        str | None,
        typer.Argument(
            help="For the question story the correlation-id of a request, for message-story CLIENT/SEQ, for trace "
            "its id.",
            metavar="ID",
        ),
    ] = None,
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL of the question, with the meaning of each column.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer a predefined question from the Delta tables, such as which labels are slow or missing.

    Exit 1 if a request, message or trace is asked for that is in no table. Example: ackstream outcomes
    unfinished-samples
    """
    from ackstream.cli.console.display import result_table, story
    from ackstream.lake import questions
    from ackstream.settings import load
    from ackstream.settings.base import nearest

    if question is None:
        _list_questions(as_json=as_json)
        return
    name = question.replace("-", "_")
    if name not in questions.QUESTIONS:
        hint = nearest(name, list(questions.QUESTIONS), "none is like it")
        raise InputError(f"Unknown question {question!r}: {hint}; `ackstream outcomes` lists the questions.")
    if sql:
        echo(questions.QUESTIONS[name].sql.rstrip())
        return
    columns, rows = ask(load(), name, questions.parameters(name, argument))
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    if as_json:
        for record in records:
            echo_json(record)
    elif name == STORY and records:
        Terminal(soft_wrap=True).print(story(records))
    else:
        Terminal().print(result_table(columns, rows) if rows else "No rows match.")
    raise typer.Exit(FAILED if argument is not None and not rows else 0)


def _list_questions(*, as_json: bool) -> None:
    from ackstream.lake import questions

    table = PlainTable("plane", "question", "")
    for plane in questions.PLANES:
        for number, question in enumerate(one for one in questions.QUESTIONS.values() if one.plane == plane):
            table.add_row("" if number else plane, question.name, question.about)
    if not as_json:
        Terminal().print(table)
        return
    for question in questions.QUESTIONS.values():
        shown = {"question": question.name, "plane": question.plane, "about": question.about}
        echo_json(shown | {"tables": question.tables, "columns": question.columns})


def maintain(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables to maintain; all if omitted.", metavar="TABLE")
    ] = None,
    *,
    journal: Annotated[
        str | None,
        typer.Option(
            help="Remove changes of things older than this, such as 90d; no state is lost.", metavar="DURATION"
        ),
    ] = None,
    erase: Annotated[
        list[str] | None, typer.Option(help="Remove all changes of this deleted thing first.", metavar="THING")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compact the Delta tables and delete files no longer needed; the jobs may keep running.

    If a table fails, the others are maintained, and the exit code is 1.
    """
    from ackstream.cli.console.display import result_table
    from ackstream.cli.console.session import quiet_session
    from ackstream.lake import maintenance
    from ackstream.settings import load

    settings = load()
    journal_ms = None if journal is None else milliseconds("--journal", journal)
    maintenance.check(settings.lake, names)
    with quiet_session(settings, "maintain") as spark:
        for thing_id in erase or ():
            maintenance.erase(spark, settings.lake, thing_id)
        reports = maintenance.maintain(spark, settings, names or None, journal_ms=journal_ms)
    if as_json:
        for report in reports:
            echo_json(report)
    else:
        rows = [tuple(asdict(report).values())[:-1] for report in reports]
        Terminal().print(result_table(list(asdict(reports[0]))[:-1], rows))
    failed = [report for report in reports if report.failure]
    for report in failed:
        echo(f"The table {report.table} was not maintained: {report.failure} Try again later.", err=True)
    if failed:
        raise typer.Exit(FAILED)


def migrate(
    job: Annotated[str, typer.Argument(help="The stopped job: correlate, settle or queues.", metavar="JOB")],
    *,
    as_json: AsJson = False,
) -> None:
    """Move the checkpoint of a stopped job to other shards, shuffle partitions or another state store.

    The new values are those of the settings. Open requests, offsets and time are kept; the former checkpoint stays
    beside the new one. A migration that was interrupted can be repeated.
    """
    from ackstream.cli.console.session import quiet_session
    from ackstream.jobs.correlate.job import JOB as CORRELATE
    from ackstream.jobs.queues.job import JOB as QUEUES
    from ackstream.jobs.settle.job import JOB as SETTLE
    from ackstream.settings import load
    from ackstream.spark.job import fixed_values
    from ackstream.spark.migration import migrate as move

    jobs = {known.name: known for known in (CORRELATE, SETTLE, QUEUES)}
    if job not in jobs:
        raise InputError(f"The checkpoint of {job!r} cannot be migrated; the jobs are {', '.join(jobs)}.")
    settings = load()
    with quiet_session(settings, "migrate") as spark:
        found = move(spark, settings, jobs[job])
    if as_json:
        echo_json({"job": job, "changed": found.changed if found else {}, "former": found.former if found else None})
        return
    if found is None:
        values = ", ".join(f"{key} = {value}" for key, value in fixed_values(settings, jobs[job].movable).items())
        echo(f"The checkpoint of {job} has the values of the settings: {values}.")
        return
    for key, (before, now) in found.changed.items():
        echo(f"{key}: {before} -> {now}")
    echo(f"Start {job} again; delete {found.former} when it runs.")


Answer = tuple[list[str], Sequence[Sequence[Any]]]
"""Columns and rows."""


def ask(settings: Settings, name: str, values: Mapping[str, Any] | None = None) -> Answer:
    """Answer a question of :mod:`ackstream.lake.questions`: with DuckDB for a local lake, else with Spark.

    Both give the same rows, with times in UTC; DuckDB needs no JVM and answers at once.

    :param values: of the question's parameters
    :raises StartError: a table does not exist yet
    """
    local = "://" not in settings.lake.path
    columns, rows = (ask_duckdb if local else ask_spark)(settings, name, values)
    # Spark returns naive times in the local zone
    in_utc = [
        [value.astimezone(timezone.utc) if isinstance(value, datetime) else value for value in row] for row in rows
    ]
    return columns, in_utc


def ask_duckdb(settings: Settings, name: str, values: Mapping[str, Any] | None = None) -> Answer:
    """Answer without a JVM."""
    from ackstream.lake import questions, reading

    with reading.database(settings.lake, questions.QUESTIONS[name].tables) as connection:
        found = questions.answer(connection, settings.lake, name, values)
        return [column[0] for column in found.description], found.fetchall()


def ask_spark(settings: Settings, name: str, values: Mapping[str, Any] | None = None) -> Answer:
    """Answer with Spark, wherever the tables are stored."""
    from ackstream.cli.console.session import quiet_session
    from ackstream.lake import questions

    with quiet_session(settings, "outcomes") as spark:
        frame = questions.ask(spark, settings.lake, name, values)
        return frame.columns, frame.collect()
