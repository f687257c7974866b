"""Settle as a service: its checks, its query, and beside it its clock and the offsets for lag tools."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from ackstream import checkpoint
from ackstream.clock import timed
from ackstream.delivery.settle import query
from ackstream.errors import StartError
from ackstream.lake import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

TOPICS = ("stored", "app-acks", "publisher-acks", query.TICKS)
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[StreamingQuery]:
    """Run the query for the time of the block.

    :raises StartError: if the settings do not fit the checkpoint, the checkpoint not the table, or a table not us
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.settle.shuffle_partitions))
    check(spark, settings)
    started = query.start(spark, settings)
    with timed(settings, started, settings.settle.group, query.TICKS, ("stored", "app-acks")):
        yield started


def check(spark: SparkSession, settings: Settings) -> None:
    """Refuse a checkpoint of other values, and a new one beside the rows of an earlier one.

    What has been acknowledged is in the state of the checkpoint that wrote the rows: a new one would write, and say,
    everything again that the topics still have, and forget what they have not.

    :raises StartError: naming both, and the ways out
    """
    place, table = settings.lake.checkpoint(query.NAME), tables.location(settings.lake, "deliveries")
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
