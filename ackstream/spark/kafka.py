"""Kafka as a source of Spark: the same for every job, and what they all read from record headers."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

from kafka import KafkaConsumer
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.kafka.clients import options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame, SparkSession

    from ackstream.settings import Kafka


EARLIEST, LATEST = -2, -1
"""Spark's names for the ends of a partition."""


def source(
    spark: SparkSession, kafka: Kafka, topics: Iterable[str], *, starting: str, limit: int | None, headers: bool
) -> DataFrame:
    """Return the records of topics as a stream.

    :param topics: their real names
    :param starting: Spark's ``startingOffsets``, for a new checkpoint
    :param limit: records a batch at most; ``None``: all there are
    :param headers: whether there is a column of the record headers
    """
    limits = {} if limit is None else {"maxOffsetsPerTrigger": str(limit)}
    return (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{key}": value for key, value in kafka.options.items()}, **limits)
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", starting)
        .option("includeHeaders", str(headers).lower())
        # the default of 500 ms is waited out by every almost empty batch
        .option("kafka.fetch.max.wait.ms", "5")
        .load()
    )


def starting_offsets(kafka: Kafka, topics: Iterable[str], ticks: str) -> str:
    """Return where a new checkpoint starts: topics at their beginning, the clock at its end.

    Ticks of an earlier checkpoint say what that one had read, not what this one has.

    :param topics: real names
    :param ticks: real name of the clock's topic
    """
    known = options(kafka, KafkaConsumer.DEFAULT_CONFIG)
    with closing(KafkaConsumer(bootstrap_servers=kafka.bootstrap, **known)) as consumer:
        return json.dumps(
            {
                topic: {str(number): where for number in sorted(consumer.partitions_for_topic(topic) or ())}
                for topic, where in {**dict.fromkeys(topics, EARLIEST), ticks: LATEST}.items()
            }
        )


LATEST_TICK = 4_102_444_800_000
"""The year 2100 in epoch milliseconds: later ones are no times but mistakes."""


def tick_time() -> Column:
    """Return the time that a tick's ``value`` says; one that cannot be read says nothing, and so moves nothing."""
    time = F.col("value").cast("string").try_cast("long")
    return F.timestamp_millis(F.when(time.between(0, LATEST_TICK), time).otherwise(0))


def header(name: str) -> Column:
    """Return the value of a record header; of a repeated one the last counts."""
    return F.try_element_at(F.filter("headers", lambda entry: entry["key"] == name), F.lit(-1))["value"]


def spring_correlation() -> Column:
    """Return Spring's correlation-id as text, or in hexadecimal where it is none (a UUID's 16 bytes)."""
    value = header("kafka_correlationId")
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text).otherwise(F.hex(value))


# -- What jobs that write batch by batch share: the batch with its query's id, and Kafka for what it says afterwards.


def each_batch(write: Callable[[DataFrame, int, str], None]) -> Callable[[DataFrame, int], None]:
    """Return the function for ``foreachBatch`` that calls ``write`` with the batch, its number and its query's id."""

    def call(frame: DataFrame, batch_id: int) -> None:
        write(frame, batch_id, frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))

    return call


def write(records: DataFrame, kafka: Kafka, topic: str | None = None) -> None:
    """Write records to Kafka, in their order.

    :param records: columns ``key`` and ``value``, perhaps ``headers``; ``topic`` where it is not given
    :param topic: its real name
    """
    # one task: what concerns one key stays in order
    writer = records.coalesce(1).write.format("kafka")
    if topic is not None:
        writer = writer.option("topic", topic)
    (
        writer.options(**{f"kafka.{key}": value for key, value in kafka.options.items()})
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("kafka.max.request.size", str(64 * 1024 * 1024))
        .option("kafka.linger.ms", "5")
        .save()
    )
