"""One writer as a reader knows it: the order of its samples, their acknowledgements and reports. Pure.

Times are ms of a monotonic clock. Rules: brokers.md R1 to R5, R7, R11 to R17; Connext 31.12.1, 31.12.5, 31.12.6.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from ackstream.client.reading.samples import ReaderQos, Sample
from ackstream.errors import BadParameterError
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import SessionRun, SessionRuns
from ackstream.protocol.readers import AckInterval, AppAck, AppAckConf, AutoReason, ProtocolAck, ReaderStart

YOUNG_RUNS = 500
"""Unconfirmed runs that are kept apart, by the AppAck that had them first: those of 10 s. Older ones are merged."""

Report: TypeAlias = AppAck | ProtocolAck


class ReorderBuffer:
    """One writer's samples, released once each, in the writer's order, and only those that are stored.

    A message in Kafka may still be refused, so it waits until the topic ``stored`` names it and its session; a message
    that ``stored`` names may not have arrived yet, or be in the table only. Rules: brokers.md R7, S19, 4 rule 4.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """The size of the samples that are waiting."""
        # stored or refused, as far as is known
        self._decided = Intervals(start=0)
        # released or skipped
        self._passed = Intervals(start=0)
        # by number: those of different sessions
        self._waiting: dict[int, list[Sample]] = {}
        self._count = 0
        self._sessions = SessionRuns()

    def __len__(self) -> int:
        return self._count

    def begin(self, written: int, undelivered: Iterable[Interval] = (), sessions: Iterable[SessionRun] = ()) -> None:
        """Skip all samples up to ``written``, which are stored, except the ``undelivered`` ones of these sessions."""
        self._decided.add(0, written)
        for run in Intervals(undelivered, start=0).missing(0, written):
            self.skip(*run)
        self.learn(sessions)

    def add(self, sample: Sample) -> bool:
        """Add a sample; return ``False`` for a duplicate, for one that is skipped, and for one of a wrong session."""
        same = self._waiting.get(sample.seq, [])
        if sample.seq in self._passed or any(sample.session == one.session for one in same) or self._is_wrong(sample):
            return False
        self._waiting[sample.seq] = [*same, sample]
        self._count += 1
        self.bytes += sample.size
        return True

    def learn(self, sessions: Iterable[SessionRun]) -> None:
        for first, last, session in sessions:
            self._sessions.add(first, last, session)
            for seq in [seq for seq in self._waiting if first <= seq <= last]:
                if any(sample.session != session for sample in self._waiting[seq]):
                    self._remove(seq, self._is_wrong)

    def _is_wrong(self, sample: Sample) -> bool:
        known = self._sessions.at(sample.seq)
        # the table has only samples that are stored
        return None not in (known, sample.session) and known != sample.session

    def _remove(self, seq: int, which: Callable[[Sample], bool] | None = None) -> list[Sample]:
        gone = found = self._waiting.pop(seq)
        if which is not None and (left := [sample for sample in found if not which(sample)]):
            gone, self._waiting[seq] = [sample for sample in found if which(sample)], left
        self._count -= len(gone)
        self.bytes -= sum(sample.size for sample in gone)
        return gone

    def mark_stored(self, first: int, last: int, refused: Iterable[Interval] = (), session: str | None = None) -> None:
        """Mark a range as stored, except the runs in it that were ``refused``; a second time has no effect."""
        self._decided.add(first, last)
        for run in refused:
            self.skip(*run)
        if session is not None:
            self.learn([(first, last, session)])

    def skip(self, first: int, last: int) -> None:
        """Drop these samples, now or when they arrive."""
        for low, high in self._passed.add(first, last):
            for seq in [seq for seq in self._waiting if low <= seq <= high]:
                self._remove(seq)

    def release(self) -> Iterator[Sample]:
        while (seq := self._passed.first_hole) <= self._decided.watermark and seq in self._waiting:
            self._passed.add(seq)
            yield self._remove(seq)[0]
        self._sessions.forget(self._passed.watermark)

    def missing(self) -> list[Interval]:
        """Return the runs that are stored and wanted but absent, if they hold up the samples behind them."""
        first, last = self._passed.first_hole, self._decided.watermark
        if first > last or first in self._waiting:
            return []
        known = Intervals(self._passed, start=self._passed.start)
        known.merge((seq, seq) for seq in self._waiting)
        return known.missing(first, last)

    def drop(self) -> list[Sample]:
        """Drop and return all samples that are waiting; they can be added again."""
        dropped = [sample for samples in self._waiting.values() for sample in samples]
        self._waiting, self._count, self.bytes = {}, 0, 0
        return dropped

    def has_passed(self, seq: int) -> bool:
        return seq < self._passed.first_hole

    def undecided(self, last: int) -> list[Interval]:
        return self._decided.missing(0, last) if last >= 0 else []

    @property
    def has_gap(self) -> bool:
        """Whether samples are known to be stored after some whose state is unknown."""
        return self._decided.watermark < self._decided.highest


