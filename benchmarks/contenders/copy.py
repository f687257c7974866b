"""A plain copy from Kafka to Kafka by Spark: the floor under everything that reads and writes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings


def start(spark: SparkSession, settings: Settings, target: str, max_offsets: int) -> StreamingQuery:
    """Copy signals and acks to the topic ``target``: key and value unchanged, no record headers."""
    kafka = settings.kafka
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", f"{kafka.topic('signals')},{kafka.topic('acks')}")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max_offsets)
        .option("kafka.fetch.max.wait.ms", "5")
        .load()
        .select(F.lit(target).alias("topic"), "key", "value")
        .writeStream.format("kafka")
        .queryName("copy")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        # as correlate has it
        .option("kafka.linger.ms", "5")
        .option("checkpointLocation", settings.lake.checkpoint("copy"))
        .start()
    )
