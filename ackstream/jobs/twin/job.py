"""The twin: commands folded over the things, and the index of the things; two queries with a checkpoint each.

The twin query folds signals on the driver over the things in its memory. A batch makes one commit, an append to the
journal, before anything is answered. A batch that is replayed after a crash starts from the things it started from
before: it gives the same rows, which the journal refuses to store twice, and the same messages, which are sent again.

The index query merges the journal into ``things`` and ``things_search``, and acknowledges ``search-persisted``. It is
slower and apart, so that an acknowledgement that a change is stored never waits for the index.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.pandas.types import to_arrow_type

from ackstream.jobs.twin.batch import JournalRow, SignalRecord, TwinMessage, fold, search_persisted
from ackstream.jobs.twin.changes import Thing
from ackstream.lake import tables, things
from ackstream.lake.schemas import THING_EVENTS
from ackstream.protocol import record_headers
from ackstream.spark import batches, kafka
from ackstream.spark.job import SHUFFLE_PARTITIONS, Job
from ackstream.spark.kafka import EARLIEST, header, header_entry, json_correlation_id, source, spring_correlation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings
    from ackstream.spark.batches import Trigger

NAME, INDEX_NAME = "twin", "twin-index"

_TIME = pa.timestamp("ms", tz="UTC")
_ROWS = pa.schema(
    [
        (name, _TIME if name.endswith("_at") else to_arrow_type(THING_EVENTS[name].dataType))
        for name in JournalRow.__struct_fields__
    ]
)
_MESSAGES = pa.schema(
    [("topic", pa.string()), ("key", pa.string()), ("value", pa.binary()), ("correlation_id", pa.string())]
)
"""The fields of ``TwinMessage``, in their order."""


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the twin query."""
    tables.create(spark, settings.lake, ("thing_events", "things", "things_search"))
    topic, limit = settings.kafka.topic("signals"), settings.twin.max_offsets_per_trigger
    # a new checkpoint starts after the last command in the journal
    start = things.next_offsets(spark, settings.lake, topic) or EARLIEST
    stream = source(spark, settings.kafka, {"signals": start}, limit=limit, headers=True)
    return batches.start(stream, settings.lake, NAME, TwinFold(settings).write, trigger)


def build_index(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Start the index query; the tables exist."""
    journal = spark.readStream.format("delta").load(tables.location(settings.lake, "thing_events"))
    return batches.start(journal, settings.lake, INDEX_NAME, partial(write_index, spark, settings), trigger)


def index_conf(settings: Settings) -> dict[str, str]:
    """Limit the cores of a merge: it takes all it can get for seconds, and the twin waits for one."""
    count = str(settings.twin.index_partitions)
    return {SHUFFLE_PARTITIONS: count, "spark.sql.files.minPartitionNum": count}


JOB = Job(
    name=NAME,
    build=build,
    trigger="twin.trigger",
    topics=("signals", "acks", "events"),
    group="twin.group",
    whole_batches=True,
)
INDEX = Job(
    name=INDEX_NAME, build=build_index, trigger="twin.index_trigger", conf=index_conf, fixed=(), whole_batches=True
)


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[tuple[StreamingQuery, StreamingQuery]]:
    """Run the twin and its index for the time of the block."""
    with JOB.running(spark, settings) as twin, INDEX.running(spark, settings) as index:
        yield twin, index


class TwinFold:
    """Folds batches of commands over the things, which it keeps in memory."""

    def __init__(self, settings: Settings) -> None:
        """Load no things yet: the first batch knows the batch number to restore."""
        self._settings = settings
        self._things: dict[str, Thing] | None = None
        self._first = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Fold one batch of the signals topic, append its changes to the journal, send its answers and events."""
        spark = frame.sparkSession
        if self._things is None:
            self._first, self._things = load(spark, self._settings, query_id, batch_id)
        result = fold(read_records(frame, self._settings), self._things, self._settings)
        if result.rows:
            self._append(spark, result.rows, query_id, self._first + batch_id)
        self._things.update(result.changed)
        send(spark, self._settings, result.messages)

    def _append(self, spark: SparkSession, rows: Sequence[JournalRow], query_id: str, batch: int) -> None:
        table = batches.arrow(map(msgspec.structs.astuple, rows), _ROWS)
        topic = pa.array([self._settings.kafka.topic("signals")] * len(rows), pa.string())
        things.append(spark, self._settings.lake, table.append_column("topic", topic), query_id, batch)


def load(spark: SparkSession, settings: Settings, query_id: str, batch_id: int) -> tuple[int, dict[str, Thing]]:
    """Return the number of the query's first batch, and the things as they were before the given batch."""
    first = things.first_batch(spark, settings.lake, query_id)
    found = things.before(spark, settings.lake, first + batch_id).select(
        "thing_id", "revision", F.unix_millis("created_at"), F.unix_millis("modified_at"), F.col("thing").cast("binary")
    )
    return first, {thing_id: Thing(*fields) for thing_id, *fields in batches.collect(found)}


def read_records(frame: DataFrame, settings: Settings) -> list[SignalRecord]:
    """Bring the records of a batch to the driver."""
    found = frame.where(F.length("value") <= settings.correlate.max_value_bytes).select(
        F.unix_millis("timestamp"), "partition", "offset", _correlation_id(), "value"
    )
    return [SignalRecord(*row) for row in batches.collect(found)]


def send(spark: SparkSession, settings: Settings, messages: Sequence[TwinMessage]) -> None:
    """Write messages to their topics, in order."""
    if not messages:
        return
    prefix = F.lit(settings.kafka.topic_prefix)
    correlation = header_entry(record_headers.CORRELATION_ID, F.col("correlation_id"))
    records = spark.createDataFrame(batches.arrow(map(msgspec.structs.astuple, messages), _MESSAGES))
    kafka.write(
        records.select(F.concat(prefix, "topic").alias("topic"), "key", "value", F.array(correlation).alias("headers")),
        settings.kafka,
    )


def _correlation_id() -> Column:
    """Return the correlation-id of the record headers as correlate takes it; the JSON's goes before Spring's."""
    own = F.make_valid_utf8(header(record_headers.CORRELATION_ID).cast("string"))
    in_json = json_correlation_id(F.col("value").cast("string"))
    # only where Spring's is there and no other: the JSON is read anyway, later
    spring = F.when(header(record_headers.SPRING_CORRELATION_ID).isNotNull() & in_json.isNull(), spring_correlation())
    return F.coalesce(own, spring)


def write_index(session: SparkSession, settings: Settings, frame: DataFrame, _batch_id: int, query_id: str) -> None:
    """Merge rows of the journal, then acknowledge ``search-persisted`` to their requesters.

    If the merge fails they get a 500, and the query ends; started again it retries.

    :param session: the one that started the query and knows whether it is being stopped
    """
    spark = frame.sparkSession
    events = frame.persist()
    try:
        things.merge(spark, settings.lake, events)
        things.merge_values(spark, settings.lake, events)
    except Exception:
        query = session.streams.get(query_id)
        # a stop looks the same from within
        if query is not None and query.isActive:
            send(spark, settings, _acknowledgements(events, failed=True))
        raise
    else:
        send(spark, settings, _acknowledgements(events, failed=False))
    finally:
        events.unpersist()


def _acknowledgements(events: DataFrame, *, failed: bool) -> list[TwinMessage]:
    wanted = events.where("search_persisted").orderBy("thing_id", "revision")
    return [
        search_persisted(thing_id, correlation_id, visible=None if failed else visible)
        for thing_id, correlation_id, visible in wanted.select("thing_id", "correlation_id", "visible").collect()
    ]
