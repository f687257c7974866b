"""The progress of a query: its offsets, for Kafka's own lag tools, and the ticks that move event time on.

Spark keeps its offsets in the checkpoint, where no Kafka tool sees them, so they are committed to a consumer group too.
The copy is for people only: no query ever starts from it.

A tick says: everything before this time has been read. While the query has caught up that is the broker's present time;
while some partition lags, it is the time of the oldest unread record. So a backlog never causes a false timeout.

The broker's time is taken from the append time of a first, harmless tick (it repeats the last value); only then are the
ends of the partitions looked up, and only then is the real tick sent. A record that arrives in between has a later time
than the tick, whatever the order in which the query reads them.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import close_producer, connect_admin, connect_consumer, connect_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Kafka, Settings
    from ackstream.spark.batches import Work

log = logging.getLogger(__name__)
COMMIT_SECONDS = 1.0
FETCH_MS = 2_000
SEND_SECONDS = 30.0


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
def repeating(name: str, seconds: float, connect: Callable[[], AbstractContextManager[Work]]) -> Iterator[None]:
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
    def connect() -> Iterator[Work]:
        with closing(connect_consumer(kafka, group)) as consumer:

            def commit() -> None:
                nonlocal committed
                offsets = consumed_offsets(query)
                if offsets != committed:
                    consumer.commit({name: OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()})
                    committed = offsets

            yield commit

    return repeating("committer", COMMIT_SECONDS, connect)


# -- the clock ---------------------------------------------------------------------------------------------------------


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
    def connect() -> Iterator[Work]:
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
