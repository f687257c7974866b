"""What a writer's retention knows of one reader, and which of its reports count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ackstream.protocol.intervals import Interval, Intervals, TooManyHolesError, covered
from ackstream.protocol.readers import (
    MAX_RESPONSE_BYTES,
    AckInterval,
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    ProtocolAck,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ReaderSubscription(msgspec.Struct):
    """One reader of a writer's samples; ``present`` matters for readers without a required role."""

    acknowledged: Intervals
    role: str | None = None
    present: bool = True
    epoch: int = 0
    count: int = 0

    def refusal(self, report: AppAck | ProtocolAck) -> Reason | None:
        """Tell why a report does not count: something newer was said; the same count again is no harm."""
        if report.epoch < self.epoch:
            return "stale-epoch"
        if report.epoch == self.epoch:
            if isinstance(report, AppAck) and report.count < self.count:
                return "stale-count"
            if report.role != self.role:
                return "role-changed"
        return None

    def hear(self, report: AppAck | ProtocolAck) -> None:
        """Note that a report is the newest now."""
        if isinstance(report, AppAck):
            self.count = report.count
        self.epoch, self.present = report.epoch, True

    def intervals(self, report: AppAck | ProtocolAck) -> tuple[AckInterval, ...]:
        """Return what a report says is acknowledged."""
        if isinstance(report, AppAck):
            return report.intervals
        start = self.acknowledged.start
        return (AckInterval(start, report.up_to),) if report.up_to >= start else ()


# -- What a report of a reader came to.


Reason: TypeAlias = Literal[
    "stale-epoch", "stale-count", "role-changed", "reversed", "never-delivered", "too-many-holes", "response-too-long"
]


class Ignored(msgspec.Struct, frozen=True):
    """A report, or one interval of it, that was not used (of ``response-too-long``: without its response), and why."""

    reason: Reason
    first: int | None = None
    last: int | None = None


class ReportReceipt(msgspec.Struct, frozen=True):
    """What a report came to: ``done`` are samples that are done by it; without ``conf`` the reader sends it again."""

    events: tuple[ApplicationAcknowledged, ...] = ()
    done: tuple[Interval, ...] = ()
    conf: AppAckConf | None = None
    ignored: tuple[Ignored, ...] = ()


# -- One writer's samples: who has acknowledged them, and which may be released.
# A sample is done when every required role has its quorum of distinct readers, present or not, and every plain reader
# that is there has acknowledged it. What is done stays done. A number that was refused is no sample: it is done at
# once, and counts as acknowledged by everybody. Rules: brokers.md R6, R18 to R20, R25, RTI-30; 4, rule 10.


MAX_HOLES = 1_000
"""Of one reader in one writer's samples; what would open more waits until some are filled."""


