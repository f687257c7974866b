"""Where a reader reads ``messages``: its start, its pauses, the samples it misses, and where a restart begins.

The restart offsets are committed to a consumer group named after the reader. They are only a hint: the settle job knows
which samples were acknowledged, and missing ones are read again from Kafka or from the table.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from kafka.structs import OffsetAndMetadata

from ackstream.client.core.lifetime import Lasting
from ackstream.client.errors import SamplesGoneError
from ackstream.client.reading import samples
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading.samples import Acknowledger, Sample
from ackstream.kafka.connection import offsets_since
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.readers import SKEW_MS, KnownWriter, ReaderState
from ackstream.settings import Lake

log = logging.getLogger(__name__)

FETCH_ROWS, FETCH_BYTES = 2_000, 16_000_000
"""Number of rows, and approximate bytes, that are read from the table at once."""

FIRST_ROWS = 100
"""Number of rows that are read while their size is unknown."""

LOOK_BACK = 1_000
"""Minimum number of records of each partition that are read in a search for older ones."""

LOOKBACK_MS = 10 * 60_000
"""Maximum time between Kafka and the table for a message, for a reader without earlier samples to receive."""

DROP_SECONDS = 10.0
"""Maximum time for which messages that wait to be stored may hold up reading."""


class ReaderPositions:
    """Moves the consumer of a reader, in its thread, and looks for missing samples that hold up all behind them.

    A sample is certainly missing if it is absent after everything was read that Kafka had when its absence was noticed.
    Then the table has it. Without a table reading goes back, twice as far each time, to the first record that Kafka
    has; a sample that is absent even then ends the reader. One that is absent from the table, too, is lost.
    """

    def __init__(
        self, consumer: Any, history: ReaderHistory, lake: Lake | None, reader: Acknowledger | None = None
    ) -> None:
        """Let ``consumer`` read for ``history``; without a ``lake`` only Kafka is read."""
        self.persisting = False
        """Whether a record of ``stored`` has arrived since messages hold up reading."""
        self.paused = False
        self._crowded_since: float | None = None
        self._stuck = Lasting()
        self._consumer, self._history = consumer, history
        self._lake, self._reader = lake, reader
        self._rows = FIRST_ROWS
        # where reading began, by partition; those that were added later are read from their beginning
        self._starts: dict[Any, int] = {}
        # by writer: the last sample that was missing when the ends of the partitions were noted
        self._suspects: dict[str, int] = {}
        self._ends: dict[Any, int] = {}

    def start(self, partitions: Sequence[Any], stored: Sequence[Any], as_of: int, known: Sequence[KnownWriter]) -> None:
        """Begin with the writers of the settle job's state of ``as_of``, at the first message that may be needed."""
        committed = {partition: self._consumer.committed(partition) for partition in partitions}
        undelivered = any(writer.undelivered for writer in known)
        if undelivered:
            first = self._consumer.beginning_offsets(partitions)
        else:
            first = offsets_since(self._consumer, partitions, max(0, as_of - LOOKBACK_MS))
        starts = {part: first[part] if committed[part] is None else committed[part] for part in partitions}
        if not undelivered and not self._history.start.durable:
            # the name may have been used long ago
            starts = {part: max(starts[part], first[part]) for part in partitions}
        self._starts = dict(starts)
        starts |= offsets_since(self._consumer, stored, max(0, as_of - SKEW_MS))
        for partition, offset in starts.items():
            self._consumer.seek(partition, offset)
        for writer in known:
            self._history.begin(writer)
        self._consumer.resume(*partitions)

    def limit(self, partitions: Sequence[Any], now: float) -> None:
        """Pause reading while the application, or the buffer of messages that are not stored yet, is full."""
        crowded = self._history.crowded
        full = crowded or self._history.full
        if full != self.paused:
            (self._consumer.pause if full else self._consumer.resume)(*partitions)
            self.paused = full
        if self._stuck.due(now, lasts=self._history.stuck):
            log.warning(
                "The reader %s reads nothing: the application has %s samples that it has not acknowledged, as many as"
                " it may have. Acknowledge them, repair its handler, or raise max_samples and max_bytes."
                " Start the reader again for those that a retry has given up.",
                *(self._history.start.reader, self._history.held),
            )
        if not crowded:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since, self.persisting = now, False
        elif self.persisting and now - self._crowded_since > DROP_SECONDS:
            # a writer with a gap in its numbers, which may never be filled, must not hold up the others
            dropped = self._history.drop()
            log.warning("Dropped %s buffered messages; they will be read again once they are stored.", dropped)

    def restart_offsets(self, partitions: Sequence[Any]) -> dict[Any, OffsetAndMetadata]:
        found = {}
        for partition in partitions:
            position = self._consumer.position(partition, timeout_ms=5_000)
            if position is not None:
                offset = self._history.restart_offset(partition.partition, position)
                found[partition] = OffsetAndMetadata(offset, "", -1)
        return found

    def recover(self, partitions: Sequence[Any]) -> bool:
        """Fetch, or read again, samples that were missing earlier, too; return whether more may be fetched at once.

        ``SamplesGoneError`` and ``StartError`` (no table) are final; others are to be retried.
        """
        missing, fetched = self._history.missing(), False
        if self._lake is None and missing and self._reads_on(partitions, missing):
            return False
        # buffered messages cannot be handed out, and none arrives: the table has the missing ones
        stuck = self.paused and self._lake is not None
        if self._suspects and (stuck or all(self._position(one) >= end for one, end in self._ends.items())):
            certain = {
                writer: [(first, min(last, end)) for first, last in missing.get(writer, ()) if first <= end]
                for writer, end in self._suspects.items()
            }
            certain = {writer: runs for writer, runs in certain.items() if runs}
            if self._lake is not None:
                for writer, runs in certain.items():
                    fetched |= self._fetch(self._lake, writer, runs)
            elif certain and not self._look_back(partitions):
                writer, runs = next(iter(certain.items()))
                raise SamplesGoneError(
                    f"Messages {runs[0][0]} to {runs[-1][1]} of {writer} are not acknowledged and no longer in Kafka:"
                    f" start {self._history.start.reader} with `lake` of the settings, whose table has them."
                    " To give them up, remove the readers they are kept for: `ackstream readers list`, then `forget`."
                )
            missing, self._suspects = self._history.missing(), {}
        if missing and not self._suspects:
            self._ends = self._consumer.end_offsets(partitions)
            self._suspects = {writer: runs[-1][1] for writer, runs in missing.items()}
        return fetched

    def _position(self, partition: Any) -> int:
        return self._consumer.position(partition, timeout_ms=5_000) or 0

    def _reads_on(self, partitions: Sequence[Any], missing: Mapping[str, list[Interval]]) -> bool:
        """Go back to dropped samples that are missing, or make room for those in Kafka; return whether either."""
        dropped = self._history.dropped_offsets({writer: runs[0][0] for writer, runs in missing.items()})
        for partition in partitions:
            if dropped.get(partition.partition, self._position(partition)) < self._position(partition):
                self._consumer.seek(partition, dropped[partition.partition])
        if self._history.crowded:
            self._history.drop()
            return True
        return bool(dropped)

    def _look_back(self, partitions: Sequence[Any]) -> bool:
        """Go back twice as far as reading has come since its start; return ``False`` if Kafka has no older record."""
        beginnings = self._consumer.beginning_offsets(partitions)
        starts = {partition: self._starts.get(partition, 0) for partition in partitions}
        earlier = {
            partition: max(beginnings[partition], start - max(LOOK_BACK, self._ends.get(partition, start) - start))
            for partition, start in starts.items()
            if start > beginnings[partition]
        }
        for partition, offset in earlier.items():
            log.info("Messages that are stored are missing; %s is read again from offset %s.", partition, offset)
            self._consumer.seek(partition, offset)
        self._starts.update(earlier)
        return bool(earlier)

    def _fetch(self, lake: Lake, writer: str, runs: list[Interval]) -> bool:
        if self._history.full:
            return False
        found, lost = read_stored(lake, writer, runs, self._rows, self._reader)
        self._history.counts["fetched"] += len(found)
        for sample in found:
            self._history.add(sample, in_kafka=False)
        if found:
            self._rows = min(FETCH_ROWS, max(1, FETCH_BYTES * len(found) // sum(sample.size for sample in found)))
        if lost:
            self._history.counts["lost"] += sum(last - first + 1 for first, last in lost)
            log.error("Skipped messages of %s that are neither in Kafka nor in the table: %s", writer, lost[:10])
            self._history.skip(writer, lost)
        return True


def merged(states: list[ReaderState]) -> ReaderState:
    """Return the answer of all shards as one record."""
    writers: dict[str, KnownWriter] = {}
    for known in (writer for state in states for writer in state.writers):
        before = writers.setdefault(known.writer, known)
        if before is not known:
            # the runs of a writer may arrive in several records
            writers[known.writer] = msgspec.structs.replace(
                before,
                acknowledged=tuple(sorted(before.acknowledged + known.acknowledged)),
                undelivered=tuple(sorted(before.undelivered + known.undelivered)),
                sessions=before.sessions + known.sessions,
            )
    return msgspec.structs.replace(
        states[0],
        as_of=min(state.as_of for state in states),
        lease_ms=min(state.lease_ms for state in states),
        writers=tuple(writers.values()),
    )


def read_stored(
    lake: Lake, writer: str, runs: Iterable[Interval], limit: int, reader: Acknowledger | None = None
) -> tuple[list[Sample], list[Interval]]:
    """Return the first ``limit`` samples in ``runs`` (ascending, not empty), in order, and the numbers not stored.

    Any error shows that the table cannot be read; its type depends on the storage. ``StartError``: no table.
    """
    from ackstream.lake import reading  # noqa: PLC0415 - it loads slowly, and most clients never need it

    numbers = list(islice((seq for first, last in runs for seq in range(first, last + 1)), limit))
    rows = {row["seq"]: row for row in reading.writer_messages(lake, writer, numbers[0], numbers[-1])}
    absent = Intervals(((seq, seq) for seq in numbers if seq not in rows), start=numbers[0])
    return [samples.of_row(rows[seq], reader) for seq in numbers if seq in rows], list(absent)
