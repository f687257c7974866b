"""The queues as a service: their query, and beside it their clock and the offsets for lag tools."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from ackstream.errors import StartError
from ackstream.jobs.queues.endpoint import Endpoint, answer_unknown
from ackstream.jobs.queues.model import Arrival, ConsumerReport, Event
from ackstream.lake import tables
from ackstream.lake.schemas import QUEUE_EVENTS, QUEUE_TABLES
from ackstream.protocol import patterns, queues
from ackstream.protocol.queues import TYPES
from ackstream.spark import checkpoint
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.clock import timed
from ackstream.spark.kafka import source, tick_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

    from ackstream.jobs.queues.model import Unreadable
    from ackstream.protocol.queues import ServiceRecord
    from ackstream.settings import Settings
    from ackstream.settings.queues import QueueSettings


NAME = "queues"
TICKS = "queue-clock"
TOPICS = ("app-acks", "queue-deliveries", "dead-letters", TICKS)
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[StreamingQuery]:
    """Run the query for the time of the block.

    :raises StartError: there are no queues, or the settings do not fit the checkpoint or a table
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.queue.shuffle_partitions))
    checkpoint.guard(
        spark,
        settings.lake.checkpoint(NAME),
        {
            "queue.shuffle_partitions": settings.queue.shuffle_partitions,
            "kafka.topic_prefix": settings.kafka.topic_prefix,
        },
        "start with a new checkpoint, which delivers all that the table messages has again",
    )
    started = start(spark, settings)
    with timed(settings, started, settings.queue.group, TICKS, ("app-acks",)):
        yield started


# -- The queue query: stored messages and what consumers say, the operator, one table, then Kafka.
# What a message is delivered for is what persist has stored: the stream of the table ``messages``. A batch commits its
# events, and only then anybody hears of them. A batch that runs again after a crash starts from the state as it was
# before it: it comes to the same events, which the table refuses to take twice, and to the same answers, which have the
# same numbers.


_TIME = pa.timestamp("ms", tz="UTC")
_EVENTS = pa.schema(
    [
        ("queue", pa.string()), ("message", pa.string()), ("at", _TIME), ("event", pa.string()),
        ("consumer", pa.string()), ("count", pa.int32()), ("outcome", pa.string()), ("reason", pa.string()),
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("batch", pa.int64()),
        ("subject", pa.string()), ("received_at", _TIME),
    ]
)  # fmt: skip
_RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("reason", pa.string())])
_decode = msgspec.json.Decoder(Event).decode


