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
    from types import TracebackType

    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Self

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


class Repeater:
    """A thread that does a piece of work each interval until the block it is used around ends.

    A failure is logged and retried with new connections, for as long as it takes: a broker may be away.
    """

    def __init__(self, name: str, seconds: float, connect: Callable[[], Connection]) -> None:
        """Do the work that ``connect`` gives; it is called again after a failure."""
        self._name = name
        self._seconds = seconds
        self._connect = connect
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._connect() as work:
                    while not self._stop.wait(self._seconds):
                        work()
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop time for every request
                log.warning("The %s failed and will be retried: %r", self._name, error)
                self._stop.wait(self._seconds)


def committer(kafka: Kafka, query: StreamingQuery, group: str) -> Repeater:
    """Return the thread that commits the query's offsets to a consumer group."""
    committed: dict[TopicPartition, int] = {}

    @contextmanager
    def connect() -> Iterator[Callable[[], None]]:
        with closing(connect_consumer(kafka, group)) as consumer:

            def commit() -> None:
                offsets = consumed_offsets(query)
                if offsets != committed:
                    consumer.commit({name: OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()})
                    committed.clear()
                    committed.update(offsets)

            yield commit

    return Repeater("committer", COMMIT_SECONDS, connect)
