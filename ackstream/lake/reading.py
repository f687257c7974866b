"""Reading tables: predefined questions, and the messages that clients miss; without Spark by delta-rs and DuckDB.

A question is a file ``sql/PLANE/NAME.sql`` that Spark (:func:`ask`) and DuckDB (:func:`answer`) accept, with tables and
parameters in braces. Its first line describes the answer, the comments below it the columns. A missing table has no
rows in a ``UNION ALL``, but for its first part. The packages that read take a second to load: a function imports them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from ackstream.errors import InputError, StartError
from ackstream.lake.schemas import ALL_TABLES, absent, in_full
from ackstream.protocol.record_headers import trace_id

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from duckdb import DuckDBPyConnection
    from pyarrow.dataset import Dataset, Expression
    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake

_COMMENT, _UNION, _ORDER = "-- ", "\nUNION ALL\n", "\nORDER BY occurred_at"

PLANES = ("requests", "publishers", "readers", "queues", "queries", "twin")
"""The directories of the questions, in the order of their list."""


@dataclass(frozen=True)
class Question:
    """A question: its SQL, with comments."""

    name: str
    plane: str
    text: str

    @cached_property
    def _comments(self) -> list[str]:
        return [line[len(_COMMENT) :] for line in self.text.splitlines() if line.startswith(_COMMENT)]

    @property
    def about(self) -> str:
        """The answer, in words."""
        return self._comments[0]

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the answer, in order, each with its meaning."""
        return dict(line.split(": ", 1) for line in self._comments[1:])

    @property
    def tables(self) -> list[str]:
        """The tables in its SQL."""
        return sorted(_fields(self.text) & ALL_TABLES.keys())

    def view(self, present: Collection[str], lake: Lake, place: str = "") -> str:
        """Return the SQL of a view over existing tables, whose names follow ``place``; StartError as :meth:`over`."""
        # compared with the column of its name, a parameter limits nothing
        return re.sub(r"\nLIMIT \d+\s*$", "", _named(self.over(present, lake), place, ""))

    def over(self, present: Collection[str], lake: Lake) -> str:
        """Return the SQL over existing tables, without parts of a union over others; StartError: no part is left."""
        body, order, end = self.text.partition(_ORDER)
        parts = body.split(_UNION)
        kept = [part for part in parts if _fields(part) & ALL_TABLES.keys() <= set(present)]
        if kept and parts[0] is kept[0]:
            return _UNION.join(kept) + order + end
        table = min(set(Question("", "", parts[0]).tables) - set(present))
        raise absent(table, in_full(lake.table(table)))


def _fields(text: str) -> set[str]:
    return {field for _, field, _, _ in Formatter().parse(text) if field}


def for_duckdb(text: str) -> str:
    """Return SQL with braces for DuckDB, over views with the names of the tables; parameters are ``$name``."""
    return _named(text, "", "$")


def _named(text: str, table: str, parameter: str) -> str:
    return text.format(**{name: f"{table if name in ALL_TABLES else parameter}{name}" for name in _fields(text)})


def _message(text: str) -> dict[str, Any]:
    client, _, seq = text.rpartition("/")
    if not client or not (seq.isascii() and seq.isdigit()):
        raise InputError(
            f"The message is {text!r}: write its publisher and its number as CLIENT/SEQ, such as orders/7."
        )
    return {"client": client, "seq": int(seq)}


def _trace(text: str) -> dict[str, Any]:
    found = trace_id(text)
    if found is None:
        raise InputError(
            f"The trace is {text!r}: write its id, 32 hexadecimal digits, or the whole traceparent, such as"
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01."
        )
    return {"trace_id": found}


PARAMETERS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "story": ("request: add its correlation-id", lambda text: {"correlation_id": text}),
    "message_story": ("message: add it as CLIENT/SEQ", _message),
    "trace": ("trace: add its id, or the whole traceparent", _trace),
}
"""The questions about one thing: its kind with the form of an argument, and the reader of that."""

_FILES = [path for plane in PLANES for path in sorted((Path(__file__).parent / "sql" / plane).glob("*.sql"))]
QUESTIONS = {path.stem: Question(path.stem, path.parent.name, path.read_text("utf-8")) for path in _FILES}
"""The questions by name, plane by plane."""
VIEWS = {name: question for name, question in QUESTIONS.items() if name not in PARAMETERS or name == "story"}
"""The questions that are views in SQL. Those with a column ``day`` read the files of the days that a query names."""


def parameters(name: str, argument: str | None) -> dict[str, Any]:
    """Return the values of a question's parameters; raise an InputError for a missing or superfluous argument."""
    if (name in PARAMETERS) == (argument is not None):
        return {} if argument is None else PARAMETERS[name][1](argument)
    raise InputError(
        f"The question {name} is about one {PARAMETERS[name][0]}."
        if argument is None
        else f"The question {name} is about everything: leave out {argument!r}."
    )


def ask(spark: SparkSession, lake: Lake, name: str, values: Mapping[str, Any] | None = None) -> DataFrame:
    """Run a question in Spark with the values of its parameters; raise a StartError if a table does not exist yet."""
    from ackstream.lake import tables  # noqa: PLC0415 - DuckDB is used without Spark

    question = QUESTIONS[name]
    present = {table for table in question.tables if tables.exists(spark, lake, table)}
    frames = {table: tables.read(spark, lake, table) for table in sorted(present)}
    return spark.sql(question.over(present, lake), **dict(values or {}), **frames)


