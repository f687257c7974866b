"""Correlate as a service: its checks, its query, and beside it the clock and the offsets for lag tools."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from itertools import starmap, zip_longest
from typing import TYPE_CHECKING

import msgspec
import pandas as pd
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from ackstream.jobs.correlate.emissions import Emission, Writer
from ackstream.jobs.correlate.reading import CorrelateTopics
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import Record
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE
from ackstream.protocol.ledger import DEAD_LETTER_BYTES
from ackstream.spark import checkpoint
from ackstream.spark.clock import timed
from ackstream.spark.kafka import header, source, spring_correlation, starting_offsets, tick_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

    from ackstream.settings import Correlate, Settings


TOPICS = ("signals", "acks", "clock", "replies", "ledger", "dead-letters")
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings, topics: Collection[str]) -> Iterator[StreamingQuery]:
    """Run the query for the time of the block.

    :param topics: the topics that exist on the broker
    :raises StartError: if the settings do not fit the checkpoint
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.correlate.shuffle_partitions))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORES[settings.correlate.state_store])
    checkpoint.guard(
        spark,
        settings.lake.checkpoint("correlate"),
        made_with(settings),
        "let the open requests finish (ackstream inflight shows them) and start with a new checkpoint",
    )
    started = start(spark, settings, CorrelateTopics.of(settings, topics))
    with timed(settings, started, settings.correlate.group, "clock", ("signals", "acks")):
        yield started


def made_with(settings: Settings) -> dict[str, object]:
    """Return the settings that cannot change under a checkpoint.

    The number of shards decides where a request's state is, the shuffle partitions which file that state is in, the
    topics which offsets count.
    """
    return {
        "correlate.shards": settings.correlate.shards,
        "correlate.shuffle_partitions": settings.correlate.shuffle_partitions,
        "correlate.state_store": settings.correlate.state_store,
        "kafka.topic_prefix": settings.kafka.topic_prefix,
    }


_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
STATE_STORES = {
    "hdfs": f"{_PACKAGE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{_PACKAGE}.RocksDBStateStoreProvider",
}


# -- The correlate query: one Kafka source, the shard operator, one Kafka sink.


def start(spark: SparkSession, settings: Settings, topics: CorrelateTopics) -> StreamingQuery:
    """Start the query; it runs until it is stopped."""
    correlate = settings.correlate
    inputs, ticks = (topics.signals, topics.acks), settings.kafka.topic("clock")
    stream = source(
        spark,
        settings.kafka,
        (*inputs, ticks),
        starting=starting_offsets(settings.kafka, inputs, ticks),
        limit=correlate.max_offsets_per_trigger,
        headers=True,
    )
    return (
        sink_columns(operate(records(stream, settings, topics), correlate, topics))
        .writeStream.format("kafka")
        .queryName("correlate")
        .outputMode("append")
        .options(**{f"kafka.{key}": value for key, value in settings.kafka.options.items()})
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap)
        .option("kafka.max.request.size", str(64 * 1024 * 1024))
        # few large requests of compressed JSON: the broker's share of a message falls to a third
        .option("kafka.compression.type", "lz4")
        .option("kafka.batch.size", str(256 * 1024))
        .option("kafka.linger.ms", "5")
        .option("checkpointLocation", settings.lake.checkpoint("correlate"))
        .trigger(processingTime=correlate.trigger)
        .start()
    )


def records(stream: DataFrame, settings: Settings, topics: CorrelateTopics) -> DataFrame:
    """Project Kafka rows to the operator's input; ticks move the watermark and end here.

    The watermark column is not the record time but ``clock``, which only ticks carry: a quiet stream still gets its
    timeouts, and no row is ever late for Spark (late rows would be dropped).
    """
    is_tick = F.col("topic") == settings.kafka.topic("clock")
    text = F.col("value").cast("string")
    # an empty tick counts by its own timestamp
    tick = F.when(F.length("value") > 0, tick_time()).otherwise(F.col("timestamp"))
    # few expressions: a batch plans them anew, at about 2 ms each
    # bytes that are no UTF-8 become U+FFFD: Arrow cannot hand them to Python
    correlation_id = F.make_valid_utf8(
        F.coalesce(
            header("correlation-id").cast("string"),
            F.get_json_object(text, "$.headers.correlation-id"),
            F.get_json_object(text, "$.headers.Correlation-Id"),
            spring_correlation(),
        )
    )
    coordinates = F.concat_ws("-", "topic", "partition", "offset")
    signal = F.col("topic") == topics.signals
    return (
        stream.withColumn("clock", F.when(is_tick, tick))
        .withColumn("correlation_id", correlation_id)
        .withWatermark("clock", "0 seconds")
        # only a condition on the watermark column itself is not pushed below the watermark, where ticks must arrive
        .where(F.col("clock").isNull())
        .withColumn("hash", F.xxhash64(F.coalesce("correlation_id", coordinates)))
        .select(
            F.pmod("hash", F.lit(settings.correlate.shards)).cast("int").alias("shard"),
            F.when(signal, 0).otherwise(1).alias("source"),
            "partition",
            "offset",
            F.unix_millis("timestamp").alias("timestamp"),
            "hash",
            F.when(signal, F.coalesce("correlation_id", coordinates))
            .otherwise(F.col("correlation_id"))
            .alias("correlation_id"),
            "key",
            # of a value over the limit only as much goes on as its dead letter keeps
            F.when(F.length("value") > settings.correlate.max_value_bytes, F.substring("value", 1, DEAD_LETTER_BYTES))
            .otherwise(F.col("value"))
            .alias("value"),
            F.coalesce(F.length("value"), F.lit(0)).alias("size"),
            # most records have no header but the correlation-id, which has a column of its own
            F.when(F.exists("headers", lambda header: header["key"] != "correlation-id"), F.to_json("headers")).alias(
                "headers"
            ),
            # always null here, but the operator's input must have the watermark column
            "clock",
        )
    )


