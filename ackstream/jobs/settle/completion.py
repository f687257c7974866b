"""One writer's samples: their acknowledgements, and which of them may be released.

A sample is done when every required role has its quorum of distinct readers, present or not, and every present plain
reader has acknowledged it. A sample that is done stays done. A rejected number is not a sample: it is done at once, and
counts as acknowledged by all readers. Rules: brokers.md R6, R18 to R20, R25, RTI-30; 4, rule 10.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from ackstream.protocol import readers
from ackstream.protocol.intervals import Interval, Intervals, TooManyHolesError, covered
from ackstream.protocol.messages import SessionRuns

Report: TypeAlias = readers.AppAck | readers.ProtocolAck
"""A reader's report of acknowledged samples."""
Reason: TypeAlias = Literal[
    "stale-epoch",
    "stale-count",
    "role-changed",
    "reader-removed",
    "reversed",
    "never-delivered",
    "too-many-holes",
    "response-too-long",
]


class Ignored(msgspec.Struct, frozen=True):
    """A report, or one of its intervals, that was not used, and why; of ``response-too-long`` only the response."""

    reason: Reason
    first: int | None = None
    last: int | None = None


class ReportReceipt(msgspec.Struct, frozen=True):
    """The effects of a report; without ``conf`` the reader sends it again. ``done``: the samples that became done."""

    events: tuple[readers.ApplicationAcknowledged, ...] = ()
    done: tuple[Interval, ...] = ()
    conf: readers.AppAckConf | None = None
    ignored: tuple[Ignored, ...] = ()


class ReaderSubscription(msgspec.Struct):
    """One reader of a writer's samples; ``present`` matters for readers without a required role."""

    acknowledged: Intervals
    role: str | None = None
    present: bool = True
    epoch: int = 0
    count: int = 0

    def accept(self, report: Report) -> Reason | None:
        """Record a report as the newest, which may be repeated; return the reason if a newer one already counted."""
        if report.epoch < self.epoch:
            return "stale-epoch"
        if report.epoch == self.epoch:
            if isinstance(report, readers.AppAck) and report.count < self.count:
                return "stale-count"
            if report.role != self.role:
                return "role-changed"
        if isinstance(report, readers.AppAck):
            self.count = report.count
        self.epoch, self.present = report.epoch, True
        return None

    def intervals(self, report: Report) -> tuple[readers.AckInterval, ...]:
        """Return the intervals that a report acknowledges."""
        if isinstance(report, readers.AppAck):
            return report.intervals
        start = self.acknowledged.start
        return (readers.AckInterval(start, report.up_to),) if report.up_to >= start else ()