MESSAGE_COLUMNS = ("client", "seq", "subject", "key", "value", "headers", "received_at", "topic", "partition", "offset")
"""The columns of ``messages`` in the returned rows."""


def writer_messages(lake: Lake, writer: str, first: int, last: int) -> list[dict[str, Any]]:
    """Return the accepted messages ``first`` to ``last`` of a writer, in any order; StartError: there is no table."""
    from pyarrow.dataset import field  # noqa: PLC0415 - see the module

    return _messages(lake, (field("client") == writer) & (field("seq") >= first) & (field("seq") <= last))


def messages_at(lake: Lake, positions: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return the accepted messages at positions (batch, partition, offset), and perhaps others, in any order."""
    from pyarrow.dataset import field  # noqa: PLC0415 - see the module

    names = zip(("batch", "partition", "offset"), zip(*positions, strict=True), strict=True)
    return _messages(lake, reduce(and_, [field(name).isin(sorted(set(values))) for name, values in names]))


def check(lake: Lake, table: str) -> None:
    """Open a table, which need not exist yet; raise a StartError if it cannot be read."""
    with _readable(lake, table):
        _open(lake, table)


@contextmanager
def _readable(lake: Lake, table: str) -> Iterator[None]:
    """Skip the block for a table that does not exist; a StartError if it cannot be read, for any type of store."""
    from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415 - see the module

    try:
        yield
    except TableNotFoundError:
        return
    except (DeltaError, OSError) as error:
        raise StartError(f"The table {table} at {lake.table(table)} cannot be read: {error}") from error


def dataset(lake: Lake, table: str) -> Dataset:
    """Open the present version of a table; raise a TableNotFoundError if it does not exist."""
    from pyarrow.fs import FileSystem, SubTreeFileSystem  # noqa: PLC0415 - see the module

    opened, location = _open(lake, table), in_full(lake.table(table))
    if not location.startswith(("/", "file:")):
        return opened.to_pyarrow_dataset()
    # Arrow's threads read ahead after a LIMIT is reached; by files of delta-rs they would call Python while it exits
    system, path = FileSystem.from_uri(location)
    return opened.to_pyarrow_dataset(filesystem=SubTreeFileSystem(path, system))


def _open(lake: Lake, table: str) -> DeltaTable:
    from deltalake import DeltaTable  # noqa: PLC0415 - see the module

    return DeltaTable(lake.table(table), storage_options=dict(lake.storage_options))


class _Scan:
    """The rows of a derived table, which has deletion vectors: each query reads all of them, without statistics."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._table = _open(lake, table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.scan().__arrow_c_stream__(requested_schema)


def connect() -> DuckDBPyConnection:
    """Open DuckDB without tables; times are in UTC, and a name in a query is never a variable of this program."""
    import duckdb  # noqa: PLC0415 - see the module

    connection = duckdb.connect(config={"python_enable_replacements": False})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@contextmanager
def database(lake: Lake, names: Iterable[str] = ALL_TABLES) -> Iterator[DuckDBPyConnection]:
    """Open DuckDB with views of the existing tables, at present; StartError: one is unreadable. Times are in UTC."""
    # functions of Spark work, too
    with connect() as connection:
        connection.execute("CREATE MACRO explode(list) AS unnest(list)")
        connection.execute("CREATE MACRO array_join(list, separator) AS array_to_string(list, separator)")
        connection.execute("CREATE MACRO unix_millis(moment) AS epoch_ms(moment)")
        for name in names:
            with _readable(lake, name):
                connection.register(name, _Scan(lake, name) if ALL_TABLES[name].derived else dataset(lake, name))
        yield connection


def views(connection: DuckDBPyConnection) -> set[str]:
    """Return the views of a connection of :func:`database`."""
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    return {name for (name,) in found}


def create_views(connection: DuckDBPyConnection, lake: Lake) -> None:
    """Add the views of questions to a connection of :func:`database`, except those that a table or column lacks."""
    import duckdb  # noqa: PLC0415 - see the module

    present = views(connection)
    for name, question in VIEWS.items():
        with suppress(StartError, duckdb.Error):
            connection.execute(f"CREATE TEMP VIEW {name} AS {question.view(present, lake)}")


def answer(connection: DuckDBPyConnection, lake: Lake, name: str, values: Mapping[str, Any] | None = None) -> Any:
    """Answer a question by a connection of :func:`database`, unfetched; raises StartError: a table is missing."""
    return connection.execute(for_duckdb(QUESTIONS[name].over(views(connection), lake)), dict(values or {}))


def _messages(lake: Lake, condition: Expression) -> list[dict[str, Any]]:
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415 - see the module
    from pyarrow.dataset import field  # noqa: PLC0415

    try:
        table = dataset(lake, "messages")
    except TableNotFoundError as error:
        raise StartError(
            f"There is no table messages at {lake.table('messages')}, although messages are stored: correct lake.path."
        ) from error
    condition &= field("reason").is_null()
    found: list[dict[str, Any]] = table.to_table(list(MESSAGE_COLUMNS), filter=condition).to_pylist()
    return found
