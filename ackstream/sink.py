"""Kafka as a sink of Spark, for what a batch has to say after its commit: the same for every job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ackstream.settings import Kafka


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
