"""What jobs that write batch by batch share: the batch with its query's id, and Kafka for what it says afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from ackstream.settings import Kafka


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
