"""The correlate job: one Kafka source, the shards of open requests, one Kafka sink."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial, reduce

import msgspec
import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.errors import AckstreamError, StartError
from ackstream.jobs.correlate import state
from ackstream.jobs.correlate import topics as correlate_topics
from ackstream.jobs.correlate.records import NAME, Emission, Writer, read_records
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import LIMITED, ends, replicas
from ackstream.protocol import record_headers
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE
from ackstream.protocol.ditto.record_requests import ASKING, REPLY_ID
from ackstream.protocol.ledger import DEAD_LETTER_BYTES
from ackstream.settings import Correlate, Kafka, Settings
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import DRAFT, Checkpoint, CheckpointRules, Resharding
from ackstream.spark.job import Job
from ackstream.spark.operator import SHUFFLE_PARTITIONS, ShardBatch, operate, shard_keys
from ackstream.spark.pieces import Aside
from ackstream.spark.records import Share

TICKS = "clock"
READ = ("signals", "acks", "twin-acks", "declarations")
FRAME_ROWS = 60_000
MOVABLE = ("correlate.shards", "correlate.shuffle_partitions", "correlate.state_store")
OUTPUT_SCHEMA = (
    "topic STRING, key BINARY, value BINARY, reply_id STRING, status STRING, completed_by STRING,"
    " spring_correlation BINARY, reason STRING, traceparent BINARY, partition INT, version STRING"
)
HEADERS = "array<struct<key: string, value: binary>>"

_PROVIDERS = {"hdfs": "HDFSBackedStateStoreProvider", "rocksdb": "RocksDBStateStoreProvider"}


def check(spark: SparkSession, settings: Settings) -> None:
    """Refuse patterns of system topics, and a new checkpoint that would decide all requests again (StartError)."""
    correlate_topics.check_patterns(settings)
    # a rehearsal has no checkpoint, and writes nothing
    if settings.correlate.starting != "earliest" or spark.conf.get(spark_kafka.REHEARSAL, None) is not None:
        return
    location, ledger = settings.lake.checkpoint(NAME), settings.kafka.topic("ledger")
    checkpoint = Checkpoint(spark, location)
    # the remedy for an interrupted migration is another one
    if checkpoint.planned is None and not checkpoint.at(location + DRAFT).remembered:
        with connect_admin(settings.kafka) as admin:
            decided = any(ends(admin, replicas(admin, [ledger])).values())
        if decided:
            raise StartError(
                f"The topic {ledger} has decisions of a checkpoint that is not at {location}: put that one back, or set"
                " correlate.starting to the time of the last decision that counts; requests since then are decided"
                " again (latest would leave unread ones without a reply)."
            )


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Start the query."""
    own, further = map(settings.kafka.topic, LIMITED), json.loads(spark.conf.get(spark_kafka.FURTHER, "[]"))
    real = map(settings.kafka.topic, further)
    topics = CorrelateTopics.of(settings, *correlate_topics.look_up(settings.kafka, settings.correlate, own), real)
    starting = settings.correlate.starting
    start = starting if isinstance(starting, datetime) else spark_kafka.ENDS[starting]
    starts = dict.fromkeys((*READ, *further), start)
    starts |= {"declarations": spark_kafka.EARLIEST, TICKS: spark_kafka.LATEST}
    limit = settings.correlate.max_offsets_per_trigger
    stream = spark_kafka.source(spark, settings.kafka, starts, job=NAME, limit=limit, headers=True)
    aside = Aside.of(spark, settings.lake.checkpoint(NAME))
    handle = partial(correlate, settings.correlate, topics, settings.kafka, settings.clock.slack, aside)
    emissions = operate(records(stream, settings, topics), "shard", handle, OUTPUT_SCHEMA)
    return (
        sink_columns(emissions)
        .writeStream.format("kafka")
        .queryName(NAME)
        .outputMode("append")
        # few large requests of compressed JSON: the broker's share of a message falls to a third
        .options(**spark_kafka.sink_options(settings.kafka, {"compression.type": "lz4"}))
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .trigger(**trigger)
        .start()
    )


def conf(settings: Settings) -> Mapping[str, str]:
    """Return Spark's settings for the place of the query's state and the size of its frames."""
    provider = f"org.apache.spark.sql.execution.streaming.state.{_PROVIDERS[settings.correlate.state_store]}"
    return {
        SHUFFLE_PARTITIONS: str(settings.correlate.shuffle_partitions),
        "spark.sql.streaming.stateStore.providerClass": provider,
        # each frame comes with the whole state: a shard's share of a full batch is one
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(FRAME_ROWS),
    }


