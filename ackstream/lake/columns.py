"""What the tables are made of: their columns with types and comments, their statistics, their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT, INTEGER, LONG, BOOLEAN = StringType(), IntegerType(), LongType(), BooleanType()
TIME, BYTES, TEXTS, DOUBLE = TimestampType(), BinaryType(), ArrayType(TEXT), DoubleType()

INDEXED_COLUMNS = 4
"""The first columns of a table carry statistics: in the ledger correlation_id, the row's time, query_id, batch_id."""

KEY = ("query_id", "batch_id", "id")
"""The columns that make a row of a ledger table unique."""

PARTITION = "day"
"""The column by which a table is partitioned if it has it."""


@dataclass(frozen=True)
class Table:
    """A table, and the job that writes it; a ``derived`` one is merged from another, and its rows change."""

    name: str
    comment: str
    schema: Any
    writer: str
    derived: bool = False


def schema(*columns: Any) -> Any:
    """Return the columns of a table."""
    return StructType(list(columns))


def required(name: str, kind: Any, comment: str) -> Any:
    """Return a column without nulls."""
    return StructField(name, kind, nullable=False, metadata={"comment": comment})


def optional(name: str, kind: Any, comment: str) -> Any:
    """Return a column that may be null."""
    return StructField(name, kind, nullable=True, metadata={"comment": comment})


def written(field: Callable[[str, Any, str], Any] = required) -> list[Any]:
    """Return the columns of what wrote a row of the ledger."""
    return [
        field("query_id", TEXT, "id of the correlate query that decided"),
        field("batch_id", LONG, "batch of that query; with query_id it finds the copies that a replayed batch writes"),
    ]


def coordinates(what: str) -> list[Any]:
    """Return the columns of the Kafka coordinates of a record."""
    return [
        required("topic", TEXT, f"Kafka topic of the {what}"),
        required("partition", INTEGER, f"Kafka partition of the {what}"),
        required("offset", LONG, f"Kafka offset of the {what}"),
    ]


def day(of: str) -> Any:
    """Return the partition column."""
    return required(PARTITION, DateType(), f"UTC day of {of}; partition column")
