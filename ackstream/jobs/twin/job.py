"""The twin: commands folded over the things, and the index of the things; two queries with a checkpoint each.

The twin query folds signals on the driver over the things in memory. A batch appends to the journal, in one commit,
before any answer. A replay starts from the same things: the journal refuses its rows, its messages are sent again.
The index query merges the journal into ``things`` and ``things_search`` and acknowledges ``search-persisted``: apart,
so that acknowledgements of stored changes never wait for the index.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import islice
from operator import or_

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.errors import StoppedError
from ackstream.jobs.twin.batch import COMMAND_MARKS, cut, fold, search_persisted
from ackstream.jobs.twin.changes import QuotaUsage, Thing
from ackstream.jobs.twin.records import MAX_TOPIC, JournalRow, SignalRecord, TwinMessage
from ackstream.kafka.topics import compare_topics, topic_ids
from ackstream.lake import tables, things
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol import record_headers
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Settings
from ackstream.spark import batches, kafka
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import Checkpoint, CheckpointRules
from ackstream.spark.job import Job
from ackstream.spark.kafka import EARLIEST, ENDS, header, json_correlation_id, json_text, source, spring_correlation
from ackstream.spark.operator import SHUFFLE_PARTITIONS
from ackstream.spark.records import in_order

NAME, INDEX_NAME = "twin", "twin-index"

_ROWS = ALL_TABLES["thing_events"].rows(JournalRow.__struct_fields__)
FETCH_BYTES = 256 * 1024 * 1024
"""The bytes of signals or things that the driver fetches at once; Spark refuses a result of more than 1 GiB."""
ACKS_AT_ONCE = 10_000
MERGES = 20
"""Batches of the index between two commits of how far it has merged."""
SNAPSHOT = "isStartingVersion"
"""The key in an offset of Delta's source: whether the source still reads the files that it found at its beginning."""
LATE_MS = 86_400_000
"""Acknowledgements later than the longest timeout plus this are not sent: more than the difference of clocks."""

SMALL_FILE_BYTES, COMPACT_BYTES = 1024 * 1024, 16 * 1024 * 1024
MAX_DELETED_RATIO = 0.3
"""Merges' small files are compacted together, 50 at a time, larger ones once this share of rows is gone: a changed row
is copied about four times. Maintenance compacts the others."""


def check(spark: SparkSession, settings: Settings) -> None:
    """Refuse a new checkpoint (StartError) on another topic than the journal's: it would skip or repeat commands."""
    if settings.twin.starting != "journal" or Checkpoint(spark, settings.lake.checkpoint(NAME)).planned is not None:
        return
    known, ours = things.origin(spark, settings.lake), topic_ids(settings.kafka, ["signals"])
    if known is not None:
        journal = f"The journal {tables.location(settings.lake, things.JOURNAL)}"
        way_out = "set twin.starting to earliest or latest, for a new checkpoint that begins there"
        compare_topics(ours, dict.fromkeys(ours, known), journal, way_out)


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the twin query."""
    tables.create(spark, settings.lake, ("thing_events", "things", "things_search"))
    limit = settings.twin.max_offsets_per_trigger
    for topic_id in topic_ids(settings.kafka, ["signals"]).values():
        things.remember_origin(spark, settings.lake, topic_id)
    topics = {"signals": _start(spark, settings)}
    stream = source(spark, settings.kafka, topics, job=NAME, limit=limit, headers=True)
    return batches.start(commands(stream, settings), settings.lake, NAME, TwinFold(settings).write, trigger)


def _start(spark: SparkSession, settings: Settings) -> kafka.Start:
    """Return where a new checkpoint starts: after the last command in the journal, unless the settings differ."""
    # an old one knows its offsets, and the journal is long
    if Checkpoint(spark, settings.lake.checkpoint(NAME)).planned is not None:
        return EARLIEST
    if settings.twin.starting != "journal":
        return ENDS[settings.twin.starting]
    return things.next_offsets(spark, settings.lake, settings.kafka.topic("signals")) or EARLIEST


def build_index(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Start the index query; the tables exist."""
    journal = (
        spark.readStream.format("delta")
        # rows that are pruned or erased are merged long since
        .options(skipChangeCommits="true", maxBytesPerTrigger=str(FETCH_BYTES))
        .load(tables.location(settings.lake, things.JOURNAL))
    )
    return batches.start(journal, settings.lake, INDEX_NAME, TwinIndex(spark, settings).write, trigger)


def index_conf(settings: Settings) -> dict[str, str]:
    """Limit the cores of a merge: it takes all for seconds while the twin waits, and many small files slow the next."""
    count = str(settings.twin.index_partitions)
    compaction = "spark.databricks.delta.autoCompact"
    return {
        SHUFFLE_PARTITIONS: count,
        "spark.sql.files.minPartitionNum": count,
        f"{compaction}.enabled": "true",
        f"{compaction}.minFileSize": str(SMALL_FILE_BYTES),
        f"{compaction}.maxFileSize": str(COMPACT_BYTES),
        "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(MAX_DELETED_RATIO),
    }


