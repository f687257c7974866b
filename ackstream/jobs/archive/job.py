"""The archive job: records of ledger and audit become rows of the Delta tables, each exactly once.

A batch of *this* query that is replayed after a crash is recognised by Delta: every append carries the query's id and
the batch's number as its transaction. Records that *correlate* wrote again after its own crash are recognised by id
among the rows of its query and batch, those of the audit by the gateway's run and the number; so a new checkpoint may
read the topics from their start. A table is rarely read for that (:class:`Written`): batches of a query only grow, and
correlate writes at most its newest batch again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.jobs.archive.records import AUDIT, parse, rows
from ackstream.lake import tables
from ackstream.lake.schemas import KEY, TABLES
from ackstream.settings import Lake, Settings
from ackstream.spark import batches
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import CheckpointRules
from ackstream.spark.job import Job
from ackstream.spark.kafka import EARLIEST, source

NAME = "archive"
SOURCES = ("ledger", AUDIT)
LARGEST = 256 * 1024 * 1024
"""The driver writes a batch if no task exceeds its even share of these bytes: the rows come with the summary. A cache
between two passes takes longer, as do Spark tasks."""

PIECE = 4 * 1024 * 1024
"""Approximate bytes of records that a worker turns into one row at once, of which Spark holds a few copies. A worker
reads them once per column: 16 MB exceed the processor's caches, which costs a sixth of the time."""

