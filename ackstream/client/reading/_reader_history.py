"""A reader's samples between Kafka and the application, by state; settle decides about its crashes, unknown here."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ackstream.client.core.lifetime import Awaited
from ackstream.client.errors import ReaderClosedError
from ackstream.client.options import MAX_BYTES, MAX_SAMPLES
from ackstream.client.reading._sample_cache import OpenOffsets, SampleCache, TimeBasedFilter
from ackstream.client.reading._writer_history import AckReports, ReorderBuffer, Report
from ackstream.client.reading.samples import ReaderQos, Sample
from ackstream.errors import PreconditionNotMetError
from ackstream.kafka.clients import monotonic_ms
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AppAckConf, AutoReason, KnownWriter, ReaderStart

log = logging.getLogger(__name__)

UNANSWERED_MS, UNANSWERED_PERIODS = 10_000, 3
"""After this time, and three reports at least, a reader without a confirmation is disconnected."""


class ReaderHistory(Awaited):
    """The unfinished samples of a reader; the caller sends :meth:`due`, and :meth:`confirm` takes the answers."""

    def __init__(
        self,
        qos: ReaderQos,
        start: ReaderStart,
        *,
        wanted: Callable[[Sample], bool],
        on_acknowledged: Callable[[Sample, bytes | None, AutoReason | None], None],
        clock: Callable[[], int] = monotonic_ms,
        max_samples: int = MAX_SAMPLES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Begin an epoch, without samples; that of ``start`` may change until the first writer is known.

        Stored samples that ``wanted`` does not select are filtered out. ``on_acknowledged`` gets each acknowledged one,
        its response, and the reason if automatic. The limits are for those not stored yet, and for unacknowledged ones.
        """
        super().__init__()
        self._final = False
        self.counts: Counter[str] = Counter()
        """Counts by the names of ``ReaderStatistics``, including those of the reader and its link."""
        self.reports: dict[str, AckReports] = {}
        """Reports by writer, for those whose first sample for this reader is known."""
        self.gaps: set[str] = set()
        """Writers with stored samples after some whose state is unknown."""
        self.start = start
        self._qos, self._clock = qos, clock
        self._max_samples, self._max_bytes = max_samples, max_bytes
        self._wanted, self._on_acknowledged = wanted, on_acknowledged
        self._arrived: defaultdict[str, ReorderBuffer] = defaultdict(ReorderBuffer)
        # writers with samples that wait, and with something to report
        self._waiting, self._reporting = set[str](), set[str]()
        self._cache = SampleCache(qos)
        self._separation = TimeBasedFilter(qos.minimum_separation_ms)
        self._offsets = OpenOffsets()

    def begin(self, known: KnownWriter) -> None:
        """Continue with a writer at the sample where this reader stopped, according to the settle job."""
        with self.changed:
            acknowledged = Intervals(known.acknowledged, start=known.start)
            reports = self.reports[known.writer] = AckReports(self._qos, self.start, known.writer, acknowledged)
            self._arrived[known.writer].begin(known.written, known.undelivered, known.sessions)
            if known.start <= known.written:
                for run in Intervals(known.undelivered, start=known.start).missing(known.start, known.written):
                    reports.skip(*run)
            self._reporting.add(known.writer)
            self._release(known.writer)

    def catch_up(self, known: KnownWriter) -> None:
        """Learn from a later state which samples were stored, in place of a record of ``stored`` that was missed."""
        with self.changed:
            if known.writer not in self.reports:
                self.begin(known)
            self._arrived[known.writer].learn(known.sessions)
            undelivered = Intervals(known.undelivered, start=0)
            for first, last in self._arrived[known.writer].undecided(known.written):
                self._mark_stored(known.writer, first, last, undelivered.missing(first, last))

    def add(self, sample: Sample, *, in_kafka: bool = True) -> None:
        """Add a message; drop a duplicate. If it is ``in_kafka``, a restart can read it again at its offset."""
        with self.changed:
            if not self._arrived[sample.publisher].add(sample):
                self.counts["repeats"] += 1
                return
            self._waiting.add(sample.publisher)
            if in_kafka:
                self._offsets.add(sample)
            self._release(sample.publisher)

    def mark_stored(self, stored: StoredRange) -> None:
        with self.changed:
            if stored.client not in self.reports:
                self.begin(KnownWriter(stored.client, stored.first, stored.first - 1))
            self._mark_stored(stored.client, stored.first, stored.last, stored.refused, stored.session)

    def skip(self, writer: str, runs: Sequence[Interval]) -> None:
        """Carry on without samples that cannot be recovered; they are not acknowledged."""
        with self.changed:
            for run in runs:
                self._arrived[writer].skip(*run)
            self._release(writer)

    def missing(self) -> dict[str, list[Interval]]:
        """Return by writer the stored samples that are absent and hold up those behind them."""
        with self.changed:
            return {writer: runs for writer in self.reports if (runs := self._arrived[writer].missing())}

    def drop(self) -> int:
        """Drop the samples of the writer with most bytes waiting; return how many (:meth:`dropped_offsets`)."""
        with self.changed:
            writer = max(sorted(self._waiting), key=lambda name: self._arrived[name].bytes)
            dropped = self._arrived[writer].drop()
            self._waiting.discard(writer)
            self._offsets.drop(writer, dropped)
            return len(dropped)

    def dropped_offsets(self, missing: Mapping[str, int]) -> dict[int, int]:
        """Return by partition where to read again; of the first missing number of each writer, if it was dropped."""
        with self.changed:
            return self._offsets.take_dropped(missing)

    @property
    def waiting(self) -> int:
        with self.changed:
            return sum(len(self._arrived[writer]) for writer in self._waiting)

    @property
    def crowded(self) -> bool:
        with self.changed:
            buffers = [self._arrived[writer] for writer in self._waiting]
            return sum(map(len, buffers)) >= self._max_samples or sum(b.bytes for b in buffers) >= self._max_bytes

    @property
    def held(self) -> int:
        return len(self._cache)

    @property
    def full(self) -> bool:
        return len(self._cache) >= self._max_samples or self._cache.bytes >= self._max_bytes

    @property
    def stuck(self) -> bool:
        """Whether the application has all it may have, so that nothing is read and nothing is left to access."""
        with self.changed:
            # unread ones are there, too, while their writer waits for the next attempt of a retry
            return self.full and not (self._cache.has() or self._cache.unread)

    def restart_offset(self, partition: int, position: int) -> int:
        """Return the offset from which a restart has to read a partition, of which ``position`` is to be read next."""
        with self.changed:
            return self._offsets.first(partition, position, self.reports, self._arrived)

    def await_samples(self, timeout: float | None, *, unread: bool = False) -> bool:
        return self.wait_for(lambda: self._cache.has(unread=unread), timeout)

    def take(self, limit: int, timeout: float | None) -> list[Sample]:
        """Hand samples out as copies; chosen, and errors, as for :meth:`loan`."""
        with self.changed:
            samples = self.loan(limit, timeout)
            self.return_loan(samples)
            return samples

    def read(self, limit: int, timeout: float | None, *, unread: bool) -> list[Sample]:
        with self.changed:
            samples = self._access(lambda: self._cache.read(limit, unread=unread), timeout, unread=unread)
            self.return_loan(samples)
            return samples

    def loan(self, limit: int, timeout: float | None, without: AbstractSet[str] = frozenset()) -> list[Sample]:
        """Lend the samples in the cache, or the first within ``timeout`` seconds, except those of some writers."""
        with self.changed:
            self._cache.hold(without)
            return self._access(lambda: self._cache.take(limit), timeout)

    def return_loan(self, samples: list[Sample]) -> None:
        """Accept a loan back; ``application-auto`` acknowledges it."""
        with self.changed:
            if self._qos.kind == "application-auto":
                self._check_reporting()
                self._acknowledge_all(samples)

    def waits_for(self, sample: Sample) -> bool:
        with self.changed:
            return self._cache.open(sample.publisher, sample.seq) is not None

    def acknowledge_sample(self, sample: Sample, response: bytes | None) -> None:
        """Acknowledge a sample; no effect a second time, or for a kind other than ``application-explicit``.

        :raises PreconditionNotMetError: the application was not handed this sample (R4)
        :raises ClientError: the reader has ended, and reports nothing any more
        """
        if self._qos.kind == "protocol":
            return
        self._check_reporting()
        writer, seq = sample.publisher, sample.seq
        with self.changed:
            handed_out = self._cache.open(writer, seq)
            if handed_out is None:
                if writer in self.reports and seq in self.reports[writer].acknowledged:
                    return
                raise PreconditionNotMetError(
                    f"{self.start.reader} cannot acknowledge sample {seq} of {writer}: the application was not handed"
                    " it."
                )
            if self._qos.kind == "application-explicit":
                self._acknowledge(handed_out, response)

    def acknowledge_all(self, response: bytes | None) -> None:
        """Acknowledge every sample that was handed out, but none that is only available."""
        self._check_reporting()
        with self.changed:
            if self._qos.kind == "application-explicit":
                self._acknowledge_all(self._cache.opened, response)

    def _check_reporting(self) -> None:
        # a handler may acknowledge its sample while the reader is closed
        if self.ended is not None and (self._final or not isinstance(self.ended, ReaderClosedError)):
            raise self.ended

    def due(self, *, closing: bool = False) -> list[Report]:
        """Return the reports to send now; on closing, of everything that is not confirmed."""
        with self.changed:
            self._final |= closing
            now, due = self._clock(), []
            for writer in sorted(self._reporting):
                reports = self.reports[writer]
                due.append(reports.flush(now) if closing else reports.due(now))
                if reports.deadline is None:
                    self._reporting.discard(writer)
        return [report for report in due if report is not None]

    @property
    def unanswered(self) -> bool:
        """Whether settle has not confirmed a report for long, or Kafka has not got it."""
        with self.changed:
            since = [self.reports[writer].unanswered_since for writer in self._reporting]
            late = self._clock() - max(UNANSWERED_MS, UNANSWERED_PERIODS * self._qos.app_ack_period_ms)
            return any(at is not None and at <= late for at in since)

    def confirm(self, conf: AppAckConf) -> None:
        with self.changed:
            if conf.writer in self.reports:
                self.reports[conf.writer].confirm(conf)

    def _mark_stored(
        self, writer: str, first: int, last: int, refused: Sequence[Interval], session: str | None = None
    ) -> None:
        self._arrived[writer].mark_stored(first, last, refused, session)
        (self.gaps.add if self._arrived[writer].has_gap else self.gaps.discard)(writer)
        for run in refused:
            self.reports[writer].refuse(*run)
        self._reporting.add(writer)
        self._release(writer)

    def _release(self, writer: str) -> None:
        buffer = self._arrived[writer]
        for sample in buffer.release():
            self.counts["received"] += 1
            self._receive(sample)
        if not buffer:
            self._waiting.discard(writer)
        self.changed.notify_all()

    def _access(self, access: Callable[[], list[Sample]], timeout: float | None, **which: bool) -> list[Sample]:
        self.await_samples(timeout, **which)
        before = self._cache.unread
        samples = access()
        self.counts["handed_out"] += before - self._cache.unread
        return samples

    def _receive(self, sample: Sample) -> None:
        """Make a stored sample available; acknowledge one that the application never sees, or writers keep it."""
        if self._qos.kind == "protocol":
            self.reports[sample.publisher].acknowledged.add(sample.seq)
            self._reporting.add(sample.publisher)
        if not (self._passes(sample) and self._separation.passes(sample)):
            self._acknowledge(sample, auto="filtered")
        elif (replaced := self._cache.add(sample)) is not None:
            self._acknowledge(replaced, auto="replaced")

    def _passes(self, sample: Sample) -> bool:
        try:
            return self._wanted(sample)
        except Exception:
            # an extra sample is better than a missing one
            log.exception("The filter failed for %s of %s; the application gets it.", sample.seq, sample.publisher)
            return True

    def _acknowledge_all(self, samples: list[Sample], response: bytes | None = None) -> None:
        for sample in sorted(samples, key=lambda sample: (sample.publisher, sample.seq)):
            # a sample that is read twice is acknowledged once
            if self._cache.open(sample.publisher, sample.seq) is not None:
                self._acknowledge(sample, response)

    def _acknowledge(self, sample: Sample, response: bytes | None = None, auto: AutoReason | None = None) -> None:
        if self._qos.kind != "protocol":
            self.reports[sample.publisher].acknowledge(sample.seq, self._clock(), response=response, auto=auto)
            self._reporting.add(sample.publisher)
        self._cache.acknowledge(sample)
        self.counts[auto or "acknowledged"] += 1
        self._on_acknowledged(sample, response, auto)
