"""The correlate query: one Kafka source, the shard operator, one Kafka sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.correlation.ledger import DEAD_LETTER_BYTES
from ackstream.correlation.operator import OUTPUT_SCHEMA, STATE_SCHEMA, shard_function
from ackstream.protocol.envelopes import PROTOCOL_CONTENT_TYPE
from ackstream.source import header, source, spring_correlation, starting_offsets, tick_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.correlation.rules import Rules
    from ackstream.settings import Settings


def start(spark: SparkSession, settings: Settings, rules: Rules) -> StreamingQuery:
    """Start the query; it runs until it is stopped."""
    correlate = settings.correlate
    topics, ticks = (rules.signals, rules.acks), settings.kafka.topic("clock")
    stream = source(
        spark,
        settings.kafka,
        (*topics, ticks),
        starting=starting_offsets(settings.kafka, topics, ticks),
        limit=correlate.max_offsets_per_trigger,
        headers=True,
    )
    return (
        sink_columns(operate(records(stream, settings, rules), rules))
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


def records(stream: DataFrame, settings: Settings, rules: Rules) -> DataFrame:
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
    signal = F.col("topic") == rules.signals
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
            F.when(F.length("value") > rules.max_value_bytes, F.substring("value", 1, DEAD_LETTER_BYTES))
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


def operate(frame: DataFrame, rules: Rules) -> DataFrame:
    """Apply the shard operator."""
    return frame.groupBy("shard").applyInPandasWithState(
        shard_function(rules), OUTPUT_SCHEMA, STATE_SCHEMA, "append", "EventTimeTimeout"
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
