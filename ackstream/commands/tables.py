"""``ackstream inflight``, ``outcomes`` and ``maintain``: questions to the checkpoint and to the Delta tables."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ackstream.errors import AckstreamError
from ackstream.monitor.display import span
from ackstream.settings import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.correlation.inflight import InFlight


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(inflight)
    app.command()(outcomes)
    app.command()(maintain)


def inflight(
    limit: Annotated[int, typer.Option(min=1, help="Show so many, the oldest first.")] = 20,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="All fields, a JSON object a line.")] = False,
) -> None:
    """Show the open requests, straight from the checkpoint of the correlate job; it may run or not."""
    from ackstream.correlation.inflight import inflight as read  # noqa: PLC0415 - pandas and Spark load slowly
    from ackstream.quiet import quiet_session  # noqa: PLC0415

    settings = load()
    with quiet_session(settings, "inflight") as spark:
        found = read(spark, settings)
    now = time.time_ns() // 1_000_000
    if as_json:
        for entry in found[:limit]:
            typer.echo(msgspec.json.encode(entry))
        return
    Console().print(_inflight_table(found[:limit], now) if found else "No request is open.")
    if len(found) > limit:
        typer.echo(f"{len(found) - limit:,} more are open: --limit {len(found)} shows them all.")


def outcomes(
    question: Annotated[str | None, typer.Argument(help="Its name; without it the questions are listed.")] = None,
    correlation_id: Annotated[str | None, typer.Argument(help="For `story`: whose.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
) -> None:
    """Ask the Delta tables one of the ready-made questions, such as who is slow and who is missing."""
    from ackstream.commands.questions import ask  # noqa: PLC0415 - Spark loads slowly
    from ackstream.lake import queries  # noqa: PLC0415

    if question is None:
        _list_questions(queries)
        return
    name = question.replace("-", "_")
    if name not in queries.QUESTIONS:
        raise AckstreamError(f"There is no question {question!r}; the questions are {', '.join(queries.QUESTIONS)}.")
    about_one = "{correlation_id}" in queries.QUESTIONS[name]
    if about_one != (correlation_id is not None):
        raise AckstreamError(
            f"The question {name} is about one request: name its correlation-id."
            if about_one
            else f"The question {name} is about all requests: leave out the correlation-id."
        )
    columns, rows = ask(load(), name, *([correlation_id] if correlation_id is not None else []))
    if as_json:
        for row in rows:
            typer.echo(msgspec.json.encode(dict(zip(columns, row, strict=True))))
    else:
        Console().print(_answer_table(columns, rows) if rows else "There are no such rows.")


def maintain(
    names: Annotated[
        list[str] | None, typer.Argument(help="Some of the tables; without it all.", metavar="TABLE…")
    ] = None,
) -> None:
    """Compact the Delta tables and remove files that are no longer needed; the jobs may run meanwhile."""
    from ackstream.lake import maintenance  # noqa: PLC0415 - Spark loads slowly
    from ackstream.quiet import quiet_session  # noqa: PLC0415

    settings = load()
    with quiet_session(settings, "maintain") as spark:
        reports = maintenance.maintain(spark, settings, names or None)
    rows = [tuple(asdict(report).values()) for report in reports]
    Console().print(_answer_table(list(asdict(reports[0])), rows))


def _inflight_table(found: Sequence[InFlight], now: int) -> Table:
    table = Table("correlation-id", "age", "left", "thing", "missing", box=None, pad_edge=False)
    for entry in found:
        left = entry.deadline - now
        table.add_row(
            entry.correlation_id,
            span(max(0, now - entry.started_at)),
            span(left) if left >= 0 else Text(f"-{span(-left)}", style="red"),
            entry.thing_id or "",
            ", ".join(entry.missing) or "the response",
        )
    return table


def _list_questions(queries: Any) -> None:
    table = Table("question", "", box=None, pad_edge=False)
    for name in queries.QUESTIONS:
        # each is a function of the same name, whose docstring begins with "Ask"
        about = str(getattr(queries, name).__doc__).strip().partition("\n")[0].removeprefix("Ask ")
        table.add_row(name, about)
    Console().print(table)


def _answer_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) for row in rows)
        heading = column.removesuffix("_ms").replace("_", " ")
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
    return table


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if column == "share":
        return f"{value:.1%}"
    if column.endswith("_ms"):
        return span(round(value))
    if isinstance(value, (int, float)) and column != "status":
        return f"{value:,.0f}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "milliseconds" if value.microsecond else "seconds")
    return str(value)