class Retention:
    """The samples of one writer from ``start`` on."""

    def __init__(
        self, writer: str, required: Mapping[str, int] | None = None, *, start: int = 1, max_holes: int | None = None
    ) -> None:
        """Begin empty, with quorums by role; intervals beyond ``max_holes`` of a reader wait until some are filled."""
        self._writer = writer
        self._required = dict(required or {})
        self._max_holes = max_holes
        self.readers: dict[str, ReaderSubscription] = {}
        self.done = Intervals(start=start)
        self.refused = Intervals(start=start)
        """Rejected numbers, which are not samples."""
        self.stored = Intervals(start=start)
        """Numbers that ``stored`` has named; others up to ``written`` are samples unless a late record refuses one."""
        self.sessions = SessionRuns()
        """The sessions of retained samples, as far as ``stored`` has named them."""
        self.written = start - 1
        """The highest sample; acknowledgements of later ones are ignored."""
        self.seen = 0
        """The latest time of a record about the writer, epoch milliseconds; 0 if it is not known."""

    @property
    def released(self) -> int:
        """The watermark: all samples up to this one are done."""
        return self.done.watermark

    @property
    def complete(self) -> bool:
        """Whether all samples are done."""
        return self.released >= self.written

    def join(self, reader: str, role: str | None = None, *, durable: bool = False, epoch: int = 0) -> list[Interval]:
        """Mark a reader as present. A new plain one must acknowledge samples from now on, a durable one all.

        :param epoch: a higher one than before makes reports of earlier epochs stale
        :return: the samples that became done because acknowledgements of the reader count for another role
        """
        known = self.readers.get(reader)
        if known is None or not (known.present or durable or role in self._required):
            known = self._subscribe(reader, self.written + 1)
        known.present = True
        if epoch > known.epoch:
            known.epoch, known.count = epoch, 0
        return self._assume(known, role, durable=durable) if epoch == known.epoch else []

    def _subscribe(self, reader: str, start: int) -> ReaderSubscription:
        found = self.readers[reader] = ReaderSubscription(self._acknowledged((), start))
        return found

    def _acknowledged(self, runs: Iterable[Interval], start: int) -> Intervals:
        held = Intervals(runs, start=start)
        held.merge(self.refused)
        held.max_holes = self._max_holes
        return held

    def _assume(self, known: ReaderSubscription, role: str | None, *, durable: bool = False) -> list[Interval]:
        """Give a reader a role; return the samples that became done."""
        if durable or role in self._required:
            self._expect_all(known)
        before, known.role = known.role, role
        return [] if role == before else self.settle()

    def _expect_all(self, known: ReaderSubscription) -> None:
        """Wait for a reader's acknowledgement of every retained sample: those before its first would count as given."""
        if known.acknowledged.start > self.done.start:
            known.acknowledged = self._acknowledged(known.acknowledged, self.done.start)

    def leave(self, reader: str) -> list[Interval]:
        """Mark a reader as gone: samples wait for its required role, not for itself (R20). Return those now done."""
        if (known := self.readers.get(reader)) is None:
            return []
        known.present = False
        return self.settle()

    def come_back(self, reader: str) -> None:
        """Mark a lapsed reader as present; samples that are not done wait for it again."""
        if (known := self.readers.get(reader)) is not None:
            known.present = True

    def forget(self, reader: str) -> bool:
        """Drop a reader that is gone; return ``False`` if it stays without its epoch."""
        # one of a required role stays while it has acknowledged a sample that is not done: that counts (R20)
        if (known := self.readers.get(reader)) is None:
            return True
        if known.role in self._required and any(known.acknowledged.missing(*kept) != [kept] for kept in self.retained):
            known.epoch, known.count = 0, 0
            return False
        del self.readers[reader]
        return True

    def require(self, required: Mapping[str, int]) -> list[Interval]:
        """Replace the required roles and their quorums; return the samples that became done. Done samples stay done."""
        self._required = dict(required)
        return self.settle()

    def expect_roles(self) -> None:
        """Wait for all retained samples of readers whose role was not required when they joined."""
        for known in self.readers.values():
            if known.role in self._required:
                self._expect_all(known)

    def settle(self) -> list[Interval]:
        """Mark done samples, as after a change of the required roles; return the new ones."""
        self.expect_roles()
        return self._settle(self.done.first_hole, self.written)

    def write(self, last: int, refused: Iterable[Interval] = (), first: int | None = None) -> list[Interval]:
        """Add the samples up to ``last``; return those that no reader has to acknowledge.

        :param refused: runs of rejected numbers; numbers of an earlier record cannot be rejected any more
        :param first: the first number that the record names; by default the one after the highest
        """
        begin, self.written = self.written + 1, max(last, self.written)
        new = self.stored.add(min(begin, last) if first is None else first, last)
        cut = [(max(low, head), min(high, tail)) for low, high in refused for head, tail in new]
        rejected = [(low, high) for low, high in cut if low <= high]
        self.refused.merge(rejected)
        for known in self.readers.values():
            # these are not the reader's holes: they do not count towards its limit
            known.acknowledged.max_holes = None
            known.acknowledged.merge(rejected)
            known.acknowledged.max_holes = self._max_holes
        return self.done.merge(rejected) + self._settle(begin, self.written)

    def admit(self, report: Report) -> tuple[Reason | None, list[Interval]]:
        """Accept a report if it is its reader's newest; return why not, and the samples now done through its role."""
        known = self.readers.get(report.reader)
        if known is None:
            known = self._subscribe(report.reader, max(report.start, self.done.start))
            known.epoch = report.epoch - 1
        reason = known.accept(report)
        return reason, [] if reason is not None else self._assume(known, report.role)

    def lacks(self, report: Report) -> bool:
        """Return whether a report acknowledges samples that have not been written yet."""
        if isinstance(report, readers.ProtocolAck):
            return report.up_to > self.written
        return any(interval.first <= interval.last > self.written for interval in report.intervals)

    def take(self, report: Report) -> ReportReceipt:
        """Apply a report that was admitted."""
        known = self.readers[report.reader]
        events, ignored = self._acknowledge(report.reader, known, known.intervals(report))
        done = tuple(run for event in events for run in self._settle(event.first, event.last))
        if isinstance(report, readers.ProtocolAck):
            return ReportReceipt((), done, None, tuple(ignored))
        complete = all(entry.reason == "response-too-long" for entry in ignored)
        conf = readers.AppAckConf(report.reader, self._writer, report.epoch, report.count) if complete else None
        return ReportReceipt(tuple(events), done, conf, tuple(ignored))

    def _acknowledge(
        self, reader: str, known: ReaderSubscription, intervals: Iterable[readers.AckInterval]
    ) -> tuple[list[readers.ApplicationAcknowledged], list[Ignored]]:
        events: list[readers.ApplicationAcknowledged] = []
        ignored: list[Ignored] = []
        for interval in intervals:
            first, last, response = interval.first, interval.last, interval.response
            if last < first or last > self.written:
                ignored.append(Ignored("reversed" if last < first else "never-delivered", first, last))
                continue
            if response is not None and len(response) > readers.MAX_RESPONSE_BYTES:
                ignored.append(Ignored("response-too-long", first, last))
                response = None
            try:
                new = known.acknowledged.add(first, last)
            except TooManyHolesError:
                ignored.append(Ignored("too-many-holes", first, last))
                continue
            role, auto = known.role, interval.auto
            events += [readers.ApplicationAcknowledged(self._writer, reader, *run, role, response, auto) for run in new]
        return events, ignored

    def _settle(self, first: int, last: int) -> list[Interval]:
        """Mark the samples of a range that are done; return those that were not done before."""
        if first > last:
            return []
        groups: list[tuple[int, list[Intervals]]] = [
            (quorum, [known.acknowledged for known in self.readers.values() if known.role == role])
            for role, quorum in self._required.items()
        ]
        groups += [
            (1, [known.acknowledged])
            for known in self.readers.values()
            if known.present and known.role not in self._required
        ]
        runs = [(first, last)]
        for quorum, sets in groups:
            runs = [found for run in runs for found in covered(sets, quorum, *run)]
        return self.done.merge(runs)

    @property
    def retained(self) -> list[Interval]:
        """The runs of samples that are not done."""
        return self.done.missing(self.done.start, self.written) if self.written >= self.done.start else []

    def undelivered(self, reader: str) -> list[Interval]:
        """Return the runs of retained samples that a reader has not acknowledged, for a reader that starts again."""
        if (known := self.readers.get(reader)) is None:
            return self.retained
        return [run for kept in self.retained for run in known.acknowledged.missing(*kept)]

    def quorum(self, seq: int) -> dict[str, tuple[int, int]]:
        """Return for each required role the numbers of readers that have acknowledged a sample, and that must."""
        return {
            role: (sum(known.role == role and seq in known.acknowledged for known in self.readers.values()), quorum)
            for role, quorum in self._required.items()
        }

    def waiting_for(self, seq: int) -> list[str]:
        """Return the parties that an open sample waits for: plain readers, then roles short of a quorum."""
        # readers by name: their records are in several partitions, and come in any order
        if seq in self.done:
            return []
        plain = sorted(
            name
            for name, known in self.readers.items()
            if known.present and known.role not in self._required and seq not in known.acknowledged
        )
        return plain + [role for role, (found, needed) in self.quorum(seq).items() if found < needed]
