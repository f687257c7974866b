"""What a monitor reads from Kafka: the ledger from some time ago on, and how far behind the jobs are."""

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
"""So often at most the end of the ledger is looked for; it moves on meanwhile."""


@dataclass(frozen=True)
class Lag:
    """How many records of a topic a consumer group has still to read; ``None`` where it has committed nothing."""

    topic: str
    group: str
    records: int | None


class LedgerFeed:
    """Reads the ledger without a consumer group: it leaves no trace and disturbs nobody. A context manager."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect.

        :param since: epoch milliseconds; older records are not read
        :raises AckstreamError: no broker, or a topic is not there
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
            for place, offset in partitions.at_time(self._admin, self._ledger, max(0, since)).items():
                self._consumer.seek(place, offset)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def records(self) -> list[Any]:
        """Return the records of the ledger that have come, and wait for them a moment."""
        return self._reader.read(POLL_MS)

    def read(self, meter: Meter) -> int:
        """Let what has come count, and wait for it a moment; return how many records there were."""
        records = self.records()
        for record in records:
            meter.take(record.value, record.timestamp)
        return len(records)

    def read_to_end(self, meter: Meter) -> None:
        """Let everything count that is there now.

        :raises KafkaError: the broker went away
        """
        ends = partitions.ends(self._admin, self._ledger)
        for _ in range(END_POLLS):
            while self.read(meter):
                pass
            if all(self._consumer.position(place) >= end for place, end in ends.items()):
                return

    def lags(self) -> list[Lag]:
        """Return how far behind the jobs are: correlate on signals and acks, archive on the ledger.

        :raises KafkaError: the broker went away
        """
        settings = self._settings
        correlate, archive = settings.correlate.group, settings.archive.group
        groups = {"signals": correlate, "acks": correlate, "ledger": archive}
        topics = {settings.kafka.topic(name): group for name, group in groups.items()}
        ends = partitions.ends(self._admin, partitions.of_topics(self._admin, topics))
        try:
            committed = self._admin.list_group_offsets([correlate, archive])
        except RetriableError:
            # nobody has committed anything yet on this broker, or its coordinator is moving
            committed = {}
        found = []
        for topic, group in topics.items():
            done = {place: entry.offset for place, entry in committed.get(group, {}).items() if place.topic == topic}
            behind = [end - done.get(place, 0) for place, end in ends.items() if place.topic == topic]
            found.append(Lag(topic, group, sum(behind) if done else None))
        return found
