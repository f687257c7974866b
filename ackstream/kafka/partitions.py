"""Partitions: their offsets, and which of them a client reads that joins no group."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError
from kafka.partitioner import murmur2

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

_SLACK_MS = 60_000
"""Between our clock and the broker's; reading a record twice does no harm."""


def of_topics(admin: Any, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of topics (real names) that exist."""
    return [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in admin.describe_topics(list(topics))
        for partition in topic["partitions"]
    ]


def beginnings(admin: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset of each partition's oldest record.

    :raises KafkaError: the broker went away
    """
    return _offsets(admin, partitions, OffsetSpec.EARLIEST)


def ends(admin: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset that the next record of each partition will have.

    An admin client finds them all; a consumer's own ``end_offsets()`` omits partitions whose leader has moved.

    :raises KafkaError: the broker went away
    """
    return _offsets(admin, partitions, OffsetSpec.LATEST)


def at_time(admin: Any, partitions: Iterable[TopicPartition], since: int) -> dict[TopicPartition, int]:
    """Return for each partition the offset of the first record of a time or later, or its end if there is none.

    :param since: epoch milliseconds
    :raises KafkaError: the broker went away
    """
    partitions = list(partitions)
    last, found = ends(admin, partitions), _offsets(admin, partitions, since)
    return {partition: last[partition] if found[partition] < 0 else found[partition] for partition in partitions}


def _offsets(admin: Any, partitions: Iterable[TopicPartition], which: Any) -> dict[TopicPartition, int]:
    found = admin.list_partition_offsets(dict.fromkeys(partitions, which))
    return {partition: entry.offset for partition, entry in found.items()}


def offsets_since(consumer: Any, partitions: Iterable[Any], time_ms: int) -> dict[Any, int]:
    """Return the same as :func:`at_time`, by a consumer.

    :param time_ms: of the broker, in epoch milliseconds
    :raises KafkaError: the broker does not answer
    """
    wanted = list(partitions)
    if not wanted:
        return {}
    # the ends first: what arrives in the meantime is read
    last = consumer.end_offsets(wanted)
    found = consumer.offsets_for_times(dict.fromkeys(wanted, time_ms))
    return {partition: last[partition] if found[partition] is None else found[partition].offset for partition in wanted}


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the partition where every Kafka client puts records of a key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


class PartitionAssignment:
    """The partitions that a consumer reads without a group, among them those that are added later.

    Adding partitions may move the records for a name to another one: of that, everything since the client began is
    read. The old one stays assigned, since not every writer notices at once. For the consumer's own thread.
    """

    def __init__(self, consumer: Any, name: bytes, *, whole: Iterable[str] = (), addressed: Iterable[str] = ()) -> None:
        """Begin at the end of everything: every record written after this returns will be read.

        :param consumer: with ``auto_offset_reset`` ``earliest``
        :param name: the key of records for this client
        :param whole: topics of which all partitions are read, by their real names
        :param addressed: topics of which only the partition with the records for the name is read
        :raises KafkaError: the broker went away
        """
        self._consumer = consumer
        self._name = name
        self._whole = tuple(whole)
        self._addressed = tuple(addressed)
        self._since = time.time_ns() // 1_000_000 - _SLACK_MS
        self._counts = self._partition_counts()
        self._assigned = self._wanted()
        consumer.assign(sorted(self._assigned))
        for partition, offset in consumer.end_offsets(sorted(self._assigned)).items():
            consumer.seek(partition, offset)

    def of(self, topic: str) -> list[Any]:
        """Return the partitions of a topic that are read."""
        return sorted(partition for partition in self._assigned if partition.topic == topic)

    def update(self) -> None:
        """Assign partitions that were added. If the broker does not answer, the next call tries again."""
        counts = self._partition_counts()
        if counts == self._counts or not all(counts.values()):
            return
        known, self._counts = self._counts, counts
        new = sorted(self._wanted() - self._assigned)
        try:
            self._consumer.assign(sorted(self._assigned.union(new)))
            moved = [partition for partition in new if partition.topic in self._addressed]
            # a new partition of a topic that is read whole has been empty: read it from its beginning
            starts = dict.fromkeys(new, 0) | offsets_since(self._consumer, moved, self._since)
            for partition, offset in starts.items():
                self._consumer.seek(partition, offset)
        except KafkaError as error:
            log.warning("New partitions are not read yet: %s", error)
            self._counts = known
        else:
            self._assigned.update(new)

    def _partition_counts(self) -> dict[str, int]:
        topics = (*self._whole, *self._addressed)
        return {topic: len(self._consumer.partitions_for_topic(topic)) for topic in topics}

    def _wanted(self) -> set[Any]:
        whole = {TopicPartition(topic, number) for topic in self._whole for number in range(self._counts[topic])}
        return whole | {
            TopicPartition(topic, partition_of(self._name, self._counts[topic])) for topic in self._addressed
        }
