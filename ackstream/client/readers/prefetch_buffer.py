"""The samples of a reader between the topics and its application."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ackstream.client.readers.arrivals import Arrivals
from ackstream.client.readers.delivery import Loan, SampleDelivery
from ackstream.client.readers.delivery import SampleId as Identity
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.client.readers.delivery import Report
    from ackstream.client.readers.qos import ReaderQos
    from ackstream.client.readers.samples import Sample
    from ackstream.protocol.intervals import Interval
    from ackstream.protocol.messages import StoredRange
    from ackstream.protocol.readers import AppAckConf, AutoReason, KnownWriter

log = logging.getLogger(__name__)


class Lent(NamedTuple):
    """Samples on loan to the application."""

    samples: list[Sample]
    loan: Loan


class PrefetchBuffer:
    """What has come, what the application has been handed, what it has acknowledged. Safe to use from several threads.

    The decisions are those of ``Arrivals`` and ``Reader``; here are the messages themselves, and the wait for them.
    """

    def __init__(
        self,
        qos: ReaderQos,
        name: str,
        *,
        epoch: int,
        role: str | None,
        wanted: Callable[[Sample], bool],
        told: Callable[[Sample, bytes | None, AutoReason | None], None],
    ) -> None:
        """Begin empty.

        :param wanted: which of the stored samples the application gets; the others are acknowledged as filtered
        :param told: called for each sample that is acknowledged, with its response and the reason of an automatic one
        """
        self.changed = threading.Condition()
        self.ended: Exception | None = None
        self.counts: Counter[str] = Counter()
        self._keeps = qos.kind != "protocol"
        self._reader = SampleDelivery(qos, name, epoch=epoch, role=role, told=self._tell)
        self._wanted = wanted
        self._told = told
        self._writers: dict[str, Arrivals[Sample]] = {}
        self._begun: set[str] = set()
        # what waits for the application, and what it has and has not acknowledged
        self._samples: dict[tuple[str, int], Sample] = {}
        # by partition and offset: what a restart has to read again
        self._open: dict[int, dict[int, tuple[str, int]]] = {}

    # -- what the topics bring -----------------------------------------------------------------------------------------

    def begin(self, known: KnownWriter) -> None:
        """Take what there is to know of a writer at the start."""
        acknowledged = Intervals(known.acknowledged, start=known.start)
        over = Intervals(known.acknowledged, start=known.start)
        over.merge(known.undelivered)
        with self.changed:
            self._begin(known.writer, acknowledged).begin(known.written, known.undelivered)
            if known.start <= known.written:
                for run in over.missing(known.start, known.written):
                    self._reader.skip(known.writer, *run)

    def arrive(self, sample: Sample, *, readable: bool = True) -> None:
        """Take a message.

        :param readable: a restart finds it at its offset
        """
        with self.changed:
            arrivals = self._writers.setdefault(sample.writer, Arrivals())
            if not arrivals.arrive(sample.seq, sample):
                self.counts["repeats"] += 1
                return
            if readable:
                self._open.setdefault(sample.partition, {})[sample.offset] = (sample.writer, sample.seq)
            self._hand_on(sample.writer)

    def decide(self, stored: StoredRange) -> None:
        """Take what is stored."""
        writer = stored.client
        with self.changed:
            if writer not in self._begun:
                self._begin(writer, Intervals(start=stored.first)).begin(stored.first - 1)
            self._writers[writer].decide(stored.first, stored.last, stored.refused)
            for run in stored.refused:
                self._reader.skip(writer, *run)
            self._hand_on(writer)

    def pass_over(self, writer: str, runs: list[Interval]) -> None:
        """Go on without samples that cannot be had; they are not acknowledged."""
        with self.changed:
            for run in runs:
                self._writers[writer].pass_over(*run)
            self._hand_on(writer)

    def missing(self) -> dict[str, list[Interval]]:
        """Return by writer what is stored and has not come, where everything behind waits for it."""
        with self.changed:
            found = {writer: arrivals.missing() for writer, arrivals in self._writers.items() if writer in self._begun}
        return {writer: runs for writer, runs in found.items() if runs}

    def relieve(self) -> int:
        """Let go of what is not known to be stored, of the writer that has most of it; return how much that was."""
        with self.changed:
            return max(self._writers.values(), key=len).forget()

    @property
    def held(self) -> int:
        """How many messages wait until they are known to be stored."""
        with self.changed:
            return sum(map(len, self._writers.values()))

    @property
    def unacknowledged(self) -> int:
        """How many samples wait for the application, or are with it."""
        return len(self._samples)

    def positions(self, read: Mapping[int, int]) -> dict[int, int]:
        """Return for each partition from where a restart has to read.

        :param read: up to where it was read
        """
        with self.changed:
            for partition, samples in self._open.items():
                self._open[partition] = {
                    offset: sample for offset, sample in samples.items() if not self._reader.settled(*sample)
                }
            return {partition: min(self._open.get(partition) or (position,)) for partition, position in read.items()}

    # -- for the application -------------------------------------------------------------------------------------------

    def take(self, limit: int, timeout: float | None) -> list[Sample]:
        """Hand copies to the application: those that are there, or the first that come within the time."""
        with self.changed:
            chosen = self._wait(limit, timeout)
            samples = self._values(chosen)
            self._reader.take(_now(), chosen)
            return samples

    def lend(self, limit: int, timeout: float | None) -> Lent:
        """Lend samples, as :meth:`take` chooses them."""
        with self.changed:
            chosen = self._wait(limit, timeout)
            return Lent(self._values(chosen), self._reader.loan(chosen))

    def give_back(self, lent: Lent) -> None:
        """Take a loan back."""
        with self.changed:
            self._reader.return_loan(lent.loan, _now())

    def acknowledge(self, writer: str, seq: int, response: bytes | None) -> None:
        """Acknowledge one sample that was handed out.

        :raises PreconditionNotMetError: it was not
        :raises BadParameterError: the response is too long
        """
        with self.changed:
            self._reader.acknowledge_sample(writer, seq, _now(), response)

    def acknowledge_all(self, response: bytes | None) -> None:
        """Acknowledge all that was handed out.

        :raises BadParameterError: the response is too long
        """
        with self.changed:
            self._reader.acknowledge_all(_now(), response)

    def end(self, error: Exception) -> None:
        """Fail whoever waits for samples, and whoever comes later; the first error counts."""
        with self.changed:
            self.ended = self.ended or error
            self.changed.notify_all()

    # -- reports -------------------------------------------------------------------------------------------------------

    def due(self) -> list[Report]:
        """Return what is to be sent now."""
        with self.changed:
            return self._reader.due(_now())

    def flush(self) -> list[Report]:
        """Return all that is not confirmed, at the end."""
        with self.changed:
            return self._reader.flush(_now())

    def confirm(self, conf: AppAckConf) -> None:
        """Take a confirmation."""
        with self.changed:
            self._reader.confirm(conf)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _begin(self, writer: str, acknowledged: Intervals) -> Arrivals[Sample]:
        self._begun.add(writer)
        self._reader.begin(writer, acknowledged)
        return self._writers.setdefault(writer, Arrivals())

    def _hand_on(self, writer: str) -> None:
        for sample in self._writers[writer].ready():
            self.counts["received"] += 1
            self._samples[sample.writer, sample.seq] = sample
            key = None if sample.key is None else sample.key.hex()
            self._reader.receive(Identity(writer, sample.seq, key), _now(), filtered=not self._passes(sample))
        self.changed.notify_all()

    def _passes(self, sample: Sample) -> bool:
        try:
            return self._wanted(sample)
        except Exception:
            # whether it is wanted cannot be told: better too many than one too few
            log.exception("The filter failed for message %s of %s.", sample.seq, sample.writer)
            return True

    def _wait(self, limit: int, timeout: float | None) -> list[Identity]:
        self.changed.wait_for(lambda: self.ended is not None or self._reader.first(1), timeout)
        if self.ended is not None:
            raise self.ended
        return self._reader.first(limit)

    def _values(self, chosen: list[Identity]) -> list[Sample]:
        self.counts["handed_out"] += len(chosen)
        if self._keeps:
            return [self._samples[each.writer, each.seq] for each in chosen]
        return [self._samples.pop((each.writer, each.seq)) for each in chosen]

    def _tell(self, identity: Identity, response: bytes | None, auto: AutoReason | None) -> None:
        self.counts[auto or "acknowledged"] += 1
        self._told(self._samples.pop((identity.writer, identity.seq)), response, auto)


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