class Retention:
    """The samples of one writer from ``start`` on."""

    def __init__(
        self, writer: str, required: Mapping[str, int] | None = None, *, start: int = 1, max_holes: int = MAX_HOLES
    ) -> None:
        """Begin with no samples and no readers.

        :param required: the quorum of each role that must acknowledge
        """
        self._writer = writer
        self._required = dict(required or {})
        self._max_holes = max_holes
        self.readers: dict[str, ReaderSubscription] = {}
        self.done = Intervals(start=start)
        self.refused = Intervals(start=start)
        """Numbers that are no samples."""
        self.written = start - 1
        """The highest sample there is; acknowledgements of later ones are not believed."""

    @property
    def released(self) -> int:
        """The watermark: all samples up to this one are done."""
        return self.done.watermark

    # -- readers -------------------------------------------------------------------------------------------------------

    def join(self, reader: str, role: str | None = None, *, durable: bool = False, epoch: int = 0) -> list[Interval]:
        """Note that a reader is there. A new plain one is concerned by samples from now on, a durable one by all.

        :param epoch: a greater one than before makes reports of the earlier ones stale
        :return: what is done now because of the role in which the reader's acknowledgements count
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
        """Let a reader serve a role; return what is done by that."""
        if (durable or role in self._required) and known.acknowledged.start > self.done.start:
            # what is before its first sample would count as acknowledged
            known.acknowledged = self._acknowledged(known.acknowledged, self.done.start)
        before, known.role = known.role, role
        return [] if role == before else self.settle()

    def leave(self, reader: str) -> list[Interval]:
        """Note that a reader is gone for good: samples are kept for its required role, no longer for itself (R20).

        Returns what is done now.
        """
        known = self.readers.get(reader)
        if known is None:
            return []
        known.present = False
        return self.settle()

    def come_back(self, reader: str) -> None:
        """Note that a reader had only been silent: what is not done waits for it again."""
        known = self.readers.get(reader)
        if known is not None:
            known.present = True

    def forget(self, reader: str) -> None:
        """Drop what a reader has acknowledged, unless it counts for a required role."""
        known = self.readers.get(reader)
        if known is not None and known.role not in self._required:
            del self.readers[reader]

    def settle(self) -> list[Interval]:
        """Note what is done now, as after a change of what is required; return what was not before."""
        return self._settle(self.done.first_hole, self.written)

    # -- samples -------------------------------------------------------------------------------------------------------

    def write(self, last: int, refused: Iterable[Interval] = ()) -> list[Interval]:
        """Note that there are samples up to ``last``; return those that nobody has to acknowledge.

        :param refused: runs of numbers behind the last one so far that are no samples
        """
        first, self.written = self.written + 1, max(last, self.written)
        clipped = ((max(begin, first), min(end, self.written)) for begin, end in refused)
        none = [(begin, end) for begin, end in clipped if begin <= end]
        self.refused.merge(none)
        for known in self.readers.values():
            # not the reader's holes: they do not count towards its limit
            known.acknowledged.max_holes = None
            known.acknowledged.merge(none)
            known.acknowledged.max_holes = self._max_holes
        return self.done.merge(none) + self._settle(first, self.written)

    def receive(self, report: AppAck | ProtocolAck) -> ReportReceipt:
        """Take what a reader says; a stale or impossible report changes nothing, and the receipt says why."""
        refusal, done = self.admit(report)
        if refusal is not None:
            return ReportReceipt(ignored=(Ignored(refusal),))
        receipt = self.take(report)
        return msgspec.structs.replace(receipt, done=(*done, *receipt.done))

    def admit(self, report: AppAck | ProtocolAck) -> tuple[Reason | None, list[Interval]]:
        """Decide whether a report is the newest of its reader, which counts for the reports that come after it.

        Returns why it is not, and what is done because of the role in which its reader counts now.
        """
        known = self.readers.get(report.reader)
        if known is None:
            known = self._subscribe(report.reader, max(report.start, self.done.start))
            known.epoch = report.epoch - 1
        refusal = known.refusal(report)
        if refusal is not None:
            return refusal, []
        known.hear(report)
        return None, self._assume(known, report.role)

    def lacks(self, report: AppAck | ProtocolAck) -> bool:
        """Tell whether a report is about samples that are not there, yet."""
        if isinstance(report, ProtocolAck):
            return report.up_to > self.written
        return any(interval.first <= interval.last > self.written for interval in report.intervals)

    def take(self, report: AppAck | ProtocolAck) -> ReportReceipt:
        """Take the samples of a report that was admitted."""
        known = self.readers[report.reader]
        events, ignored = self._take(report.reader, known, known.intervals(report))
        done = tuple(run for event in events for run in self._settle(event.first, event.last))
        if isinstance(report, ProtocolAck):
            return ReportReceipt((), done, None, tuple(ignored))
        complete = all(entry.reason == "response-too-long" for entry in ignored)
        conf = AppAckConf(report.reader, self._writer, report.epoch, report.count) if complete else None
        return ReportReceipt(tuple(events), done, conf, tuple(ignored))

    def _take(
        self, reader: str, known: ReaderSubscription, intervals: Iterable[AckInterval]
    ) -> tuple[list[ApplicationAcknowledged], list[Ignored]]:
        events: list[ApplicationAcknowledged] = []
        ignored: list[Ignored] = []
        for interval in intervals:
            first, last, response = interval.first, interval.last, interval.response
            if last < first or last > self.written:
                ignored.append(Ignored("reversed" if last < first else "never-delivered", first, last))
                continue
            if response is not None and len(response) > MAX_RESPONSE_BYTES:
                ignored.append(Ignored("response-too-long", first, last))
                response = None
            try:
                new = known.acknowledged.add(first, last)
            except TooManyHolesError:
                ignored.append(Ignored("too-many-holes", first, last))
                continue
            events += [
                ApplicationAcknowledged(self._writer, reader, *run, known.role, response, interval.auto) for run in new
            ]
        return events, ignored

    def _settle(self, first: int, last: int) -> list[Interval]:
        """Note which samples of a range are done now; return those that were not before."""
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

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def retained(self) -> list[Interval]:
        """The samples that must be kept, as runs."""
        return self.done.missing(self.done.start, self.written) if self.written >= self.done.start else []

    def undelivered(self, reader: str) -> list[Interval]:
        """Return what a reader that starts again must get: the kept samples it has not acknowledged, as runs."""
        known = self.readers.get(reader)
        if known is None:
            return self.retained
        return [run for kept in self.retained for run in known.acknowledged.missing(*kept)]

    def quorum(self, seq: int) -> dict[str, tuple[int, int]]:
        """Return for each required role how many readers have acknowledged a sample, and how many must."""
        return {
            role: (sum(known.role == role and seq in known.acknowledged for known in self.readers.values()), quorum)
            for role, quorum in self._required.items()
        }

    def waiting_for(self, seq: int) -> list[str]:
        """Return who has not acknowledged a sample that is not done: plain readers, then roles short of a quorum."""
        if seq in self.done:
            return []
        plain = [
            name
            for name, known in self.readers.items()
            if known.present and known.role not in self._required and seq not in known.acknowledged
        ]
        return plain + [role for role, (there, needed) in self.quorum(seq).items() if there < needed]
