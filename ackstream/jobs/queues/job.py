"""The queues job: stored messages and consumers' reports, one stateful operator, one table, then Kafka.

A queue delivers the stream of the table ``messages``. Its order needs one place, so it is the group of the operator. A
batch commits its events before anyone is notified. Replayed after a crash, it starts from the state it had before: it
gives the same events, which the table refuses to store twice, and the same answers, with the same numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, starmap
from typing import Any, TypeVar

import msgspec
import pandas as pd
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from ackstream.errors import StartError
from ackstream.jobs.queues.endpoint import Endpoint
from ackstream.jobs.queues.records import NAME, Arrival, ConsumerReport, Event, Unreadable, answer_unknown, count
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol import queues, record_headers
from ackstream.protocol.queues import TYPES, QueueAnswer
from ackstream.protocol.rql import patterns
from ackstream.settings import Settings
from ackstream.settings.jobs import QueueSettings
from ackstream.spark import batches
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import CheckpointRules, is_new_checkpoint
from ackstream.spark.job import Job
from ackstream.spark.operator import SHUFFLE_PARTITIONS, ShardBatch, operate

R = TypeVar("R", bound=msgspec.Struct)

TICKS, REPORTS = "queue-clock", "app-acks"
ARRIVAL, REPORT = 0, 1
"""Values of ``kind`` in the operator's input."""

MAX_REPORT_BYTES, MAX_KEY_BYTES = 1_000_000, 1_000
"""Maximum size of a consumer's record that is read: memory of the driver for a batch must be bounded."""
MAX_UNREADABLE_BYTES = 4_096
"""Bytes of an unreadable record in its dead letter, for the same reason; its topic has all of it."""

OUTPUT_SCHEMA = (
    StructType()
    .add("kind", "string").add("key", "binary").add("value", "binary").add("reason", "string")
    .add("partition", "integer").add("offset", "long")
)  # fmt: skip
"""``kind`` is ``answer`` (to the consumer ``key``), ``event``, or ``unreadable`` (with its reason and coordinates)."""

_PLACE = ("topic", "partition", "offset")
_EVENTS = ALL_TABLES["queue_events"].rows(Event.__struct_fields__)
_decode = msgspec.json.Decoder(Event).decode


def check(spark: SparkSession, settings: Settings) -> None:
    """Refuse a new checkpoint beside the rows of an earlier one, whose queues it would forget (StartError)."""
    location = settings.lake.checkpoint(NAME)
    if settings.queue.starting == "latest" and is_new_checkpoint(spark, location):
        tables.refuse_rows(spark, settings.lake, "queue_events", location, _ANEW)


_ANEW = (
    "set queue.starting to earliest or to a time, to deliver again what the table messages has since then (latest would"
    " lose what is in the queues)"
)


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query. Raises StartError if there are no queues."""
    if not settings.queues:
        raise StartError("There are no queues in the settings: add [[queues]] with a name and topics.")
    rules = {queue.name: queue for queue in settings.queues}
    tables.create(spark, settings.lake, ("messages", "queue_events"))
    spark_kafka.limit_copies(spark, settings.kafka, "dead-letters")
    handle = partial(serve, rules, settings.queue.session)
    served = operate(records(spark, settings), "queue", handle, OUTPUT_SCHEMA)
    return batches.start(served, settings.lake, NAME, partial(write, settings), trigger)


JOB = Job(
    name=NAME,
    build=build,
    trigger="queue.interval",
    ticks=TICKS,
    reads=(REPORTS,),
    conf=lambda settings: {SHUFFLE_PARTITIONS: str(settings.queue.shuffle_partitions)},
    check=check,
    keeps=CheckpointRules(
        fixed=("queue.shuffle_partitions", "kafka.topic_prefix"),
        movable=("queue.shuffle_partitions",),
        decides=("queues", "queue.session"),
        otherwise=f"move the checkpoint away and {_ANEW}",
        committed=partial(tables.newest_batch_of, ("queue_events",)),
        rules=6,
    ),
)


def records(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the operator's input: messages for queues, and reports of consumers."""
    messages, reports = _messages(spark, settings), _reports(spark, settings)
    rows = messages.unionByName(reports, allowMissingColumns=True)
    every = F.array(*(F.lit(queue.name) for queue in settings.queues))
    queue = F.explode(F.when(F.col(spark_kafka.CLOCK).isNotNull(), every).otherwise(F.array("queue")))
    return spark_kafka.ticked(rows, settings.kafka.topic(TICKS)).withColumn("queue", queue)


