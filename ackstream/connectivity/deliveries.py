"""Deliveries in order: up to where a place is settled, and from where it has to be read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from ackstream.client.outbox import OffsetProgress, Place, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 60.0


def backoff(attempt: int) -> float:
    """Return how many seconds to wait before attempt 1, 2, … of a redelivery: 0.1, 0.2, 0.4 … at most 60."""
    return min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16))


@dataclass(eq=False)
class Delivery(Generic[Place]):
    """One message on its way; ``redelivered``: it may have come before."""

    place: Place
    work: Work
    run: int
    redelivered: bool


class Deliveries(Generic[Place]):
    """Follows the messages of places (partitions), by their offsets.

    A message that is not settled holds back all later ones of its place. One that is rejected with redelivery makes
    its place be read again from there, once all before it are settled; what was settled behind it comes again.
    """

    def __init__(self) -> None:
        self._progress: OffsetProgress[Place] = OffsetProgress()
        self._seen: dict[Place, int] = {}
        self._runs: dict[Place, int] = {}
        self._rejected: dict[Place, set[int]] = {}
        self._attempts: dict[Place, tuple[int, int]] = {}

    def start(self, place: Place, offset: int, seen: int = 0) -> None:
        """Follow a place from an offset on, unless it is followed already.

        :param seen: messages before this offset may have come to whoever read the place before
        """
        self._progress.start(place, offset)
        self._seen.setdefault(place, seen)

    def begin(self, place: Place, offset: int) -> Delivery[Place] | None:
        """Take up a message; ``None`` for one that was taken up before."""
        work = self._progress.begin(place, offset)
        if work is None:
            return None
        work.remaining = 1
        seen = self._seen.get(place, 0)
        self._seen[place] = max(seen, offset + 1)
        return Delivery(place, work, self._runs.get(place, 0), redelivered=offset < seen)

    def settle(self, delivery: Delivery[Place]) -> None:
        """Be done with a message."""
        delivery.work.remaining = 0

    def reject(self, delivery: Delivery[Place]) -> None:
        """Have a message delivered again; of no effect where its place is read again already."""
        if delivery.run == self._runs.get(delivery.place, 0):
            self._rejected.setdefault(delivery.place, set()).add(delivery.work.offset)

    def keep(self, places: Iterable[Place]) -> None:
        """Forget all places but these: the others belong to somebody else now."""
        kept = set(places)
        gone = self._progress.positions().keys() - kept
        self._progress.keep(kept)
        for place in gone:
            self._forget(place)
            self._seen.pop(place, None)

    def positions(self) -> dict[Place, int]:
        """Return for each place the offset that may be committed: the first that is not settled, else the next."""
        return self._progress.positions()

    def seen(self, place: Place) -> int:
        """Return the offset behind the last message that was taken up, in whatever order."""
        return self._seen.get(place, 0)

    def again(self) -> dict[Place, tuple[int, float]]:
        """Return the places to be read again now: from which offset, and after how many seconds.

        They are followed anew from there.
        """
        found = {}
        positions = self._progress.positions()
        for place, offset in positions.items():
            if offset not in self._rejected.get(place, ()):
                continue
            failed, attempts = self._attempts.get(place, (offset, 0))
            attempts = attempts + 1 if failed == offset else 1
            self._attempts[place] = (offset, attempts)
            self._forget(place)
            self._progress.keep(positions.keys() - {place})
            self._progress.start(place, offset)
            found[place] = (offset, backoff(attempts))
        return found

    def _forget(self, place: Place) -> None:
        self._rejected.pop(place, None)
        self._runs[place] = self._runs.get(place, 0) + 1
