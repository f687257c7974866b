"""Offsets, asked by an admin client: a consumer's own end_offsets() leaves out what it has to ask again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.admin import OffsetSpec

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