JOB = Job(
    name=NAME,
    build=build,
    trigger="correlate.trigger",
    ticks=TICKS,
    reads=READ,
    further=correlate_topics.further_topics,
    conf=conf,
    check=check,
    rehearsal={"correlate.starting": "earliest", "correlate.max_offsets_per_trigger": 500},
    keeps=CheckpointRules(
        # the shards decide where a request's state is, the shuffle partitions which file that state is in; a query that
        # did not refuse undeclared labels has passed the declarations by
        fixed=(*MOVABLE, "kafka.topic_prefix", "correlate.refuse_undeclared"),
        rules=10,
        movable=MOVABLE,
        shards="correlate.shards",
        resharding=Resharding(state.divide, state.unite),
        otherwise="let the open requests finish (ackstream inflight shows them) and start with a new checkpoint",
    ),
)


def records(stream: DataFrame, settings: Settings, topics: CorrelateTopics) -> DataFrame:
    """Project Kafka rows to the operator's input."""
    spark, text = stream.sparkSession, spark_kafka.json_text()
    # most records have no header but the correlation-id: the search for others is interpreted, header by header
    first = F.get("headers", F.lit(0))
    alone = (F.size("headers") == 1) & (first["key"] == record_headers.CORRELATION_ID) & (F.length(first["value"]) > 0)
    # the correlation-id has a column of its own
    others = F.exists("headers", lambda each: each["key"] != record_headers.CORRELATION_ID)
    # few expressions: each batch plans them again, at about 2 ms each
    # bytes that are not UTF-8 become U+FFFD: Arrow cannot hand them to Python
    correlation_id = F.make_valid_utf8(
        F.coalesce(
            F.coalesce("only", spark_kafka.header(record_headers.CORRELATION_ID)).cast("string"),
            spark_kafka.json_correlation_id(text),
            spark_kafka.spring_correlation(),
        )
    )
    coordinates = F.concat_ws("-", "topic", "partition", "offset")
    topic = F.col("topic")
    signal, declaration = topic == topics.signals, topic == topics.declarations
    number, name = F.lit(0), F.lit(None).cast("string")
    if further := [*topics.requests, *topics.answers]:
        of_application = topic.isin(*further)
        cancels = F.col("value").isNull() & spark_kafka.header(record_headers.CANCEL).cast("string").rlike(REPLY_ID)
        asks = topic.isin(*topics.requests) & (_has_header(*ASKING) | cancels)
        # the job ignores all others, whose values may look like anything
        stream = stream.where(
            ~of_application | asks | (topic.isin(*topics.answers) & _has_header(record_headers.LABEL))
        )
        signal |= asks
        event = F.when(asks, spark_kafka.header(record_headers.CE_ID)).cast("string")
        own_id = F.coalesce(spark_kafka.header(record_headers.CORRELATION_ID).cast("string"), event)
        own_id = F.make_valid_utf8(F.coalesce(own_id, spark_kafka.spring_correlation()))
        correlation_id = F.when(of_application, own_id).otherwise(correlation_id)
        number = F.when(of_application, state.OWN * F.crc32(topic).bitwiseAND(state.LARGEST_NUMBER)).otherwise(number)
        name = F.when(of_application, topic)
    keys = shard_keys(spark, settings.correlate.shards)
    shards = F.array(*map(F.lit, keys))
    # every shard has to know ticks, and declarations
    every, own = F.col(spark_kafka.CLOCK).isNotNull(), F.get(shards, F.pmod("hash", F.lit(len(keys))).cast("int"))
    origin = F.when(signal, state.SIGNALS).when(topic == topics.twin_acks, state.TWIN_ACKS)
    if settings.correlate.refuse_undeclared:
        every |= declaration
        origin = origin.when(declaration, state.DECLARATIONS)
    else:
        stream = stream.where(~declaration)
    shard = F.explode(F.when(every, shards).otherwise(F.array(own)))
    return (
        spark_kafka.ticked(stream, settings.kafka.topic(TICKS))
        .withColumn("only", F.when(alone, first["value"]))
        .withColumn("correlation_id", correlation_id)
        .withColumn("hash", F.xxhash64(F.coalesce("correlation_id", coordinates)))
        .select(
            shard.alias("shard"),
            (origin.otherwise(state.ACKS) + number).alias("source"),
            "partition",
            "offset",
            "timestamp",
            "hash",
            F.coalesce("correlation_id", F.when(signal, coordinates)).alias("correlation_id"),
            "key",
            # a value over the limit is cut to the length that its dead letter keeps
            F.when(F.length("value") > settings.correlate.max_value_bytes, F.substring("value", 1, DEAD_LETTER_BYTES))
            .otherwise(F.col("value"))
            .alias("value"),
            F.coalesce(F.length("value"), F.lit(0)).alias("size"),
            F.when(F.col("only").isNull() & others, F.to_json("headers")).alias("headers"),
            name.alias("topic"),
            spark_kafka.CLOCK,
        )
    )


def _has_header(*names: str) -> Column:
    # compiled, unlike the lambda: most records of applications have none of them
    named = reduce(lambda one, other: one | other, [F.array_contains(F.col("headers.key"), name) for name in names])
    return named & F.exists("headers", lambda each: each["key"].isin(*names) & (F.length(each["value"]) > 0))


