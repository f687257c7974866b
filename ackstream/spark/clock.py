"""The ticks that move event time on: never past a record that has not been read yet.

A tick says: everything before this time has been read. While the query has caught up that is the broker's present time;
while some partition lags, it is the time of the oldest unread record. So a backlog never causes a false timeout.

The broker's time is taken from the append time of a first, harmless tick (it repeats the last value); only then are the
ends of the partitions looked up, and only then is the real tick sent. A record that arrives in between has a later time
than the tick, whatever the order in which the query reads them.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.admin import OffsetSpec

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import close_producer, connect_admin, connect_consumer, connect_producer
from ackstream.spark.offsets import consumed_offsets, repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

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


def clock(settings: Settings, query: StreamingQuery, ticks: str, topics: Iterable[str]) -> AbstractContextManager[None]:
    """Publish the ticks of a query until the block ends.

    :param ticks: the topic of the ticks, without the prefix; no other query may use it
    :param topics: the topics whose records time must not pass before they are read, without the prefix
    """
    kafka, last = settings.kafka, 0
    to, read = kafka.topic(ticks), [kafka.topic(topic) for topic in topics]

    @contextmanager
    def connect() -> Iterator[Callable[[], None]]:
        with ExitStack() as stack:
            producer = connect_producer(kafka, to, delivery_timeout=SEND_SECONDS)
            stack.callback(close_producer, producer, 1)
            admin = stack.enter_context(connect_admin(kafka))
            consumer = connect_consumer(kafka, None, fetch_max_wait_ms=50, max_partition_fetch_bytes=65_536)
            stack.callback(consumer.close)

            def publish(tick: int) -> int:
                """Publish a tick; return the broker's time of it."""
                sent = producer.send(to, key=b"clock", value=str(tick).encode())
                return int(sent.get(timeout=SEND_SECONDS).timestamp)

            def step() -> None:
                nonlocal last
                broker_time = publish(last)
                # those of partitions that were added, too
                ends = kafka_topics.ends(admin, kafka_topics.of_topics(admin, read))
                tick = next_tick(consumed_offsets(query), ends, broker_time, partial(_timestamp_at, admin, consumer))
                if tick is not None and tick > last:
                    publish(tick)
                    last = tick

            yield step

    return repeating("clock", settings.clock.interval / 1000, connect)


def _timestamp_at(admin: Any, consumer: Any, partition: TopicPartition, offset: int) -> int | None:
    """Return the timestamp of the record at an offset; of the first one kept, if that one has expired."""
    beginning = admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset
    consumer.assign([partition])
    consumer.seek(partition, max(offset, beginning))
    for records in consumer.poll(timeout_ms=FETCH_MS, max_records=1).values():
        return int(records[0].timestamp)
    return None
