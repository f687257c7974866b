"""Offsets, asked by an admin client: a consumer's own end_offsets() leaves out what it has to ask again."""

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


def of_topics(admin: Any, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of topics (real names) that exist."""
    return [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in admin.describe_topics(list(topics))
        for partition in topic["partitions"]
    ]


def ends(admin: Any, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where each partition ends: the offset its next record will have.

    :raises KafkaError: the broker went away
    """
    return _offsets(admin, places, OffsetSpec.LATEST)


def at_time(admin: Any, places: Iterable[TopicPartition], since: int) -> dict[TopicPartition, int]:
    """Return the offset of the first record of a time or after it; the end where there is none.

    :param since: epoch milliseconds
    :raises KafkaError: the broker went away
    """
    places = list(places)
    last, found = ends(admin, places), _offsets(admin, places, since)
    return {place: last[place] if found[place] < 0 else found[place] for place in places}


def _offsets(admin: Any, places: Iterable[TopicPartition], which: Any) -> dict[TopicPartition, int]:
    found = admin.list_partition_offsets(dict.fromkeys(places, which))
    return {place: entry.offset for place, entry in found.items()}


# -- Which partitions a client reads that is in no group: topics whole, or only where the records for it are.


log = logging.getLogger(__name__)

_SLACK_MS = 60_000
"""Between our clock and the broker's; what is read again does no harm."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return where every Kafka client puts records of a key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def offsets_since(consumer: Any, places: Iterable[Any], time_ms: int) -> dict[Any, int]:
    """Return for each partition the offset of the first record of a time or later; where there is none, its end.

    :param time_ms: of the broker, in epoch milliseconds
    :raises KafkaError: the broker does not answer
    """
    wanted = list(places)
    if not wanted:
        return {}
    # the ends first: what comes meanwhile is read
    ends = consumer.end_offsets(wanted)
    found = consumer.offsets_for_times(dict.fromkeys(wanted, time_ms))
    return {place: ends[place] if found[place] is None else found[place].offset for place in wanted}


class PartitionAssignment:
    """The partitions of a consumer, which it uses in its own thread; partitions that are added later come along.

    Records for a name may move to another partition then, of which all is read that came since the client began; the
    old one is kept, since not every writer notices at once.
    """

    def __init__(self, consumer: Any, name: bytes, *, whole: Iterable[str] = (), addressed: Iterable[str] = ()) -> None:
        """Begin at the end of everything: when this returns, every record written from now on will be read.

        :param consumer: with ``auto_offset_reset`` ``earliest``
        :param name: the key of records for this client
        :param whole: topics of which all partitions are read, by their real names
        :param addressed: topics of which the partitions are read that have records for the name
        :raises KafkaError: the broker went away
        """
        self._consumer = consumer
        self._name = name
        self._whole = tuple(whole)
        self._addressed = tuple(addressed)
        self._since = time.time_ns() // 1_000_000 - _SLACK_MS
        self._counts = self._partitions()
        self._assigned = self._wanted()
        consumer.assign(sorted(self._assigned))
        for place, offset in consumer.end_offsets(sorted(self._assigned)).items():
            consumer.seek(place, offset)

    def of(self, topic: str) -> list[Any]:
        """Return the partitions of a topic that are read."""
        return sorted(place for place in self._assigned if place.topic == topic)

    def update(self) -> None:
        """Read also from partitions that are new. Where the broker does not answer, that is for the next time."""
        counts = self._partitions()
        if counts == self._counts or not all(counts.values()):
            return
        known, self._counts = self._counts, counts
        new = sorted(self._wanted() - self._assigned)
        try:
            self._consumer.assign(sorted(self._assigned.union(new)))
            moved = [place for place in new if place.topic in self._addressed]
            # what is read whole begins with a new partition, which has been empty
            starts = dict.fromkeys(new, 0) | offsets_since(self._consumer, moved, self._since)
            for place, offset in starts.items():
                self._consumer.seek(place, offset)
        except KafkaError as error:
            log.warning("New partitions are not read yet: %s", error)
            self._counts = known
        else:
            self._assigned.update(new)

    def _partitions(self) -> dict[str, int]:
        topics = (*self._whole, *self._addressed)
        return {topic: len(self._consumer.partitions_for_topic(topic)) for topic in topics}

    def _wanted(self) -> set[Any]:
        places = {TopicPartition(topic, number) for topic in self._whole for number in range(self._counts[topic])}
        return places | {
            TopicPartition(topic, partition_of(self._name, self._counts[topic])) for topic in self._addressed
        }
