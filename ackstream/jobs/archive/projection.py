"""Ledger records become rows: read and laid out in the columns of the tables by Python workers, in Arrow's format.

Each part of a record goes to the table of its kind, whatever the kind of the record. What a worker makes of some
thousand records is one row: a summary, and for each table its rows in Arrow's stream format, which the JVM passes on as
bytes. To parse the JSON in the JVM costs three times as much.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from ackstream.jobs.archive.reading import JSON_TEXTS, PART_OF, malformed, plain, read
from ackstream.lake.schemas import PARTITION, TABLES, TEXT, TIME
from ackstream.spark.operator import spare_collections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from ackstream.jobs.archive.reading import Record

MILLISECONDS_A_DAY = 86_400_000

_READ = ("key", "value", "topic", "partition", "offset", "timestamp")
_SPAN = StructType(
    [
        StructField("query_id", StringType()),
        StructField("first_batch", LongType()),
        StructField("last_batch", LongType()),
        StructField("identities", BinaryType()),
        *[StructField(name, LongType()) for name in TABLES],
    ]
)
PROJECTED = StructType(
    [
        StructField("spans", ArrayType(_SPAN)),
        StructField("bytes", LongType()),
        *[StructField(name, BinaryType()) for name in TABLES],
    ]
)
"""What is made of some thousand records: a summary by query of correlate, with a hash of each record's identity in 8
bytes; the rows of each table, null if there are none; and how many bytes these take."""

SMALL = 2 * 1024 * 1024
"""Rows of so many bytes come to the driver together with their summary."""

_ARROW = to_arrow_schema(PROJECTED)


def parse(frame: DataFrame) -> DataFrame:
    """Read ledger records and lay out their rows.

    :param frame: as Spark's Kafka source gives it: key, value, topic, partition, offset, timestamp; any order
    :return: :data:`PROJECTED`. A malformed record has only a dead letter, made from the record itself, and neither
        query_id nor batch_id
    """
    return frame.select(*_READ).mapInArrow(_project, PROJECTED)


def rows(records: DataFrame, table: str) -> DataFrame:
    """Return a table's rows from parsed records, in the columns of its schema; copies are still included."""
    return records.select(table).where(f"{table} IS NOT NULL").mapInArrow(_read, TABLES[table].schema)


@dataclass(frozen=True)
class BatchSpan:
    """What one correlate query contributed to a batch; malformed records form a span of their own, without an id.

    ``copies`` counts the records that are in the batch again; ``rows`` is by table, copies included.
    """

    query_id: str | None
    first_batch: int
    last_batch: int
    copies: int
    rows: dict[str, int]

    def covers(self) -> Column:
        """Return the condition for rows that may be copies of these; statistics answer it for whole files."""
        if self.query_id is None:
            return F.col("query_id").isNull()
        return (F.col("query_id") == self.query_id) & F.col("batch_id").between(self.first_batch, self.last_batch)


class Summary:
    """The spans of a batch, and its rows where they have come along."""

    def __init__(self, found: pa.Table) -> None:
        """Take the columns of :data:`PROJECTED`, in which rows may be missing."""
        self.spans = _united(found["spans"].to_pylist())
        self.bytes = sum(found["bytes"].to_pylist())
        self._found = found if max(found["bytes"].to_pylist(), default=0) <= SMALL else None

    def rows(self, records: DataFrame, table: str) -> pa.Table:
        """Return a table's rows, of which there are some, on the driver."""
        found = self._found if self._found is not None else records.select(table).toArrow()
        parts = [pa.ipc.open_stream(part.as_buffer()).read_all() for part in found[table] if part.is_valid]
        return pa.concat_tables(parts)


def summarise(records: DataFrame) -> Summary:
    """Summarise parsed records in one pass, which also fills their cache; without records there is no span."""
    small = [f"if(bytes <= {SMALL}, {name}, NULL) AS {name}" for name in TABLES]
    return Summary(records.selectExpr("spans", "bytes", *small).toArrow())


def _united(chunks: Iterable[list[dict[str, Any]]]) -> list[BatchSpan]:
    by_query: dict[str | None, list[dict[str, Any]]] = {}
    for spans in chunks:
        for span in spans:
            by_query.setdefault(span["query_id"], []).append(span)
    found = []
    for query_id, own in by_query.items():
        identities = np.concatenate([np.frombuffer(span["identities"], np.uint64) for span in own])
        # two records with one hash would only be compared in vain
        copies = len(identities) - len(np.unique(identities))
        extent = min(span["first_batch"] for span in own), max(span["last_batch"] for span in own)
        counts = {name: sum(span[name] for span in own) for name in TABLES}
        found.append(BatchSpan(query_id, *extent, copies, counts))
    return found


