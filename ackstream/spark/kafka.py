"""Kafka as source and sink of Spark, the same for every job, and columns from record headers."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import MAX_RECORD_BYTES, connect_admin, spark_options
from ackstream.kafka.connection import Outbox, OutgoingRecord
from ackstream.local.submit import is_local
from ackstream.protocol import record_headers
from ackstream.protocol.ditto.correlation_ids import JSON_SPELLINGS, UUID_DIGITS
from ackstream.protocol.json import BYTE_ORDER_MARK
from ackstream.settings import Kafka
from ackstream.spark import batches

Start = int | Mapping[int, int] | datetime

EARLIEST, LATEST = -2, -1
"""Spark's offsets for the ends of a partition."""
ENDS = {"earliest": EARLIEST, "latest": LATEST}
"""The ends by their names in the settings."""

MAX_REQUEST_BYTES = 64 * 1024 * 1024
HEADER_BYTES = 16
"""The overhead of a record header besides its name and value, at most."""
OWN_BYTES = 64 * 1024
MAX_COPY_BYTES = MAX_RECORD_BYTES - OWN_BYTES
"""A record up to this size is copied to another topic with further headers; a larger one is named by coordinates."""
COPY_BYTES = "ackstream.copy.bytes"
"""The entry in a session's conf with the lower limit of a topic."""
_SINK = {
    "max.request.size": str(MAX_REQUEST_BYTES),
    "linger.ms": "5",
    # an upper bound: with Kafka's 16 KB, many records need many requests
    "batch.size": str(256 * 1024),
    # options cannot weaken the guarantee that no sent record is lost
    "acks": "all",
    "enable.idempotence": "true",
}
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
"""A record header in Spark's source and sink."""

