"""Counts over time: how many in the last span, and the bars of a sparkline."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Trend:
    """Counts in spans of equal length, the latest of which are kept; times are in epoch milliseconds."""

    def __init__(self, span: int, length: int) -> None:
        """Keep ``length`` counts of ``span`` milliseconds each."""
        self._span, self._length = span, length
        self._counts: dict[int, int] = {}

    def add(self, at: int, count: int = 1) -> None:
        """Count something that happened at a time; what is older than all spans is ignored."""
        slot = at // self._span
        if slot not in self._counts:
            newest = max(self._counts, default=slot)
            if slot <= newest - self._length:
                return
            self._counts = {kept: n for kept, n in self._counts.items() if kept > slot - self._length}
        self._counts[slot] = self._counts.get(slot, 0) + count

    def counts(self, now: int) -> list[int]:
        """Return the counts of the spans up to now, the oldest first."""
        last = now // self._span
        return [self._counts.get(slot, 0) for slot in range(last - self._length + 1, last + 1)]

    def total(self, now: int) -> int:
        """Return the sum of the counts."""
        return sum(self.counts(now))


class Latest(Generic[K, V]):
    """Values by key, of which those are forgotten that were not touched for longest."""

    def __init__(self, make: Callable[[K], V], most: int) -> None:
        """Keep at most ``most`` values; ``make`` gives one for a new key."""
        self._make, self._most = make, most
        self._values: OrderedDict[K, V] = OrderedDict()

    def touch(self, key: K) -> V:
        """Return the value of a key, made if it is new."""
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = self._make(key)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        else:
            self._values.move_to_end(key)
        return value

    def get(self, key: K) -> V | None:
        """Return the value of a key, if there is one."""
        return self._values.get(key)

    def drop(self, key: K) -> None:
        """Forget a key."""
        self._values.pop(key, None)

    def __iter__(self) -> Iterator[V]:
        """Iterate over the values, the one touched last first."""
        return iter(list(reversed(self._values.values())))

    def __len__(self) -> int:
        return len(self._values)


BARS = "▁▂▃▄▅▆▇█"


def sparkline(counts: list[int]) -> str:
    """Draw counts as a line of bars, relative to the highest; nothing is a blank."""
    highest = max(counts, default=0)
    return "".join(" " if not count else BARS[(count * len(BARS) - 1) // highest] for count in counts)