REFUSALS = ("correlate.max_value_bytes", "correlate.max_labels", "correlate.reply_topics")
"""The settings by which correlate refuses commands, which the twin then must not execute."""

JOB = Job(
    name=NAME,
    build=build,
    trigger="twin.trigger",
    reads=("signals",),
    check=check,
    keeps=CheckpointRules(
        committed=partial(tables.newest_own_batch, (things.JOURNAL,)),
        decides=("twin.max_thing_bytes", "quotas", *REFUSALS),
        rules=5,
    ),
)
INDEX = Job(
    name=INDEX_NAME,
    build=build_index,
    trigger="twin.index_trigger",
    conf=index_conf,
    answers=False,
    keeps=CheckpointRules(fixed=()),
)


class TwinFold:
    """Folds batches of commands over the things, which it keeps in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._things: dict[str, Thing] | None = None
        self._usage: QuotaUsage | None = None
        self._first = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Fold one batch of :func:`commands`, append its changes to the journal, send its answers and events."""
        spark = frame.sparkSession
        if self._things is None:
            self._first, self._things = load(spark, self._settings, query_id, batch_id)
            self._usage = QuotaUsage(self._settings.quotas, self._things)
        records = read_records(frame, self._settings)
        for part, result in enumerate(fold(records, self._things, self._settings, usage=self._usage)):
            if result.rows:
                self._append(spark, result.rows, query_id, self._first + batch_id, part)
            send(spark, self._settings, result.messages)

    def _append(self, spark: SparkSession, rows: Sequence[JournalRow], query_id: str, batch: int, part: int) -> None:
        def check(found: Mapping[str, int]) -> None:
            if tables.first_and_newest(found, query_id)[0] != self._first:
                raise StoppedError(
                    "Another twin has written to the journal since this one was started: both count the same revisions."
                    " Run one twin per lake; restarted, it continues after the changes of the other."
                )

        table = batches.arrow(map(msgspec.structs.astuple, rows), _ROWS)
        topic = pa.array([self._settings.kafka.topic("signals")] * len(rows), pa.string())
        things.append(spark, self._settings.lake, table.append_column("topic", topic), query_id, batch, part, check)


def load(spark: SparkSession, settings: Settings, query_id: str, batch_id: int) -> tuple[int, dict[str, Thing]]:
    """Return the number of the query's first batch, and the things as they were before the given batch."""
    first = things.first_batch(spark, settings.lake, query_id)
    rows = things.before(spark, settings.lake, first + batch_id).select(
        "thing_id", "revision", F.unix_millis("created_at"), F.unix_millis("modified_at"), F.col("thing").cast("binary")
    )
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        total = rows.agg(F.coalesce(F.sum(F.length("thing") + F.length("thing_id")), F.lit(0))).collect()[0][0]
        pieces = total // FETCH_BYTES + 1
        piece = F.pmod(F.xxhash64("thing_id"), F.lit(pieces))
        found = (row for number in range(pieces) for row in batches.collect(rows.where(piece == number)))
        return first, {thing_id: Thing(*fields) for thing_id, *fields in found}
    finally:
        rows.unpersist()


def commands(signals: DataFrame, settings: Settings) -> DataFrame:
    """Return the possible twin commands of the signals topic, in the columns of :class:`SignalRecord`."""
    # ``small`` has small values, ``value`` all, ``size`` their bytes; applied to the stream: analysed once, not per
    # batch
    value = F.col("value")
    marked = reduce(or_, [F.contains(value, F.lit(mark)) for mark in COMMAND_MARKS])
    spring = F.coalesce(F.length(header(record_headers.SPRING_CORRELATION_ID)), F.lit(0))
    # correlate refuses larger records
    found = signals.where((F.length(value) <= settings.correlate.max_value_bytes) & (spring <= MAX_BYTES) & marked)
    chosen = F.coalesce(header(record_headers.REPLY_TO), header(record_headers.SPRING_REPLY_TOPIC))
    return found.select(
        F.unix_millis("timestamp").alias("time"),
        "partition",
        "offset",
        _correlation_id().alias("correlation_id"),
        F.when(F.length(value) <= small_bytes(settings), value).alias("small"),
        F.substring(chosen, 1, MAX_TOPIC + 1).alias("reply_topic"),
        F.length(value).alias("size"),
        "value",
    )


def small_bytes(settings: Settings) -> int:
    """Return up to how many bytes the values of a batch are fetched all at once."""
    return FETCH_BYTES // settings.twin.max_offsets_per_trigger


def read_records(found: DataFrame, settings: Settings) -> Iterator[SignalRecord]:
    """Bring a batch of :func:`commands` to the driver, in order; large values are fetched in turn, a few at a time."""
    records, sizes = [], {}
    for *fields, size in batches.collect(found.drop("value")):
        record = SignalRecord(*fields)
        records.append(record)
        if record.value is None:
            sizes[record.partition, record.offset] = size
    if not sizes:
        return iter(in_order(records))
    return _with_values(found.where(F.col("size") > small_bytes(settings)), in_order(records), sizes)


