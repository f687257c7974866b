"""Merging the acknowledgements of one client's messages by sequence number (brokers.md 1.1 A6 to A8, A11).

A success means all numbers up to it, so it never passes a number that is not decided, and a failure closes the run
before it: 1 to 5 with 3 refused is success 2, failure 3, success 5.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import DUPLICATE

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTCOME_UNKNOWN = "outcome unknown"
"""A number that came again was decided so long ago that nobody knows whether it was refused: no success."""


class AckRun(NamedTuple):
    """Consecutive sequence numbers with one outcome; a failure is always alone."""

    first: int
    last: int
    reason: str | None
    """Why it failed; ``None``: success."""


class _Note(NamedTuple):
    seq: int
    order: int
    reason: str
    again: bool


class Conflation:
    """The outcomes of one client's messages, merged; they come in any order, as the parts of the system finish."""

    def __init__(self, expected: int, *, failed: Mapping[int, str] | None = None, doubt: int = -1) -> None:
        """Begin.

        :param expected: the first number that is to be answered
        :param failed: what earlier ones have failed for, as far as it is known
        :param doubt: up to this number it is not known of all
        """
        self.doubt = doubt
        self._decided = Intervals(start=expected)
        self._asked = Intervals(start=expected)
        self._count = 0
        self._failed = dict(failed or {})
        self._notes: list[_Note] = []
        self._order = 0
        self._position = expected

    @property
    def watermark(self) -> int:
        """The number up to which everything is decided."""
        return self._decided.watermark

    @property
    def held(self) -> list[Interval]:
        """The runs of decided numbers behind the first hole."""
        return [(first, last) for first, last in self._decided if first > self.watermark]

    @property
    def held_count(self) -> int:
        """How many numbers those are."""
        return self._count - (self.watermark + 1 - self._decided.start)

    @property
    def asked_beyond(self) -> list[Interval]:
        """The runs of those about which somebody wants to know."""
        return [(first, last) for first, last in self._asked if first > self.watermark]

    def decided(self, seq: int) -> bool:
        """Tell whether a number is decided, or lies before all that are to be answered."""
        return seq in self._decided

    def open(self, first: int, last: int) -> bool:
        """Tell whether none of some consecutive numbers is decided."""
        return first >= self._decided.start and self._decided.missing(first, last) == [(first, last)]

    def again(self, seq: int) -> str:
        """Return the answer to a number that is decided and has come again: it is a duplicate, or why it failed."""
        return self._failed.get(seq, OUTCOME_UNKNOWN if seq <= self.doubt else DUPLICATE)

    def succeed(self, first: int, last: int, *, asked: bool) -> None:
        """Note that consecutive messages, none of which is decided, are durable."""
        self._add(first, last)
        if asked:
            self._asked.add(first, last)

    def decide(self, seq: int, reason: str | None, *, asked: bool = True) -> None:
        """Note that a message is durable, or has failed for a reason.

        :param asked: whether the client wants to know; a run in which nobody asked is not told
        """
        again = seq in self._decided
        if again:
            reason = self.again(seq)
        elif reason is not None:
            self._failed[seq] = reason
        if reason is not None and asked:
            self._order += 1
            insort(self._notes, _Note(seq, self._order, reason, again))
        if not again:
            self._add(seq, seq)
            if asked:
                self._asked.add(seq)

    def forget(self, expected: int) -> None:
        """Forget why numbers before one failed."""
        self.doubt = max((seq for seq in self._failed if seq < expected), default=self.doubt)
        self._failed = {seq: reason for seq, reason in self._failed.items() if seq >= expected}

    def skip(self, expected: int) -> list[Interval]:
        """Answer nothing before a number any more; return the runs before it that were not decided: they never come.

        :param expected: a number behind the watermark
        """
        missing = self._decided.missing(self._decided.start, expected - 1)
        for first, last in missing:
            self._add(first, last)
        self._notes = [note for note in self._notes if note.seq >= expected]
        self._position = max(self._position, expected)
        return missing

    def take(self) -> list[AckRun]:
        """Return the runs up to the first number that is not decided, and forget them."""
        watermark = self.watermark
        runs: list[AckRun] = []
        ready = [note for note in self._notes if note.seq <= watermark]
        del self._notes[: len(ready)]
        for note in ready:
            self._succeed(runs, note.seq if note.again else note.seq - 1)
            runs.append(AckRun(note.seq, note.seq, note.reason))
            self._position = max(self._position, note.seq + 1)
        self._succeed(runs, watermark)
        return runs

    def _add(self, first: int, last: int) -> None:
        self._decided.add(first, last)
        self._count += last - first + 1

    def _succeed(self, runs: list[AckRun], last: int) -> None:
        first = self._position
        if first > last:
            return
        self._position = last + 1
        if self._asked.missing(first, last) != [(first, last)]:
            runs.append(AckRun(first, last, None))


class Beat:
    """Whether the next merged acks are due: once an interval, counted from the client's logon."""

    def __init__(self, asked_ms: int, floor_ms: int = 0, start_ms: int = 0) -> None:
        """Begin.

        :param asked_ms: what the client wants; 0: at once
        :param floor_ms: more often it cannot be done
        """
        self.interval_ms = max(asked_ms, floor_ms)
        self.effective_ms = self.interval_ms if self.interval_ms > asked_ms else None
        """What to tell the client where it gets less than it asked for."""
        self._start = start_ms
        self._beats = 0

    def due(self, now: int) -> bool:
        """Tell whether an interval has ended since the last time this was true."""
        if self.interval_ms == 0:
            return True
        beats = (now - self._start) // self.interval_ms
        if beats <= self._beats:
            return False
        self._beats = beats
        return True

    def next(self, now: int) -> int:
        """Return when an interval ends, now or later; the first one ends an interval after the start."""
        if self.interval_ms == 0:
            return now
        return self._start + max(1, -((self._start - now) // self.interval_ms)) * self.interval_ms
