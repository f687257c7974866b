"""The twin as a service: its two queries, and the offsets for lag tools."""

from __future__ import annotations

import gc
import json
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from kafka import KafkaConsumer
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.twin.batch import ACKS, Limits, Row, SignalRecord, TwinMessage, fold, search_persisted
from ackstream.jobs.twin.things import Thing
from ackstream.kafka.clients import options
from ackstream.lake import tables, things
from ackstream.lake import things as journal
from ackstream.lake.schemas import TWIN_TABLES
from ackstream.protocol.ditto.envelopes import encode
from ackstream.spark import kafka
from ackstream.spark.kafka import header, source, spring_correlation
from ackstream.spark.offsets import committer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings


# REHOUSE


STOP_SECONDS, STOP_POLL_SECONDS = 30.0, 0.05
"""How long a batch at hand may take to its end when the queries are stopped."""

TOPICS = ("signals", "acks", "events")
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[tuple[StreamingQuery, StreamingQuery]]:
    """Run the twin and its index for the time of the block; the topics are there.

    :raises StartError: where a table is not as this version writes it
    """
    twin = start(spark, settings)
    try:
        index = start_index(spark, settings)
        try:
            with committer(settings.kafka, twin, settings.twin.group):
                yield twin, index
        finally:
            _stop(index)
    finally:
        _stop(twin)


def _stop(query: StreamingQuery) -> None:
    """Stop a query between two batches, if there is such a moment."""
    deadline = time.monotonic() + STOP_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(STOP_POLL_SECONDS)
    query.stop()


# -- The twin query: signals from Kafka, folded in the driver over the things in its memory, the journal, then Kafka.
# A batch does one commit, an append to the journal, and only then says anything. After a crash Spark runs the batch
# again on the same records; the things are then taken as they were before it, so it comes to the same rows, which the
# journal refuses to take twice, and to the same messages, which are sent again.


NAME = "twin"
EARLIEST = -2
"""Spark's name for the beginning of a partition."""