def start(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Make the tables and start the query; it runs until it is stopped.

    :raises StartError: there are no queues, or a table is not as this version writes it
    """
    if not settings.queues:
        raise StartError("There are no queues in the settings: add [[queues]] with a name and topics.")
    rules = {queue.name: queue for queue in settings.queues}
    tables.create(spark, settings.lake, ("messages", *QUEUE_TABLES))
    served = (
        records(spark, settings)
        .groupBy("queue")
        .applyInPandasWithState(
            queue_function(rules, settings.queue.session), OUTPUT_SCHEMA, STATE_SCHEMA, "append", "EventTimeTimeout"
        )
    )
    return (
        served.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(spark_kafka.each_batch(partial(_write, settings)))
        .trigger(processingTime=f"{settings.queue.interval} milliseconds")
        .start()
    )


# -- in ---------------------------------------------------------------------------------------------------------------


def records(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the operator's input: messages of queues, and what is said to queues; ticks move the watermark."""
    return (
        _messages(spark, settings)
        .unionByName(_said(spark, settings))
        .withWatermark("clock", "0 seconds")
        # only a condition on the watermark column itself is not pushed below the watermark, where ticks must arrive
        .where(F.col("clock").isNull())
    )


def _messages(spark: SparkSession, settings: Settings) -> DataFrame:
    stored = (
        spark.readStream.format("delta")
        .option("maxBytesPerTrigger", settings.queue.max_bytes_per_trigger)
        # rows that somebody deletes or changes are no news
        .option("skipChangeCommits", "true")
        .load(tables.location(settings.lake, "messages"))
        .where(F.col("reason").isNull())
    )
    names = [F.when(takes(queue), F.lit(queue.name)) for queue in settings.queues]
    return stored.withColumn("queue", F.explode(F.array_compact(F.array(*names)))).select(
        "queue",
        F.lit(ARRIVAL).alias("kind"),
        F.unix_millis("received_at").alias("timestamp"),
        "topic",
        "partition",
        "offset",
        F.lit(None).cast("binary").alias("key"),
        F.lit(None).cast("binary").alias("value"),
        "batch",
        "subject",
        F.greatest(F.coalesce("ttl_ms", F.lit(0)), F.lit(0)).cast("long").alias("ttl_ms"),
        (~_says("dmq-eligible", "false")).alias("eligible"),
        _says("barrier", "true").alias("barrier"),
        F.lit(None).cast("timestamp").alias("clock"),
    )


def takes(queue: QueueSettings) -> Column:
    """Tell whether a queue takes a message, by its ``subject``; without one the subject is empty."""
    return F.coalesce("subject", F.lit("")).rlike(patterns.expression(queue.topics))


def _says(name: str, value: str) -> Column:
    """Return whether the application gave a message a header of this value."""
    found = F.exists("headers", lambda one: (one["name"] == name) & (one["value"] == F.lit(value).cast("binary")))
    return F.coalesce(found, F.lit(False))  # noqa: FBT003 - a literal


def _said(spark: SparkSession, settings: Settings) -> DataFrame:
    kafka = settings.kafka
    # a new checkpoint knows no session, so that earlier words of consumers mean nothing to it; and what is open since
    # the last one is read whole, for time must not pass between two records of one moment
    said = source(
        spark, kafka, [kafka.topic("app-acks"), kafka.topic(TICKS)], starting="latest", limit=None, headers=False
    )
    is_tick = F.col("topic") == kafka.topic(TICKS)
    text = F.col("value").cast("string")
    return said.where(is_tick | F.get_json_object(text, "$.type").isin(*TYPES)).select(
        F.coalesce(F.make_valid_utf8(F.get_json_object(text, "$.queue")), F.lit("")).alias("queue"),
        F.lit(SAID).alias("kind"),
        F.unix_millis("timestamp").alias("timestamp"),
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        F.lit(0).cast("long").alias("batch"),
        F.lit(None).cast("string").alias("subject"),
        F.lit(0).cast("long").alias("ttl_ms"),
        F.lit(True).alias("eligible"),  # noqa: FBT003 - a literal
        F.lit(False).alias("barrier"),  # noqa: FBT003 - a literal
        F.when(is_tick, tick_time()).alias("clock"),
    )


# -- out --------------------------------------------------------------------------------------------------------------


def _write(settings: Settings, frame: DataFrame, batch_id: int, query_id: str) -> None:
    spark = frame.sparkSession
    # once: each reading would run the operator again
    found: dict[str, list[tuple[bytes | None, bytes, str | None]]] = {"answer": [], "event": [], "unreadable": []}
    for kind, *record in zip(*(column.to_pylist() for column in frame.toArrow().columns), strict=True):
        found[kind].append(tuple(record))
    events = [_decode(value) for _, value, _ in found["event"]]
    if events:
        append(spark, settings, events, query_id, batch_id)
    tell(spark, settings, found["answer"], found["unreadable"], events)
    # data frames are in reference cycles, and each keeps its batch in the JVM until Python looks for them
    gc.collect()


def append(spark: SparkSession, settings: Settings, events: Sequence[Event], query_id: str, batch_id: int) -> None:
    """Write events to their table; those of a batch that is there already are not written again."""
    own = {"query_id": F.lit(query_id), "batch_id": F.lit(batch_id).cast("long"), "day": F.to_date("at")}
    rows = spark.createDataFrame(_columns(events)).withColumns(own).select(*QUEUE_EVENTS.fieldNames())
    tables.append(rows.coalesce(1), settings.lake, "queue_events", query_id, batch_id)


def tell(
    spark: SparkSession,
    settings: Settings,
    answers: Sequence[tuple[bytes | None, bytes, str | None]],
    unreadable: Sequence[tuple[bytes | None, bytes, str | None]],
    events: Iterable[Event],
) -> None:
    """Write dead letters, then answers, to their topics."""
    kafka = settings.kafka
    parts = []
    dead = [event for event in events if event.event == "left" and event.outcome == "dead-letter"]
    if dead:
        parts.append(_dead_letters(spark, settings, dead).withColumn("topic", F.lit(kafka.topic("dead-letters"))))
    if unreadable:
        reason = F.array(_header("reason", F.col("reason")))
        parts.append(_records(spark, unreadable, kafka.topic("dead-letters"), reason))
    if answers:
        none = F.lit(None).cast("array<struct<key:string,value:binary>>")
        parts.append(_records(spark, answers, kafka.topic("queue-deliveries"), none))
    if parts:
        first, *others = (part.select("topic", "key", "value", "headers") for part in parts)
        for part in others:
            first = first.unionByName(part)
        spark_kafka.write(first, kafka)


def _dead_letters(spark: SparkSession, settings: Settings, dead: Sequence[Event]) -> DataFrame:
    """Return the messages as their publishers sent them, with headers that say what became of them."""
    place = ["topic", "partition", "offset"]
    # batch has statistics: few files are read
    batches = sorted({event.batch for event in dead if event.batch is not None})
    stored = (
        tables.read(spark, settings.lake, "messages")
        .where(F.col("batch").isin(batches))
        .select(*place, "key", "value", F.col("headers").alias("own"))
    )
    told = spark.createDataFrame(_columns(dead))
    headers = F.array(
        _header("reason", F.col("reason")),
        _header("queue", F.col("queue")),
        _header("message", F.col("message")),
        _header("deliveries", F.col("count").cast("string")),
        _header("topic", F.col("subject")),
    )
    own = F.transform(
        F.coalesce("own", F.array()), lambda one: F.struct(one["name"].alias("key"), one["value"].alias("value"))
    )
    known = F.filter(headers, lambda one: one["value"].isNotNull())
    return F.broadcast(told).join(stored, place, "left").select("key", "value", F.concat(known, own).alias("headers"))


def _records(
    spark: SparkSession, rows: Sequence[tuple[bytes | None, bytes, str | None]], topic: str, headers: Column
) -> DataFrame:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _RECORDS, strict=True)]
    frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=_RECORDS))
    return frame.select("key", "value", F.lit(topic).alias("topic"), headers.alias("headers"))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _columns(events: Sequence[Event]) -> pa.Table:
    columns = zip(*map(msgspec.structs.astuple, events), strict=True)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _EVENTS, strict=True)], schema=_EVENTS
    )


