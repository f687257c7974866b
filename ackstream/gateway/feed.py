"""Read the ledger from a point in time, and the lag of the jobs, for the live page and ``ackstream watch``."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.errors import RetriableError

from ackstream.kafka import partitions
from ackstream.kafka.clients import check_topics, connect_admin, connect_consumer
from ackstream.kafka.reader import TopicReader

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ackstream.gateway.meter import Meter
    from ackstream.settings import Settings

POLL_MS = 200
END_POLLS = 50
"""Maximum number of attempts to reach the end of the ledger, which keeps growing."""


@dataclass(frozen=True)
class Lag:
    """Number of records a consumer group has yet to read; ``None`` if it has committed nothing."""

    topic: str
    group: str
    records: int | None


class LedgerFeed:
    """Reads the ledger without a consumer group, leaving no trace on the broker; a context manager."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect.

        :param since: epoch milliseconds; older records are not read
        :raises AckstreamError: the broker is unavailable or a topic is missing
        """
        self._settings = settings
        kafka = settings.kafka
        with ExitStack() as stack:
            self._admin = stack.enter_context(connect_admin(kafka))
            self._consumer = connect_consumer(kafka, None)
            stack.callback(self._consumer.close)
            check_topics(self._consumer, kafka, *map(kafka.topic, ("signals", "acks", "ledger")))
            self._reader = TopicReader(self._consumer, threading.Event())
            self._ledger = partitions.of_topics(self._admin, [kafka.topic("ledger")])
            self._consumer.assign(self._ledger)
            for partition, offset in partitions.at_time(self._admin, self._ledger, max(0, since)).items():
                self._consumer.seek(partition, offset)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def records(self) -> list[Any]:
        """Return new ledger records, waiting briefly for some."""
        return self._reader.read(POLL_MS)

    def read(self, meter: Meter) -> int:
        """Feed new records to a meter, waiting briefly for some; return how many there were."""
        records = self.records()
        for record in records:
            meter.take(record.value, record.timestamp)
        return len(records)

    def read_to_end(self, meter: Meter) -> None:
        """Feed all present records to a meter.

        :raises KafkaError: the broker is unavailable
        """
        ends = partitions.ends(self._admin, self._ledger)
        for _ in range(END_POLLS):
            while self.read(meter):
                pass
            if all(self._consumer.position(partition) >= end for partition, end in ends.items()):
                return

    def lags(self) -> list[Lag]:
        """Return the lag of correlate on signals and acks, and of archive on the ledger.

        :raises KafkaError: the broker is unavailable
        """
        settings = self._settings
        correlate, archive = settings.correlate.group, settings.archive.group
        groups = {"signals": correlate, "acks": correlate, "ledger": archive}
        topics = {settings.kafka.topic(name): group for name, group in groups.items()}
        ends = partitions.ends(self._admin, partitions.of_topics(self._admin, topics))
        try:
            committed = self._admin.list_group_offsets([correlate, archive])
        except RetriableError:
            # no group has committed on this broker yet, or the coordinator is moving
            committed = {}
        found = []
        for topic, group in topics.items():
            done = {
                partition: entry.offset
                for partition, entry in committed.get(group, {}).items()
                if partition.topic == topic
            }
            behind = [end - done.get(partition, 0) for partition, end in ends.items() if partition.topic == topic]
            found.append(Lag(topic, group, sum(behind) if done else None))
        return found
