"""The offsets of a streaming query, for Kafka's own lag tools and for the clock.

Spark keeps its offsets in the checkpoint, where no Kafka tool sees them, so they are committed to a consumer group too.
The copy is for people only: no query ever starts from it.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.kafka.clients import connect_consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Kafka

    Connection = AbstractContextManager[Callable[[], None]]

log = logging.getLogger(__name__)
COMMIT_SECONDS = 1.0


def consumed_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets the query will read, as of its last finished batch; empty before the first."""
    progress = query.lastProgress
    found: dict[TopicPartition, int] = {}
    for source in progress.sources if progress is not None else ():
        if not source.description.startswith("Kafka"):
            continue
        for topic, partitions in json.loads(source.endOffset or "{}").items():
            for partition, offset in partitions.items():
                found[TopicPartition(topic, int(partition))] = int(offset)
    return found


@contextmanager
def repeating(name: str, seconds: float, connect: Callable[[], Connection]) -> Iterator[None]:
    """Do the work that ``connect`` gives, each interval, in a thread that ends with the block.

    A failure is logged and retried with new connections, for as long as it takes: a broker may be away.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                with connect() as work:
                    while not stop.wait(seconds):
                        work()
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop time for every request
                log.warning("The %s failed and will be retried: %r", name, error)
                stop.wait(seconds)

    thread = threading.Thread(target=run, name=f"ackstream-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def committer(kafka: Kafka, query: StreamingQuery, group: str) -> AbstractContextManager[None]:
    """Commit the query's offsets to a consumer group until the block ends."""
    committed: dict[TopicPartition, int] = {}

    @contextmanager
    def connect() -> Iterator[Callable[[], None]]:
        with closing(connect_consumer(kafka, group)) as consumer:

            def commit() -> None:
                nonlocal committed
                offsets = consumed_offsets(query)
                if offsets != committed:
                    consumer.commit({name: OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()})
                    committed = offsets

            yield commit

    return repeating("committer", COMMIT_SECONDS, connect)
