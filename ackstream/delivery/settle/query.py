"""The settle query: what was stored and what readers say, the shard operator, two tables, then Kafka.

A batch commits its rows, and only then anybody hears of them. A batch that runs again after a crash starts from the
state as it was before it: it comes to the same rows, which the tables refuse to take twice, and to the same messages.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream import sink
from ackstream.delivery.settle.operator import (
    DELIVERY,
    DELIVERY_FIELDS,
    IGNORED,
    IGNORED_FIELDS,
    MESSAGE,
    MESSAGE_FIELDS,
    OUTPUT_SCHEMA,
    STATE_SCHEMA,
    settle_function,
)
from ackstream.delivery.settle.rules import settle_rules
from ackstream.delivery.settle.settled import OF_READERS, REPORTS, STORED
from ackstream.lake import tables
from ackstream.lake.schemas import SETTLE_TABLES
from ackstream.protocol.queues import TYPES as OF_QUEUES
from ackstream.source import source, starting_offsets, tick_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

NAME = "settle"
TICKS = "settle-clock"


def start(spark: SparkSession, settings: Settings, *, available_now: bool = False) -> StreamingQuery:
    """Make the tables and start the query; it runs until it is stopped.

    :param available_now: stop by itself at the topics' present end
    :raises StartError: where a table is not as this version writes it
    """
    tables.create(spark, settings.lake, SETTLE_TABLES)
    kafka = settings.kafka
    topics, ticks = (kafka.topic("stored"), kafka.topic("app-acks")), kafka.topic(TICKS)
    stream = source(
        spark,
        kafka,
        (*topics, ticks),
        starting=starting_offsets(kafka, topics, ticks),
        limit=settings.settle.max_offsets_per_trigger,
        headers=False,
    )
    settled = (
        records(stream, settings)
        .groupBy("shard")
        .applyInPandasWithState(
            settle_function(settle_rules(settings)), OUTPUT_SCHEMA, STATE_SCHEMA, "append", "EventTimeTimeout"
        )
    )
    when = {"availableNow": True} if available_now else {"processingTime": f"{settings.settle.interval} milliseconds"}
    return (
        settled.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(sink.each_batch(partial(_write, settings)))
        .trigger(**when)
        .start()
    )


def records(stream: DataFrame, settings: Settings) -> DataFrame:
    """Project Kafka rows to the operator's input; ticks move the watermark and end here.

    A record goes to the shard of its writer, one that is about a reader alone to all shards, one for queues to none.
    One that cannot be read goes to any: it is a row there.
    """
    kafka, shards = settings.kafka, settings.settle.shards
    is_tick = F.col("topic") == kafka.topic(TICKS)
    text = F.make_valid_utf8(F.col("value").cast("string"))
    coordinates = F.concat_ws("-", "topic", "partition", "offset")
    writer = F.coalesce("said.writer", "said.client", coordinates)
    shard = F.pmod(F.xxhash64(writer), F.lit(shards)).cast("int")
    to = (
        F.when(F.col("source") == STORED, F.array(shard))
        .when(F.col("said.type").isin(*OF_READERS), F.sequence(F.lit(0), F.lit(shards - 1)))
        .when(F.col("said.type").isin(*OF_QUEUES), F.array().cast("array<int>"))
        .otherwise(F.array(shard))
    )
    return (
        stream.withColumn("clock", F.when(is_tick, tick_time()))
        .withWatermark("clock", "0 seconds")
        # only a condition on the watermark column itself is not pushed below the watermark, where ticks must arrive
        .where(F.col("clock").isNull())
        .withColumn("source", F.when(F.col("topic") == kafka.topic("stored"), STORED).otherwise(REPORTS))
        .withColumn("said", F.from_json(text, "type STRING, writer STRING, client STRING"))
        .select(
            F.explode(to).alias("shard"),
            F.unix_millis("timestamp").alias("timestamp"),
            "source",
            "partition",
            "offset",
            "value",
            # always null here, but the operator's input must have the watermark column
            "clock",
        )
    )


def _write(settings: Settings, frame: DataFrame, batch_id: int, query_id: str) -> None:
    # once: each reading would run the operator again
    write(frame.sparkSession, settings, frame.toArrow(), query_id, batch_id)
    # data frames are in reference cycles, and each keeps its batch in the JVM until Python looks for them
    gc.collect()


def write(spark: SparkSession, settings: Settings, settled: pa.Table, query_id: str, batch_id: int) -> None:
    """Commit the rows of a batch, then say what there is to say.

    :param settled: in the columns of the operator's output
    """
    for kind, table, fields, time in (
        (DELIVERY, "deliveries", DELIVERY_FIELDS, "acknowledged_at"),
        (IGNORED, "ignored_reports", IGNORED_FIELDS, "received_at"),
    ):
        rows = _of(settled, kind, fields)
        if rows.num_rows:
            own = {
                time: F.timestamp_millis(time),
                "query_id": F.lit(query_id),
                "batch_id": F.lit(batch_id).cast("long"),
            }
            columns = SETTLE_TABLES[table].schema.fieldNames()
            frame = spark.createDataFrame(rows).withColumns(own).withColumn("day", F.to_date(time)).select(*columns)
            tables.append(frame.coalesce(1), settings.lake, table, query_id, batch_id)
    messages = _of(settled, MESSAGE, MESSAGE_FIELDS)
    if messages.num_rows:
        sink.write(spark.createDataFrame(messages), settings.kafka, settings.kafka.topic("publisher-acks"))


def _of(settled: pa.Table, kind: str, fields: Iterable[str]) -> pa.Table:
    # in one piece: of a table in several Spark has lost rows (10,000 of them and more)
    return settled.filter(pc.field("kind") == kind).select(list(fields)).combine_chunks()