def _with_values(
    large: DataFrame, records: Sequence[SignalRecord], sizes: dict[tuple[int, int], int]
) -> Iterator[SignalRecord]:
    """Yield records with their values; ``sizes`` are those of the values that are missing."""
    large = large.select("partition", "offset", "value").persist(StorageLevel.DISK_ONLY)
    try:
        for run in cut([sizes.get((record.partition, record.offset), 0) for record in records], FETCH_BYTES):
            found = batches.collect(_among(large, [record for record in records[run] if record.value is None]))
            values = {(partition, offset): value for partition, offset, value in found}
            for record in records[run]:
                value = values.pop((record.partition, record.offset), record.value)
                yield msgspec.structs.replace(record, value=value)
    finally:
        large.unpersist()


def _among(rows: DataFrame, records: Iterable[SignalRecord]) -> DataFrame:
    """Return the rows within the ranges of offsets that records span, partition by partition."""
    offsets: dict[int, list[int]] = {}
    for record in records:
        offsets.setdefault(record.partition, []).append(record.offset)
    # an order of time never reorders a partition: no record of another run is within a range
    ranges = [
        (F.col("partition") == partition) & F.col("offset").between(min(found), max(found))
        for partition, found in offsets.items()
    ]
    return rows.where(reduce(or_, ranges)) if ranges else rows.limit(0)


def send(spark: SparkSession, settings: Settings, messages: Sequence[TwinMessage]) -> None:
    """Write messages to their topics, in order."""
    records = [(settings.kafka.topic(one.topic), one.key, one.value, one.headers) for one in messages]
    kafka.send(spark, records, settings.kafka, NAME)


def _correlation_id() -> Column:
    """Return the correlation-id of the record headers as correlate takes it; the JSON's goes before Spring's."""
    # correlate refuses a longer one
    own = F.substring(F.make_valid_utf8(header(record_headers.CORRELATION_ID).cast("string")), 1, MAX_BYTES + 1)
    in_json = json_correlation_id(json_text())
    # only where Spring's is there and no other: the JSON is read anyway, later
    spring = F.when(header(record_headers.SPRING_CORRELATION_ID).isNotNull() & in_json.isNull(), spring_correlation())
    return F.coalesce(own, spring)


class TwinIndex:
    """Merges batches of the journal into the index and acknowledges ``search-persisted``."""

    def __init__(self, session: SparkSession, settings: Settings) -> None:
        self._session, self._settings, self._lake = session, settings, settings.lake
        self._completed = False
        """Whether ``things`` has all changes before ``things.merged``: a start may find an older copy of the table."""

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Merge changes, then acknowledge them; a failure sends 500, ends the query; a restart retries."""
        spark = frame.sparkSession
        events = frame.persist()
        try:
            things.merge(spark, self._lake, events)
            things.merge_values(spark, self._lake, events)
        except Exception:
            query = self._session.streams.get(query_id)
            # a stop raises the same error; the session that started the query distinguishes them
            if query is not None and query.isActive:
                self._acknowledge(events, failed=True)
            raise
        else:
            self._acknowledge(events, failed=False)
            self._remember_merged(events, batch_id)
        finally:
            events.unpersist()

    def _remember_merged(self, events: DataFrame, batch_id: int) -> None:
        """Commit how far the journal is merged without gaps; the next start of the twin depends on it."""
        if self._completed and batch_id % MERGES:
            return
        spark = events.sparkSession
        ends = Checkpoint(spark, self._lake.checkpoint(INDEX_NAME)).planned_ends(batch_id)
        # a new checkpoint reads the files of the journal by their times, in several batches, and then its commits in
        # order
        if any(end.get(SNAPSHOT, True) for end in ends):
            return
        newest = tables.newest_batch(events)
        if newest > things.merged(spark, self._lake):
            if not self._completed:
                things.complete(spark, self._lake, newest)
            things.remember_merged(spark, self._lake, newest)
            self._completed = True

    def _acknowledge(self, events: DataFrame, *, failed: bool) -> None:
        # a new checkpoint reads the whole journal, for most of which no requester waits any more
        since = time.time_ns() // 1_000_000 - self._settings.correlate.max_timeout - LATE_MS
        wanted = events.where("search_persisted").where(F.unix_millis("modified_at") >= since)
        columns = ("thing_id", "visible", "correlation_id", "topic", "partition", "offset")
        rows = wanted.orderBy("thing_id", "revision").select(*columns).toLocalIterator()
        while some := list(islice(rows, ACKS_AT_ONCE)):
            acks = [
                search_persisted(thing_id, command[0], reply_id(*command), visible=None if failed else visible)
                for thing_id, visible, *command in some
            ]
            send(events.sparkSession, self._settings, acks)