def correlate(
    limits: Correlate, topics: CorrelateTopics, kafka: Kafka, slack_ms: int, aside: Aside, batch: ShardBatch
) -> Iterator[pd.DataFrame]:
    """Process the records of a shard.

    No record is earlier than the second of the time that passed before its batch, even if a clock was set back.
    ``slack_ms`` is the possible difference between brokers' clocks; ``aside`` keeps long idle open requests.
    """
    topics = correlate_topics.with_present_topics(topics, kafka, limits)
    writer = Writer(topics, batch.query_id, batch.batch_id)
    store = aside.store(batch.key, batch.batch_id)
    # of a broker whose clock was set back a request would end before an answer could arrive
    passed = batch.watermark - (slack_ms if limits.refuse_undeclared else 0)
    with batch.restored(CorrelateShard(limits, topics, writer, slack_ms, store)) as shard:
        share = Share[state.Record]()
        for frame in batch.frames:
            if frame["timestamp"].min() < passed:
                frame = frame.assign(timestamp=frame["timestamp"].clip(lower=passed))  # noqa: PLW2901 - the same rows
            share.add(list(read_records(frame)), int(frame["size"].sum()))
        for _ in shard.process(share, batch.tick):
            if writer.emissions:
                # sent at once: Spark sends rows by their number, not their bytes
                yield write_frame(writer.take(), FRAME_ROWS)
    if writer.emissions:
        yield write_frame(writer.take())


def write_frame(emissions: list[Emission], empty: int = 0) -> pd.DataFrame:
    """Lay out emissions in the columns of :data:`OUTPUT_SCHEMA`, and as many empty rows as wanted."""
    names = Emission.__struct_fields__
    rows = [*map(msgspec.structs.astuple, emissions), *[(None,) * len(names)] * empty]
    return pd.DataFrame(rows, columns=names, dtype=object)


def sink_columns(emissions: DataFrame) -> DataFrame:
    """Lay out emissions as the Kafka sink wants them, with the record headers of replies and dead letters."""
    own, others = record_headers.reply_record_headers(F.col, F.lit(PROTOCOL_CONTENT_TYPE))
    entries = ([spark_kafka.header_entry(*one) for one in part.items()] for part in (own, others))
    reply, (spring, trace, version) = entries
    of_spring, traced = F.col("spring_correlation").isNotNull(), F.col("traceparent").isNotNull()
    # cases and not one filtered array: these are compiled, a lambda is interpreted record by record
    numbered = F.concat(
        F.array(*reply, version),
        F.when(of_spring, F.array(spring)).otherwise(F.array().cast(HEADERS)),
        F.when(traced, F.array(trace)).otherwise(F.array().cast(HEADERS)),
    )
    headers = (
        F.when(F.col("version").isNotNull(), numbered)
        .when(of_spring & traced, F.array(*reply, spring, trace))
        .when(of_spring, F.array(*reply, spring))
        .when(traced, F.array(*reply, trace))
        .when(F.col("reply_id").isNotNull(), F.array(*reply))
        .when(F.col("reason").isNotNull(), F.array(spark_kafka.header_entry(record_headers.REASON, F.col("reason"))))
    )
    emissions = emissions.where(F.col("topic").isNotNull())
    return emissions.select("topic", "partition", "key", "value", headers.alias("headers"))


class InFlight(msgspec.Struct, frozen=True):
    """An open request; times in epoch ms of event time; ``missing`` labels: none if only the response is awaited."""

    correlation_id: str
    thing_id: str | None
    started_at: int
    deadline: int
    missing: tuple[str, ...]


ATTEMPTS = 4


def inflight(spark: SparkSession, settings: Settings) -> list[InFlight]:
    """Read the open requests of a checkpoint, oldest first; the job may be running; AckstreamError: none yet."""
    for _ in range(ATTEMPTS - 1):
        # a job in a hurry deletes files that an old state names, after many batches: a newer state names existing files
        with suppress(OSError):
            return _read(spark, settings)
    return _read(spark, settings)


def _read(spark: SparkSession, settings: Settings) -> list[InFlight]:
    location = settings.lake.checkpoint(NAME)
    # the reader needs the state stores' coordinator, which starts when the streams of a session are first accessed
    _ = spark.streams.active
    try:
        states = spark.read.format("statestore").load(location)
        rows = states.select("key.shard", "value.groupState.version", "value.groupState.blob").collect()
    except Exception as error:
        raise AckstreamError(
            f"No state can be read at {location}: start the correlate job first, or correct lake.checkpoints. ({error})"
        ) from error
    aside, opened = Aside.of(spark, location), list[state.Pending]()
    for shard, version, blob in rows:
        opened += state.open_requests(state.decode_state(version, bytes(blob)), aside.store(shard))
    found = [
        InFlight(one.correlation_id, one.request.thing_id, one.started_at, one.deadline, tuple(one.missing))
        for one in opened
    ]
    return sorted(found, key=lambda entry: (entry.started_at, entry.correlation_id))
