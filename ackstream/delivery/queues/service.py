"""The queues as a service: their query, and beside it their clock and the offsets for lag tools."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ackstream import checkpoint
from ackstream.clock import timed
from ackstream.delivery.queues import query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

TOPICS = ("app-acks", "queue-deliveries", "dead-letters", query.TICKS)
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[StreamingQuery]:
    """Run the query for the time of the block.

    :raises StartError: there are no queues, or the settings do not fit the checkpoint or a table
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.queue.shuffle_partitions))
    checkpoint.guard(
        spark,
        settings.lake.checkpoint(query.NAME),
        {
            "queue.shuffle_partitions": settings.queue.shuffle_partitions,
            "kafka.topic_prefix": settings.kafka.topic_prefix,
        },
        "start with a new checkpoint, which delivers all that the table messages has again",
    )
    started = query.start(spark, settings)
    with timed(settings, started, settings.queue.group, query.TICKS, ("app-acks",)):
        yield started
