"""The settle job: stored messages and readers' reports, one stateful operator, two tables, then Kafka.

A batch commits its rows before anyone is notified. Replayed after a crash, it starts from the state it had before: the
rows are the same, which the tables refuse to store twice, and so are the messages.
"""

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import starmap
from operator import or_

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

from ackstream.jobs.settle.records import OF_READERS, REPORTS, STORED, TICK, ReportRecord, Settled
from ackstream.jobs.settle.shard import SettleShard
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.observe.metrics import DELIVERIES, FIGURES, IGNORED_REPORTS
from ackstream.protocol.queues import TYPES as OF_QUEUES
from ackstream.settings import Settings, Settle
from ackstream.spark import batches
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import CheckpointRules, is_new_checkpoint
from ackstream.spark.job import Job
from ackstream.spark.kafka import CLOCK, EARLIEST, LATEST, json_text, source, ticked
from ackstream.spark.operator import SHUFFLE_PARTITIONS, ShardBatch, operate, shard_keys
from ackstream.spark.records import Share

NAME, TICKS = "settle", "settle-clock"

TABLES = ("deliveries", "ignored_reports")
MESSAGE = "message"
FIELDS: dict[str, dict[str, DataType]] = {
    table: {
        field.name: LongType() if field.dataType == TimestampType() else field.dataType
        for field in ALL_TABLES[table].schema
        if field.name not in ("query_id", "batch_id", "day")
    }
    for table in TABLES
}
"""The columns that the operator gives of a table: without those of the batch; times are numbers."""
FIELDS[MESSAGE] = {"key": StringType(), "value": BinaryType()}
_COLUMNS: dict[str, DataType] = reduce(or_, FIELDS.values(), {"kind": StringType()})
OUTPUT_SCHEMA = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])
"""A row of a table or a record for Kafka; its ``kind`` is the key in :data:`FIELDS`."""


def check(spark: SparkSession, settings: Settings) -> None:
    """Refuse a new checkpoint beside the rows of an earlier one (StartError), which knows the acknowledged samples."""
    # a new one would write and publish again all reports that the topics still have, and forget the others
    if is_new_checkpoint(spark, location := settings.lake.checkpoint(NAME)):
        tables.refuse_rows(spark, settings.lake, "deliveries", location, _ANEW)


_ANEW = "move the checkpoint and the table deliveries away, to begin again with the records still in the topics"


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query."""
    tables.create(spark, settings.lake, TABLES)
    topics, limit = {"stored": EARLIEST, "app-acks": EARLIEST, TICKS: LATEST}, settings.settle.max_offsets_per_trigger
    stream = source(spark, settings.kafka, topics, job=NAME, limit=limit, headers=False)
    keys = shard_keys(spark, settings.settle.shards)
    settled = operate(records(stream, settings, keys), "shard", partial(settle, settings.settle, keys), OUTPUT_SCHEMA)
    return batches.start(settled, settings.lake, NAME, partial(write, settings), trigger)


JOB = Job(
    name=NAME,
    build=build,
    trigger="settle.interval",
    ticks=TICKS,
    reads=("stored", "app-acks"),
    conf=lambda settings: {SHUFFLE_PARTITIONS: str(settings.settle.shuffle_partitions)},
    check=check,
    keeps=CheckpointRules(
        fixed=("settle.shards", "settle.shuffle_partitions", "kafka.topic_prefix"),
        shards="settle.shards",
        # the shards have different readers
        movable=("settle.shuffle_partitions",),
        decides=tuple(
            f"settle.{name}" for name in ("required", "reader_lease", "durable_lease", "reader_memory", "max_holes")
        ),
        otherwise=_ANEW,
        committed=partial(tables.newest_batch_of, TABLES),
        rules=4,
    ),
)


def records(stream: DataFrame, settings: Settings, keys: Sequence[int]) -> DataFrame:
    """Project Kafka rows to the operator's input."""
    # a record goes to its writer's shard, one only about a reader to all shards (``keys``), one for queues to none, an
    # unreadable one to any, which makes a row of it
    kafka = settings.kafka
    text = F.make_valid_utf8(json_text())
    coordinates = F.concat_ws("-", "topic", "partition", "offset")
    writer = F.coalesce("report.writer", "report.client", coordinates)
    every = F.array(*map(F.lit, keys))
    shard = F.get(every, F.pmod(F.xxhash64(writer), F.lit(len(keys))).cast("int"))
    to = (
        F.when(F.col(CLOCK).isNotNull(), every)
        .when(F.col("source") == STORED, F.array(shard))
        .when(F.col("report.type").isin(*OF_READERS), every)
        .when(F.col("report.type").isin(*OF_QUEUES), F.array().cast("array<int>"))
        .otherwise(F.array(shard))
    )
    return (
        ticked(stream, kafka.topic(TICKS))
        .withColumn("source", F.when(F.col("topic") == kafka.topic("stored"), STORED).otherwise(REPORTS))
        .withColumn("report", F.from_json(text, "type STRING, writer STRING, client STRING"))
        .select(F.explode(to).alias("shard"), "timestamp", "source", "partition", "offset", "value", CLOCK)
    )


