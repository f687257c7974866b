"""Correlate as a service: its checks, its query, and beside it the clock and the offsets for lag tools."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ackstream import checkpoint
from ackstream.clock import timed
from ackstream.correlation import query
from ackstream.correlation.rules import rules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

TOPICS = ("signals", "acks", "clock", "replies", "ledger", "dead-letters")
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings, topics: Collection[str]) -> Iterator[StreamingQuery]:
    """Run the query for the time of the block.

    :param topics: the topics that exist on the broker
    :raises StartError: if the settings do not fit the checkpoint
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.correlate.shuffle_partitions))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORES[settings.correlate.state_store])
    checkpoint.guard(
        spark,
        settings.lake.checkpoint("correlate"),
        made_with(settings),
        "let the open requests finish (ackstream inflight shows them) and start with a new checkpoint",
    )
    started = query.start(spark, settings, rules(settings, topics))
    with timed(settings, started, settings.correlate.group, "clock", ("signals", "acks")):
        yield started


def made_with(settings: Settings) -> dict[str, object]:
    """Return the settings that cannot change under a checkpoint.

    The number of shards decides where a request's state is, the shuffle partitions which file that state is in, the
    topics which offsets count.
    """
    return {
        "correlate.shards": settings.correlate.shards,
        "correlate.shuffle_partitions": settings.correlate.shuffle_partitions,
        "correlate.state_store": settings.correlate.state_store,
        "kafka.topic_prefix": settings.kafka.topic_prefix,
    }


_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
STATE_STORES = {
    "hdfs": f"{_PACKAGE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{_PACKAGE}.RocksDBStateStoreProvider",
}
