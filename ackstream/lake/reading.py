"""Reading tables with delta-rs, without Spark: for clients that miss messages, and for the gateway.

Importing this module takes about a second, so clients import it where they first need it. The type of the error if a
table cannot be read depends on where it is stored.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import compute
from pyarrow.dataset import field

from ackstream.errors import StartError
from ackstream.lake.schemas import ALL_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from duckdb import DuckDBPyConnection
    from pyarrow.dataset import Dataset, Expression

    from ackstream.settings import Lake

MESSAGE_COLUMNS = ("client", "seq", "subject", "key", "value", "headers", "received_at", "topic", "partition", "offset")
"""The columns of ``messages`` that the rows returned here have."""


TRACED_ROWS = 10_000


def writer_messages(lake: Lake, writer: str, first: int, last: int) -> list[dict[str, Any]]:
    """Return the accepted messages ``first`` to ``last`` of a writer, in any order."""
    return _messages(lake, (field("client") == writer) & (field("seq") >= first) & (field("seq") <= last))


def messages_at(lake: Lake, positions: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return the accepted messages at some positions (batch, partition, offset), in any order, perhaps among others."""
    names = zip(("batch", "partition", "offset"), zip(*positions, strict=True), strict=True)
    return _messages(lake, reduce(and_, [field(name).isin(sorted(set(values))) for name, values in names]))


def request_rows(lake: Lake, table: str, columns: Iterable[str], correlation_id: str) -> list[dict[str, Any]]:
    """Return the rows about the requests of a correlation-id, in any order; none if the table does not exist yet.

    Those that went through a gateway or a connection have it with a suffix.
    """
    own, start, end = field("correlation_id"), f"{correlation_id}#", f"{correlation_id}$"
    return _found(lake, table, columns, (own == correlation_id) | ((own >= start) & (own < end)))


def traced_rows(lake: Lake, columns: Iterable[str], trace_id: str) -> list[dict[str, Any]]:
    """Return the rows of ``signals`` with a trace-id in their headers, in any order; none if there is no table yet.

    At most :data:`TRACED_ROWS` of them: clients choose their traces, and may put all that they send into one.
    """
    return _found(lake, "signals", columns, compute.match_substring(field("headers"), trace_id), TRACED_ROWS)


def _found(
    lake: Lake, table: str, columns: Iterable[str], condition: Expression, most: int | None = None
) -> list[dict[str, Any]]:
    try:
        return _rows(lake, table, columns, condition, most)
    except TableNotFoundError:
        return []


def dataset(lake: Lake, table: str) -> Dataset:
    """Open a table as it is now.

    :raises TableNotFoundError: it does not exist
    """
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
    """Open DuckDB with tables as views, as they are now; those that do not exist yet are left out. Times are in UTC.

    What Spark has another name for goes by that one, too: ``explode`` of a list, ``unix_millis`` of a time.

    :raises StartError: a table cannot be read
    """
    import duckdb  # noqa: PLC0415 - analysts have it, clients that read stored messages need not

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE MACRO explode(list) AS unnest(list)")
        connection.execute("CREATE MACRO unix_millis(moment) AS epoch_ms(moment)")
        for name in names:
            try:
                connection.register(name, _Scan(lake, name) if ALL_TABLES[name].derived else dataset(lake, name))
            except TableNotFoundError:
                continue
            except (DeltaError, OSError) as error:
                raise StartError(f"The table {name} at {lake.table(name)} cannot be read: {error}") from error
        yield connection


def views(connection: DuckDBPyConnection) -> set[str]:
    """Return the tables that a connection of :func:`database` has as views."""
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    return {name for (name,) in found}


def _messages(lake: Lake, condition: Expression) -> list[dict[str, Any]]:
    return _rows(lake, "messages", MESSAGE_COLUMNS, condition & field("reason").is_null())


def _rows(
    lake: Lake, table: str, columns: Iterable[str], condition: Expression, most: int | None = None
) -> list[dict[str, Any]]:
    scanner = dataset(lake, table).scanner(list(columns), filter=condition)
    rows: list[dict[str, Any]] = (scanner.to_table() if most is None else scanner.head(most)).to_pylist()
    return rows