def settle(rules: Settle, keys: Sequence[int], batch: ShardBatch) -> Iterator[pd.DataFrame]:
    """Process the records of a shard; its number is the place of its key."""
    columns = ReportRecord.__struct_fields__
    with batch.restored(SettleShard(rules, keys.index(batch.key))) as shard:
        share = Share[ReportRecord]()
        for frame in batch.frames:
            read = list(starmap(ReportRecord, zip(*(frame[name].tolist() for name in columns), strict=True)))
            share.add(read, sum(len(record.value or b"") for record in read))
        share.add([ReportRecord(at, TICK, 0, at, None) for at in batch.ticks if at > batch.watermark], 0)
        for records in share:
            yield write_frame(shard.process(records, batch.watermark))
        if batch.tick > batch.watermark:
            # as if the next batch had no records
            yield write_frame(shard.process([], batch.tick))


def write_frame(settled: Settled) -> pd.DataFrame:
    """Lay out rows and messages in the columns of :data:`OUTPUT_SCHEMA`."""
    rows = [{"kind": "deliveries", **row} for row in settled.deliveries]
    rows += [{"kind": "ignored_reports", **row} for row in settled.ignored]
    rows += [{"kind": MESSAGE, "key": key, "value": value} for key, value in settled.messages()]
    return pd.DataFrame({name: [row.get(name) for row in rows] for name in OUTPUT_SCHEMA.names}, dtype=object)


def write(settings: Settings, frame: DataFrame, batch_id: int, query_id: str) -> None:
    """Commit the rows of a batch, then send its messages."""
    spark = frame.sparkSession
    # once: each reading would run the operator again
    settled = frame.toArrow()
    for table in TABLES:
        rows = _of(settled, table)
        if rows.num_rows:
            rows = rows.cast(ALL_TABLES[table].rows(rows.column_names))
            tables.append_rows(spark, rows, settings.lake, table, query_id, batch_id)
    topic, messages = settings.kafka.topic("publisher-acks"), _of(settled, MESSAGE).to_pylist()
    records = [(topic, message["key"], message["value"], ()) for message in messages]
    spark_kafka.send(spark, records, settings.kafka, NAME)
    count(settled)


def count(settled: pa.Table) -> None:
    """Count the rows of a batch."""
    FIGURES.count(DELIVERIES, by=pc.sum(pc.equal(settled.column("kind"), "deliveries")).as_py() or 0)
    ignored = settled.filter(pc.field("kind") == "ignored_reports").column("reason")
    for found in pc.value_counts(ignored).to_pylist():
        FIGURES.count(IGNORED_REPORTS, found["values"], by=found["counts"])


def _of(settled: pa.Table, kind: str) -> pa.Table:
    # in one chunk: of a table in several Spark has lost rows (10,000 of them and more)
    return settled.filter(pc.field("kind") == kind).select(list(FIELDS[kind])).combine_chunks()