def _messages(spark: SparkSession, settings: Settings) -> DataFrame:
    stored = (
        spark.readStream.format("delta")
        .option("maxBytesPerTrigger", settings.queue.max_bytes_per_trigger)
        # deleted or updated rows are not new messages
        .option("skipChangeCommits", "true")
        .options(**_start(spark, settings))
        .load(tables.location(settings.lake, "messages"))
        .where(F.col("reason").isNull())
    )
    only = F.get(F.filter("headers", lambda one: one["name"] == record_headers.FOR_QUEUE), 0)["value"]
    names = [
        F.when(F.coalesce(only.cast("string") == queue.name, takes(queue)), F.lit(queue.name))
        for queue in settings.queues
    ]
    return stored.withColumn("queue", F.explode(F.array_compact(F.array(*names)))).select(
        "queue",
        F.lit(ARRIVAL).alias("kind"),
        F.col("received_at").alias("timestamp"),
        *_PLACE,
        "batch",
        "subject",
        F.greatest(F.coalesce("ttl_ms", F.lit(0)), F.lit(0)).cast("long").alias("ttl_ms"),
        (~_has_header(record_headers.DMQ_ELIGIBLE, "false")).alias("eligible"),
        _has_header(record_headers.BARRIER, "true").alias("barrier"),
    )


def _start(spark: SparkSession, settings: Settings) -> dict[str, str]:
    """Return where a new checkpoint begins; with ``latest`` at the last commit, so that nothing after it is missed."""
    starting = settings.queue.starting
    if starting == "earliest":
        return {}
    last = DeltaTable.forPath(spark, tables.location(settings.lake, "messages")).history(1).collect()[0]
    if starting == "latest" or starting > last.timestamp.astimezone():
        return {"startingVersion": str(last.version)}
    return {"startingTimestamp": starting.isoformat()}


def takes(queue: QueueSettings) -> Column:
    """Return whether a queue takes a message, by its ``subject``; a missing subject counts as empty."""
    if queue.ingress == "discard":
        return F.lit(False)  # noqa: FBT003 - a literal
    return F.coalesce("subject", F.lit("")).rlike(patterns.expression(queue.topics))


def _has_header(name: str, value: str) -> Column:
    found = F.exists("headers", lambda one: (one["name"] == name) & (one["value"] == F.lit(value).cast("binary")))
    return F.coalesce(found, F.lit(False))  # noqa: FBT003 - a literal


def _reports(spark: SparkSession, settings: Settings) -> DataFrame:
    # a new checkpoint has no sessions, so earlier reports of consumers have no effect. Everything that arrived
    # since the last batch is read at once: time must not pass between two records of one moment
    starts = dict.fromkeys((REPORTS, TICKS), spark_kafka.LATEST)
    reports = spark_kafka.source(spark, settings.kafka, starts, job=NAME, limit=None, headers=False)
    is_tick = F.col("topic") == settings.kafka.topic(TICKS)
    text = spark_kafka.json_text()
    return reports.where(is_tick | F.get_json_object(text, "$.type").isin(*TYPES)).select(
        F.coalesce(F.make_valid_utf8(F.get_json_object(text, "$.queue")), F.lit("")).alias("queue"),
        F.lit(REPORT).alias("kind"),
        "timestamp",
        *_PLACE,
        F.substring("key", 1, MAX_KEY_BYTES).alias("key"),
        F.when(F.length("value") <= MAX_REPORT_BYTES, F.col("value")).alias("value"),
        # beside nulls, the messages' whole numbers would reach Python as floats
        F.lit(0).cast("long").alias("batch"),
        F.lit(0).cast("long").alias("ttl_ms"),
    )


_encode_event = msgspec.json.Encoder().encode


def serve(rules: Mapping[str, QueueSettings], session_ms: int, batch: ShardBatch) -> Iterator[pd.DataFrame]:
    """Process the messages and reports of a queue; one no longer in the ``rules``, by name, keeps its messages."""
    name = batch.key
    arrivals, reports = read_frames(batch.frames)
    if name not in rules:
        yield write_frame(*answer_unknown(name, reports))
        return
    with batch.restored(Endpoint(rules[name], session_ms)) as endpoint:
        # the tick as if the next batch had no records
        ticked = endpoint.process([], [], batch.tick)
        for _ in chain(endpoint.process(arrivals, reports, batch.watermark), ticked, (None,)):
            yield write_frame(*endpoint.take())


