"""Deliveries in order: up to which offset a partition is settled, and from where it must be read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from ackstream.client.group import OffsetProgress, Partition, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 60.0


def backoff(attempt: int) -> float:
    """Return the seconds to wait before attempt 1, 2, …: 0.1, 0.2, 0.4, … up to 60."""
    return min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16))


@dataclass(eq=False)
class Delivery(Generic[Partition]):
    """A message in flight; ``redelivered`` if it may have been delivered before."""

    partition: Partition
    work: Work
    run: int
    redelivered: bool


class Deliveries(Generic[Partition]):
    """Tracks the messages of partitions by offset.

    An unsettled message holds back the commit of all later ones of its partition. A message rejected with redelivery
    rewinds its partition once all messages before it are settled; messages settled after it are delivered again.
    """

    def __init__(self) -> None:
        self._progress: OffsetProgress[Partition] = OffsetProgress()
        self._seen: dict[Partition, int] = {}
        self._runs: dict[Partition, int] = {}
        self._rejected: dict[Partition, set[int]] = {}
        self._attempts: dict[Partition, tuple[int, int]] = {}

    def start(self, partition: Partition, offset: int, seen: int = 0) -> None:
        """Track a partition from an offset, unless it is tracked already.

        :param seen: messages below this offset may have been delivered to a previous owner
        """
        self._progress.start(partition, offset)
        self._seen.setdefault(partition, seen)

    def begin(self, partition: Partition, offset: int) -> Delivery[Partition] | None:
        """Begin the delivery of a message; ``None`` if it was begun before."""
        work = self._progress.begin(partition, offset)
        if work is None:
            return None
        work.remaining = 1
        seen = self._seen.get(partition, 0)
        self._seen[partition] = max(seen, offset + 1)
        return Delivery(partition, work, self._runs.get(partition, 0), redelivered=offset < seen)

    def settle(self, delivery: Delivery[Partition]) -> None:
        """Mark a message as settled."""
        delivery.work.remaining = 0

    def reject(self, delivery: Delivery[Partition]) -> None:
        """Schedule redelivery of a message, unless its partition has been rewound since."""
        if delivery.run == self._runs.get(delivery.partition, 0):
            self._rejected.setdefault(delivery.partition, set()).add(delivery.work.offset)

    def keep(self, partitions: Iterable[Partition]) -> None:
        """Forget all other partitions; they were assigned to another consumer."""
        kept = set(partitions)
        gone = self._progress.positions().keys() - kept
        self._progress.keep(kept)
        for partition in gone:
            self._forget(partition)
            self._seen.pop(partition, None)

    def positions(self) -> dict[Partition, int]:
        """Return the offset to commit per partition: the first unsettled one, else the next."""
        return self._progress.positions()

    def seen(self, partition: Partition) -> int:
        """Return the offset after the highest one delivered so far."""
        return self._seen.get(partition, 0)

    def again(self) -> dict[Partition, tuple[int, float]]:
        """Rewind partitions due for redelivery; return the offset and the delay in seconds for each."""
        found = {}
        positions = self._progress.positions()
        for partition, offset in positions.items():
            if offset not in self._rejected.get(partition, ()):
                continue
            failed, attempts = self._attempts.get(partition, (offset, 0))
            attempts = attempts + 1 if failed == offset else 1
            self._attempts[partition] = (offset, attempts)
            self._forget(partition)
            self._progress.keep(positions.keys() - {partition})
            self._progress.start(partition, offset)
            found[partition] = (offset, backoff(attempts))
        return found

    def _forget(self, partition: Partition) -> None:
        self._rejected.pop(partition, None)
        self._runs[partition] = self._runs.get(partition, 0) + 1
