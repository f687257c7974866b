"""A reader's history: which samples are available, handed to the application, or acknowledged.

Pure: times are milliseconds of any clock that only goes forward. Rules: brokers.md R1 to R5, R7; Connext 31.12.1. What
a reader cannot know, such as its own crash, is decided by the settle job.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ackstream.client.readers.reports import AckReports
from ackstream.errors import PreconditionNotMetError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AppAck, ProtocolAck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.readers.qos import ReaderQos
    from ackstream.client.readers.samples import Sample
    from ackstream.protocol.readers import AppAckConf, AutoReason

Report: TypeAlias = AppAck | ProtocolAck
OnAcknowledged: TypeAlias = "Callable[[Sample, bytes | None, AutoReason | None], None]"
"""Called for each acknowledged sample, with its response and the reason of an automatic acknowledgement."""


class Loan:
    """Samples lent to the application; with ``application-auto``, returning them acknowledges them."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples
        self.returned = False


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
        self._qos = qos
        self._name = name
        self._epoch = epoch
        self._role = role
        self._on_acknowledged = on_acknowledged
        self._writers: dict[str, _WriterHistory] = {}
        self._cache: dict[tuple[str, int], Sample] = {}
        self._handed_out: dict[tuple[str, int], Sample] = {}

    def begin(self, writer: str, acknowledged: Intervals | None = None) -> _WriterHistory:
        """Add a writer, before anything is received from it, with what earlier epochs had confirmed."""
        reports = AckReports(
            self._qos, self._name, writer, epoch=self._epoch, role=self._role, acknowledged=acknowledged
        )
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
        """Accept a loan back.

        :raises PreconditionNotMetError: it was returned before
        """
        if loan.returned:
            raise PreconditionNotMetError("This loan was returned before; return each loan once.")
        loan.returned = True
        if self._qos.kind == "application-auto":
            self._acknowledge_all(loan.samples, now)

    def acknowledge_sample(self, writer: str, seq: int, now: int, response: bytes | None = None) -> None:
        """Acknowledge one sample that was handed out; a second time has no effect.

        It has no effect either on readers of other kinds than ``application-explicit``.

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
        """Acknowledge every sample that was handed out, but none that is only available.

        :raises BadParameterError: the response is too long
        """
        if self._qos.kind == "application-explicit":
            self._acknowledge_all(list(self._handed_out.values()), now, response)

    def _acknowledge_all(self, samples: Iterable[Sample], now: int, response: bytes | None = None) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.writer, sample.seq)):
            self._acknowledge(sample, now, response=response)

    def _acknowledge(
        self, sample: Sample, now: int, *, response: bytes | None = None, auto: AutoReason | None = None
    ) -> None:
        if self._qos.kind != "protocol":
            reports = self._writer(sample.writer).reports
            reports.acknowledge(sample.seq, sample.seq, now, response=response, auto=auto)
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
        reports = [writer.reports.due(now) for writer in self._writers.values()]
        return [report for report in reports if report is not None]

    def flush(self, now: int) -> list[Report]:
        """Return the reports to send at the end: everything that is not confirmed."""
        if not self._qos.reliable or self._qos.kind == "protocol":
            return self.due(now)
        reports = [writer.reports.flush(now) for writer in self._writers.values()]
        return [report for report in reports if report is not None]

    def _protocol_ack(self, name: str, writer: _WriterHistory) -> ProtocolAck:
        writer.reported = writer.received.watermark
        return ProtocolAck(self._name, name, self._epoch, writer.reported, self._role, writer.received.start)

    @property
    def deadline(self) -> int | None:
        """When to call :meth:`due` again; ``None`` while nothing is waiting or unconfirmed."""
        if not self._qos.reliable or self._qos.kind == "protocol":
            return None
        deadlines = [writer.reports.deadline for writer in self._writers.values()]
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
