"""``ackstream sql``: questions of one's own to the Delta tables."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ackstream.cli.console.arguments import AsJson, read_file
from ackstream.cli.console.terminal import Terminal, echo, echo_csv, echo_json
from ackstream.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from duckdb import DuckDBPyConnection

    from ackstream.settings import Lake

SHOWN = 1_000
"""The rows of a table in the terminal; CSV and JSON have all."""

ROWS = 10_000
"""As many are fetched at a time."""


def sql(
    query: Annotated[
        str | None, typer.Argument(help="SQL of DuckDB; without it, that of standard input.", metavar="SQL")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file with SQL; - for standard input.", metavar="FILE")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a line of headings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Query the Delta tables with SQL, by DuckDB: each table is a view of its name. Without a query, list the tables.

    Times are in UTC; bytes are text where they are UTF-8, else base64. Of several statements, separated by semicolons,
    each result is printed. Example: ackstream sql "SELECT status, count(*) FROM outcomes GROUP BY status"
    """
    from ackstream.settings import load

    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other: choose one.")
    if query is not None and file is not None:
        raise InputError("The SQL is given twice: leave out the argument or --file.")
    lake = load().lake
    if query is None and (file is not None or not sys.stdin.isatty()):
        query = _text(read_file("-" if file is None else str(file)))
    if query is None or not query.strip():
        _list_tables(lake, as_csv=as_csv, as_json=as_json)
        return
    with _answering(lake) as connection:
        for statement in connection.extract_statements(query):
            found = connection.execute(statement)
            columns, rows = [column[0] for column in found.description or ()], _rows(found)
            first = next(rows, None)
            # SET and the like answer nothing
            if first is not None or statement.type.name == "SELECT":
                _show(columns, chain([] if first is None else [first], rows), as_csv=as_csv, as_json=as_json)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError("The SQL is not UTF-8: save the file as UTF-8.") from None


@contextmanager
def _answering(lake: Lake) -> Iterator[DuckDBPyConnection]:
    """Open the tables, and turn errors of DuckDB into sentences."""
    import duckdb

    from ackstream.lake.reading import database
    from ackstream.lake.schemas import ALL_TABLES, absent

    with database(lake) as connection:
        try:
            yield connection
        except RuntimeError as error:
            # Ctrl-C while it computes
            if "interrupted" in str(error):
                raise KeyboardInterrupt from None
            raise
        except duckdb.CatalogException as error:
            names = [name for name in ALL_TABLES if f"Table with name {name} does not exist" in str(error)]
            raise (absent(names[0], lake.table(names[0])) if names else InputError(str(error))) from None
        except duckdb.Error as error:
            raise InputError(str(error)) from None


def _rows(found: Any) -> Iterator[Sequence[Any]]:
    while rows := found.fetchmany(ROWS):
        yield from rows


def _list_tables(lake: Lake, *, as_csv: bool, as_json: bool) -> None:
    from ackstream.lake.reading import views
    from ackstream.lake.schemas import ALL_TABLES, in_full

    with _answering(lake) as connection:
        present = views(connection)
        if not present:
            place = in_full(lake.path)
            echo(f"{place} has no tables: start the jobs, or name another lake as ACKSTREAM_LAKE_PATH.", err=True)
        rows = []
        for name, entry in ALL_TABLES.items():
            counted = connection.execute(f"SELECT count(*) FROM {name}").fetchone() if name in present else None  # noqa: S608 - its name is ours
            rows.append((name, None if counted is None else counted[0], entry.writer, entry.comment))
    _show(("table", "rows", "written_by", "about"), rows, as_csv=as_csv, as_json=as_json)


def _show(columns: Sequence[str], rows: Any, *, as_csv: bool, as_json: bool) -> None:
    from ackstream.cli.console.display import plain, result_table

    cells = (tuple(map(plain, row)) for row in rows)
    if as_json:
        if twice := [name for name, number in Counter(columns).items() if number > 1]:
            raise InputError(f"Several columns are named {twice[0]}: give them names of their own with AS.")
        for row in cells:
            echo_json(dict(zip(columns, row, strict=True)))
    elif as_csv:
        echo_csv(columns)
        for row in cells:
            echo_csv(row)
    else:
        shown = list(islice(cells, SHOWN))
        Terminal().print(result_table(columns, shown) if shown else "No rows match.")
        if next(cells, None) is not None:
            echo(f"These are the first {SHOWN:,} rows; --csv and --json print all.", err=True)
