"""The ticks that move event time on: never past a record that has not been read yet.

A tick says: everything before this time has been read. While the query has caught up that is the broker's present time;
while some partition lags, it is the time of the oldest unread record. So a backlog never causes a false timeout.

The broker's time is taken from the append time of a first, harmless tick (it repeats the last value); only then are the
ends of the partitions looked up, and only then is the real tick sent. A record that arrives in between has a later time
than the tick, whatever the order in which the query reads them.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kafka.admin import OffsetSpec

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import close_producer, connect_admin, connect_consumer, connect_producer
from ackstream.spark.offsets import Repeater, consumed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from kafka import TopicPartition
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

FETCH_MS = 2_000
SEND_SECONDS = 30.0


def next_tick(
    consumed: Mapping[Hashable, int],
    ends: Mapping[Hashable, int],
    broker_time: int,
    timestamp_at: Callable[[Hashable, int], int | None],
) -> int | None:
    """Decide up to which time everything has been read.

    :param consumed: for each partition the next offset the query will read; a missing partition has not been read
    :param ends: for each partition its end, looked up after ``broker_time``
    :param broker_time: the broker's time, in epoch milliseconds
    :param timestamp_at: the timestamp of the record at (or after) an offset; ``None`` if no record can be read
    :return: epoch milliseconds; ``None`` if the time cannot be known
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

    :param ticks: the topic of the ticks, without the prefix; no other query may use it
    :param topics: the topics whose records time must not pass before they are read, without the prefix
    """
    last = 0

    @contextmanager
    def connect() -> Iterator[Callable[[], None]]:
        with _Topics(settings, ticks, topics) as kafka:

            def step() -> None:
                nonlocal last
                broker_time = kafka.publish(last)
                tick = next_tick(consumed_offsets(query), kafka.ends(), broker_time, kafka.timestamp_at)
                if tick is not None and tick > last:
                    kafka.publish(tick)
                    last = tick

            yield step

    return Repeater("clock", settings.clock.interval / 1000, connect)


class _Topics(ExitStack):
    """The clock's view of Kafka; closes its connections when its block ends."""

    def __init__(self, settings: Settings, ticks: str, topics: Iterable[str]) -> None:
        super().__init__()
        kafka = settings.kafka
        self._ticks = kafka.topic(ticks)
        self._topics = [kafka.topic(topic) for topic in topics]
        with ExitStack() as stack:
            self._producer = connect_producer(kafka, self._ticks, delivery_timeout=SEND_SECONDS)
            stack.callback(close_producer, self._producer, 1)
            self._admin = stack.enter_context(connect_admin(kafka))
            self._consumer = connect_consumer(kafka, None, fetch_max_wait_ms=50, max_partition_fetch_bytes=65_536)
            stack.callback(self._consumer.close)
            self.push(stack.pop_all())

    def publish(self, tick: int) -> int:
        """Publish a tick; return the broker's time of it."""
        sent = self._producer.send(self._ticks, key=b"clock", value=str(tick).encode())
        return int(sent.get(timeout=SEND_SECONDS).timestamp)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all partitions, of those that were added, too."""
        return kafka_topics.ends(self._admin, kafka_topics.of_topics(self._admin, self._topics))

    def timestamp_at(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the timestamp of the record at an offset; of the first one kept, if that one has expired."""
        beginning = self._admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset
        self._consumer.assign([partition])
        self._consumer.seek(partition, max(offset, beginning))
        for records in self._consumer.poll(timeout_ms=FETCH_MS, max_records=1).values():
            return int(records[0].timestamp)
        return None
