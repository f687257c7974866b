"""Correlate as a service: its checks, its query, its driver."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ackstream.correlation import checkpoint, query
from ackstream.correlation.driver import Driver
from ackstream.correlation.rules import rules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings


@contextmanager
def running(spark: SparkSession, settings: Settings, topics: Collection[str]) -> Iterator[StreamingQuery]:
    """Run the query and its driver for the time of the block.

    :param topics: the topics that exist on the broker
    :raises StartError: if the settings do not fit the checkpoint
    """
    # the query takes the number of partitions of its state from the session, once, when it starts first
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.correlate.shuffle_partitions))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORES[settings.correlate.state_store])
    checkpoint.guard(spark, settings)
    started = query.start(spark, settings, rules(settings, topics))
    try:
        with Driver(settings, started):
            yield started
    finally:
        started.stop()


_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
STATE_STORES = {
    "hdfs": f"{_PACKAGE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{_PACKAGE}.RocksDBStateStoreProvider",
}
