"""A reader's history: which samples are available, handed out, or acknowledged; and its reports to the writers.

Pure: times are milliseconds of any clock that only goes forward, and the caller sends the reports. Rules: brokers.md R1
to R5, R7, R11 to R17; Connext 31.12.1, 31.12.5, 31.12.6. What a reader cannot know, such as its own crash, is decided
by the settle job.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ackstream.errors import BadParameterError, PreconditionNotMetError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AutoReason, ProtocolAck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.samples import ReaderQos, Sample
    from ackstream.protocol.readers import AppAckConf


Report: TypeAlias = AppAck | ProtocolAck
OnAcknowledged: TypeAlias = "Callable[[Sample, bytes | None, AutoReason | None], None]"
"""Called for each acknowledged sample, with its response and the reason of an automatic acknowledgement."""


@dataclass(eq=False)
class Loan:
    """Samples lent to the application; with ``application-auto``, returning them acknowledges them."""

    samples: list[Sample]
    returned: bool = False


class _WriterHistory:
    """One writer, as the reader knows it."""

    def __init__(self, reports: AckReports) -> None:
        self.reports = reports
        # every number that was ever received: later copies are dropped
        self.received = Intervals(reports.acknowledged, start=reports.acknowledged.start)
        self.reported = self.received.watermark
        self.skipped = Intervals(start=self.received.start)


class ReaderHistory:
    """The history of one reader of any number of writers.

    Use: :meth:`receive` samples, :meth:`take` or :meth:`loan` them for the application, call the ``acknowledge``
    methods, send what :meth:`due` returns, ask again at :attr:`deadline`, and :meth:`confirm` the answers.
    """

    def __init__(
        self,
        qos: ReaderQos,
        name: str,
        *,
        epoch: int = 1,
        role: str | None = None,
        on_acknowledged: OnAcknowledged | None = None,
    ) -> None:
        """Begin an epoch.

        :param name: the durable identity: what was acknowledged under it is not received again
        :param epoch: greater at each start under this name
        :param role: the required subscription it serves
        """
        self._qos, self._name, self._epoch, self._role = qos, name, epoch, role
        self._on_acknowledged = on_acknowledged
        self._writers: dict[str, _WriterHistory] = {}
        self._cache: dict[tuple[str, int], Sample] = {}
        self._handed_out: dict[tuple[str, int], Sample] = {}

    def begin(self, writer: str, acknowledged: Intervals | None = None) -> _WriterHistory:
        """Add a writer, before anything is received from it, with what earlier epochs had confirmed."""
        reports = AckReports(self._qos, self._name, writer, self._epoch, self._role, acknowledged)
        self._writers[writer] = _WriterHistory(reports)
        return self._writers[writer]

    def _writer(self, name: str) -> _WriterHistory:
        return self._writers.get(name) or self.begin(name)

    def receive(self, sample: Sample, now: int, *, filtered: bool = False) -> bool:
        """Receive a sample; return whether it is available to the application.

        A copy is dropped. A sample that the filter excludes, or that KEEP_LAST replaces before the application saw it,
        is acknowledged with that reason: otherwise its writer would keep it for ever.
        """
        if not self._writer(sample.writer).received.add(sample.seq):
            return False
        if filtered:
            self._acknowledge(sample, now, auto="filtered")
            return False
        self._cache[sample.writer, sample.seq] = sample
        if self._qos.history == "keep-last":
            same_key = [cached for cached in self._cache.values() if cached.key == sample.key]
            for replaced in same_key[: -self._qos.depth]:
                del self._cache[replaced.writer, replaced.seq]
                self._acknowledge(replaced, now, auto="replaced")
        return True

    def skip(self, writer: str, first: int, last: int) -> None:
        """Do not wait for numbers that are not samples, or not for this reader."""
        known = self._writer(writer)
        known.received.add(first, last)
        known.skipped.add(first, last)

    # -- for the application -------------------------------------------------------------------------------------------

    @property
    def available(self) -> list[Sample]:
        """The samples that the application has not been handed, in the order of arrival."""
        return list(self._cache.values())

    def first(self, limit: int) -> list[Sample]:
        """Return the first samples that are :attr:`available`."""
        return list(islice(self._cache.values(), limit))

    @property
    def unacknowledged(self) -> int:
        """The number of samples that are available, or handed out and not acknowledged."""
        return len(self._cache) + len(self._handed_out)

    def take(self, now: int, samples: Iterable[Sample] | None = None) -> list[Sample]:
        """Hand samples to the application as copies: those of ``samples`` that are available, or all."""
        loan = self.loan(samples)
        self.return_loan(loan, now)
        return loan.samples

    def loan(self, samples: Iterable[Sample] | None = None) -> Loan:
        """Lend samples to the application, chosen as by :meth:`take`."""
        chosen = self.available if samples is None else samples
        taken = [sample for sample in chosen if self._cache.pop((sample.writer, sample.seq), None) is not None]
        if self._qos.kind != "protocol":
            self._handed_out.update(((sample.writer, sample.seq), sample) for sample in taken)
        return Loan(taken)

    def return_loan(self, loan: Loan, now: int) -> None:
        """Accept a loan back; raise ``PreconditionNotMetError`` for one that was returned before."""
        if loan.returned:
            raise PreconditionNotMetError("This loan was returned before; return each loan once.")
        loan.returned = True
        if self._qos.kind == "application-auto":
            self._acknowledge_all(loan.samples, now)

    def acknowledge_sample(self, writer: str, seq: int, now: int, response: bytes | None = None) -> None:
        """Acknowledge a sample; no effect a second time, or for a kind other than ``application-explicit``.

        :raises PreconditionNotMetError: the application was not handed this sample (R4)
        :raises BadParameterError: the response is too long
        """
        if self._qos.kind == "protocol":
            return
        sample = self._handed_out.get((writer, seq))
        if sample is None:
            if seq in self._writer(writer).reports.acknowledged:
                return
            raise PreconditionNotMetError(
                f"{self._name} cannot acknowledge sample {seq} of {writer}: the application was not handed it."
            )
        if self._qos.kind == "application-explicit":
            self._acknowledge(sample, now, response=response)

    def acknowledge_all(self, now: int, response: bytes | None = None) -> None:
        """Acknowledge every sample that was handed out, but none that is only available."""
        if self._qos.kind == "application-explicit":
            self._acknowledge_all(list(self._handed_out.values()), now, response)

    def _acknowledge_all(self, samples: Iterable[Sample], now: int, response: bytes | None = None) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.writer, sample.seq)):
            self._acknowledge(sample, now, response=response)

    def _acknowledge(
        self, sample: Sample, now: int, *, response: bytes | None = None, auto: AutoReason | None = None
    ) -> None:
        if self._qos.kind != "protocol":
            self._writer(sample.writer).reports.acknowledge(sample.seq, now, response=response, auto=auto)
        self._handed_out.pop((sample.writer, sample.seq), None)
        if self._on_acknowledged is not None:
            self._on_acknowledged(sample, response, auto)

    # -- reports -------------------------------------------------------------------------------------------------------

    def due(self, now: int) -> list[Report]:
        """Return the reports to send now."""
        if not self._qos.reliable:
            return []
        if self._qos.kind == "protocol":
            return [
                self._protocol_ack(name, writer)
                for name, writer in self._writers.items()
                if writer.received.watermark > writer.reported
            ]
        return [report for writer in self._writers.values() if (report := writer.reports.due(now)) is not None]

    def flush(self, now: int) -> list[Report]:
        """Return the reports to send at the end: everything that is not confirmed."""
        if not self._qos.reliable or self._qos.kind == "protocol":
            return self.due(now)
        return [report for writer in self._writers.values() if (report := writer.reports.flush(now)) is not None]

    def _protocol_ack(self, name: str, writer: _WriterHistory) -> ProtocolAck:
        writer.reported = writer.received.watermark
        return ProtocolAck(self._name, name, self._epoch, writer.reported, self._role, writer.received.start)

    @property
    def deadline(self) -> int | None:
        """When to call :meth:`due` again; ``None`` while nothing is waiting or unconfirmed."""
        deadlines = [writer.reports.deadline for writer in self._writers.values() if self._qos.reliable]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def confirm(self, conf: AppAckConf) -> bool:
        """Apply a confirmation; return ``False`` if it is of no AppAck of this reader and epoch."""
        writer = self._writers.get(conf.writer)
        return conf.reader == self._name and writer is not None and writer.reports.confirm(conf)

    def settled(self, writer: str, seq: int) -> bool:
        """Return whether a restart does not need a sample: it is reported (or confirmed), or was skipped."""
        known = self._writers.get(writer)
        if known is None:
            return False
        reported = seq <= known.reported if self._qos.kind == "protocol" else seq in known.reports.confirmed
        return reported or seq in known.skipped


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
        return alike and not self.sent and (response is None or self.at == at)


class AckReports:
    """What one reader has acknowledged to one writer, and which part of it is confirmed; see ``ReaderHistory``."""

    def __init__(
        self,
        qos: ReaderQos,
        reader: str,
        writer: str,
        epoch: int = 1,
        role: str | None = None,
        acknowledged: Intervals | None = None,
    ) -> None:
        """Begin an epoch.

        :param acknowledged: what earlier epochs had confirmed; its start is the first sample the reader expects
        """
        self.acknowledged = Intervals() if acknowledged is None else acknowledged
        self.confirmed = Intervals(self.acknowledged, start=self.acknowledged.start)
        self._qos, self._reader, self._writer, self._epoch, self._role = qos, reader, writer, epoch, role
        self._open: list[_AckRun] = []
        self._waiting = self._count = 0
        self._waiting_since: int | None = None
        self._sent_at: int | None = None

    def acknowledge(self, seq: int, now: int, *, response: bytes | None = None, auto: AutoReason | None = None) -> None:
        """Acknowledge a sample; a second time has no effect.

        :raises BadParameterError: the response is longer than ``max_response_length``
        """
        if response is not None and len(response) > self._qos.max_response_length:
            raise BadParameterError(
                f"The response has {len(response)} bytes; max_response_length allows {self._qos.max_response_length}."
            )
        if not self.acknowledged.add(seq):
            return
        self._waiting += 1
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if self._open and self._open[-1].continues(seq, now, response, auto):
            self._open[-1].last = seq
        else:
            self._open.append(_AckRun(seq, seq, now, response, auto))

    @property
    def deadline(self) -> int | None:
        """When to call :meth:`due` again; ``None`` while nothing is waiting or unconfirmed."""
        since = [time for time in (self._waiting_since, self._sent_at) if time is not None]
        return min(since) + self._qos.app_ack_period_ms if since else None

    def due(self, now: int) -> AppAck | None:
        """Return the AppAck to send now, if enough samples are waiting or the period is over."""
        over = self.deadline is not None and now >= self.deadline
        return self.flush(now) if over or self._waiting >= self._qos.samples_per_app_ack else None

    def flush(self, now: int) -> AppAck | None:
        """Return an AppAck with everything that is waiting or unconfirmed, as on closing; ``None`` if nothing is."""
        if not self._open:
            return None
        self._count += 1
        intervals = self._intervals(now)
        for run in self._open:
            run.sent = run.sent or self._count
        self._waiting, self._waiting_since, self._sent_at = 0, None, now
        return AppAck(
            self._reader, self._writer, self._epoch, self._count, intervals, self._role, self.acknowledged.start
        )

    def _intervals(self, now: int) -> tuple[AckInterval, ...]:
        """Return everything acknowledged, ascending; neighbours that differ in nothing are one interval (R15)."""
        intervals = [AckInterval(first, last, reported=True) for first, last in self.confirmed]
        for run in self._open:
            expired = run.sent > 0 and now - run.at > self._qos.response_keep_ms
            intervals.append(
                AckInterval(run.first, run.last, None if expired else run.response, run.auto, run.sent > 0)
            )
        intervals.sort(key=lambda interval: interval.first)
        merged: list[AckInterval] = []
        for interval in intervals:
            before = merged[-1] if merged else None
            if before is not None and before.last + 1 == interval.first and _alike(before, interval):
                merged[-1] = msgspec.structs.replace(before, last=interval.last)
            else:
                merged.append(interval)
        return tuple(merged)

    def confirm(self, conf: AppAckConf) -> bool:
        """Apply a confirmation to its AppAck and to all before it, since each repeats the contents of the earlier ones.

        :return: ``False`` if it is of another epoch, or of no AppAck that was sent
        """
        if conf.epoch != self._epoch or not 1 <= conf.count <= self._count:
            return False
        confirmed = [run for run in self._open if 1 <= run.sent <= conf.count]
        self.confirmed.merge((run.first, run.last) for run in confirmed)
        self._open = [run for run in self._open if not 1 <= run.sent <= conf.count]
        if not any(run.sent for run in self._open):
            self._sent_at = None
        return True


def _alike(one: AckInterval, other: AckInterval) -> bool:
    return (one.response, one.auto, one.reported) == (other.response, other.auto, other.reported)
