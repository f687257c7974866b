"""Merging the acknowledgements of one publisher's messages by sequence number (brokers.md 1.1 A6 to A8, A11).

A success covers all numbers up to it, so it never passes an undecided number, and a failure ends the run before it: 1
to 5 with 3 rejected becomes success 2, failure 3, success 5.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import NamedTuple

from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import DUPLICATE

OUTCOME_UNKNOWN = "outcome unknown"
"""Answer to a repeated number that was decided so long ago that it may have been rejected: not a success."""


class AckRun(NamedTuple):
    """Consecutive sequence numbers with one outcome; a failure is always a run of one."""

    first: int
    last: int
    reason: str | None
    """Why it failed; ``None``: success."""


class _Failure(NamedTuple):
    seq: int
    reason: str
    repeated: bool


class Conflation:
    """Merges the outcomes of one publisher's messages, which may be decided in any order."""

    def __init__(self, expected: int, *, failed: dict[int, str] | None = None, unknown_through: int = -1) -> None:
        """Start with nothing decided.

        :param expected: the first number to acknowledge
        :param failed: known failures of earlier numbers, with their reasons; those that follow are added
        :param unknown_through: up to this number, failures may have been forgotten
        """
        self.unknown_through = unknown_through
        self._decided = Intervals(start=expected)
        self._asked = Intervals(start=expected)
        self._count = 0
        self._failed = {} if failed is None else failed
        self._failures: list[_Failure] = []
        self._position = expected

    @property
    def watermark(self) -> int:
        """The number up to which all are decided."""
        return self._decided.watermark

    @property
    def beyond(self) -> tuple[list[Interval], list[Interval]]:
        """The runs behind the first hole: of decided numbers, and of those whose acknowledgement was requested."""
        decided, asked = ([run for run in runs if run[0] > self.watermark] for runs in (self._decided, self._asked))
        return decided, asked

    @property
    def held_count(self) -> int:
        """The count of decided numbers behind the first hole."""
        return self._count - (self.watermark + 1 - self._decided.start)

    def decided(self, seq: int) -> bool:
        """Return whether a number is decided, or lies below the first one to acknowledge."""
        return seq in self._decided

    def undecided(self, first: int, last: int) -> bool:
        """Return whether all numbers of a run are undecided."""
        return first >= self._decided.start and self._decided.missing(first, last) == [(first, last)]

    def repeated(self, seq: int) -> str:
        """Return the reason that answers a repeated, decided number: why it failed, else that it is a duplicate."""
        return self._failed.get(seq, OUTCOME_UNKNOWN if seq <= self.unknown_through else DUPLICATE)

    def succeed(self, first: int, last: int, *, asked: bool) -> None:
        """Mark a run of undecided numbers as durable."""
        self._add(first, last)
        if asked:
            self._asked.add(first, last)

    def decide(self, seq: int, reason: str | None, *, asked: bool = True) -> None:
        """Mark a number as durable, or as failed with a reason.

        :param asked: whether the publisher requested the acknowledgement; runs without any request are not reported
        """
        repeated = seq in self._decided
        if repeated:
            reason = self.repeated(seq)
        elif reason is not None:
            self._failed[seq] = reason
        if reason is not None and asked:
            insort(self._failures, _Failure(seq, reason, repeated), key=attrgetter("seq"))
        if not repeated:
            self._add(seq, seq)
            if asked:
                self._asked.add(seq)

    def forget(self, expected: int) -> None:
        """Forget the failures of numbers below ``expected``."""
        for seq in sorted(seq for seq in self._failed if seq < expected):
            self.unknown_through = seq
            del self._failed[seq]

    def skip(self, expected: int) -> list[Interval]:
        """Stop acknowledging below a number behind the watermark; return the undecided runs that will never arrive."""
        missing = self._decided.missing(self._decided.start, expected - 1)
        for first, last in missing:
            self._add(first, last)
        self._failures = [failure for failure in self._failures if failure.seq >= expected]
        self._position = max(self._position, expected)
        return missing

    def take(self) -> list[AckRun]:
        """Return, once, the runs up to the first undecided number."""
        watermark = self.watermark
        runs: list[AckRun] = []
        ready = [failure for failure in self._failures if failure.seq <= watermark]
        del self._failures[: len(ready)]
        for failure in ready:
            self._append_success(runs, failure.seq if failure.repeated else failure.seq - 1)
            runs.append(AckRun(failure.seq, failure.seq, failure.reason))
            self._position = max(self._position, failure.seq + 1)
        self._append_success(runs, watermark)
        return runs

    def _add(self, first: int, last: int) -> None:
        self._decided.add(first, last)
        self._count += last - first + 1

    def _append_success(self, runs: list[AckRun], last: int) -> None:
        first = self._position
        if first > last:
            return
        self._position = last + 1
        if self._asked.missing(first, last) != [(first, last)]:
            runs.append(AckRun(first, last, None))
