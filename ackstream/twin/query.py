"""The twin query: signals from Kafka, folded in the driver over the things in its memory, the journal, then Kafka.

A batch does one commit, an append to the journal, and only then says anything. After a crash Spark runs the batch again
on the same records; the things are then taken as they were before it, so it comes to the same rows, which the journal
refuses to take twice, and to the same messages, which are sent again.
"""

from __future__ import annotations

import gc
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from kafka import KafkaConsumer
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream import sink
from ackstream.lake import tables
from ackstream.lake import things as journal
from ackstream.lake.schemas import TWIN_TABLES
from ackstream.options import options
from ackstream.source import header, source, spring_correlation
from ackstream.twin.batch import Limits, Message, Record, Row, fold
from ackstream.twin.things import Thing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

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
        .foreachBatch(sink.each_batch(Twin(settings).write))
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


class Twin:
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


def read_records(frame: DataFrame, limits: Limits) -> list[Record]:
    """Bring the records of a batch to the driver."""
    table = (
        frame.where(F.length("value") <= limits.max_value_bytes)
        .select(F.unix_millis("timestamp"), "partition", "offset", _correlation_id(), "value")
        .toArrow()
    )
    return [Record(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def load(table: pa.Table) -> dict[str, Thing]:
    """Take the things out of the columns of ``things``."""
    created, modified = (table.column(name).cast(_TIME).cast(pa.int64()) for name in ("created_at", "modified_at"))
    contents = table.column("thing").cast(pa.binary())
    values = (table.column("thing_id"), table.column("revision"), created, modified, contents)
    return {
        thing_id: Thing(*fields) for thing_id, *fields in zip(*(value.to_pylist() for value in values), strict=True)
    }


def send(spark: SparkSession, settings: Settings, messages: Sequence[Message]) -> None:
    """Write messages to their topics, in order."""
    if not messages:
        return
    prefix = F.lit(settings.kafka.topic_prefix)
    correlation = F.struct(F.lit("correlation-id").alias("key"), F.col("correlation_id").cast("binary").alias("value"))
    records = spark.createDataFrame(columns(messages, _MESSAGES))
    sink.write(
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