_TIME = pa.timestamp("ms", tz="UTC")
_ROWS = pa.schema(
    [
        ("thing_id", pa.string()), ("revision", pa.int64()), ("created_at", _TIME), ("modified_at", _TIME),
        ("action", pa.string()), ("path", pa.string()), ("value", pa.string()), ("thing", pa.string()),
        ("last", pa.bool_()), ("deleted", pa.bool_()), ("visible", pa.bool_()), ("search_persisted", pa.bool_()),
        ("correlation_id", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
    ]
)  # fmt: skip
_MESSAGES = pa.schema(
    [("topic", pa.string()), ("key", pa.string()), ("value", pa.binary()), ("correlation_id", pa.string())]
)


def start(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Make the tables and start the query; it runs until it is stopped.

    :raises StartError: where a table is not as this version writes it
    """
    tables.create(spark, settings.lake, TWIN_TABLES)
    stream = source(
        spark,
        settings.kafka,
        [settings.kafka.topic("signals")],
        starting=starting_offsets(spark, settings),
        limit=settings.twin.max_offsets_per_trigger,
        headers=True,
    )
    return (
        stream.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(kafka.each_batch(TwinFold(settings).write))
        .trigger(processingTime=settings.twin.trigger)
        .start()
    )


def starting_offsets(spark: SparkSession, settings: Settings) -> str:
    """Return where a new checkpoint starts: behind the last command that is in the journal, else at the beginning."""
    topic = settings.kafka.topic("signals")
    done = journal.next_offsets(spark, settings.lake).get(topic)
    if done is None:
        return "earliest"
    known = options(settings.kafka, KafkaConsumer.DEFAULT_CONFIG)
    with closing(KafkaConsumer(bootstrap_servers=settings.kafka.bootstrap, **known)) as consumer:
        partitions = sorted(consumer.partitions_for_topic(topic) or ())
    return json.dumps({topic: {str(number): done.get(number, EARLIEST) for number in partitions}})


def limits(settings: Settings) -> Limits:
    """Read the limits from the settings."""
    return Limits(
        signals=settings.kafka.topic("signals"),
        max_value_bytes=settings.correlate.max_value_bytes,
        max_labels=settings.correlate.max_labels,
        max_thing_bytes=settings.twin.max_thing_bytes,
    )


class TwinFold:
    """The things in memory, and what a batch does with them."""

    def __init__(self, settings: Settings) -> None:
        """Start without things: the first batch tells as of when they are needed."""
        self._settings = settings
        self._limits = limits(settings)
        self._things: dict[str, Thing] | None = None
        self._first = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Fold one batch, append its changes to the journal, send what there is to say.

        :param frame: records of the signals topic as Spark's Kafka source gives them; none is fine
        :param batch_id: the batch's number, growing within the query
        """
        spark = frame.sparkSession
        if self._things is None:
            self._first = journal.first_batch(spark, self._settings.lake, query_id)
            self._things = load(journal.before(spark, self._settings.lake, self._first + batch_id).toArrow())
            gc.freeze()
        result = fold(read_records(frame, self._limits), self._things, self._limits)
        if result.rows:
            self._append(spark, result.rows, query_id, self._first + batch_id)
        self._things.update(result.changed)
        send(spark, self._settings, result.messages)
        # data frames are in reference cycles, and each keeps its batch in the JVM until Python looks for them: after
        # a minute of full batches there was no heap left
        gc.collect()

    def _append(self, spark: SparkSession, rows: Sequence[Row], query_id: str, batch: int) -> None:
        table = columns(rows, _ROWS)
        topic = pa.array([self._limits.signals] * len(rows), pa.string())
        journal.append(spark, self._settings.lake, table.append_column("topic", topic), query_id, batch)


def read_records(frame: DataFrame, limits: Limits) -> list[SignalRecord]:
    """Bring the records of a batch to the driver."""
    table = (
        frame.where(F.length("value") <= limits.max_value_bytes)
        .select(F.unix_millis("timestamp"), "partition", "offset", _correlation_id(), "value")
        .toArrow()
    )
    return [SignalRecord(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def load(table: pa.Table) -> dict[str, Thing]:
    """Take the things out of the columns of ``things``."""
    created, modified = (table.column(name).cast(_TIME).cast(pa.int64()) for name in ("created_at", "modified_at"))
    contents = table.column("thing").cast(pa.binary())
    values = (table.column("thing_id"), table.column("revision"), created, modified, contents)
    return {
        thing_id: Thing(*fields) for thing_id, *fields in zip(*(value.to_pylist() for value in values), strict=True)
    }


def send(spark: SparkSession, settings: Settings, messages: Sequence[TwinMessage]) -> None:
    """Write messages to their topics, in order."""
    if not messages:
        return
    prefix = F.lit(settings.kafka.topic_prefix)
    correlation = F.struct(F.lit("correlation-id").alias("key"), F.col("correlation_id").cast("binary").alias("value"))
    records = spark.createDataFrame(columns(messages, _MESSAGES))
    kafka.write(
        records.select(F.concat(prefix, "topic").alias("topic"), "key", "value", F.array(correlation).alias("headers")),
        settings.kafka,
    )


def columns(entries: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Lay out structs in the columns of a schema, which has the names of their fields."""
    rows = zip(*map(msgspec.structs.astuple, entries), strict=True)
    arrays = dict(zip(type(entries[0]).__struct_fields__, rows, strict=True))
    return pa.Table.from_arrays([pa.array(arrays[field.name], field.type) for field in schema], schema=schema)


def _correlation_id() -> Column:
    """Return the correlation-id of the record headers as correlate takes it; the JSON's goes before Spring's."""
    own = F.make_valid_utf8(header("correlation-id").cast("string"))
    in_json = F.get_json_object(F.col("value").cast("string"), "$.headers.correlation-id")
    # only where Spring's is there and no other: the JSON is read anyway, later
    spring = F.when(header("kafka_correlationId").isNotNull() & in_json.isNull(), spring_correlation())
    return F.coalesce(own, spring)


# -- The index query: the journal merged into ``things`` and ``things_search``, and acknowledged as search-persisted.
# Slower than the twin and apart from it: an acknowledgement that a change is stored never waits for the index.


# REHOUSE


INDEX_NAME = "twin-index"


def start_index(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the query on tables that are there; it runs until it is stopped."""
    partitions = str(settings.twin.index_partitions)
    # a merge takes every core it can get for seconds, and the twin waits for one; the query keeps what holds now
    with _conf(spark, {"spark.sql.shuffle.partitions": partitions, "spark.sql.files.minPartitionNum": partitions}):
        return (
            spark.readStream.format("delta")
            .load(tables.location(settings.lake, "thing_events"))
            .writeStream.queryName(INDEX_NAME)
            .option("checkpointLocation", settings.lake.checkpoint(INDEX_NAME))
            .foreachBatch(partial(_write, spark, settings))
            .trigger(processingTime=settings.twin.index_trigger)
            .start()
        )


def _write(session: SparkSession, settings: Settings, frame: DataFrame, _batch_id: int) -> None:
    """Merge rows of the journal, then acknowledge those whose requesters wait for it.

    Where the merge fails they get a 500, and the query ends; started again it tries again.

    :param session: the one that started the query and knows whether it is to go on
    """
    spark = frame.sparkSession
    events = frame.persist()
    try:
        things.merge(spark, settings.lake, events)
        things.merge_values(spark, settings.lake, events)
    except Exception:
        query = session.streams.get(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        # a stop looks the same from within
        if query is not None and query.isActive:
            send(spark, settings, _acknowledgements(events, failed=True))
        raise
    else:
        send(spark, settings, _acknowledgements(events, failed=False))
    finally:
        events.unpersist()


@contextmanager
def _conf(spark: SparkSession, entries: dict[str, str]) -> Iterator[None]:
    """Set entries for the time of the block."""
    before = {key: spark.conf.get(key, None) for key in entries}
    for key, value in entries.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def _acknowledgements(events: DataFrame, *, failed: bool) -> list[TwinMessage]:
    wanted = events.where("search_persisted").orderBy("thing_id", "revision")
    return [
        TwinMessage(
            ACKS,
            thing_id,
            encode(search_persisted(thing_id, correlation_id, visible=None if failed else visible)),
            correlation_id,
        )
        for thing_id, correlation_id, visible in wanted.select("thing_id", "correlation_id", "visible").collect()
    ]
