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

from ackstream.jobs.archive.projection import AUDIT, parse, rows, summarise
from ackstream.lake import tables
from ackstream.lake.columns import KEY
from ackstream.lake.schemas import TABLES
from ackstream.spark import batches
from ackstream.spark.job import Job
from ackstream.spark.kafka import EARLIEST, source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.jobs.archive.projection import BatchSpan
    from ackstream.settings import Lake, Settings
    from ackstream.spark.batches import Trigger

NAME, LEASE = "archive", "archive-lease"
SOURCES = ("ledger", AUDIT)
_SAME_ROW = " AND ".join(f"{name} <=> known_{name}" for name in KEY)


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query."""
    tables.create(spark, settings.lake)
    limit = settings.archive.max_offsets_per_trigger
    starts = dict.fromkeys(SOURCES, EARLIEST)
    stream = source(spark, settings.kafka, starts, group=settings.archive.group, limit=limit, headers=False)
    return batches.start(stream, settings.lake, NAME, ArchiveFold(settings.lake).write, trigger)


JOB = Job(
    name=NAME,
    answers=False,
    build=build,
    trigger="archive.trigger",
    topics=(*SOURCES, LEASE),
    lease=LEASE,
    reads=SOURCES,
    group="archive.group",
    committed=partial(tables.newest_batch_of, TABLES),
)


class ArchiveFold:
    """Writes batches of ledger records; remembers each table's newest batches, so that it rarely has to read one."""

    def __init__(self, lake: Lake) -> None:
        """Start without memory: a table's newest batch is looked up when it is first needed."""
        self._lake = lake
        # by table: the newest batch of each query of correlate, as long as no other archive has written to the table
        self._newest: dict[str, dict[str, int]] = {name: {} for name in TABLES}
        self._others: dict[str, dict[str, int]] = {}

    def write(self, frame: DataFrame, batch_id: int, application: str) -> None:
        """Append the rows of one batch of the ledger, except those that are already in the tables.

        :param application: names the sequence of batches; a new checkpoint needs a new name, or Delta skips its batches
        """
        records = parse(frame).persist()
        try:
            spans = summarise(records)
            # a table without rows is not touched: an empty commit costs as much as a full one
            due = [name for name in TABLES if any(span.rows[name] for span in spans)]
            append = partial(self._append, records=records, spans=spans, transaction=(application, batch_id))
            batches.at_once(frame.sparkSession, [partial(append, name) for name in due])
        finally:
            records.unpersist()

    def _append(self, table: str, records: DataFrame, spans: list[BatchSpan], transaction: tuple[str, int]) -> None:
        spans = [span for span in spans if span.rows[table]]
        found = tables.transactions(records.sparkSession, self._lake, table)
        others = {name: version for name, version in found.items() if name != transaction[0]}
        if self._others.get(table) != others:
            self._others[table] = others
            self._newest[table].clear()
        fresh = rows(records, table)
        if any(span.copies for span in spans):
            fresh = fresh.dropDuplicates(KEY)
        known = self._known(fresh, table, spans)
        if known is not None:
            fresh = fresh.join(F.broadcast(known), F.expr(_SAME_ROW), "left_anti")
        tables.append(fresh, self._lake, table, *transaction, count=sum(span.rows[table] for span in spans))
        for span in spans:
            if span.query_id is not None:
                newest = self._newest[table]
                newest[span.query_id] = max(newest[span.query_id], span.last_batch)

    def _known(self, fresh: DataFrame, table: str, spans: list[BatchSpan]) -> DataFrame | None:
        """Return the keys (``known_…``) of those rows that the table already has; ``None`` if it has none of them."""
        spark = fresh.sparkSession
        doubtful = [span.covers() for span in spans if self._reaches(spark, table, span)]
        if not doubtful:
            return None
        written = tables.read(spark, self._lake, table).where(reduce(or_, doubtful))
        written = written.select(*[F.col(name).alias(f"known_{name}") for name in KEY])
        # made here and not within the append: an append that reads its own table conflicts with a compaction beside it
        known = written.join(fresh.select(*KEY), F.expr(_SAME_ROW), "left_semi").localCheckpoint()
        return None if known.isEmpty() else known

    def _reaches(self, spark: SparkSession, table: str, span: BatchSpan) -> bool:
        """Return whether the table may hold rows of the span's batches: rarely, as batches only grow."""
        if span.query_id is None:
            return True
        newest = self._newest[table]
        if span.query_id not in newest:
            written = tables.read(spark, self._lake, table).where(F.col("query_id") == span.query_id)
            newest[span.query_id] = tables.newest_batch(written, "batch_id")
        return span.first_batch <= newest[span.query_id]