# -- The operator of the queues: applyInPandasWithState around :class:`Endpoint`, one group a queue.
# A queue's order needs one place, so it is the group; its state is a version and one blob.


# a Python worker of Spark runs gc.collect() after every task: what is alive now need not be looked at then
gc.collect()
gc.freeze()

STATE_SCHEMA = StructType([StructField("version", IntegerType()), StructField("blob", BinaryType())])
OUTPUT_SCHEMA = StructType(
    [
        StructField("kind", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("reason", StringType()),
    ]
)
"""``kind`` is ``answer`` (to the consumer ``key``), ``event`` or ``unreadable`` (with its reason)."""

ARRIVAL, SAID = 0, 1
"""Values of ``kind`` in the input."""

_ARRIVAL = (
    "timestamp", "topic", "partition", "offset", "batch", "subject", "ttl_ms", "eligible", "barrier",
)  # fmt: skip
_SAID = ("timestamp", "partition", "offset", "key", "value")
_encode_event = msgspec.json.Encoder().encode


def queue_function(
    rules: Mapping[str, QueueSettings], session_ms: int
) -> Callable[[tuple[str], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each queue with records, or whose timeout has come.

    :param rules: by the queues' names; who asks for others is told that there is none, and what a queue held that is
        no longer there stays in its state
    """

    def serve(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        (name,) = key
        arrivals, said = read_frames(frames)
        if name not in rules:
            yield write_frame(*answer_unknown(name, said))
            return
        endpoint = Endpoint(name, rules[name], session_ms)
        if state.exists:
            version, blob = state.get
            endpoint.load(version, bytes(blob))
        watermark = max(state.getCurrentWatermarkMs(), 0)
        endpoint.process(arrivals, said, watermark)
        dumped = endpoint.dump()
        if dumped is not None:
            state.update(dumped)
            if endpoint.next_timeout is not None:
                state.setTimeoutTimestamp(max(endpoint.next_timeout, watermark + 1))
        elif state.exists:
            state.remove()
        yield write_frame(endpoint.answers, endpoint.unreadable, endpoint.events)

    return serve


def read_frames(frames: Iterable[pd.DataFrame]) -> tuple[list[Arrival], list[ConsumerReport]]:
    """Read the rows of the input (see ``query.records``)."""
    arrivals: list[Arrival] = []
    said: list[ConsumerReport] = []
    for frame in frames:
        spoken = frame["kind"] == SAID
        arrivals.extend(starmap(Arrival, _rows(frame[~spoken], _ARRIVAL)))
        said.extend(starmap(ConsumerReport, _rows(frame[spoken], _SAID)))
    return arrivals, said


def _rows(frame: pd.DataFrame, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(frame[name].tolist() for name in names), strict=True)


def write_frame(
    answers: Iterable[ServiceRecord], unreadable: Iterable[Unreadable], events: Iterable[Event] = ()
) -> pd.DataFrame:
    """Lay out what there is to say in the columns of :data:`OUTPUT_SCHEMA`."""
    rows = [
        *(("answer", answer.consumer.encode(), queues.write(answer), None) for answer in answers),
        *(("event", None, _encode_event(event), None) for event in events),
        *(("unreadable", record.key, record.value, record.reason) for record in unreadable),
    ]
    return pd.DataFrame(rows, columns=OUTPUT_SCHEMA.names, dtype=object)
