"""The archive query: ledger records become rows of the Delta tables, each exactly once.

Two things are kept apart. A batch of *this* query that runs again after a crash is recognised by Delta itself: every
append carries the query's id and the batch's number as its transaction, and a table that has it skips the append. A
record that *correlate* wrote again after its own crash stands in the ledger twice, in one batch here or in two; such
copies are recognised by id among the rows of the same query and batch of correlate. That comparison also makes it
harmless to read the ledger again from its start with a new checkpoint.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.archive.projection import newest_batch, parse, rows, summarise
from ackstream.lake import tables
from ackstream.lake.schemas import KEY, TABLES
from ackstream.spark import kafka
from ackstream.spark.kafka import source

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.jobs.archive.projection import BatchSpan
    from ackstream.settings import Lake, Settings

ROWS_A_FILE = 100_000
"""A batch's rows of one table go to one file, unless there are more than this."""

NAME = "archive"
_SAME_ROW = " AND ".join(f"{name} <=> known_{name}" for name in KEY)


def start(spark: SparkSession, settings: Settings, *, available_now: bool = False) -> StreamingQuery:
    """Make the tables and start the query; it runs until it is stopped.

    :param available_now: stop by itself at the ledger's present end
    :raises StartError: where a table is not as this version writes it
    """
    tables.create(spark, settings.lake)
    stream = source(
        spark,
        settings.kafka,
        [settings.kafka.topic("ledger")],
        starting="earliest",
        limit=settings.archive.max_offsets_per_trigger,
        headers=False,
    )
    writer = (
        stream.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(kafka.each_batch(ArchiveFold(settings.lake).write))
    )
    when = {"availableNow": True} if available_now else {"processingTime": settings.archive.trigger}
    return writer.trigger(**when).start()


class ArchiveFold:
    """Writes batches of ledger records; remembers how far each table has come, so that it seldom has to read one."""

    def __init__(self, lake: Lake) -> None:
        """Start without memory: what a table holds is looked up when it is first needed."""
        self._lake = lake
        self._newest: dict[tuple[str, str], int] = {}

    def write(self, frame: DataFrame, batch_id: int, application: str) -> None:
        """Append the rows of one batch; whatever of them is in the tables already stays out.

        :param frame: ledger records as Spark's Kafka source gives them; none is fine
        :param batch_id: the batch's number, growing within ``application``
        :param application: names the sequence of batches; a new checkpoint needs a new name, or Delta skips its batches
        """
        records = parse(frame).persist()
        try:
            spans = summarise(records)
            # a table without rows is not touched: an empty commit costs as much as a full one
            due = [name for name in TABLES if any(span.rows[name] for span in spans)]
            append = partial(self._append, records=records, spans=spans, transaction=(application, batch_id))
            _each(frame.sparkSession, append, due)
        finally:
            records.unpersist()

    def _append(self, table: str, records: DataFrame, spans: list[BatchSpan], transaction: tuple[str, int]) -> None:
        spans = [span for span in spans if span.rows[table]]
        fresh = rows(records, table)
        if any(span.copies for span in spans):
            fresh = fresh.dropDuplicates(KEY)
        known = self._known(fresh, table, spans)
        if known is not None:
            fresh = fresh.join(F.broadcast(known), F.expr(_SAME_ROW), "left_anti")
        application, batch_id = transaction
        files = -(-sum(span.rows[table] for span in spans) // ROWS_A_FILE)
        tables.append(fresh.coalesce(files), self._lake, table, application, batch_id)
        for span in spans:
            if span.query_id is not None:
                self._newest[table, span.query_id] = max(self._newest[table, span.query_id], span.last_batch)

    def _known(self, fresh: DataFrame, table: str, spans: list[BatchSpan]) -> DataFrame | None:
        """Return the keys (``known_…``) of those rows that the table has already; None where it has none of them."""
        spark = fresh.sparkSession
        doubtful = [span.covers() for span in spans if self._reaches(spark, table, span)]
        if not doubtful:
            return None
        written = self._read(spark, table).where(reduce(or_, doubtful))
        written = written.select(*[F.col(name).alias(f"known_{name}") for name in KEY])
        # made here and not within the append: an append that reads its own table conflicts with a compaction beside it
        known = written.join(fresh.select(*KEY), F.expr(_SAME_ROW), "left_semi").localCheckpoint()
        return None if known.isEmpty() else known

    def _reaches(self, spark: SparkSession, table: str, span: BatchSpan) -> bool:
        """Tell whether the table may hold rows of the span's batches: mostly not, as batches only grow."""
        if span.query_id is None:
            return True
        key = (table, span.query_id)
        if key not in self._newest:
            self._newest[key] = newest_batch(self._read(spark, table), span.query_id)
        return span.first_batch <= self._newest[key]

    def _read(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.format("delta").load(tables.location(self._lake, table))


def _each(spark: SparkSession, work: Callable[[str], None], names: list[str]) -> None:
    """Do the work for each name, all at once; the first error is raised when all have ended."""
    with ThreadPoolExecutor(len(TABLES), thread_name_prefix=NAME) as pool:
        # the threads keep the query's job group, so that stopping the query stops them
        running = [pool.submit(inheritable_thread_target(spark)(partial(work, name))) for name in names]
    for future in running:
        future.result()
