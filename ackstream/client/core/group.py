"""A member of a consumer group: the partitions it owns, and the offset up to which each of them may be committed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from ackstream.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
COMMIT_SECONDS = 1.0
SESSION_MS = 10_000
"""How long after a crash the other members of the group take over."""

_TIMEOUT_MS = 5_000


@dataclass(eq=False)
class Work:
    """A record that was taken up, and the number of its answers that are not stored yet."""

    offset: int
    remaining: int = 0


SWEEP = 1_000
"""Finished work that may wait behind unfinished work."""


class OffsetProgress:
    """Tracks the records of partitions.

    An offset may be committed when all records before it have no remaining work: unfinished records are read again
    after a restart.
    """

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._work: dict[TopicPartition, deque[Work]] = {}
        self._sweep_at: dict[TopicPartition, int] = {}

    def start(self, partition: TopicPartition, offset: int) -> None:
        """Track a partition from an offset on, unless it is tracked already."""
        if partition not in self._next:
            self._next[partition] = offset
            self._work[partition] = deque()

    def begin(self, partition: TopicPartition, offset: int) -> Work | None:
        """Take up a record; return ``None`` if it was taken up before (it is read again after a rebalance)."""
        self.start(partition, offset)
        if offset < self._next[partition]:
            return None
        self._next[partition] = offset + 1
        work, open_work = Work(offset), self._work[partition]
        open_work.append(work)
        if len(open_work) > self._sweep_at.get(partition, SWEEP):
            # finished work takes no memory behind a record that stays unfinished
            self._work[partition] = deque(one for one in open_work if one.remaining or one is work)
            self._sweep_at[partition] = max(SWEEP, 2 * len(self._work[partition]))
        return work

    def keep(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all partitions but these: the others have another owner now."""
        for partition in self._next.keys() - set(partitions):
            del self._next[partition], self._work[partition]

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset that may be committed for each partition: the first unfinished one, else the next."""
        found = {}
        for partition, work in self._work.items():
            while work and work[0].remaining == 0:
                work.popleft()
            found[partition] = work[0].offset if work else self._next[partition]
        return found


class GroupMember(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed
    """Follows the partitions that the group assigns to a consumer, and commits its progress once a second.

    All methods but those of the listener run in the thread that polls the consumer.
    """

    def __init__(
        self,
        consumer: Any,
        group: str,
        topics: Sequence[str],
        progress: OffsetProgress,
        start: Callable[[TopicPartition, int], None],
    ) -> None:
        """Subscribe to topics.

        :param start: called with each new partition and the offset from which it will be read; may raise KafkaError
        """
        self.partitions: set[TopicPartition] = set()
        self._consumer = consumer
        self._group = group
        self._progress = progress
        self._start = start
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0
        self._changed = threading.Event()
        self._joined = threading.Event()
        consumer.subscribe(list(topics), listener=self)

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: the next owner answers uncommitted records again, which requesters never notice."""

    def on_partitions_assigned(self, assigned: Any) -> None:  # noqa: ARG002 - the consumer is asked, in its thread
        """Have the next :meth:`follow` look at the assignment."""
        self._changed.set()

    def wait_until_joined(self) -> None:
        """Wait until the group has assigned partitions, perhaps none, to this member.

        :raises UnreachableError: it did not within 60 s
        """
        if not self._joined.wait(JOIN_SECONDS):
            raise UnreachableError(
                f"The consumer group {self._group} assigned no partitions to this member within {JOIN_SECONDS:g} s: "
                "look into the log of its broker."
            )

    def follow(self, records: Sequence[Any]) -> None:
        """Follow a changed assignment; to be called after each poll, with its records."""
        if not self._changed.is_set():
            return
        self._changed.clear()
        partitions = set(self._consumer.assignment())
        self._progress.keep(partitions)
        first = {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}
        try:
            for partition in partitions - self._progress.positions().keys():
                offset = first.get(partition)
                if offset is None:
                    offset = self._consumer.position(partition, timeout_ms=_TIMEOUT_MS)
                if offset is None:
                    raise KafkaError(f"the offset of {partition} is unknown")  # noqa: TRY301 - as position() might
                self._start(partition, offset)
            # a group that begins has no offsets: the member after a killed one must find where it began
            if positions := self._progress.positions():
                self._consumer.commit(_offsets(positions), timeout_ms=_TIMEOUT_MS)
        except (KafkaError, AssertionError) as error:
            log.warning("Reading the offsets of the group %s failed and is retried: %s", self._group, error)
            self._changed.set()
        else:
            self.partitions = partitions
            self._commit_at = 0.0
            self._joined.set()

    def commit(self, now: float) -> None:
        """Commit the progress of the last second, without waiting for the broker."""
        if now < self._commit_at:
            return
        self._commit_at = now + COMMIT_SECONDS
        positions = self._progress.positions()
        if positions != self._committed:
            self._consumer.commit_async(_offsets(positions), callback=self._note_commit)

    def leave(self, metadata: Callable[[TopicPartition], str] = lambda _partition: "") -> None:
        """Commit the progress, wait for the broker for at most 5 s, and close the consumer.

        :param metadata: the text to store with the offset of a partition
        """
        try:
            self._consumer.commit(_offsets(self._progress.positions(), metadata), timeout_ms=_TIMEOUT_MS)
        except (KafkaError, AssertionError) as error:
            log.warning("The last offsets of the group %s were not committed: %s", self._group, error)
        self._consumer.close(autocommit=False, timeout_ms=_TIMEOUT_MS)

    def _note_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], result: Any) -> None:
        if isinstance(result, Exception):
            log.warning("Committing the offsets of the group %s failed and is retried: %s", self._group, result)
        else:
            self._committed = {partition: offset.offset for partition, offset in offsets.items()}


def _offsets(
    positions: dict[TopicPartition, int], metadata: Callable[[TopicPartition], str] = lambda _partition: ""
) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(offset, metadata(partition), -1) for partition, offset in positions.items()}
