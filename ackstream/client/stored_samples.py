"""Samples that a reader misses: when they are certainly missing, and how they are read from the table ``messages``."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from ackstream.client import samples
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackstream.client.reader_history import ReaderHistory
    from ackstream.client.sample_reader import SampleReader
    from ackstream.client.samples import Sample
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
        history: ReaderHistory,
        lake: Lake | None,
        max_samples: int,
        reader: SampleReader | None = None,
    ) -> None:
        """Recover what ``consumer`` does not read for ``history``.

        :param lake: where the table is; ``None``: missing samples are lost
        :param max_samples: nothing is fetched while as many samples are unacknowledged
        """
        self.counts: Counter[str] = Counter()
        self._consumer, self._history = consumer, history
        self._lake, self._max_samples, self._reader = lake, max_samples, reader
        # by writer: the last sample that was missing when the ends of the partitions were noted
        self._suspects: dict[str, int] = {}
        self._ends: dict[Any, int] = {}

    def recover(self, partitions: Sequence[Any], *, stuck: bool) -> bool:
        """Fetch what was found missing earlier and is certain now; call this from time to time.

        :param partitions: those that are read
        :param stuck: nothing more can be read, so that nothing more will arrive
        :return: whether there may be more to fetch at once
        :raises Exception: the broker does not answer, or the table cannot be read; to be retried
        """
        missing, fetched = self._history.missing(), False
        if self._suspects and (stuck or self._has_read_all()):
            for writer, end in self._suspects.items():
                certain = [(first, min(last, end)) for first, last in missing.get(writer, ()) if first <= end]
                fetched |= bool(certain) and self._fetch(writer, certain)
            missing, self._suspects = self._history.missing(), {}
        if missing and not self._suspects:
            self._ends = self._consumer.end_offsets(partitions)
            self._suspects = {writer: runs[-1][1] for writer, runs in missing.items()}
        return fetched

    def _has_read_all(self) -> bool:
        return all(
            (self._consumer.position(partition, timeout_ms=5_000) or 0) >= end for partition, end in self._ends.items()
        )

    def _fetch(self, writer: str, runs: list[Interval]) -> bool:
        lost = runs
        if self._lake is not None:
            if self._history.unacknowledged >= self._max_samples:
                return False
            found, lost = read_stored(self._lake, writer, runs, FETCH_ROWS, self._reader)
            self.counts["fetched"] += len(found)
            for sample in found:
                self._history.add(sample, in_kafka=False)
        if lost:
            self.counts["lost"] += sum(last - first + 1 for first, last in lost)
            where = "the table" if self._lake is not None else "what is read from Kafka; give `lake`, the table"
            log.error("Skipped messages of %s that are not in %s: %s", writer, where, lost[:10])
            self._history.skip(writer, lost)
        return True


def read_stored(
    lake: Lake, writer: str, runs: Iterable[Interval], limit: int, reader: SampleReader | None = None
) -> tuple[list[Sample], list[Interval]]:
    """Return the samples of the first ``limit`` numbers in ``runs``, in order, and those numbers that are not stored.

    :param runs: ascending, not empty
    :raises Exception: the table cannot be read; the type depends on where it is stored
    """
    from ackstream.lake import reading  # noqa: PLC0415 - it loads slowly, and most clients never need it

    numbers = list(islice((seq for first, last in runs for seq in range(first, last + 1)), limit))
    rows = {row["seq"]: row for row in reading.writer_messages(lake, writer, numbers[0], numbers[-1])}
    absent = Intervals(((seq, seq) for seq in numbers if seq not in rows), start=numbers[0])
    return [samples.of_row(rows[seq], reader) for seq in numbers if seq in rows], list(absent)
