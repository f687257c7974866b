"""The twin as a service: its two queries, and the offsets for lag tools."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ackstream.offsets import committer
from ackstream.twin import indexing, query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

STOP_SECONDS, STOP_POLL_SECONDS = 30.0, 0.05
"""How long a batch at hand may take to its end when the queries are stopped."""

TOPICS = ("signals", "acks", "events")
"""The topics the job reads and writes, without the prefix."""


@contextmanager
def running(spark: SparkSession, settings: Settings) -> Iterator[tuple[StreamingQuery, StreamingQuery]]:
    """Run the twin and its index for the time of the block; the topics are there.

    :raises StartError: where a table is not as this version writes it
    """
    twin = query.start(spark, settings)
    try:
        index = indexing.start(spark, settings)
        try:
            with committer(settings.kafka, twin, settings.twin.group):
                yield twin, index
        finally:
            _stop(index)
    finally:
        _stop(twin)


def _stop(query: StreamingQuery) -> None:
    """Stop a query between two batches, if there is such a moment."""
    deadline = time.monotonic() + STOP_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(STOP_POLL_SECONDS)
    query.stop()
