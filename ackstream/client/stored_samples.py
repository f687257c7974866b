"""Stored messages that are fetched: those that a reader misses, and those that a queue delivers by their offsets.

They are read from Kafka or from the table ``messages``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from ackstream.client import samples
from ackstream.client.errors import MessageGoneError
from ackstream.kafka import clients
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ackstream.client.reader_history import ReaderHistory
    from ackstream.client.sample_reader import SampleReader
    from ackstream.client.samples import Sample
    from ackstream.protocol.intervals import Interval
    from ackstream.protocol.queues import MessageDelivered
    from ackstream.settings import Kafka, Lake

log = logging.getLogger(__name__)

FETCH_ROWS = 2_000
POLL_MS = 200
PATIENCE_SECONDS = 10.0
NEAR = 1_000
"""The most records that are read to reach the next wanted one; a seek costs a request of its own."""

Location = tuple[str, int, int]
"""Topic, partition and offset."""


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


class MessageFetcher:
    """Reads records by their offsets, nearby ones in one request. For one thread."""

    def __init__(self, kafka: Kafka, lake: Lake | None) -> None:
        """Connect.

        :param lake: where the table is, for messages that Kafka has deleted
        :raises UnreachableError: no broker
        """
        self._lake = lake
        self._consumer = clients.connect_consumer(kafka, None, auto_offset_reset="earliest", fetch_max_wait_ms=50)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close(autocommit=False)

    def fetch(self, deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        """Return the messages by their ids.

        :raises MessageGoneError: one is neither in Kafka nor in the table, or the table is unknown
        :raises KafkaError: the broker does not answer in time; to be retried
        """
        wanted = {(delivery.topic, delivery.partition, delivery.offset): delivery for delivery in deliveries}
        found = self._from_kafka(wanted)
        gone = {location: delivery for location, delivery in wanted.items() if location not in found}
        if gone:
            found |= self._from_table(gone)
        return {delivery.message: found[location] for location, delivery in wanted.items()}

    def _from_kafka(self, wanted: Iterable[Location]) -> dict[Location, Sample]:
        pending: dict[Any, list[int]] = {}
        for topic, partition, offset in sorted(wanted, reverse=True):
            pending.setdefault(TopicPartition(topic, partition), []).append(offset)
        found: dict[Location, Sample] = {}
        for partition, beginning in self._consumer.beginning_offsets(list(pending)).items():
            # what Kafka has deleted is read from the table
            pending[partition] = [offset for offset in pending[partition] if offset >= beginning]
        positions: dict[Any, int] = {}
        assigned: set[Any] = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while pending := {partition: offsets for partition, offsets in pending.items() if offsets}:
            if changed := pending.keys() != assigned:
                assigned = set(pending)
                self._consumer.assign(sorted(assigned))
            for partition, offsets in pending.items():
                position = positions.get(partition)
                far = position is None or offsets[-1] > position + NEAR
                if far or changed:
                    self._consumer.seek(partition, offsets[-1] if far else position)
            for partition, records in self._consumer.poll(timeout_ms=POLL_MS).items():
                until = time.monotonic() + PATIENCE_SECONDS
                positions[partition] = records[-1].offset + 1
                _take(records, pending[partition], found)
            if time.monotonic() > until:
                raise KafkaTimeoutError(f"no records of {', '.join(map(str, pending))}")
        return found

    def _from_table(self, gone: Mapping[Location, MessageDelivered]) -> dict[Location, Sample]:
        if self._lake is None:
            raise MessageGoneError(
                f"Message {next(iter(gone.values())).message} is no longer in Kafka: give the consumer the lake of the"
                " settings, whose table messages has it."
            )
        from ackstream.lake import reading  # noqa: PLC0415 - it loads slowly, and most clients never need it

        rows = reading.batch_messages(self._lake, {delivery.batch for delivery in gone.values()})
        stored = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
        for location, delivery in gone.items():
            if location not in stored:
                raise MessageGoneError(f"Message {delivery.message} is neither in Kafka nor in the table messages.")
        return {location: samples.of_row(stored[location]) for location in gone}


def _take(records: Iterable[Any], offsets: list[int], found: dict[Location, Sample]) -> None:
    """Move the wanted records of a partition to ``found``; ``offsets`` are those still wanted, the lowest last."""
    for record in records:
        while offsets and offsets[-1] < record.offset:
            # it has been deleted meanwhile
            offsets.pop()
        if offsets and offsets[-1] == record.offset:
            offsets.pop()
            sample = samples.of_record(record)
            if sample is not None:
                found[record.topic, record.partition, record.offset] = sample
