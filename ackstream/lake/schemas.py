"""The Delta tables: every column's name, type and meaning, which stand in ``schemas.toml``.

JSON in a row (headers, values, payloads, replies) is text. Times are UTC. Only the types of Spark and Arrow need
PySpark: clients and consoles without it know the tables and their columns, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ackstream.errors import StartError
from ackstream.protocol import dispositions
from ackstream.settings.base import parse_toml

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TEXT, INTEGER, LONG, BOOLEAN = "string", "integer", "long", "boolean"
TIME, BYTES, TEXTS, HEADERS = "timestamp", "binary", "texts", "headers"
"""Types of columns, by the names of Spark's JSON; ``headers`` is an array of names with binary values."""
INDEXED_COLUMNS = 4
"""The first columns of a table carry statistics: in the ledger correlation_id, the row's time, query_id, batch_id."""

KEY = ("query_id", "batch_id", "id")
"""The columns that make a row of a ledger table unique."""
PARTITION = "day"
"""The partition column of tables that have it."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    comment: str
    nullable: bool


@dataclass(frozen=True)
class Table:
    """A table and the job that writes it; a ``derived`` one is merged from another, and its rows change."""

    name: str
    comment: str
    writer: str
    columns: tuple[Column, ...]
    derived: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def time(self) -> str:
        """The first column with a time: the time of the row, whose day is the partition."""
        return next(column.name for column in self.columns if column.kind == TIME)

    @cached_property
    def schema(self) -> StructType:
        """The columns as a schema of Spark."""
        from pyspark.sql import types  # noqa: PLC0415 - programs without Spark need the names alone

        header = types.StructType().add("name", TEXT).add("value", BYTES)
        arrays = {TEXTS: types.ArrayType(types.StringType()), HEADERS: types.ArrayType(header)}
        found = types.StructType()
        for column in self.columns:
            kind = arrays.get(column.kind, column.kind)
            found.add(column.name, kind, column.nullable, {"comment": column.comment})
        return found

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as a schema of Arrow."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - see above

        return to_arrow_schema(self.schema, timezone="UTC")

    def rows(self, names: Iterable[str]) -> pa.Schema:
        """Return the schema of rows that a job writes: some of the columns, with times in epoch milliseconds."""
        import pyarrow as pa  # noqa: PLC0415 - see above

        times = {column.name: pa.timestamp("ms", "UTC") for column in self.columns if column.kind == TIME}
        return pa.schema([(name, times.get(name) or self.arrow.field(name).type) for name in names])


class _Described(msgspec.Struct, forbid_unknown_fields=True):
    """A table in the file; its columns by name, each with its type and meaning."""

    about: str
    writer: str
    columns: dict[str, tuple[str, str]]
    derived: bool = False


_WORDS = {
    "acknowledgements": dispositions.explained(dispositions.ACKNOWLEDGEMENTS),
    "completions": ", ".join(dispositions.COMPLETIONS),
    "refusals": ", ".join(dispositions.REFUSALS),
    "exits": ", ".join(dispositions.EXITS),
}


def _read() -> dict[str, Table]:
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    found = {}
    for name, table in msgspec.convert(parse_toml(text), dict[str, _Described]).items():
        columns = tuple(
            Column(column, kind.removesuffix("?"), Template(meaning).substitute(_WORDS), kind.endswith("?"))
            for column, (kind, meaning) in table.columns.items()
        )
        found[name] = Table(name, table.about, table.writer, columns, table.derived)
    return found


ALL_TABLES = _read()
TABLES = {name: table for name, table in ALL_TABLES.items() if table.writer == "archive"}
"""The tables of the ledger."""


def in_full(location: str) -> str:
    """Return a location that every program accepts: a URL, or an absolute path."""
    return location if ":" in location.partition("/")[0] else str(Path(location).absolute())


def absent(table: str, location: object) -> StartError:
    """Return the error for a table that does not exist yet."""
    return StartError(
        f"The table {table} does not exist at {location}; start the {ALL_TABLES[table].writer} job, or correct"
        " lake.path."
    )
