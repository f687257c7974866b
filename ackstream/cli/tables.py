"""``ackstream outcomes``, ``sql``, ``maintain``, ``migrate``: questions to the tables, and their upkeep."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from ackstream.cli import terminal
from ackstream.errors import InputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from ackstream.settings import Lake, Settings

SHOWN = 1_000
"""Maximum number of rows of a table in the terminal; CSV and JSON have all."""

ROWS = 10_000
"""Number of rows fetched at a time."""


def _questions(incomplete: str) -> list[str]:
    from ackstream.lake.reading import QUESTIONS

    return [name for name in QUESTIONS if name.startswith(incomplete.replace("-", "_"))]


def outcomes(
    question: Annotated[
        str | None,
        typer.Argument(help="Question; without it all are listed.", metavar="QUESTION", autocompletion=_questions),
    ] = None,
    argument: Annotated[
        str | None,
        typer.Argument(help="Correlation-id for story, CLIENT/SEQ for message-story, id for trace.", metavar="ID"),
    ] = None,
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print its SQL, with the meaning of each column.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Answer a predefined question from the Delta tables.

    Durations have a unit and shares are percentages; --json and `ackstream sql` print plain numbers.
    Example: ackstream outcomes unfinished-samples
    """
    from ackstream.lake import reading
    from ackstream.settings.base import nearest

    if question is None:
        _list_questions(as_json=as_json)
        return
    name = question.replace("-", "_")
    if name not in reading.QUESTIONS:
        hint = nearest(name, list(reading.QUESTIONS), "none is like it")
        raise InputError(f"Unknown question {question!r}: {hint}; `ackstream outcomes` lists the questions.")
    if sql:
        terminal.echo(reading.for_duckdb(reading.QUESTIONS[name].text).rstrip())
        return
    columns, rows = ask(terminal.load(), name, reading.parameters(name, argument))
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    if as_json:
        terminal.echo_json(*records)
    elif name == "story" and records:
        terminal.Terminal(soft_wrap=True).print(_story(records))
    else:
        terminal.Terminal().print(terminal.result_table(columns, rows) if rows else "No rows match.")
    raise typer.Exit(terminal.FAILED if argument is not None and not rows else 0)


def _list_questions(*, as_json: bool) -> None:
    from ackstream.lake import reading

    table = terminal.PlainTable("plane", "question", "")
    for plane in reading.PLANES:
        for number, question in enumerate(one for one in reading.QUESTIONS.values() if one.plane == plane):
            table.add_row("" if number else plane, question.name, question.about)
    if not as_json:
        terminal.Terminal().print(table)
        return
    for question in reading.QUESTIONS.values():
        shown = {"question": question.name, "plane": question.plane, "about": question.about}
        terminal.echo_json(shown | {"tables": question.tables, "columns": question.columns})


