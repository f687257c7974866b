"""The archive job: records of ledger and audit become rows of the Delta tables, each exactly once.

Two kinds of repetition are kept apart. A batch of *this* query that is replayed after a crash is recognised by Delta
itself: every append carries the query's id and the batch's number as its transaction, and a table that has it skips the
append. A record that *correlate* wrote again after its own crash is in the ledger twice, in one batch here or in two;
such copies are recognised by id among the rows of the same query and batch of correlate. That comparison also makes it
harmless to read the topics again from their start with a new checkpoint. A record of the audit that a gateway had to
send again is recognised likewise, by the gateway's run and the number. Two archives of one lake that are on different
systems, where no lease keeps them apart, recognise what the other has committed, if not at the same moment.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.archive.projection import parse, rows, summarise
from ackstream.jobs.archive.reading import AUDIT
from ackstream.jobs.archive.written import Written
from ackstream.lake import tables
from ackstream.lake.schemas import KEY, TABLES
from ackstream.spark import batches
from ackstream.spark.job import Job
from ackstream.spark.kafka import EARLIEST, source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.jobs.archive.projection import BatchSpan, Summary
    from ackstream.settings import Lake, Settings
    from ackstream.spark.batches import Trigger

NAME, LEASE = "archive", "archive-lease"
SOURCES = ("ledger", AUDIT)
LARGEST = 256 * 1024 * 1024
"""Up to so many bytes, the rows of a batch are written by the driver: for a usual one, tasks of Spark take longer."""

PIECE = 16 * 1024 * 1024
"""About so many bytes of records come to a worker at once and become one row, of which Spark holds a few copies."""

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
    topics=(*SOURCES, LEASE),
    lease=LEASE,
    reads=SOURCES,
    conf=lambda _: {"spark.sql.execution.arrow.maxBytesPerBatch": str(PIECE)},
    committed=partial(tables.newest_batch_of, TABLES),
)


class ArchiveFold:
    """Writes batches of ledger records; remembers each table's newest batches, so that it rarely has to read one."""

    def __init__(self, lake: Lake) -> None:
        """Start without memory: a table's newest batch is looked up when it is first needed."""
        self._lake = lake
        # by table, as long as no other archive has written to it
        self._written = {name: Written() for name in TABLES}
        self._others: dict[str, dict[str, int]] = {}

    def write(self, frame: DataFrame, batch_id: int, application: str) -> None:
        """Append the rows of one batch of the ledger, except those that are already in the tables.

        :param application: names the sequence of batches; a new checkpoint needs a new name, or Delta skips its batches
        """
        records = parse(frame).persist()
        try:
            summary = summarise(records)
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
        if plain and summary.bytes <= LARGEST and count <= tables.ROWS_PER_FILE:
            rows = summary.rows(records, table)
            fresh = written.fresh(rows, spans)
            if fresh.num_rows:
                tables.append_rows(records.sparkSession, fresh, self._lake, table, *transaction)
            for span in spans:
                written.add(rows, span)
        else:
            tables.append(self._fresh(records, table, spans), self._lake, table, *transaction, count=count)
            for span in spans:
                if span.query_id is not None:
                    written.found(span.query_id, span.last_batch)

    def _memory(self, spark: SparkSession, table: str, spans: list[BatchSpan], application: str) -> Written:
        """Return what is known of a table, with the newest batch of each query of the spans."""
        found = tables.transactions(spark, self._lake, table)
        others = {name: version for name, version in found.items() if name != application}
        if self._others.get(table) != others:
            self._others[table] = others
            self._written[table] = Written()
        written = self._written[table]
        for span in spans:
            if span.query_id is not None and not written.knows(span.query_id):
                own = tables.read(spark, self._lake, table).where(F.col("query_id") == span.query_id)
                written.found(span.query_id, tables.newest_batch(own, "batch_id"))
        return written

    def _fresh(self, records: DataFrame, table: str, spans: list[BatchSpan]) -> DataFrame:
        """Return the rows of a table, without copies and those that it has: whatever the batch is, by Spark."""
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
