"""The broker of a benchmark: filled, counted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ackstream.kafka.topics import TOPICS

PATIENCE_SECONDS = 30
HEARTBEAT = (
    b'{"topic":"org.acme/heartbeat/things/twin/commands/modify","headers":{"response-required":false},"path":"/",'
    b'"value":{}}'
)
"""A command that awaits nothing and has no correlation-id."""


def producer(bootstrap: str, **more: Any) -> Producer:
    """Return a producer for much data at once."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            # else a request that is repeated is overtaken by later ones: a publisher's numbers come out of order
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 512 * 1024,
            **more,
        }
    )


def consumer_at_end(bootstrap: str, topic: str) -> Consumer:
    """Return a consumer of new records."""
    ends = Offsets(bootstrap).ends(topic)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-load", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    )
    consumer.assign([TopicPartition(topic, partition, high) for partition, (_, high) in ends.items()])
    return consumer


def produce(bootstrap: str, messages: Iterable[tuple[str, bytes, bytes, list[tuple[str, bytes]]]]) -> float:
    """Write (topic, key, value, headers) to Kafka, in order; return the seconds it took."""
    began = time.monotonic()
    target = producer(bootstrap)
    failed: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    for number, (topic, key, value, headers) in enumerate(messages):
        while True:
            try:
                target.produce(topic, value, key, headers=headers, on_delivery=delivered)
                break
            except BufferError:
                target.poll(0.1)
        if number % 1000 == 0:
            target.poll(0)
    target.flush()
    if failed:
        raise RuntimeError(f"{len(failed)} records were not written: {failed[0]}")
    return time.monotonic() - began


def partitions(consumer: Consumer, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions."""
    return sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)


def heartbeat(target: Producer, places: Iterable[tuple[str, int]]) -> None:
    """Write a record with only a time to each partition, for programs that have no clock of their own."""
    for topic, partition in places:
        target.produce(topic, HEARTBEAT, b"heartbeat", partition)


class Offsets:
    """Looks at topics from outside."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        config = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._consumer = Consumer({**config, "group.id": "bench", "enable.auto.commit": False})
        self._admin = AdminClient(config)

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic as the product's are."""
        wanted = NewTopic(topic, partitions, 1, config=TOPICS["replies"].config())
        self._admin.create_topics([wanted])[topic].result(timeout=30)

    def ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return first and next offset of each partition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return {
                    partition: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
                    for partition in partitions(self._consumer, topic)
                }
            except KafkaException:
                # a topic made a moment ago has no leader yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def count(self, topic: str) -> int:
        """Return the number of records of a topic."""
        return sum(high - low for low, high in self.ends(topic).values())

    def truncate(self, *topics: str) -> None:
        """Delete all records of topics: the next round starts with empty ones, and the disk does not fill."""
        places_ = [TopicPartition(topic, partition, OFFSET_END) for topic in topics for partition in self.ends(topic)]
        for future in self._admin.delete_records(places_).values():
            future.result(timeout=30)

    def read(self, topic: str) -> Iterator[Any]:
        """Read all committed records of a topic up to its present end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "bench-read",
                "enable.auto.commit": False,
                # the last offsets may be those of transactions
                "enable.partition.eof": True,
            }
        )
        left = {partition: low for partition, (low, high) in self.ends(topic).items() if low < high}
        try:
            consumer.assign([TopicPartition(topic, partition, low) for partition, low in left.items()])
            while left:
                for message in consumer.consume(10_000, timeout=1):
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                        left.pop(message.partition(), None)
        finally:
            consumer.close()
