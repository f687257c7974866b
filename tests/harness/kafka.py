"""What is on topics, and what consumer groups have committed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from ackstream.settings import Kafka


class Observer:
    """Follows topics from their beginning and remembers all records; safe to use from several threads."""

    def __init__(self, kafka: Kafka, *topics: str) -> None:
        self._records: dict[str, list[Any]] = {kafka.topic(topic): [] for topic in topics}
        self._name = kafka.topic
        self._lock = threading.Lock()
        self._consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False)
        self._partitions = [
            TopicPartition(topic, number)
            for topic in self._records
            for number in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning()

    def close(self) -> None:
        self._consumer.close()

    def read(self, topic: str) -> list[Any]:
        """Return all records that a topic has now.

        :raises AssertionError: the broker does not deliver them
        """
        limit = time.monotonic() + PATIENCE_SECONDS
        with self._lock:
            ends = self._consumer.end_offsets(self._partitions)
            while any(self._consumer.position(partition) < end for partition, end in ends.items()):
                assert time.monotonic() < limit, f"the records of {topic} do not arrive"
                for partition, found in self._consumer.poll(timeout_ms=100).items():
                    self._records[partition.topic] += found
            return list(self._records[self._name(topic)])


def records(kafka: Kafka, topic: str) -> list[Any]:
    """Return all records that a topic has now."""
    observer = Observer(kafka, topic)
    try:
        return observer.read(topic)
    finally:
        observer.close()


def committed(kafka: Kafka, group: str, topic: str) -> dict[tuple[str, int], int]:
    """Return a group's committed offsets by topic and partition."""
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        found = admin.list_group_offsets([group])[group]
    name = kafka.topic(topic)
    return {(part.topic, part.partition): at.offset for part, at in found.items() if part.topic == name}
