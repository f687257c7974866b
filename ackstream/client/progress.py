"""Up to which offset everything is done, although answers are finished in any order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

Place = TypeVar("Place", bound="Hashable")


@dataclass(eq=False)
class Work:
    """What one record still waits for: the number of its answers that are not stored yet."""

    offset: int
    remaining: int = 0


class Progress(Generic[Place]):
    """Follows the records of partitions.

    An offset may be committed when all records before it have no remaining work: what was not finished is read again
    after a restart.
    """

    def __init__(self) -> None:
        self._next: dict[Place, int] = {}
        self._work: dict[Place, deque[Work]] = {}

    def start(self, place: Place, offset: int) -> None:
        """Follow a partition from an offset on, unless it is followed already."""
        if place not in self._next:
            self._next[place] = offset
            self._work[place] = deque()

    def begin(self, place: Place, offset: int) -> Work | None:
        """Take up a record; ``None`` for one that was taken up before (it is read again after a rebalance)."""
        self.start(place, offset)
        if offset < self._next[place]:
            return None
        self._next[place] = offset + 1
        work = Work(offset)
        self._work[place].append(work)
        return work

    def keep(self, places: Iterable[Place]) -> None:
        """Forget all partitions but these: the others belong to somebody else now."""
        kept = set(places)
        for place in self._next.keys() - kept:
            del self._next[place], self._work[place]

    def positions(self) -> dict[Place, int]:
        """Return for each partition the offset that may be committed: the first that is not done, else the next."""
        found = {}
        for place, work in self._work.items():
            while work and work[0].remaining == 0:
                work.popleft()
            found[place] = work[0].offset if work else self._next[place]
        return found
