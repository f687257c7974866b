"""The index query: the journal merged into ``things`` and ``things_search``, and acknowledged as search-persisted.

Slower than the twin and apart from it: an acknowledgement that a change is stored never waits for the index.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ackstream.lake import search, tables, things
from ackstream.protocol.envelopes import encode
from ackstream.twin.answers import search_persisted
from ackstream.twin.batch import ACKS, Message
from ackstream.twin.query import send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

NAME = "twin-index"


def start(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the query on tables that are there; it runs until it is stopped."""
    partitions = str(settings.twin.index_partitions)
    # a merge takes every core it can get for seconds, and the twin waits for one; the query keeps what holds now
    with _conf(spark, {"spark.sql.shuffle.partitions": partitions, "spark.sql.files.minPartitionNum": partitions}):
        return (
            spark.readStream.format("delta")
            .load(tables.location(settings.lake, "thing_events"))
            .writeStream.queryName(NAME)
            .option("checkpointLocation", settings.lake.checkpoint(NAME))
            .foreachBatch(partial(_write, spark, settings))
            .trigger(processingTime=settings.twin.index_trigger)
            .start()
        )


def _write(session: SparkSession, settings: Settings, frame: DataFrame, _batch_id: int) -> None:
    """Merge rows of the journal, then acknowledge those whose requesters wait for it.

    Where the merge fails they get a 500, and the query ends; started again it tries again.

    :param session: the one that started the query and knows whether it is to go on
    """
    spark = frame.sparkSession
    events = frame.persist()
    try:
        things.merge(spark, settings.lake, events)
        search.merge(spark, settings.lake, events)
    except Exception:
        query = session.streams.get(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        # a stop looks the same from within
        if query is not None and query.isActive:
            send(spark, settings, _acknowledgements(events, failed=True))
        raise
    else:
        send(spark, settings, _acknowledgements(events, failed=False))
    finally:
        events.unpersist()


@contextmanager
def _conf(spark: SparkSession, entries: dict[str, str]) -> Iterator[None]:
    """Set entries for the time of the block."""
    before = {key: spark.conf.get(key, None) for key in entries}
    for key, value in entries.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def _acknowledgements(events: DataFrame, *, failed: bool) -> list[Message]:
    wanted = events.where("search_persisted").orderBy("thing_id", "revision")
    return [
        Message(
            ACKS,
            thing_id,
            encode(search_persisted(thing_id, correlation_id, visible=None if failed else visible)),
            correlation_id,
        )
        for thing_id, correlation_id, visible in wanted.select("thing_id", "correlation_id", "visible").collect()
    ]
