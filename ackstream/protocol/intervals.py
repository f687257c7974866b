"""Sets of sequence numbers as closed intervals: numbers acknowledged, stored or discarded, in any order.

The watermark is the end of the run that starts at the first expected number, never the maximum: numbers beyond a hole
are known, but nothing may be released because of them (brokers.md 4, rule 4; RTI-30).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import sub
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]
"""First and last number, both inclusive."""


class TooManyHolesError(ValueError):
    """An interval would leave more holes than the set may have; the set is unchanged."""


class Intervals:
    """A set of whole numbers from ``start`` on; smaller numbers count as members. It only grows.

    Adding costs a binary search, and moving the later runs; memory is two integers per run of any length.
    """

    __slots__ = ("_firsts", "_lasts", "max_holes", "start")

    def __init__(self, intervals: Iterable[Interval] = (), *, start: int = 1, max_holes: int | None = None) -> None:
        """Hold intervals in any order, which may overlap; raises as :meth:`add`; ``max_holes`` ``None``: no limit."""
        self.start = start
        self.max_holes = max_holes
        # disjoint, ascending, with at least one missing number between two runs
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in intervals:
            self.add(first, last)

    def add(self, first: int, last: int | None = None) -> list[Interval]:
        """Add the numbers ``first`` to ``last`` (one number without it); return the new runs, ascending."""
        # ValueError: ``last`` is before ``first``; TooManyHolesError: more holes than ``max_holes``; an interval that
        # opens none is always accepted
        last = first if last is None else last
        new = self.missing(first, last)
        if not new:
            return []
        first = max(first, self.start)
        # the runs [low, high) overlap or touch the interval
        low, high = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if low == high and self.max_holes is not None:
            # a run of its own: it splits a hole, or opens one after all others
            holes = self.holes + (first > self.first_hole)
            if holes > max(self.max_holes, self.holes):
                raise TooManyHolesError(
                    f"{first} to {last} would be behind hole {holes}; {self.max_holes} are allowed."
                )
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]
        return new

    def merge(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Add several intervals (or another set), up to a wrong one; return the new runs in that order."""
        return [run for first, last in intervals for run in self.add(first, last)]

    def missing(self, first: int, last: int) -> list[Interval]:
        """Return the runs of ``first`` to ``last`` that the set lacks, ascending; raises ``ValueError`` if reversed."""
        if last < first:
            raise ValueError(f"An interval must not end before it begins: {first} to {last}.")
        found = []
        position = max(first, self.start)
        for index in range(bisect_left(self._lasts, position), bisect_right(self._firsts, last)):
            if position < self._firsts[index]:
                found.append((position, self._firsts[index] - 1))
            position = self._lasts[index] + 1
        if position <= last:
            found.append((position, last))
        return found

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._lasts, number)
        return number < self.start or (index < len(self._lasts) and self._firsts[index] <= number)

    @property
    def first_hole(self) -> int:
        """The smallest number that is not in the set."""
        return self._lasts[0] + 1 if self._firsts and self._firsts[0] == self.start else self.start

    @property
    def watermark(self) -> int:
        """The number up to which the set is complete; ``start - 1`` if the first expected one is missing."""
        return self.first_hole - 1

    @property
    def highest(self) -> int:
        """The greatest number in the set; ``start - 1`` if it is empty."""
        return self._lasts[-1] if self._lasts else self.start - 1

    @property
    def holes(self) -> int:
        """The number of missing runs below the highest number."""
        return len(self._firsts) - (self.first_hole > self.start)

    def dump(self) -> list[int]:
        """Return small numbers to rebuild the set from: per run its distance from the last one, and its span."""
        bounds = [self.start, *chain.from_iterable(self)]
        return list(map(sub, bounds[1:], bounds))

    @classmethod
    def load(cls, steps: Sequence[int], *, start: int = 1, max_holes: int | None = None) -> Intervals:
        """Rebuild a set from the result of :meth:`dump`."""
        held = cls(start=start, max_holes=max_holes)
        _, *bounds = accumulate(steps, initial=start)
        held._firsts, held._lasts = bounds[::2], bounds[1::2]
        return held

    def __iter__(self) -> Iterator[Interval]:
        """Iterate over the runs, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._firsts)

    def __repr__(self) -> str:
        return f"Intervals({list(self)}, start={self.start})"


def covered(sets: Sequence[Intervals], quorum: int, first: int, last: int) -> list[Interval]:
    """Return the runs of ``first`` to ``last`` that are in at least ``quorum`` of the sets, ascending."""
    if len(sets) < quorum:
        return []
    steps: list[tuple[int, int]] = []
    for held in sets:
        position = first
        for begin, end in [*held.missing(first, last), (last + 1, last + 1)]:
            if begin > position:
                steps += [(position, 1), (begin, -1)]
            position = end + 1
    steps.sort(key=lambda step: step[0])
    found: list[Interval] = []
    depth, since = 0, first
    for position, step in steps:
        if position > since and depth >= quorum:
            found.append((since, position - 1))
        depth += step
        since = position
    return found
