"""The samples of a reader between Kafka and its application, and the wait for them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from ackstream.client.reader_history import ReaderHistory
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ackstream.client.reader_history import Loan, OnAcknowledged, Report
    from ackstream.client.samples import ReaderQos, Sample
    from ackstream.protocol.intervals import Interval
    from ackstream.protocol.messages import StoredRange
    from ackstream.protocol.readers import AppAckConf, AutoReason, KnownWriter, ReaderStart

log = logging.getLogger(__name__)

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """One writer's samples, released once each, in the writer's order, and only those that are stored.

    A message in Kafka may still be refused, so it waits until the topic ``stored`` names it; a message that ``stored``
    names may not have arrived yet, or be in the table only. Pure; rules: brokers.md R7, S19, 4 rule 4.
    """

    def __init__(self) -> None:
        """Begin empty."""
        # stored or refused, as far as is known
        self._decided = Intervals(start=0)
        # released or skipped
        self._passed = Intervals(start=0)
        self._waiting: dict[int, T] = {}

    def __len__(self) -> int:
        """Return how many samples are waiting."""
        return len(self._waiting)

    def begin(self, written: int, undelivered: Iterable[Interval] = ()) -> None:
        """Skip all samples up to ``written``, which are stored, except the ``undelivered`` ones."""
        self._decided.add(0, written)
        position = 0
        for first, last in [*undelivered, (written + 1, written + 1)]:
            if position < first:
                self.skip(position, first - 1)
            position = last + 1

    def add(self, seq: int, sample: T) -> bool:
        """Add a sample; return ``False`` for a duplicate, and for one that is skipped."""
        if seq in self._waiting or seq in self._passed:
            return False
        self._waiting[seq] = sample
        return True

    def mark_stored(self, first: int, last: int, refused: Iterable[Interval] = ()) -> None:
        """Mark a range as stored, except the runs in it that were ``refused``; a second time has no effect."""
        self._decided.add(first, last)
        for run in refused:
            self.skip(*run)

    def skip(self, first: int, last: int) -> None:
        """Drop these samples, now or when they arrive."""
        for low, high in self._passed.add(first, last):
            for seq in [seq for seq in self._waiting if low <= seq <= high]:
                del self._waiting[seq]

    def release(self) -> Iterator[T]:
        """Remove and yield the samples that may be handed out now."""
        while (seq := self._passed.first_hole) <= self._decided.watermark and seq in self._waiting:
            self._passed.add(seq)
            yield self._waiting.pop(seq)

    def missing(self) -> list[Interval]:
        """Return the runs that are stored and wanted but absent, if they hold up the samples behind them."""
        first, last = self._passed.first_hole, self._decided.watermark
        if first > last or first in self._waiting:
            return []
        known = Intervals(self._passed, start=self._passed.start)
        known.merge((seq, seq) for seq in self._waiting)
        return known.missing(first, last)

    def drop_unstored(self) -> int:
        """Drop the samples that are not known to be stored, and return their number; they can be fetched later."""
        kept = {seq: sample for seq, sample in self._waiting.items() if seq <= self._decided.watermark}
        count, self._waiting = len(self._waiting) - len(kept), kept
        return count


class PrefetchBuffer:
    """Everything a reader has received and not finished with. Safe to use from several threads.

    What may be handed out, and when, is decided by ``ReorderBuffer`` and ``ReaderHistory``; here are the lock, the wait
    for samples, and the counts.
    """

    def __init__(
        self, qos: ReaderQos, start: ReaderStart, *, wanted: Callable[[Sample], bool], on_acknowledged: OnAcknowledged
    ) -> None:
        """Begin empty.

        :param wanted: selects the stored samples for the application; the others are acknowledged as filtered
        """
        self.counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._ended: Exception | None = None
        self._history = ReaderHistory(
            qos, start.reader, epoch=start.epoch, role=start.role, on_acknowledged=self._acknowledged
        )
        self._wanted = wanted
        self._on_acknowledged = on_acknowledged
        self._writers: dict[str, ReorderBuffer[Sample]] = {}
        self._begun: set[str] = set()
        # by partition and offset: what a restart has to read again
        self._open: dict[int, dict[int, tuple[str, int]]] = {}

    # -- from the topics -----------------------------------------------------------------------------------------------

    def begin(self, known: KnownWriter) -> None:
        """Continue with a writer where the settle job says that this reader stopped."""
        acknowledged = Intervals(known.acknowledged, start=known.start)
        wanted = Intervals([*known.acknowledged, *known.undelivered], start=known.start)
        with self._changed:
            self._begin(known.writer, acknowledged).begin(known.written, known.undelivered)
            if known.start <= known.written:
                for run in wanted.missing(known.start, known.written):
                    self._history.skip(known.writer, *run)

    def add(self, sample: Sample, *, in_kafka: bool = True) -> None:
        """Add a message; drop a duplicate.

        :param in_kafka: a restart can read it again at its offset
        """
        with self._changed:
            buffer = self._writers.setdefault(sample.writer, ReorderBuffer())
            if not buffer.add(sample.seq, sample):
                self.counts["repeats"] += 1
                return
            if in_kafka:
                self._open.setdefault(sample.partition, {})[sample.offset] = (sample.writer, sample.seq)
            self._release(sample.writer)

    def mark_stored(self, stored: StoredRange) -> None:
        """Release the samples that are now known to be stored; skip the refused ones."""
        writer = stored.client
        with self._changed:
            if writer not in self._begun:
                self._begin(writer, Intervals(start=stored.first)).begin(stored.first - 1)
            self._writers[writer].mark_stored(stored.first, stored.last, stored.refused)
            for run in stored.refused:
                self._history.skip(writer, *run)
            self._release(writer)

    def skip(self, writer: str, runs: list[Interval]) -> None:
        """Carry on without samples that cannot be recovered; they are not acknowledged."""
        with self._changed:
            for run in runs:
                self._writers[writer].skip(*run)
            self._release(writer)

    def missing(self) -> dict[str, list[Interval]]:
        """Return by writer the stored samples that are absent and hold up those behind them."""
        with self._changed:
            found = {writer: buffer.missing() for writer, buffer in self._writers.items() if writer in self._begun}
        return {writer: runs for writer, runs in found.items() if runs}

    def drop_unstored(self) -> int:
        """Drop what is not known to be stored, of the writer with most samples waiting; return the number dropped."""
        with self._changed:
            return max(self._writers.values(), key=len).drop_unstored()

    @property
    def waiting(self) -> int:
        """The number of messages that wait until they are known to be stored."""
        with self._changed:
            return sum(map(len, self._writers.values()))

    @property
    def unacknowledged(self) -> int:
        """The number of samples that are available, or handed out and not acknowledged."""
        return self._history.unacknowledged

    def restart_offsets(self, read: Mapping[int, int]) -> dict[int, int]:
        """Return for each partition the offset from which a restart has to read.

        :param read: the next offset to read of each partition
        """
        with self._changed:
            for partition, samples in self._open.items():
                self._open[partition] = {
                    offset: sample for offset, sample in samples.items() if not self._history.settled(*sample)
                }
            return {partition: min(self._open.get(partition) or (position,)) for partition, position in read.items()}

    # -- for the application -------------------------------------------------------------------------------------------

    def take(self, limit: int, timeout: float | None) -> list[Sample]:
        """Hand out copies: those available, or the first that arrive within ``timeout`` seconds."""
        with self._changed:
            samples = self._wait(limit, timeout)
            return self._history.take(_now(), samples)

    def loan(self, limit: int, timeout: float | None) -> Loan:
        """Lend samples, chosen as by :meth:`take`."""
        with self._changed:
            return self._history.loan(self._wait(limit, timeout))

    def return_loan(self, loan: Loan) -> None:
        """Accept a loan back."""
        with self._changed:
            self._history.return_loan(loan, _now())

    def acknowledge(self, writer: str, seq: int, response: bytes | None) -> None:
        """Acknowledge one sample; errors as :meth:`ReaderHistory.acknowledge_sample`."""
        with self._changed:
            self._history.acknowledge_sample(writer, seq, _now(), response)

    def acknowledge_all(self, response: bytes | None) -> None:
        """Acknowledge every sample that was handed out."""
        with self._changed:
            self._history.acknowledge_all(_now(), response)

    def end(self, error: Exception) -> None:
        """Raise an error in every current and later wait for samples; the first error counts."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    # -- reports -------------------------------------------------------------------------------------------------------

    def due(self) -> list[Report]:
        """Return the reports to send now."""
        with self._changed:
            return self._history.due(_now())

    def flush(self) -> list[Report]:
        """Return the reports to send at the end: everything that is not confirmed."""
        with self._changed:
            return self._history.flush(_now())

    def confirm(self, conf: AppAckConf) -> None:
        """Apply a confirmation."""
        with self._changed:
            self._history.confirm(conf)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _begin(self, writer: str, acknowledged: Intervals) -> ReorderBuffer[Sample]:
        self._begun.add(writer)
        self._history.begin(writer, acknowledged)
        return self._writers.setdefault(writer, ReorderBuffer())

    def _release(self, writer: str) -> None:
        for sample in self._writers[writer].release():
            self.counts["received"] += 1
            self._history.receive(sample, _now(), filtered=not self._passes(sample))
        self._changed.notify_all()

    def _passes(self, sample: Sample) -> bool:
        try:
            return self._wanted(sample)
        except Exception:
            # better a sample too many than one too few
            log.exception("The filter failed for message %s of %s; the application gets it.", sample.seq, sample.writer)
            return True

    def _wait(self, limit: int, timeout: float | None) -> list[Sample]:
        self._changed.wait_for(lambda: self._ended is not None or self._history.first(1), timeout)
        if self._ended is not None:
            raise self._ended
        samples = self._history.first(limit)
        self.counts["handed_out"] += len(samples)
        return samples

    def _acknowledged(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        self.counts[auto or "acknowledged"] += 1
        self._on_acknowledged(sample, response, auto)


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
