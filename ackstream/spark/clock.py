"""The ticks that move event time on: never past a record that was not read yet.

A tick says: everything before this time has been read. While the query has caught up that is the broker's present time;
while some partition lags, it is the time of the oldest record not read yet. So a backlog never causes a false timeout.

The broker's time is learnt from the append time of a first, harmless tick (it repeats the last value); only then are
the ends of the partitions asked, and only then is the real tick sent. A record that came in between has a later time
than the tick, whatever the order in which the query reads them.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec

from ackstream.kafka.clients import options
from ackstream.spark.offsets import Repeater, committer, consumed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

FETCH_MS = 2_000


def next_tick(
    consumed: Mapping[Hashable, int],
    ends: Mapping[Hashable, int],
    broker_time: int,
    timestamp_at: Callable[[Hashable, int], int | None],
) -> int | None:
    """Decide up to which time everything has been read.

    :param consumed: for each partition the next offset the query will read; a partition that is not there was not read
    :param ends: for each partition its end, asked after ``broker_time`` was
    :param broker_time: the broker's time, in epoch milliseconds
    :param timestamp_at: the timestamp of the record at (or after) an offset; ``None`` where there is none to read
    :return: epoch milliseconds; ``None`` where it cannot be known
    """
    oldest = broker_time
    for partition, end in ends.items():
        offset = consumed.get(partition, 0)
        if offset < end:
            timestamp = timestamp_at(partition, offset)
            if timestamp is None:
                return None
            oldest = min(oldest, timestamp)
    return oldest


def clock(settings: Settings, query: StreamingQuery, ticks: str, topics: Iterable[str]) -> Repeater:
    """Return the thread that publishes the ticks of a query.

    :param ticks: the topic they go to, without the prefix; no other query's
    :param topics: those whose records time must not pass before they are read, without the prefix
    """
    last = 0

    @contextmanager
    def connect() -> Iterator[Callable[[], None]]:
        with closing(_Topics(settings, ticks, topics)) as places:

            def step() -> None:
                nonlocal last
                broker_time = places.publish(last)
                tick = next_tick(consumed_offsets(query), places.ends(), broker_time, places.timestamp_at)
                if tick is not None and tick > last:
                    places.publish(tick)
                    last = tick

            yield step

    return Repeater("clock", settings.clock.interval / 1000, connect)


@contextmanager
def timed(
    settings: Settings, query: StreamingQuery, group: str, ticks: str, topics: Iterable[str]
) -> Iterator[StreamingQuery]:
    """Run a query for the time of the block, its clock beside it, and its offsets in a group for lag tools.

    :param group: the consumer group
    :param ticks: the topic of its ticks, as for :func:`clock`
    :param topics: those whose records time must not pass, as for :func:`clock`
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(committer(settings.kafka, query, group))
            if settings.clock.enabled:
                stack.enter_context(clock(settings, query, ticks, topics))
            yield query
    finally:
        query.stop()


class _Topics:
    """The clock's view of Kafka."""

    def __init__(self, settings: Settings, ticks: str, topics: Iterable[str]) -> None:
        kafka = settings.kafka
        self._clock = kafka.topic(ticks)
        self._producer = KafkaProducer(
            bootstrap_servers=kafka.bootstrap, acks="all", linger_ms=0, **options(kafka, KafkaProducer.DEFAULT_CONFIG)
        )
        # the consumer's own end_offsets() leaves out partitions whose leader it has to ask again
        self._admin = KafkaAdminClient(
            bootstrap_servers=kafka.bootstrap, **options(kafka, KafkaAdminClient.DEFAULT_CONFIG)
        )
        self._consumer = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap,
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=65_536,
            **options(kafka, KafkaConsumer.DEFAULT_CONFIG),
        )
        self._partitions = [
            TopicPartition(topic, partition)
            for topic in map(kafka.topic, topics)
            for partition in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]

    def close(self) -> None:
        """Close the connections."""
        self._producer.close(timeout=1)
        self._consumer.close()
        self._admin.close()

    def publish(self, tick: int) -> int:
        """Publish a tick; return the broker's time of it."""
        metadata = self._producer.send(self._clock, key=b"clock", value=str(tick).encode()).get(timeout=30)
        return int(metadata.timestamp)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all partitions."""
        return self._offsets(self._partitions, OffsetSpec.LATEST)

    def timestamp_at(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the timestamp of the record at an offset; of the first there is where that one has expired."""
        beginning = self._offsets([partition], OffsetSpec.EARLIEST)[partition]
        self._consumer.assign([partition])
        self._consumer.seek(partition, max(offset, beginning))
        for records in self._consumer.poll(timeout_ms=FETCH_MS, max_records=1).values():
            return int(records[0].timestamp)
        return None

    def _offsets(self, partitions: list[TopicPartition], which: OffsetSpec) -> dict[TopicPartition, int]:
        found = self._admin.list_partition_offsets(dict.fromkeys(partitions, which))
        return {partition: entry.offset for partition, entry in found.items()}