def ask(
    settings: Settings, name: str, values: Mapping[str, Any] | None = None
) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Answer a question with DuckDB for a local lake, else with Spark; both return the same rows, with times in UTC."""
    from ackstream.lake import reading

    rows: Sequence[Sequence[Any]]
    if "://" in settings.lake.path:
        from ackstream.spark.session import quiet_session

        with quiet_session(settings, "outcomes") as spark:
            frame = reading.ask(spark, settings.lake, name, values)
            columns, rows = frame.columns, frame.collect()
    else:
        with reading.database(settings.lake, reading.QUESTIONS[name].tables) as connection:
            found = reading.answer(connection, settings.lake, name, values)
            columns, rows = [column[0] for column in found.description], found.fetchall()
    # Spark returns naive times in the local zone
    return columns, [
        [value.astimezone(timezone.utc) if isinstance(value, datetime) else value for value in row] for row in rows
    ]


def _story(records: Sequence[Mapping[str, Any]]) -> Group:
    shown: list[Text] = []
    for record in records:
        words = terminal.cell("occurred_at", record["occurred_at"]), *map(record.get, ("event", "label", "status"))
        shown.append(terminal.data(" ".join(str(word) for word in words if word is not None), "bold"))
        trace = record["traceparent"] and f"traceparent {record['traceparent']}"
        texts = record["detail"], record["terms"], record["id"], trace
        shown += [terminal.data(f"  {text}") for text in texts if text]
        if record["content"]:
            shown.append(terminal.data(f"  {_in_line(record['content'])}", "dim"))
    return Group(*shown)


def _in_line(content: str) -> str:
    try:
        # numbers and texts stay as they were written
        return msgspec.json.format(content, indent=0)
    except (msgspec.DecodeError, UnicodeError):
        return content


def sql(
    query: Annotated[
        str | None, typer.Argument(help="SQL of DuckDB; without it from standard input.", metavar="SQL")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with SQL; - for standard input.", metavar="FILE")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with headings.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Query the Delta tables with SQL of DuckDB: each table and each question is a view. Without SQL, list the tables.

    Times are UTC; bytes are text if UTF-8, else base64.
    Example: ackstream sql "SELECT status, count(*) FROM outcomes GROUP BY status"
    """
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other: choose one.")
    if query is not None and file is not None:
        raise InputError("The SQL is given twice: leave out the argument or --file.")
    lake = terminal.load().lake
    if query is None and (file is not None or not sys.stdin.isatty()):
        try:
            query = terminal.read_file("-" if file is None else str(file)).decode()
        except UnicodeDecodeError:
            raise InputError("The SQL is not UTF-8: save the file as UTF-8.") from None
    if query is None or not query.strip():
        _list_tables(lake, as_csv=as_csv, as_json=as_json)
        return
    with _answering(lake) as connection:
        for statement in connection.extract_statements(query):
            found = connection.execute(statement)
            columns = [column[0] for column in found.description or ()]
            rows = chain.from_iterable(iter(partial(found.fetchmany, ROWS), []))
            first = next(rows, None)
            # SET and similar statements return no rows
            if first is not None or statement.type.name == "SELECT":
                rows = chain([] if first is None else [first], rows)
                headings = None if as_csv or as_json else list(map(_in_sql, columns))
                _show(columns, rows, as_csv=as_csv, as_json=as_json, headings=headings)


def _in_sql(column: str) -> str:
    """Return the name of a column in SQL, quoted if needed."""
    plain = re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", column) and column.lower() not in _reserved()
    return column if plain else '"' + column.replace('"', '""') + '"'


@cache
def _reserved() -> frozenset[str]:
    """Return the keywords that can name a column only in quotes."""
    from ackstream.lake.reading import connect

    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    with connect() as connection:
        return frozenset(chain.from_iterable(connection.execute(query).fetchall()))


@contextmanager
def _answering(lake: Lake) -> Iterator[DuckDBPyConnection]:
    """Open the tables, and turn errors of DuckDB into sentences."""
    import duckdb

    from ackstream.lake.reading import VIEWS, create_views, database, views
    from ackstream.lake.schemas import ALL_TABLES, absent, in_full

    with database(lake) as connection:
        create_views(connection, lake)
        try:
            yield connection
        except RuntimeError as error:
            # Ctrl-C while it computes
            if "interrupted" in str(error):
                raise KeyboardInterrupt from None
            raise
        except duckdb.CatalogException as error:
            unknown = re.search(r"Table with name (\w+) does not exist", str(error))
            name = unknown[1].lower() if unknown else ""
            if name in ALL_TABLES:
                raise absent(name, in_full(lake.table(name))) from None
            if name in VIEWS:
                # raises for a table that it lacks
                VIEWS[name].over(views(connection), lake)
            raise InputError(str(error)) from None
        except duckdb.ParserException as error:
            raise InputError(f'{error}\nSQL keywords used as names need quotes, such as "offset" and "at".') from None
        except duckdb.Error as error:
            raise InputError(str(error)) from None


def _list_tables(lake: Lake, *, as_csv: bool, as_json: bool) -> None:
    from ackstream.lake.reading import views
    from ackstream.lake.schemas import ALL_TABLES, in_full

    with _answering(lake) as connection:
        present = views(connection)
        if not present:
            place = in_full(lake.path)
            terminal.echo(
                f"{place} has no tables: start the jobs, or name another lake as ACKSTREAM_LAKE_PATH.", err=True
            )
        rows = []
        for name, entry in ALL_TABLES.items():
            counted = connection.execute(f"SELECT count(*) FROM {name}").fetchone() if name in present else None  # noqa: S608 - its name is ours
            rows.append((name, None if counted is None else counted[0], entry.writer, entry.comment))
    _show(("table", "rows", "written_by", "about"), rows, as_csv=as_csv, as_json=as_json)