_SAME_ROW = " AND ".join(f"{name} <=> known_{name}" for name in KEY)


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query."""
    tables.create(spark, settings.lake)
    limit = settings.archive.max_offsets_per_trigger
    starts = dict.fromkeys(SOURCES, EARLIEST)
    stream = source(spark, settings.kafka, starts, job=NAME, limit=limit, headers=False)
    return batches.start(stream, settings.lake, NAME, ArchiveFold(settings.lake).write, trigger)


JOB = Job(
    name=NAME,
    answers=False,
    build=build,
    trigger="archive.trigger",
    reads=SOURCES,
    conf=lambda _: {"spark.sql.execution.arrow.maxBytesPerBatch": str(PIECE)},
    keeps=CheckpointRules(committed=partial(tables.newest_batch_of, TABLES)),
)


class ArchiveFold:
    """Writes batches of ledger records; remembers each table's newest batches, so that it rarely has to read one."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        # by table, as long as no other archive has written to it
        self._written = {name: Written() for name in TABLES}
        self._others: dict[str, dict[str, int]] = {}

    def write(self, frame: DataFrame, batch_id: int, application: str) -> None:
        """Append the rows of one batch of the ledger, except those that are already in the tables."""
        # ``application`` names the sequence of batches: with that of another checkpoint, Delta would skip them
        records = parse(frame)
        summary = summarise(records, LARGEST // max(frame.rdd.getNumPartitions(), 1))
        # only filled if Spark writes
        records.persist()
        try:
            # a table without rows is not touched: an empty commit costs as much as a full one
            due = [name for name in TABLES if any(span.rows[name] for span in summary.spans)]
            append = partial(self._append, records=records, summary=summary, transaction=(application, batch_id))
            batches.at_once(frame.sparkSession, [partial(append, name) for name in due])
        finally:
            records.unpersist()

    def _append(self, table: str, records: DataFrame, summary: Summary, transaction: tuple[str, int]) -> None:
        spans = [span for span in summary.spans if span.rows[table]]
        count = sum(span.rows[table] for span in spans)
        written = self._memory(records.sparkSession, table, spans, transaction[0])
        plain = all(written.decides(span) and not span.copies for span in spans)
        if plain and summary.whole and count <= tables.ROWS_PER_FILE:
            rows = summary.rows(table)
            fresh = written.fresh(rows, spans)
            if fresh.num_rows:
                tables.append_rows(records.sparkSession, fresh, self._lake, table, *transaction)
            for span in spans:
                written.add(rows, span)
        else:
            tables.append(self._fresh(records, table, spans), self._lake, table, *transaction, count=count)
            for span in spans:
                written.found(span.query_id, span.last_batch)

    def _memory(self, spark: SparkSession, table: str, spans: list[BatchSpan], application: str) -> Written:
        """Return the memory of a table, with the newest batch of each query of the spans."""
        found = tables.transactions(spark, self._lake, table)
        others = {name: version for name, version in found.items() if name != application}
        if self._others.get(table) != others:
            self._others[table] = others
            self._written[table] = Written()
        written = self._written[table]
        for span in spans:
            if span.query_id is not None and span.query_id not in written.newest:
                own = tables.read(spark, self._lake, table).where(F.col("query_id") == span.query_id)
                written.found(span.query_id, tables.newest_batch(own, "batch_id"))
        return written

    def _fresh(self, records: DataFrame, table: str, spans: list[BatchSpan]) -> DataFrame:
        """Return the rows of a table, without copies and rows that it has: by Spark, for any batch."""
        fresh = rows(records, table)
        if any(span.copies for span in spans):
            fresh = fresh.dropDuplicates(KEY)
        doubtful = [span.covers() for span in spans if self._written[table].reaches(span)]
        if not doubtful:
            return fresh
        written = tables.read(fresh.sparkSession, self._lake, table).where(reduce(or_, doubtful))
        written = written.select(*[F.col(name).alias(f"known_{name}") for name in KEY])
        # made here and not within the append: an append that reads its own table conflicts with a compaction beside it
        known = written.join(fresh.select(*KEY), F.expr(_SAME_ROW), "left_semi").localCheckpoint()
        return fresh if known.isEmpty() else fresh.join(F.broadcast(known), F.expr(_SAME_ROW), "left_anti")


@dataclass(frozen=True)
class BatchSpan:
    """The share of a correlate query in a batch; malformed records have no query. ``rows``: by table, with copies."""

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
    """The spans of a batch, and its rows if it is ``whole``."""

    def __init__(self, found: pa.Table, share: int) -> None:
        """Take the columns of :data:`PROJECTED`; rows are missing where the ``bytes`` exceed the share."""
        self.spans = _united(found["spans"])
        self.whole = max(found["bytes"].to_pylist(), default=0) <= share
        self._found = found if self.whole else found.slice(0, 0)

    def rows(self, table: str) -> pa.Table:
        """Return a table's rows of a whole batch, at least one."""
        parts = [pa.ipc.open_stream(part.as_buffer()).read_all() for part in self._found[table] if part.is_valid]
        return pa.concat_tables(parts)


def summarise(records: DataFrame, share: int) -> Summary:
    """Summarise parsed records, with their rows up to a share of bytes in a task; without records there is no span."""
    sent = [f"if(bytes <= {share}, {name}, NULL) AS {name}" for name in TABLES]
    return Summary(records.selectExpr("spans", "bytes", *sent).toArrow(), share)


def _united(spans: pa.ChunkedArray) -> list[BatchSpan]:
    """Unite the spans of each query, which come in lists."""
    whole = [("first_batch", "min"), ("last_batch", "max"), ("identities", "list"), *((name, "sum") for name in TABLES)]
    found = []
    by_query = pa.Table.from_struct_array(pc.list_flatten(spans)).group_by("query_id", use_threads=False)
    for own in by_query.aggregate(whole).to_pylist():
        identities = np.frombuffer(b"".join(own["identities_list"]), np.uint64)
        # two records with one hash would only be compared in vain
        copies = len(identities) - len(np.unique(identities))
        counts = {name: own[f"{name}_sum"] for name in TABLES}
        found.append(BatchSpan(own["query_id"], own["first_batch_min"], own["last_batch_max"], copies, counts))
    return found


class Written:
    """The ``newest`` batch of each query in one table, and the ids of its rows if they are all known."""

    def __init__(self) -> None:
        self.newest: dict[str | None, int] = {}
        self._ids: dict[str | None, list[pa.ChunkedArray]] = {}

    def found(self, query_id: str | None, newest: int) -> None:
        """Remember the newest batch of a query in the table, whose rows are not known."""
        self.newest[query_id] = max(newest, self.newest.get(query_id, -1))
        self._ids.pop(query_id, None)

    def reaches(self, span: BatchSpan) -> bool:
        """Return whether the table may have rows of the span's batches; malformed records have no batch."""
        return span.query_id is None or span.first_batch <= self.newest[span.query_id]

    def decides(self, span: BatchSpan) -> bool:
        """Return whether the rows of the span that the table has are known."""
        if not self.reaches(span):
            return True
        return span.query_id in self._ids and span.first_batch == self.newest[span.query_id]

    def fresh(self, rows: pa.Table, spans: Iterable[BatchSpan]) -> pa.Table:
        """Return rows without those that the table has; the spans are decided."""
        for span in spans:
            if self.reaches(span):
                for ids in self._ids[span.query_id]:
                    known = pc.and_(_of_batch(rows, span.query_id, span.first_batch), pc.is_in(rows["id"], ids))
                    rows = rows.filter(pc.invert(known))
        return rows

    def add(self, rows: pa.Table, span: BatchSpan) -> None:
        """Remember a span whose rows have been written; the span is decided."""
        keys = rows.select(KEY)
        ids = keys.filter(_of_batch(keys, span.query_id, span.last_batch))["id"]
        before = self._ids[span.query_id] if span.last_batch == self.newest[span.query_id] else []
        self._ids[span.query_id] = [*before, ids]
        self.newest[span.query_id] = span.last_batch


def _of_batch(rows: pa.Table, query_id: str | None, batch_id: int) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows["query_id"], query_id), pc.equal(rows["batch_id"], batch_id))