def read_frames(frames: Iterable[pd.DataFrame]) -> tuple[list[Arrival], list[ConsumerReport]]:
    """Read rows of the operator's input (:func:`records`)."""
    arrivals: list[Arrival] = []
    reports: list[ConsumerReport] = []
    for frame in frames:
        reported = frame["kind"] == REPORT
        arrivals.extend(_read(frame[~reported], Arrival))
        reports.extend(_read(frame[reported], ConsumerReport))
    return arrivals, reports


def _read(frame: pd.DataFrame, kind: type[R]) -> Iterator[R]:
    return starmap(kind, zip(*(frame[name].tolist() for name in kind.__struct_fields__), strict=True))


def write_frame(
    answers: Iterable[QueueAnswer], unreadable: Iterable[Unreadable], events: Iterable[Event] = ()
) -> pd.DataFrame:
    """Lay out answers, events and unreadable records in the columns of :data:`OUTPUT_SCHEMA`."""
    rows = [
        *(("answer", answer.consumer.encode(), queues.write(answer), None, None, None) for answer in answers),
        *(("event", None, _encode_event(event), None, None, None) for event in events),
        *(
            ("unreadable", one.key, one.value and one.value[:MAX_UNREADABLE_BYTES], reason, one.partition, one.offset)
            for one, reason in unreadable
        ),
    ]
    return pd.DataFrame(rows, columns=OUTPUT_SCHEMA.names, dtype=object)


def write(settings: Settings, frame: DataFrame, batch_id: int, query_id: str) -> None:
    """Commit the events of a batch, then send its dead letters and answers."""
    spark = frame.sparkSession
    found: dict[str, list[Any]] = {"answer": [], "event": [], "unreadable": []}
    # once: each reading would run the operator again
    for kind, key, value, *more in batches.collect(frame):
        found[kind].append(_decode(value) if kind == "event" else (key, value, *more))
    events = found["event"]
    if events:
        tables.append_rows(spark, _columns(events), settings.lake, "queue_events", query_id, batch_id)
    dead_letters, deliveries, reports = map(settings.kafka.topic, ("dead-letters", "queue-deliveries", REPORTS))
    dead = [event for event in events if event.event == "left" and event.outcome == "dead-letter"]
    if dead:
        spark_kafka.write(_dead_letters(spark, settings, dead), settings.kafka, dead_letters)
    records = [
        (dead_letters, key, value, record_headers.of_dead_letter(reason, reports, *where))
        for key, value, reason, *where in found["unreadable"]
    ]
    records += [(deliveries, key, value, []) for key, value, *_ in found["answer"]]
    spark_kafka.send(spark, records, settings.kafka, NAME)
    count(events, len(found["unreadable"]))


def _dead_letters(spark: SparkSession, settings: Settings, dead: Sequence[Event]) -> DataFrame:
    """Return the messages as their publishers sent them, with the reason for leaving the queue in headers.

    A message leaves a queue once: a dead letter that a replayed batch repeats has the same ``queue`` and ``message``.
    """
    # batch has statistics: few files are read
    batches_of_dead = sorted({event.batch for event in dead if event.batch is not None})
    stored = (
        tables.read(spark, settings.lake, "messages")
        .where(F.col("batch").isin(batches_of_dead))
        .select(*_PLACE, "client", "seq", "key", "value", F.col("headers").alias("own"))
    )
    own = spark_kafka.application_headers("own")
    values = {
        record_headers.REASON: F.col("reason"),
        record_headers.QUEUE: F.col("queue"),
        record_headers.MESSAGE: F.col("message"),
        record_headers.TOPIC: F.col("subject"),
        record_headers.DELIVERIES: F.col("count").cast("string"),
        record_headers.CLIENT: F.col("client"),
        record_headers.SEQ: F.col("seq").cast("string"),
    }
    letters = F.broadcast(spark.createDataFrame(_columns(dead))).join(stored, list(_PLACE), "left")
    value, headers = spark_kafka.fitting(spark_kafka.copy_limit(spark), F.col("value"), own, values)
    return letters.select("key", value.alias("value"), headers.alias("headers"))


def _columns(events: Sequence[Event]) -> pa.Table:
    return batches.arrow(map(msgspec.structs.astuple, events), _EVENTS)