def _show(
    columns: Sequence[str], rows: Any, *, as_csv: bool, as_json: bool, headings: Sequence[str] | None = None
) -> None:
    cells = (tuple(map(terminal.plain, row)) for row in rows)
    if as_json:
        if twice := [name for name, number in Counter(columns).items() if number > 1]:
            raise InputError(f"Several columns are named {twice[0]}: give them names of their own with AS.")
        for row in cells:
            terminal.echo_json(dict(zip(columns, row, strict=True)))
    elif as_csv:
        terminal.echo_csv(columns)
        for row in cells:
            terminal.echo_csv(row)
    else:
        shown = list(islice(cells, SHOWN))
        if columns[0] == "column_name":
            # of DESCRIBE and SUMMARIZE
            shown = [(_in_sql(name), *rest) for name, *rest in shown]
        terminal.Terminal().print(terminal.result_table(columns, shown, headings) if shown else "No rows match.")
        if next(cells, None) is not None:
            terminal.echo(f"These are the first {SHOWN:,} rows; --csv and --json print all.", err=True)


def maintain(
    names: Annotated[list[str] | None, typer.Argument(help="Tables; default all.", metavar="TABLE")] = None,
    *,
    journal: Annotated[
        str | None,
        typer.Option(help="Remove older changes of things, such as 90d; no state is lost.", metavar="DURATION"),
    ] = None,
    erase: Annotated[
        list[str] | None, typer.Option(help="Remove all changes of a deleted thing; repeatable.", metavar="THING")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Compact the Delta tables, order the rows of past days, and delete unneeded files; jobs may keep running.

    If a table fails, the others are maintained.
    """
    from ackstream.lake import maintenance
    from ackstream.spark.session import quiet_session

    settings = terminal.load()
    journal_ms = None if journal is None else terminal.milliseconds("--journal", journal)
    maintenance.check(settings.lake, names)
    with quiet_session(settings, "maintain") as spark:
        for thing_id in erase or ():
            maintenance.erase(spark, settings.lake, thing_id)
        reports = maintenance.maintain(spark, settings, names or None, journal_ms=journal_ms)
    if as_json:
        terminal.echo_json(*reports)
    else:
        rows = [tuple(asdict(report).values())[:-1] for report in reports]
        terminal.Terminal().print(terminal.result_table(list(asdict(reports[0]))[:-1], rows))
    failed = [report for report in reports if report.failure]
    for report in failed:
        log = settings.local.data.absolute() / "logs" / "spark-maintain.log"
        terminal.echo(f"The table {report.table} was not maintained (see {log}): {report.failure}.", err=True)
    if failed:
        raise typer.Exit(terminal.FAILED)


def migrate(
    job: Annotated[str, typer.Argument(help="Stopped job: correlate, settle or queues.", metavar="JOB")],
    *,
    as_json: terminal.AsJson = False,
) -> None:
    """Move the checkpoint of a stopped job to the shards, shuffle partitions or state store of the settings.

    Open requests, offsets and time are kept, as is the former checkpoint. An interrupted migration can be repeated.
    """
    from ackstream.jobs.correlate.job import JOB as CORRELATE
    from ackstream.jobs.queues.job import JOB as QUEUES
    from ackstream.jobs.settle.job import JOB as SETTLE
    from ackstream.spark.checkpoint import fixed_values
    from ackstream.spark.migration import migrate as move
    from ackstream.spark.session import quiet_session

    jobs = {known.name: known for known in (CORRELATE, SETTLE, QUEUES)}
    if job not in jobs:
        raise InputError(f"The checkpoint of {job!r} cannot be migrated; the jobs are {', '.join(jobs)}.")
    settings = terminal.load()
    with quiet_session(settings, "migrate") as spark:
        found = move(spark, settings, jobs[job])
    if as_json:
        terminal.echo_json(
            {"job": job, "changed": found.changed if found else {}, "former": found.former if found else None}
        )
        return
    if found is None:
        values = ", ".join(f"{key} = {value}" for key, value in fixed_values(settings, jobs[job].keeps.movable).items())
        terminal.echo(f"The checkpoint of {job} has the values of the settings: {values}.")
        return
    for key, (before, now) in found.changed.items():
        terminal.echo(f"{key}: {before} -> {now}")
    terminal.echo(f"Start {job} again; delete {found.former} when it runs.")
