"""What is stored but does not come from Kafka: it is fetched from the table."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ackstream.client.readers import samples
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackstream.client.readers.prefetch_buffer import PrefetchBuffer
    from ackstream.client.readers.sample_reader import SampleReader
    from ackstream.protocol.intervals import Interval
    from ackstream.settings import Lake

log = logging.getLogger(__name__)

FETCH_ROWS = 2_000


class Recovery:
    """Looks for samples that everything behind waits for, in the thread of the consumer that should have read them.

    One is missing for certain when all was read that Kafka had when it was noticed: Kafka has deleted it, or it was
    before the place where reading began.
    """

    def __init__(
        self, consumer: Any, inbox: PrefetchBuffer, reader: SampleReader, lake: Lake | None, max_samples: int
    ) -> None:
        """Look after what ``consumer`` reads for ``inbox``."""
        self._consumer = consumer
        self._inbox = inbox
        self._reader = reader
        self._lake = lake
        self._max_samples = max_samples
        self._suspects: dict[str, list[Interval]] = {}
        self._ends: dict[Any, int] = {}

    def look(self, places: Sequence[Any], *, stuck: bool) -> bool:
        """Notice what is missing; fetch what was missing before and is for certain. To be called now and then.

        Returns whether there may be more to fetch now.

        :param places: the partitions that are read
        :param stuck: nothing more can be read, so that nothing more will come
        :raises Exception: the broker does not answer, or the table cannot be read; to be tried again
        """
        missing, fetched = self._inbox.missing(), False
        if self._suspects and (stuck or self._has_read()):
            for writer, runs in missing.items():
                certain = [found for run in runs for found in _common(run, self._suspects.get(writer, ()))]
                fetched |= bool(certain) and self._fetch(writer, certain)
            missing, self._suspects = self._inbox.missing(), {}
        if missing and not self._suspects:
            self._ends = self._consumer.end_offsets(places)
            self._suspects = missing
        return fetched

    def _has_read(self) -> bool:
        return all((self._consumer.position(place, timeout_ms=5_000) or 0) >= end for place, end in self._ends.items())

    def _fetch(self, writer: str, runs: list[Interval]) -> bool:
        absent = runs
        if self._lake is not None:
            if self._inbox.unacknowledged >= self._max_samples:
                return False
            found, absent = samples.read_stored_samples(self._lake, writer, runs, FETCH_ROWS, self._reader)
            for sample in found:
                self._inbox.counts["fetched"] += 1
                self._inbox.arrive(sample, readable=False)
        if absent:
            self._inbox.counts["lost"] += sum(last - first + 1 for first, last in absent)
            where = "the table" if self._lake is not None else "what is read from Kafka; give `lake`, the table"
            log.error("Messages of %s are not in %s, and are left out: %s", writer, where, absent[:10])
            self._inbox.pass_over(writer, absent)
        return True


def _common(run: Interval, others: Iterable[Interval]) -> list[Interval]:
    """Return what of a run is in others."""
    first, last = run
    outside = Intervals(others, start=first).missing(first, last)
    return Intervals(outside, start=first).missing(first, last)
