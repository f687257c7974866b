"""What is on topics, and what consumer groups have committed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from ackstream.kafka.topics import TOPICS, UNCOMPRESSED
from tests.harness.programs import BOMBER
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Kafka


class Observer:
    """Follows topics from their beginning and remembers all records; safe to use from several threads."""

    def __init__(self, kafka: Kafka, *topics: str) -> None:
        self._records: dict[str, list[Any]] = {kafka.topic(topic): [] for topic in topics}
        self._name = kafka.topic
        self._lock = threading.Lock()
        self._consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False)
        self.partitions = [
            TopicPartition(topic, number)
            for topic in self._records
            for number in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]
        self._consumer.assign(self.partitions)
        self._consumer.seek_to_beginning()

    def close(self) -> None:
        self._consumer.close()

    def end(self) -> int:
        """Return how many records the topics have had."""
        with self._lock:
            return sum(self._consumer.end_offsets(self.partitions).values())

    def read(self, topic: str) -> list[Any]:
        """Return all records that a topic has now.

        :raises AssertionError: the broker does not deliver them
        """
        limit = time.monotonic() + PATIENCE_SECONDS
        with self._lock:
            ends = self._consumer.end_offsets(self.partitions)
            while any(self._consumer.position(partition) < end for partition, end in ends.items()):
                assert time.monotonic() < limit, f"the records of {topic} do not arrive"
                for partition, found in self._consumer.poll(timeout_ms=100).items():
                    self._records[partition.topic] += found
            return list(self._records[self._name(topic)])


_followed: dict[tuple[str, str], dict[str, Observer]] = {}
_following = threading.Lock()


@contextmanager
def following(kafka: Kafka) -> Iterator[None]:
    """Keep a consumer for each topic that is read within the block, so that another look reads only new records.

    A topic that is created anew, and its partitions that are added, are not noticed.
    """
    key = kafka.bootstrap, kafka.topic_prefix
    if key in _followed:
        yield
        return
    _followed[key] = {}
    try:
        yield
    finally:
        for observer in _followed.pop(key).values():
            observer.close()


@contextmanager
def _observer(kafka: Kafka, topic: str) -> Iterator[Observer]:
    kept = _followed.get((kafka.bootstrap, kafka.topic_prefix))
    if kept is None:
        observer = Observer(kafka, topic)
        try:
            yield observer
        finally:
            observer.close()
        return
    with _following:
        observer = kept.get(topic) or Observer(kafka, topic)
        if observer.partitions:
            kept[topic] = observer
    yield observer
    if not observer.partitions:
        # it will be there later
        observer.close()


def records(kafka: Kafka, topic: str) -> list[Any]:
    """Return all records that a topic has now."""
    with _observer(kafka, topic) as observer:
        return observer.read(topic)


def end(kafka: Kafka, topic: str) -> int:
    """Return how many records a topic has had."""
    with _observer(kafka, topic) as observer:
        return observer.end()


def committed(kafka: Kafka, group: str, topic: str) -> dict[tuple[str, int], int]:
    """Return a group's committed offsets by topic and partition."""
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        found = admin.list_group_offsets([group])[group]
    name = kafka.topic(topic)
    return {(part.topic, part.partition): at.offset for part, at in found.items() if part.topic == name}


CODECS = ("gzip", "snappy", "lz4", "zstd")


def send_bombs(kafka: Kafka, codec: str, megabytes: int) -> list[str]:
    """Send a record of so many MB once decompressed to each topic that clients write; return an answer for each."""
    topics = [kafka.topic(name) for name, topic in TOPICS.items() if topic.compression == UNCOMPRESSED]
    command = [sys.executable, "-c", BOMBER, kafka.bootstrap, codec, str(megabytes), *topics]
    answers = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert [answer.partition(" ")[0] for answer in answers] == topics
    return [answer.partition(" ")[2] for answer in answers]
