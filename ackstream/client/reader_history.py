"""A reader's history: the samples between Kafka and the application, by what became of them.

What a reader cannot know, such as its own crash, is decided by the settle job.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ackstream.client.writer_history import AckReports, ReorderBuffer
from ackstream.errors import PreconditionNotMetError
from ackstream.kafka.clients import monotonic_ms
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AutoReason, KnownWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackstream.client.samples import ReaderQos, Sample
    from ackstream.client.writer_history import Report
    from ackstream.protocol.intervals import Interval
    from ackstream.protocol.messages import StoredRange
    from ackstream.protocol.readers import AppAckConf, ReaderStart

log = logging.getLogger(__name__)

OnAcknowledged: TypeAlias = "Callable[[Sample, bytes | None, AutoReason | None], None]"
"""Called for each acknowledged sample, with its response and the reason of an automatic acknowledgement."""


class ReaderHistory:
    """Everything a reader has received and not finished with, of any number of writers.

    Samples wait until they are known to be stored; then they are available, handed out, and acknowledged. Use: add
    what the topics bring, hand samples out, call the ``acknowledge`` methods, send what :meth:`due` returns, and
    :meth:`confirm` the answers. Safe to use from several threads.
    """

    def __init__(
        self,
        qos: ReaderQos,
        start: ReaderStart,
        *,
        wanted: Callable[[Sample], bool],
        on_acknowledged: OnAcknowledged,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Begin an epoch, without samples.

        :param wanted: selects the stored samples for the application; the others are acknowledged as filtered
        :param clock: monotonic milliseconds
        """
        self.counts: Counter[str] = Counter()
        self.reports: dict[str, AckReports] = {}
        """By writer, of those whose first sample for this reader is known."""
        self._qos, self._start, self._clock = qos, start, clock
        self._wanted, self._on_acknowledged = wanted, on_acknowledged
        self._changed = threading.Condition()
        self._ended: Exception | None = None
        self._arrived: dict[str, ReorderBuffer[Sample]] = {}
        self._available: dict[tuple[str, int], Sample] = {}
        self._handed_out: dict[tuple[str, int], Sample] = {}
        # by partition and offset: what a restart has to read again
        self._open: dict[int, dict[int, tuple[str, int]]] = {}

    # -- from the topics -----------------------------------------------------------------------------------------------

    def begin(self, known: KnownWriter) -> None:
        """Continue with a writer where the settle job says that this reader stopped."""
        with self._changed:
            acknowledged = Intervals(known.acknowledged, start=known.start)
            reports = self.reports[known.writer] = AckReports(self._qos, self._start, known.writer, acknowledged)
            self._arrived.setdefault(known.writer, ReorderBuffer()).begin(known.written, known.undelivered)
            if known.start <= known.written:
                for run in Intervals(known.undelivered, start=known.start).missing(known.start, known.written):
                    reports.skip(*run)

    def add(self, sample: Sample, *, in_kafka: bool = True) -> None:
        """Add a message; drop a duplicate.

        :param in_kafka: a restart can read it again at its offset
        """
        with self._changed:
            arrived = self._arrived.setdefault(sample.writer, ReorderBuffer())
            if not arrived.add(sample.seq, sample):
                self.counts["repeats"] += 1
                return
            if in_kafka:
                self._open.setdefault(sample.partition, {})[sample.offset] = (sample.writer, sample.seq)
            self._release(sample.writer)

    def mark_stored(self, stored: StoredRange) -> None:
        """Release the samples that are now known to be stored; skip the refused ones."""
        with self._changed:
            if stored.client not in self.reports:
                self.begin(KnownWriter(stored.client, stored.first, stored.first - 1))
            self._arrived[stored.client].mark_stored(stored.first, stored.last, stored.refused)
            for run in stored.refused:
                self.reports[stored.client].skip(*run)
            self._release(stored.client)

    def skip(self, writer: str, runs: Sequence[Interval]) -> None:
        """Carry on without samples that cannot be recovered; they are not acknowledged."""
        with self._changed:
            for run in runs:
                self._arrived[writer].skip(*run)
            self._release(writer)

    def missing(self) -> dict[str, list[Interval]]:
        """Return by writer the stored samples that are absent and hold up those behind them."""
        with self._changed:
            found = {writer: self._arrived[writer].missing() for writer in self.reports}
        return {writer: runs for writer, runs in found.items() if runs}

    def drop_unstored(self) -> int:
        """Drop what is not known to be stored, of the writer with most samples waiting; return the number dropped."""
        with self._changed:
            return max(self._arrived.values(), key=len).drop_unstored()

    @property
    def waiting(self) -> int:
        """The number of messages that wait until they are known to be stored."""
        with self._changed:
            return sum(map(len, self._arrived.values()))

    @property
    def unacknowledged(self) -> int:
        """The number of samples that are available, or handed out and not acknowledged."""
        return len(self._available) + len(self._handed_out)

    def restart_offset(self, partition: int, position: int) -> int:
        """Return the offset from which a restart has to read a partition, of which ``position`` is to be read next."""
        with self._changed:
            self._open[partition] = {
                offset: (writer, seq)
                for offset, (writer, seq) in self._open.get(partition, {}).items()
                if writer not in self.reports or not self.reports[writer].settled(seq)
            }
            return min(self._open[partition], default=position)

    # -- for the application -------------------------------------------------------------------------------------------

    def take(self, limit: int, timeout: float | None) -> list[Sample]:
        """Hand samples out as copies; chosen, and errors, as for :meth:`loan`."""
        with self._changed:
            samples = self.loan(limit, timeout)
            self.return_loan(samples)
            return samples

    def loan(self, limit: int, timeout: float | None) -> list[Sample]:
        """Lend the samples that are available, or the first that arrive within ``timeout`` seconds.

        :raises Exception: that of :meth:`end`
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None or self._available, timeout)
            if self._ended is not None:
                raise self._ended
            samples = list(islice(self._available.values(), limit))
            for sample in samples:
                key = (sample.writer, sample.seq)
                del self._available[key]
                if self._qos.kind != "protocol":
                    self._handed_out[key] = sample
            self.counts["handed_out"] += len(samples)
            return samples

    def return_loan(self, samples: list[Sample]) -> None:
        """Accept a loan back; ``application-auto`` acknowledges it."""
        with self._changed:
            if self._qos.kind == "application-auto":
                self._acknowledge_all(samples)

    def acknowledge_sample(self, sample: Sample, response: bytes | None) -> None:
        """Acknowledge a sample; no effect a second time, or for a kind other than ``application-explicit``.

        :raises PreconditionNotMetError: the application was not handed this sample (R4)
        :raises BadParameterError: the response is too long
        """
        if self._qos.kind == "protocol":
            return
        writer, seq = sample.writer, sample.seq
        with self._changed:
            handed_out = self._handed_out.get((writer, seq))
            if handed_out is None:
                if writer in self.reports and seq in self.reports[writer].acknowledged:
                    return
                raise PreconditionNotMetError(
                    f"{self._start.reader} cannot acknowledge sample {seq} of {writer}: the application was not handed"
                    " it."
                )
            if self._qos.kind == "application-explicit":
                self._acknowledge(handed_out, response)

    def acknowledge_all(self, response: bytes | None) -> None:
        """Acknowledge every sample that was handed out, but none that is only available."""
        with self._changed:
            if self._qos.kind == "application-explicit":
                self._acknowledge_all(list(self._handed_out.values()), response)

    def end(self, error: Exception) -> None:
        """Raise an error in every current and later wait for samples; the first error counts."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    # -- reports -------------------------------------------------------------------------------------------------------

    def due(self, *, closing: bool = False) -> list[Report]:
        """Return the reports to send now; on closing, of everything that is not confirmed."""
        with self._changed:
            now = self._clock()
            due = [one.flush(now) if closing else one.due(now) for one in self.reports.values()]
        return [report for report in due if report is not None]

    def confirm(self, conf: AppAckConf) -> None:
        """Apply a confirmation."""
        with self._changed:
            if conf.writer in self.reports:
                self.reports[conf.writer].confirm(conf)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _release(self, writer: str) -> None:
        for sample in self._arrived[writer].release():
            self.counts["received"] += 1
            self._receive(sample)
        self._changed.notify_all()

    def _receive(self, sample: Sample) -> None:
        """Make a stored sample available.

        One that the filter excludes, or that KEEP_LAST replaces before the application saw it, is acknowledged with
        that reason: otherwise its writer would keep it for ever.
        """
        if self._qos.kind == "protocol":
            self.reports[sample.writer].acknowledged.add(sample.seq)
        if not self._passes(sample):
            self._acknowledge(sample, auto="filtered")
            return
        self._available[sample.writer, sample.seq] = sample
        if self._qos.history == "keep-last":
            same_key = [available for available in self._available.values() if available.key == sample.key]
            for replaced in same_key[: -self._qos.depth]:
                del self._available[replaced.writer, replaced.seq]
                self._acknowledge(replaced, auto="replaced")

    def _passes(self, sample: Sample) -> bool:
        try:
            return self._wanted(sample)
        except Exception:
            # better a sample too many than one too few
            log.exception("The filter failed for message %s of %s; the application gets it.", sample.seq, sample.writer)
            return True

    def _acknowledge_all(self, samples: list[Sample], response: bytes | None = None) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.writer, sample.seq)):
            self._acknowledge(sample, response)

    def _acknowledge(self, sample: Sample, response: bytes | None = None, auto: AutoReason | None = None) -> None:
        if self._qos.kind != "protocol":
            self.reports[sample.writer].acknowledge(sample.seq, self._clock(), response=response, auto=auto)
        self._handed_out.pop((sample.writer, sample.seq), None)
        self.counts[auto or "acknowledged"] += 1
        self._on_acknowledged(sample, response, auto)
