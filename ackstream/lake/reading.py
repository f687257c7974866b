"""Reading tables without Spark: by delta-rs for clients that miss messages, by DuckDB for questions.

Importing this module takes about a second, so clients import it where they first need it. The type of the error if a
table cannot be read depends on where it is stored.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.dataset import field

from ackstream.errors import StartError
from ackstream.lake.questions import QUESTIONS, for_duckdb
from ackstream.lake.schemas import ALL_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from duckdb import DuckDBPyConnection
    from pyarrow.dataset import Dataset, Expression

    from ackstream.settings import Lake

MESSAGE_COLUMNS = ("client", "seq", "subject", "key", "value", "headers", "received_at", "topic", "partition", "offset")
"""The columns of ``messages`` in the returned rows."""


def writer_messages(lake: Lake, writer: str, first: int, last: int) -> list[dict[str, Any]]:
    """Return the accepted messages ``first`` to ``last`` of a writer, in any order; StartError: there is no table."""
    return _messages(lake, (field("client") == writer) & (field("seq") >= first) & (field("seq") <= last))


def messages_at(lake: Lake, positions: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return the accepted messages at positions (batch, partition, offset), and perhaps others, in any order."""
    names = zip(("batch", "partition", "offset"), zip(*positions, strict=True), strict=True)
    return _messages(lake, reduce(and_, [field(name).isin(sorted(set(values))) for name, values in names]))


def check(lake: Lake, table: str) -> None:
    """Open a table, which need not exist yet; raise a StartError if it cannot be read."""
    with suppress(TableNotFoundError), _readable(lake, table):
        _open(lake, table)


@contextmanager
def _readable(lake: Lake, table: str) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError:
        raise
    except (DeltaError, OSError) as error:
        raise StartError(f"The table {table} at {lake.table(table)} cannot be read: {error}") from error


def dataset(lake: Lake, table: str) -> Dataset:
    """Open the present version of a table; raise a TableNotFoundError if it does not exist."""
    return _open(lake, table).to_pyarrow_dataset()


def _open(lake: Lake, table: str) -> DeltaTable:
    return DeltaTable(lake.table(table), storage_options=dict(lake.storage_options))


class _Scan:
    """The rows of a derived table, which has deletion vectors: each query reads them anew, without statistics."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._table = _open(lake, table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.scan().__arrow_c_stream__(requested_schema)


@contextmanager
def database(lake: Lake, names: Iterable[str] = ALL_TABLES) -> Iterator[DuckDBPyConnection]:
    """Open DuckDB with views of the existing tables in their present version. Times are in UTC.

    Functions of Spark work, too: ``explode`` of a list, ``unix_millis`` of a time.

    :raises StartError: a table cannot be read
    """
    import duckdb  # noqa: PLC0415 - analysts have it, clients that read stored messages need not

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE MACRO explode(list) AS unnest(list)")
        connection.execute("CREATE MACRO unix_millis(moment) AS epoch_ms(moment)")
        for name in names:
            with suppress(TableNotFoundError), _readable(lake, name):
                connection.register(name, _Scan(lake, name) if ALL_TABLES[name].derived else dataset(lake, name))
        yield connection


def views(connection: DuckDBPyConnection) -> set[str]:
    """Return the views of a connection of :func:`database`."""
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    return {name for (name,) in found}


def answer(connection: DuckDBPyConnection, lake: Lake, name: str, values: Mapping[str, Any] | None = None) -> Any:
    """Answer a question by a connection of :func:`database`, unfetched; raises StartError: a table is missing."""
    return connection.execute(for_duckdb(QUESTIONS[name].over(views(connection), lake)), dict(values or {}))


def _messages(lake: Lake, condition: Expression) -> list[dict[str, Any]]:
    condition &= field("reason").is_null()
    try:
        table = dataset(lake, "messages")
    except TableNotFoundError as error:
        raise StartError(
            f"There is no table messages at {lake.table('messages')}, although messages are stored: correct lake.path."
        ) from error
    found: list[dict[str, Any]] = table.to_table(list(MESSAGE_COLUMNS), filter=condition).to_pylist()
    return found