class _AckRun(msgspec.Struct):
    """Unconfirmed samples that were acknowledged alike; ``sent`` is the count of the first AppAck that had them."""

    first: int
    last: int
    at: int
    response: bytes | None
    auto: AutoReason | None
    sent: int = 0

    def continues(self, seq: int, at: int, response: bytes | None, auto: AutoReason | None) -> bool:
        """Return whether a sample can be appended; the time matters only for how long a response is repeated."""
        alike = (self.last + 1, self.response, self.auto) == (seq, response, auto)
        return alike and (response is None or self.at == at)


class AckReports:
    """The acknowledgements of one reader to one writer, and which of them need no further report.

    A reader of the kind ``protocol`` acknowledges the samples that its library has; a report of it is not confirmed.
    """

    def __init__(self, qos: ReaderQos, start: ReaderStart, writer: str, acknowledged: Intervals) -> None:
        """Begin an epoch after the samples that earlier ones had confirmed, whose start is the first expected."""
        self.acknowledged = acknowledged
        self._qos, self._reader, self._writer = qos, start, writer
        self._confirmed = Intervals(acknowledged, start=acknowledged.start)
        self._skipped = Intervals(start=acknowledged.start)
        self._refused: list[Interval] = []
        self._waiting: list[_AckRun] = []
        self._old: list[_AckRun] = []
        self._sent: list[_AckRun] = []
        self._count = self._sent_at = 0
        self.unanswered_since: int | None = None
        """When the first report was sent that no confirmation has followed."""

    def acknowledge(self, seq: int, now: int, *, response: bytes | None = None, auto: AutoReason | None = None) -> None:
        """Acknowledge a sample; a second time has no effect."""
        if response is not None and len(response) > self._qos.max_response_length:
            raise BadParameterError(
                f"The response has {len(response)} bytes; max_response_length allows {self._qos.max_response_length}."
            )
        if not self.acknowledged.add(seq):
            return
        if self._waiting and self._waiting[-1].continues(seq, now, response, auto):
            self._waiting[-1].last = seq
        else:
            self._waiting.append(_AckRun(seq, seq, now, response, auto))

    def skip(self, first: int, last: int) -> None:
        """Do not wait for numbers that are not samples, or not for this reader."""
        self._skipped.add(first, last)
        if self._qos.kind == "protocol":
            self.acknowledged.add(first, last)

    def refuse(self, first: int, last: int) -> None:
        """Do not wait for numbers that the service has refused. They belong to the confirmed samples around them."""
        self.skip(first, last)
        if self._qos.kind == "protocol":
            return
        if self._refused and self._refused[-1][1] + 1 == first:
            first = self._refused.pop()[0]
        self._refused.append((first, last))

    def settled(self, seq: int) -> bool:
        """Return whether a restart does not need a sample: it is confirmed, or was skipped."""
        return seq in self._confirmed or seq in self._skipped

    @property
    def deadline(self) -> int | None:
        """When to call :meth:`due` again; ``None`` while nothing is waiting or unconfirmed."""
        since = [self._waiting[0].at] if self._waiting else []
        since += [self._sent_at] if self._sent or self._old else []
        return min(since) + self._qos.app_ack_period_ms if since else None

    def due(self, now: int) -> Report | None:
        """Return the report to send now, if enough samples are waiting or the period has passed."""
        enough = sum(run.last - run.first + 1 for run in self._waiting) >= self._qos.samples_per_app_ack
        over = self.deadline is not None and now >= self.deadline
        return self.flush(now) if enough or over or self._qos.kind == "protocol" else None

    def flush(self, now: int) -> Report | None:
        """Return a report of everything that is waiting or unconfirmed, as on closing; ``None`` if nothing is."""
        reader, start = self._reader, self.acknowledged.start
        if self._qos.kind == "protocol":
            up_to = self.acknowledged.watermark
            if up_to == self._confirmed.watermark:
                return None
            self._confirmed.add(start, up_to)
            return ProtocolAck(reader.reader, self._writer, reader.epoch, up_to, reader.role, start)
        if not self._waiting and not self._sent and not self._old:
            return None
        self._count += 1
        intervals = self._intervals(now)
        for run in self._waiting:
            run.sent = self._count
        self._sent += self._waiting
        self._waiting, self._sent_at = [], now
        if self.unanswered_since is None:
            self.unanswered_since = now
        if len(self._sent) > YOUNG_RUNS:
            # settle is unavailable, or slow: a report must not cost more and more. Merged runs are confirmed with the
            # last of them
            self._old += _merged(self._sent)
            self._sent = []
        return AppAck(reader.reader, self._writer, reader.epoch, self._count, intervals, reader.role, start)

    def _intervals(self, now: int) -> tuple[AckInterval, ...]:
        """Return everything acknowledged, ascending; equal neighbours are one interval (R15)."""
        intervals = [AckInterval(first, last, reported=True) for first, last in self._confirmed]
        for run in (*self._old, *self._sent):
            response = run.response if now - run.at <= self._qos.response_keep_ms else None
            intervals.append(AckInterval(run.first, run.last, response, run.auto, reported=True))
        intervals += [AckInterval(run.first, run.last, run.response, run.auto) for run in self._waiting]
        intervals.sort(key=lambda interval: interval.first)
        merged = intervals[:1]
        for interval in intervals[1:]:
            before = merged[-1]
            if interval == msgspec.structs.replace(before, first=before.last + 1, last=interval.last):
                merged[-1] = msgspec.structs.replace(before, last=interval.last)
            else:
                merged.append(interval)
        return tuple(merged)

    def confirm(self, conf: AppAckConf) -> None:
        """Apply a confirmation to its AppAck and to all before it, whose contents each one repeats."""
        # one of another epoch, or of no AppAck that was sent, is ignored
        if conf.epoch == self._reader.epoch and conf.count <= self._count:
            self.unanswered_since = None
            for runs in (self._old, self._sent):
                self._confirmed.merge((run.first, run.last) for run in runs if run.sent <= conf.count)
                runs[:] = [run for run in runs if run.sent > conf.count]
            # or each of them would divide the intervals of all further AppAcks
            self._confirmed.merge([run for run in self._refused if run[1] <= self._confirmed.highest])
            self._refused = [run for run in self._refused if run[1] > self._confirmed.highest]


def _merged(runs: list[_AckRun]) -> list[_AckRun]:
    """Merge neighbours that were acknowledged alike; they count as first sent with the latest of them."""
    found: list[_AckRun] = []
    for run in sorted(runs, key=lambda run: run.first):
        if found and found[-1].continues(run.first, run.at, run.response, run.auto):
            found[-1].last, found[-1].sent = run.last, max(found[-1].sent, run.sent)
        else:
            found.append(run)
    return found