def operate(frame: DataFrame, limits: Correlate, topics: CorrelateTopics) -> DataFrame:
    """Apply the shard operator."""
    return frame.groupBy("shard").applyInPandasWithState(
        shard_function(limits, topics), OUTPUT_SCHEMA, STATE_SCHEMA, "append", "EventTimeTimeout"
    )


def sink_columns(emissions: DataFrame) -> DataFrame:
    """Lay out emissions as the Kafka sink wants them, with the record headers of replies and dead letters."""

    def entry(name: str, value: Column) -> Column:
        return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))

    reply = [
        entry("correlation-id", F.col("key")),
        entry("reply-id", F.col("reply_id")),
        entry("status", F.col("status")),
        entry("completed-by", F.col("completed_by")),
        entry("content-type", F.lit(PROTOCOL_CONTENT_TYPE)),
    ]
    spring = entry("kafka_correlationId", F.col("spring_correlation"))
    # cases and not one filtered array: these are compiled, a lambda is interpreted record by record
    headers = (
        F.when(F.col("spring_correlation").isNotNull(), F.array(*reply, spring))
        .when(F.col("reply_id").isNotNull(), F.array(*reply))
        .when(F.col("reason").isNotNull(), F.array(entry("reason", F.col("reason"))))
    )
    return emissions.select("topic", "key", "value", headers.alias("headers"))


# -- The shard operator: applyInPandasWithState around :class:`CorrelateShard`.
# One call handles all records of a shard in a batch. The state is a version and one blob.


# A Python worker of Spark runs gc.collect() after every task; with pandas loaded that is 0.19 s a batch. What is alive
# after these imports stays alive: it need not be looked at again. Nor is anything within a task: the records of a batch
# make no cycles, and looking for some takes its share of every batch.
gc.collect()
gc.freeze()
gc.disable()

STATE_SCHEMA = StructType([StructField("version", IntegerType()), StructField("blob", BinaryType())])
BINARY_FIELDS = {"key", "value", "spring_correlation"}
OUTPUT_SCHEMA = StructType(
    [StructField(name, BinaryType() if name in BINARY_FIELDS else StringType()) for name in Emission.__struct_fields__]
)


class _Header(msgspec.Struct):
    key: str
    value: bytes | None = None


# Spark's to_json writes binary as base64, which is how msgspec reads bytes
_headers = msgspec.json.Decoder(list[_Header]).decode


def shard_function(
    limits: Correlate,
    topics: CorrelateTopics,
) -> Callable[[tuple[int], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard with records, or whose timeout has come."""

    def correlate(_key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        query_id = (context and context.getLocalProperty("sql.streaming.queryId")) or ""
        batch_id = int((context and context.getLocalProperty("streaming.sql.batchId")) or -1)
        writer = Writer(topics, query_id, batch_id)
        shard = CorrelateShard(limits, topics, writer)
        if state.exists:
            version, blob = state.get
            shard.load(version, bytes(blob))
        watermark = max(state.getCurrentWatermarkMs(), 0)
        shard.process([record for frame in frames for record in read_records(frame)], watermark)
        dumped = shard.dump()
        if dumped is not None:
            state.update(dumped)
            timeout = shard.next_timeout
            if timeout is not None:
                state.setTimeoutTimestamp(max(timeout, watermark + 1))
        elif state.exists:
            state.remove()
        yield write_frame(writer.emissions)

    return correlate


def read_records(frame: pd.DataFrame) -> Iterator[Record]:
    """Read the rows of the input frame (see ``query.records``)."""
    columns = [frame[name].tolist() for name in _INPUT]
    headers = [read_headers(text) if text else {} for text in frame["headers"].tolist()]
    yield from starmap(Record, zip(*columns, headers, strict=True))


_INPUT = (
    "timestamp", "source", "partition", "offset", "hash", "correlation_id", "key", "value", "size"
)  # fmt: skip


def read_headers(text: str) -> dict[str, bytes]:
    """Read record headers as ``query.records`` passes them; names in lower case, of a repeated one the last counts."""
    return {header.key.lower(): header.value for header in _headers(text) if header.value is not None}


def write_frame(emissions: list[Emission]) -> pd.DataFrame:
    """Lay out emissions in the columns of :data:`OUTPUT_SCHEMA`."""
    columns = zip(*map(msgspec.structs.astuple, emissions), strict=True)
    return pd.DataFrame(dict(zip_longest(Emission.__struct_fields__, columns, fillvalue=())), dtype=object)