RECORDS = pa.schema(
    [("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(HEADER))]
)
"""Records as :func:`write` takes them."""
CLOCK, WATERMARK = "clock", "1 second"
"""The watermark's column, and the watermark's delay: whole seconds, as Spark compiles code for each value."""
FORMER_RUN = "ackstream.clock.former"
"""The entry in a session's conf with the run whose ticks count in a replayed batch, and the offset after them; JSON."""
RUN, ANY_RUN = "ackstream.clock.run", "clock"
"""The entry in a session's conf with the run whose ticks count, which is their key; and its value for another clock."""
FURTHER = "ackstream.topics.further"
"""The entry in a session's conf with the topics of applications that its query reads, as JSON."""
REHEARSAL = "ackstream.rehearsal"
"""The entry in the conf of a session that only rehearses its query: the operator drops its results."""


def source(
    spark: SparkSession, kafka: Kafka, topics: Mapping[str, Start], *, job: str, limit: int | None, headers: bool
) -> DataFrame:
    """Return the records of topics as a stream.

    :param topics: the start of a new checkpoint by topic, without the prefix: :data:`EARLIEST`, :data:`LATEST`, offsets
        by partition (other partitions start at the earliest), or the time of the first record
    :param limit: the maximum number of records per batch; ``None``: no limit
    """
    starts = {kafka.topic(name): start for name, start in topics.items()}
    limits = {} if limit is None else {"maxOffsetsPerTrigger": str(limit)}
    stream = (
        spark.readStream.format("kafka")
        # the default waits would delay every almost empty batch by 500 ms, and after each poll Spark fetches again
        .options(**spark_options(kafka, {"fetch.max.wait.ms": "5", "max.poll.records": "10000"}), **limits)
        .option("failOnDataLoss", str(kafka.on_data_loss == "stop").lower())
        .option("groupIdPrefix", kafka.group_of(job))
        .option("subscribe", ",".join(starts))
        .option("startingOffsets", _starting_offsets(kafka, starts))
        .option("includeHeaders", str(headers).lower())
        .load()
    )
    tasks = reading_tasks(spark.sparkContext)
    return stream if tasks is None else stream.coalesce(tasks)


def reading_tasks(context: SparkContext) -> int | None:
    """Return the maximum number of tasks that read Kafka; ``None``: one per partition, as a cluster may grow."""
    # For a small batch, a task per partition costs more than reading the partitions one after the other.
    if is_local(context.master):
        return int(context.defaultParallelism)
    wanted = context.getConf().get("spark.default.parallelism")
    return None if wanted is None else int(wanted)


def _starting_offsets(kafka: Kafka, starts: Mapping[str, Start]) -> str:
    """Look up the offsets now: Spark would look up the latest later, and skip records sent in the meantime."""
    if all(start == EARLIEST for start in starts.values()):
        return "earliest"
    with connect_admin(kafka) as admin:
        known = kafka_topics.replicas(admin, starts)
        latest = [partition for partition in known if starts[partition.topic] == LATEST]
        times = {name: start for name in known if isinstance(start := starts[name.topic], datetime)}
        ends = kafka_topics.ends(admin, [*latest, *times]) | kafka_topics.offsets_at(admin, times)
    found: dict[str, dict[str, int]] = {topic: {} for topic in starts}
    for partition in known:
        start = starts[partition.topic]
        if isinstance(start, int):
            ends.setdefault(partition, start)
        elif isinstance(start, Mapping):
            ends[partition] = start.get(partition.partition, EARLIEST)
        found[partition.topic][str(partition.partition)] = ends[partition]
    return json.dumps(found)


def sink_options(kafka: Kafka, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of a Kafka sink of Spark; ``own`` are those of the JVM's producer."""
    return spark_options(kafka, {**_SINK, **(own or {})})


def write(records: DataFrame, kafka: Kafka, topic: str | None = None) -> None:
    """Write records in order: ``key``, ``value``, perhaps ``headers``; to ``topic`` (a real name), else a column."""
    # one task keeps the order of records with one key
    writer = records.coalesce(1).write.format("kafka").options(**sink_options(kafka))
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.save()


FEW, FEW_BYTES = 500, 256 * 1024
"""Up to these numbers of records and bytes of values, sending from the driver is faster than starting a Spark job."""

_OUTBOXES: dict[tuple[str, str], Outbox] = {}
"""By job and connection: the writer of batches is not notified of the end of its query."""


def send(spark: SparkSession, records: Sequence[OutgoingRecord], kafka: Kafka, job: str) -> None:
    """Write records from the driver to Kafka, in order by key; each job has an outbox, so that none delays others."""
    if len(records) > FEW or sum(len(value or b"") for _, _, value, _ in records) > FEW_BYTES:
        write(spark.createDataFrame(batches.arrow(records, RECORDS)), kafka)
    elif records:
        connection = kafka.model_dump_json(include={"bootstrap", "security", "options"})
        _OUTBOXES.setdefault((job, connection), Outbox(kafka)).send(records)


def disconnect(job: str) -> None:
    """Close a job's connections of :func:`send`."""
    for key in [key for key in _OUTBOXES if key[0] == job]:
        _OUTBOXES.pop(key).close()


def ticked(stream: DataFrame, ticks: str) -> DataFrame:
    """Let only ticks advance the watermark: a quiet stream gets its timeouts, and Spark drops no record as late."""
    # ``timestamp`` becomes the time of a record or of a tick, in epoch milliseconds; ``ticks`` is a topic's real name.
    is_tick = F.col("topic") == ticks
    time = F.when(is_tick, _tick_time(stream.sparkSession)).otherwise(F.unix_millis("timestamp"))
    # the end of its second: the watermark is WATERMARK behind it, and Spark drops a tick up to the watermark
    clock = F.when(is_tick, F.timestamp_seconds(F.floor(F.col("timestamp") / 1000) + 1))
    # ticks that do not count, whose time is 0, end here
    counts = F.col(CLOCK).isNull() | (F.col(CLOCK) > F.timestamp_seconds(F.lit(1)))
    return stream.withColumn("timestamp", time).withColumn(CLOCK, clock).where(counts)


def _tick_time(spark: SparkSession) -> Column:
    """Return the time of a tick, epoch ms: its ``value``, at most its append time, as it covers no later records."""
    # it is 0, without effect, if the tick is unreadable or its run does not count. The run that ``spark`` names counts,
    # and in a replayed batch also the run that counted when the batch was planned, so that the decisions are the same
    time, key = F.col("value").cast("string").try_cast("long"), F.col("key").cast("string")
    counts = key == spark.conf.get(RUN, ANY_RUN)
    if (former := spark.conf.get(FORMER_RUN, None)) is not None:
        run, end = json.loads(former)
        counts |= (key == run) & (F.col("offset") < end)
    return F.when(counts & (time >= 0), F.least(time, F.unix_millis("timestamp"))).otherwise(0)


def header(name: str) -> Column:
    """Return the value of a record header: the last non-empty one of that name."""
    filled = F.filter("headers", lambda entry: (entry["key"] == name) & (F.length(entry["value"]) > 0))
    return F.try_element_at(filled, F.lit(-1))["value"]


def header_entry(name: str, value: Column) -> Column:
    """Return a record header as an element of the column ``headers``."""
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def application_headers(column: str, prefix: str = "") -> Column:
    """Return the headers in a row of ``messages`` as record headers, with a prefix to their names."""
    return F.transform(
        F.coalesce(column, F.array()),
        lambda one: F.struct(F.concat(F.lit(prefix), one["name"]).alias("key"), one["value"].alias("value")),
    )


def limit_copies(spark: SparkSession, kafka: Kafka, topic: str) -> None:
    """Look up the record size limit of a topic (without the prefix) to which this session will copy records."""
    with connect_admin(kafka) as admin:
        limits = kafka_topics.largest_records(admin, [kafka.topic(topic)]).values()
    spark.conf.set(COPY_BYTES, str(min([MAX_COPY_BYTES, *(limit - OWN_BYTES for limit in limits)])))


def copy_limit(spark: SparkSession) -> int:
    """Return the limit, in bytes, of records that a session copies to another topic (:func:`limit_copies`)."""
    return int(spark.conf.get(COPY_BYTES, str(MAX_COPY_BYTES)))


def fitting(limit: int, value: Column, headers: Column, own: Mapping[str, Column]) -> tuple[Column, Column]:
    """Return value and headers of a record for another topic, or its reference if it exceeds :func:`copy_limit`."""
    # The reference has no value, and instead of ``headers`` the header ``omitted`` with the size in bytes. The ``own``
    # headers, without those whose value is null, are few, small and last: of a repeated name the last one counts.
    known = F.array(*[header_entry(name, column) for name, column in own.items()])
    size = F.aggregate(
        headers,
        F.coalesce(F.length(value), F.lit(0)),
        lambda total, one: total + F.length(one["key"]) + F.coalesce(F.length(one["value"]), F.lit(0)) + HEADER_BYTES,
    )
    fits = size <= limit
    omitted = F.array(header_entry(record_headers.OMITTED, size.cast("string")))
    own_headers = F.filter(known, lambda one: one["value"].isNotNull())
    return F.when(fits, value), F.concat(F.when(fits, headers).otherwise(omitted), own_headers)


def json_text() -> Column:
    """Return the value of a record as JSON text, without a byte order mark."""
    return F.expr(f"TRIM(LEADING '{BYTE_ORDER_MARK.decode()}' FROM CAST(value AS STRING))")


def json_correlation_id(text: Column) -> Column:
    """Return the non-empty correlation-id in the headers of a protocol message, given as JSON text."""
    # as Python does, of a repeated name it takes the last; get_json_object() takes the first
    found = [F.from_json(text, f"headers struct<`{name}`: string>")["headers"][name] for name in JSON_SPELLINGS]
    return F.coalesce(*[F.nullif(one, F.lit("")) for one in found])


def spring_correlation() -> Column:
    """Return Spring's correlation-id as text, as ``correlation_ids.of_spring`` does."""
    value = header(record_headers.SPRING_CORRELATION_ID)
    text, digits = value.cast("string"), F.hex(value)
    return F.when(F.is_valid_utf8(text) & ~digits.rlike(f"^{UUID_DIGITS.pattern}$"), text).otherwise(digits)
