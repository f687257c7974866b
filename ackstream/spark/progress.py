"""The offsets of a query, where Kafka's own lag tools see them, and what was deleted before the query read it.

Spark keeps its offsets in the checkpoint, where no Kafka tool sees them, so they are committed to a consumer group too.
The copy is for people only: no query ever starts from it.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.errors import StoppedError
from ackstream.kafka.clients import connect_consumer
from ackstream.observe.catalogue import LAG, LOST
from ackstream.observe.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Kafka
    from ackstream.spark.batches import Work

log = logging.getLogger(__name__)
COMMIT_SECONDS = RETRY_SECONDS = 1.0
LAG_SECONDS = 5.0
_KAFKA_OFFSET, _RESTORED = "KafkaSourceOffset", "SerializedOffset"
"""Offsets as Spark has them in a batch, and as it has read them from a checkpoint."""
P = TypeVar("P", bound="Hashable")
"""A partition."""


def consumed_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets the query will read, as of its last finished batch; empty before the first."""
    return _offsets(query.lastProgress, "endOffset")


def planned_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets after those that its newest batch reads, which may be running; empty between batches."""
    # there is no public way: the progress of a batch comes at its end
    return _known(query._jsq.streamingQuery().availableOffsets())  # noqa: SLF001


def started_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the offsets from which its newest batch reads on; those of its checkpoint before the first one."""
    return _known(query._jsq.streamingQuery().committedOffsets(), _RESTORED)  # noqa: SLF001


def _known(progress: Any, *others: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    offsets = progress.valuesIterator()
    while offsets.hasNext():
        offset = offsets.next()
        if offset.getClass().getSimpleName() in (_KAFKA_OFFSET, *others):
            # those of tables look otherwise
            with suppress(AttributeError, TypeError, ValueError):
                found |= _partitions(offset.json())
    return found


def first_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the offsets its first batch started at; empty before its end, and for a new checkpoint."""
    batches = query.recentProgress
    return _offsets(batches[0] if batches else None, "startOffset")


def _offsets(progress: Any, side: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for source in progress.sources if progress is not None else ():
        if not source.description.startswith("Kafka"):
            continue
        found |= _partitions(getattr(source, side) or "null")
    return found


def _partitions(offsets: str) -> dict[TopicPartition, int]:
    """Read offsets as Spark's Kafka source writes them."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in (json.loads(offsets) or {}).items()
        for partition, offset in partitions.items()
    }


def lost_records(before: Mapping[P, int], after: Mapping[P, int], beginnings: Mapping[P, int]) -> dict[P, int]:
    """Count the records of each partition that a query passed over because they had been deleted.

    :param before: the next offsets it would read
    :param after: the same, later
    :param beginnings: the first offsets that Kafka had in between; what it deleted after that is not counted
    """
    counts = {
        partition: min(after.get(partition, offset), beginnings.get(partition, 0)) - offset
        for partition, offset in before.items()
    }
    return {partition: count for partition, count in counts.items() if count > 0}


def lags(offsets: Mapping[P, int], ends: Mapping[P, int], topic_of: Callable[[P], str]) -> dict[str, int]:
    """Count the records of each topic that a query has yet to read; of partitions that it has begun to read.

    :param offsets: the next offsets it will read
    :param ends: the ends of the partitions
    """
    found: dict[str, int] = {}
    for partition, end in ends.items():
        if partition in offsets:
            topic = topic_of(partition)
            found[topic] = found.get(topic, 0) + max(0, end - offsets[partition])
    return found


def _partitions_of(consumer: Any, topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name in topics for number in consumer.partitions_for_topic(name) or ()]


class LagMeter:
    """Looks up every few seconds how many records a query has yet to read, also while none of its batches ends."""

    def __init__(self, consumer: Any, query: str, names: Mapping[str, str]) -> None:
        """Ask by a consumer; ``names`` are the topics as Kafka and as the product names them."""
        self._consumer, self._query, self._names = consumer, query, names
        self._looked = -math.inf

    def look(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the gauges, if it is time to."""
        if (now := time.monotonic()) < self._looked + LAG_SECONDS:
            return
        self._looked = now
        ends = self._consumer.end_offsets(_partitions_of(self._consumer, self._names))
        for topic, count in lags(offsets, ends, lambda partition: self._names[partition.topic]).items():
            FIGURES.set(LAG, self._query, topic, value=count)


@contextmanager
def repeating(
    name: str,
    seconds: float,
    connect: Callable[[], AbstractContextManager[Work]],
    patience: float = math.inf,
    give_up: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Do the work that ``connect`` gives, each interval, in a thread that ends with the block.

    A failure is logged and retried with new connections: a broker may be away.

    :param patience: after so many seconds of failures the thread gives up
    :param give_up: called then, or when the work raises a StoppedError; the block ends with that error
    """
    stop = threading.Event()
    ended: list[StoppedError] = []

    def run() -> None:
        worked = time.monotonic()
        while not stop.is_set():
            try:
                with connect() as work:
                    while not stop.wait(seconds):
                        work()
                        worked = time.monotonic()
            except StoppedError as error:
                ended.append(error)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop time for every request
                silent = time.monotonic() - worked
                if silent > patience:
                    ended.append(StoppedError(f"The {name} has failed for {silent:.0f} s, at last with {error!r}."))
                else:
                    log.warning("The %s failed and will be retried: %r", name, error)
                    stop.wait(max(seconds, RETRY_SECONDS))
            if ended:
                log.error("%s", ended[0])
                give_up()
                return

    thread = threading.Thread(target=run, name=f"ackstream-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if ended:
        raise ended[0]


def committer(
    kafka: Kafka, query: StreamingQuery, group: str, topics: Iterable[str], *, measures: bool = False
) -> AbstractContextManager[None]:
    """Commit the query's offsets to a consumer group until the block ends; report records that it could not read.

    :param topics: those whose records matter, without the prefix
    :param measures: whether to look up every few seconds how many records it has yet to read
    """
    names = {kafka.topic(topic): topic for topic in topics}
    committed: dict[TopicPartition, int] = {}
    total = 0

    @contextmanager
    def connect() -> Iterator[Work]:
        with closing(connect_consumer(kafka, group)) as consumer:

            def first() -> dict[TopicPartition, int]:
                if kafka.on_data_loss == "stop":
                    # Spark ends the query instead
                    return {}
                found: dict[TopicPartition, int] = consumer.beginning_offsets(_partitions_of(consumer, names))
                return found

            beginnings, meter = first(), LagMeter(consumer, query.name, names) if measures else None

            def commit() -> None:
                nonlocal committed, beginnings, total
                offsets = consumed_offsets(query)
                if meter is not None:
                    # the first batch may hang
                    meter.look(offsets or started_offsets(query))
                if offsets == committed:
                    return
                for partition, count in lost_records(committed or first_offsets(query), offsets, beginnings).items():
                    total += count
                    FIGURES.count(LOST, query.name, names.get(partition.topic, "clock"), by=count)
                    log.error(
                        "%s records of %s were deleted before %s read them; %s since its start.",
                        *(count, "-".join(map(str, partition)), query.name, total),
                    )
                consumer.commit({name: OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()})
                committed, beginnings = offsets, first()

            yield commit

    return repeating("committer", COMMIT_SECONDS, connect)
