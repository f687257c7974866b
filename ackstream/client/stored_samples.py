"""Recovery of samples that are stored but do not arrive from Kafka: they are read from the table ``messages``."""

from __future__ import annotations

import logging
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ackstream.client import samples
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ackstream.client.prefetch_buffer import PrefetchBuffer
    from ackstream.client.samples import Sample, SampleCallbacks
    from ackstream.protocol.intervals import Interval
    from ackstream.settings import Lake

log = logging.getLogger(__name__)

FETCH_ROWS = 2_000


class Recovery:
    """Looks for missing samples that hold up all behind them, in the thread of the consumer that should read them.

    A sample is certainly missing if it is absent after everything was read that Kafka had when its absence was noticed:
    Kafka has deleted it, or it is before the offset where reading began.
    """

    def __init__(
        self,
        consumer: Any,
        buffer: PrefetchBuffer,
        lake: Lake | None,
        max_samples: int,
        callbacks: SampleCallbacks | None = None,
    ) -> None:
        """Recover what ``consumer`` does not read for ``buffer``.

        :param lake: where the table is; ``None``: missing samples are lost
        :param max_samples: nothing is fetched while as many samples are unacknowledged
        :param callbacks: of the recovered samples
        """
        self.counts: Counter[str] = Counter()
        self._consumer = consumer
        self._buffer = buffer
        self._lake = lake
        self._max_samples = max_samples
        self._callbacks = callbacks
        self._suspects: dict[str, list[Interval]] = {}
        self._ends: dict[Any, int] = {}

    def recover(self, partitions: Sequence[Any], *, stuck: bool) -> bool:
        """Fetch what was found missing earlier and is certain now; call this from time to time.

        :param partitions: those that are read
        :param stuck: nothing more can be read, so that nothing more will arrive
        :return: whether there may be more to fetch at once
        :raises Exception: the broker does not answer, or the table cannot be read; to be retried
        """
        missing, fetched = self._buffer.missing(), False
        if self._suspects and (stuck or self._has_read_all()):
            for writer, runs in missing.items():
                certain = [found for run in runs for found in _common(run, self._suspects.get(writer, ()))]
                fetched |= bool(certain) and self._fetch(writer, certain)
            missing, self._suspects = self._buffer.missing(), {}
        if missing and not self._suspects:
            self._ends = self._consumer.end_offsets(partitions)
            self._suspects = missing
        return fetched

    def _has_read_all(self) -> bool:
        return all(
            (self._consumer.position(partition, timeout_ms=5_000) or 0) >= end for partition, end in self._ends.items()
        )

    def _fetch(self, writer: str, runs: list[Interval]) -> bool:
        lost = runs
        if self._lake is not None:
            if self._buffer.unacknowledged >= self._max_samples:
                return False
            found, lost = read_stored(self._lake, writer, runs, FETCH_ROWS, self._callbacks)
            self.counts["fetched"] += len(found)
            for sample in found:
                self._buffer.add(sample, in_kafka=False)
        if lost:
            self.counts["lost"] += sum(last - first + 1 for first, last in lost)
            where = "the table" if self._lake is not None else "what is read from Kafka; give `lake`, the table"
            log.error("Skipped messages of %s that are not in %s: %s", writer, where, lost[:10])
            self._buffer.skip(writer, lost)
        return True


def read_stored(
    lake: Lake, writer: str, runs: Iterable[Interval], limit: int, callbacks: SampleCallbacks | None = None
) -> tuple[list[Sample], list[Interval]]:
    """Return the samples of the first ``limit`` numbers in ``runs``, in order, and those numbers that are not stored.

    :param runs: ascending, not empty
    :raises Exception: the table cannot be read; the type depends on where it is stored
    """
    # loads slowly, and most readers never need it
    from ackstream.lake import reading  # noqa: PLC0415

    chosen = list(_first(runs, limit))
    first, last = chosen[0][0], chosen[-1][1]
    wanted = Intervals(chosen, start=first)
    rows = sorted(reading.writer_messages(lake, writer, first, last), key=itemgetter("seq"))
    found = [samples.of_row(row, callbacks) for row in rows if row["seq"] in wanted]
    stored = Intervals(((sample.seq, sample.seq) for sample in found), start=first)
    return found, [run for low, high in chosen for run in stored.missing(low, high)]


def _first(runs: Iterable[Interval], limit: int) -> Iterator[Interval]:
    """Yield the runs of the first ``limit`` numbers."""
    for first, last in runs:
        if limit <= 0:
            return
        yield first, min(last, first + limit - 1)
        limit -= last - first + 1


def _common(run: Interval, others: Iterable[Interval]) -> list[Interval]:
    """Return the parts of a run that are in others."""
    first, last = run
    outside = Intervals(others, start=first).missing(first, last)
    return Intervals(outside, start=first).missing(first, last)
