"""Settle as a service: its checks, its query, and beside it its clock and the offsets for lag tools."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from ackstream.errors import StartError
from ackstream.jobs.settle.output import OF_READERS, REPORTS, STORED, ReportRecord, Settled
from ackstream.jobs.settle.shard import SettleShard
from ackstream.jobs.settle.state import settle_rules
from ackstream.lake import tables
from ackstream.lake.schemas import SETTLE_TABLES
from ackstream.protocol.queues import TYPES as OF_QUEUES
from ackstream.spark import checkpoint
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.clock import timed
from ackstream.spark.kafka import source, starting_offsets, tick_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

    from ackstream.jobs.settle.state import SettleRules
    from ackstream.settings import Settings


NAME = "settle"
TICKS = "settle-clock"
TOPICS = ("stored", "app-acks", "publisher-acks", TICKS)
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[StreamingQuery]:
    """Run the query for the time of the block.

    :raises StartError: if the settings do not fit the checkpoint, the checkpoint not the table, or a table not us
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.settle.shuffle_partitions))
    check(spark, settings)
    started = start(spark, settings)
    with timed(settings, started, settings.settle.group, TICKS, ("stored", "app-acks")):
        yield started


def check(spark: SparkSession, settings: Settings) -> None:
    """Refuse a checkpoint of other values, and a new one beside the rows of an earlier one.

    What has been acknowledged is in the state of the checkpoint that wrote the rows: a new one would write, and say,
    everything again that the topics still have, and forget what they have not.

    :raises StartError: naming both, and the ways out
    """
    place, table = settings.lake.checkpoint(NAME), tables.location(settings.lake, "deliveries")
    otherwise = f"move the checkpoint and the table {table} away, to begin anew with what the topics still have"
    written = DeltaTable.isDeltaTable(spark, table) and not tables.read(spark, settings.lake, "deliveries").isEmpty()
    if written and checkpoint.is_new(spark, place):
        raise StartError(
            f"The table {table} has rows of a checkpoint that is not at {place}: put that one back, or {otherwise}."
        )
    checkpoint.guard(
        spark,
        place,
        {
            "settle.shards": settings.settle.shards,
            "settle.shuffle_partitions": settings.settle.shuffle_partitions,
            "kafka.topic_prefix": settings.kafka.topic_prefix,
        },
        otherwise,
    )


# -- The settle query: what was stored and what readers say, the shard operator, two tables, then Kafka.
# A batch commits its rows, and only then anybody hears of them. A batch that runs again after a crash starts from the
# state as it was before it: it comes to the same rows, which the tables refuse to take twice, and to the same messages.


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
        .foreachBatch(spark_kafka.each_batch(partial(_write, settings)))
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
        spark_kafka.write(spark.createDataFrame(messages), settings.kafka, settings.kafka.topic("publisher-acks"))


def _of(settled: pa.Table, kind: str, fields: Iterable[str]) -> pa.Table:
    # in one piece: of a table in several Spark has lost rows (10,000 of them and more)
    return settled.filter(pc.field("kind") == kind).select(list(fields)).combine_chunks()


# -- The shard operator of settle: applyInPandasWithState around :class:`SettleShard`.
# One call handles all records of a shard in a batch. The state is a version and one blob.


# a Python worker of Spark runs gc.collect() after every task: what is alive now need not be looked at then
gc.collect()
gc.freeze()

DELIVERY, IGNORED, MESSAGE = "delivery", "ignored", "message"
"""Values of ``kind`` in the output: a row of ``deliveries``, one of ``ignored_reports``, a record for Kafka."""

TEXT, NUMBER, BYTES = StringType(), LongType(), BinaryType()
DELIVERY_FIELDS = {
    "id": TEXT, "writer": TEXT, "reader": TEXT, "role": TEXT, "first": NUMBER, "last": NUMBER, "response": BYTES,
    "auto": TEXT, "epoch": NUMBER, "acknowledged_at": NUMBER, "partition": IntegerType(), "offset": NUMBER,
}  # fmt: skip
IGNORED_FIELDS = {
    "id": TEXT, "reason": TEXT, "detail": TEXT, "writer": TEXT, "reader": TEXT, "first": NUMBER, "last": NUMBER,
    "value": BYTES, "received_at": NUMBER, "topic": TEXT, "partition": IntegerType(), "offset": NUMBER,
}  # fmt: skip
MESSAGE_FIELDS = {"key": TEXT, "value": BYTES}
_FIELDS = {"kind": TEXT, **DELIVERY_FIELDS, **IGNORED_FIELDS, **MESSAGE_FIELDS}
OUTPUT_SCHEMA = StructType([StructField(name, kind) for name, kind in _FIELDS.items()])
STATE_SCHEMA = StructType([StructField("version", IntegerType()), StructField("blob", BYTES)])
_INPUT = ("timestamp", "source", "partition", "offset", "value")


def settle_function(
    rules: SettleRules,
) -> Callable[[tuple[int], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard with records, or whose timeout has come."""

    def settle(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        shard = SettleShard(rules, int(key[0]))
        watermark = max(state.getCurrentWatermarkMs(), 0)
        if state.exists:
            version, blob = state.get
            shard.load(version, bytes(blob), watermark)
        settled = shard.process([record for frame in frames for record in read_records(frame)], watermark)
        state.update(shard.dump())
        if shard.next_timeout is not None:
            state.setTimeoutTimestamp(max(shard.next_timeout, watermark + 1))
        yield write_frame(settled)

    return settle


def read_records(frame: pd.DataFrame) -> Iterator[ReportRecord]:
    """Read the rows of the input (see ``query.records``)."""
    return starmap(ReportRecord, zip(*(frame[name].tolist() for name in _INPUT), strict=True))


def write_frame(settled: Settled) -> pd.DataFrame:
    """Lay out rows and messages in the columns of :data:`OUTPUT_SCHEMA`."""
    kinds = (
        (DELIVERY, DELIVERY_FIELDS, [[getattr(row, name) for name in DELIVERY_FIELDS] for row in settled.deliveries]),
        (IGNORED, IGNORED_FIELDS, [[getattr(row, name) for name in IGNORED_FIELDS] for row in settled.ignored]),
        (MESSAGE, MESSAGE_FIELDS, list(settled.messages())),
    )
    columns: dict[str, list[Any]] = {name: [] for name in OUTPUT_SCHEMA.names}
    for kind, fields, rows in kinds:
        given = dict(zip(fields, zip(*rows, strict=True), strict=False))
        for name, column in columns.items():
            column.extend([kind] * len(rows) if name == "kind" else given.get(name, [None] * len(rows)))
    return pd.DataFrame(columns, dtype=object)