# -- in a worker -------------------------------------------------------------------------------------------------------


def _project(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    spare_collections()
    for batch in batches:
        yield project(batch)


def project(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make a row of :data:`PROJECTED` of records in the columns of Spark's Kafka source."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    records = []
    for at, (value, topic) in enumerate(zip(columns["value"].to_pylist(), columns["topic"].to_pylist(), strict=True)):
        record = read(value, topic)
        if isinstance(record, str):
            key, partition, offset = (columns[name][at].as_py() for name in ("key", "partition", "offset"))
            received_at = columns["timestamp"][at].value // 1000
            record = malformed(record, (topic, partition, offset), received_at, key, value)
        records.append(record)
    parts = {table: _parts(records, part) for table, part in PART_OF.items()}
    found = {name: _stream(_rows(name, *of)) for name, of in parts.items() if of[0]}
    row = {"spans": _spans(records, parts), "bytes": sum(map(len, found.values())), **found}
    return pa.RecordBatch.from_pylist([row], schema=_ARROW)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the rows of one table."""
    spare_collections()
    for batch in batches:
        for part in batch.column(0):
            yield from pa.ipc.open_stream(part.as_buffer())


def _parts(records: Sequence[Record], name: str) -> tuple[list[Record], list[Any]]:
    """Return the parts of a name, and beside each the record that it comes from."""
    found = [(record, part) for record in records if (part := getattr(record, name)) is not None]
    if name == "acks":
        found = [(record, ack) for record, acks in found for ack in acks]
    return [record for record, _ in found], [part for _, part in found]


def _spans(records: Sequence[Record], parts: dict[str, tuple[list[Record], list[Any]]]) -> list[dict[str, Any]]:
    by_query: dict[str | None, list[Record]] = {}
    for record in records:
        by_query.setdefault(record.query_id, []).append(record)
    counts = {table: Counter(record.query_id for record in owners) for table, (owners, _) in parts.items()}
    found = []
    for query_id, own in by_query.items():
        batches = [record.batch_id or 0 for record in own]
        identities = np.array([f"{record.kind} {record.batch_id} {record.id}" for record in own], object)
        span = {
            "query_id": query_id,
            "first_batch": min(batches),
            "last_batch": max(batches),
            # the same in every process
            "identities": pd.util.hash_array(identities, categorize=False).tobytes(),
        }
        found.append(span | {table: counted[query_id] for table, counted in counts.items()})
    return found


def _rows(table: str, owners: list[Record], parts: list[Any]) -> pa.RecordBatch:
    """Lay out parts as rows of their table."""
    columns = TABLES[table].arrow
    # the second column is the row's time
    time = columns.field(1).name
    arrays = []
    for field, column in zip(columns, TABLES[table].columns, strict=True):
        name = field.name
        if name == PARTITION:
            days = np.array([getattr(part, time) for part in parts], np.int64) // MILLISECONDS_A_DAY
            arrays.append(pa.array(days.astype(np.int32), pa.int32()).cast(pa.date32()))
        elif column.kind == TIME:
            times = np.array([getattr(part, name) for part in parts], np.int64) * 1000
            arrays.append(pa.array(times, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(_values(table, name, owners, parts, is_text=column.kind == TEXT), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _values(table: str, name: str, owners: list[Record], parts: list[Any], *, is_text: bool) -> list[Any]:
    if name in ("query_id", "batch_id"):
        return [getattr(owner, name) for owner in owners]
    if name == "id":
        return _ids(table, owners, parts)
    values = list(map(attrgetter(name), parts))
    if is_text and name in JSON_TEXTS:
        texts = [None if value is None else bytes(value) for value in values]
        # of these a string is its content, as in other columns
        return texts if JSON_TEXTS[name] else [text if not text or text[:1] == b"{" else plain(text) for text in texts]
    # older records do not say that nothing is truncated
    return [bool(value) for value in values] if name == "truncated" else values


def _ids(table: str, owners: list[Record], parts: list[Any]) -> list[str]:
    if table == "acknowledgements":
        return [f"{part.topic}-{part.partition}-{part.offset}-{part.index}" for part in parts]
    if table == "dead_letters":
        return [f"{part.topic}-{part.partition}-{part.offset}" for part in parts]
    if table == "outcomes":
        return [part.reply_id for part in parts]
    # the record of a refused request may have an id of another kind; the id of the request is its reply-id
    return [owner.id if owner.outcome is None else owner.outcome.reply_id for owner in owners]
