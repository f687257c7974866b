"""Reading topics without a consumer group, from a time on: what the live page and the terminal follow."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.access import check_topics
from ackstream.kafka.clients import Closing, connect_admin, connect_consumer
from ackstream.kafka.reader import TopicReader, offsets_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.settings import Settings

POLL_MS = 200
END_POLLS = 50
"""Maximum number of attempts to reach the end of topics that keep growing."""


class TopicFeed(Closing):
    """Reads topics without a consumer group, leaving no trace on the broker; a context manager."""

    def __init__(self, settings: Settings, topics: Iterable[str], since: int) -> None:
        """Connect, to read the records since a time in epoch milliseconds.

        :param topics: their names without the prefix
        :raises AckstreamError: the broker is unavailable or a topic is missing
        """
        self._settings = settings
        kafka = settings.kafka
        self.names = {kafka.topic(name): name for name in topics}
        with ExitStack() as stack:
            self._admin = stack.enter_context(connect_admin(kafka))
            self._consumer = connect_consumer(kafka, None)
            stack.callback(self._consumer.close)
            check_topics(self._consumer, kafka, reads=list(self.names))
            self._reader = TopicReader(self._consumer)
            # without a name Kafka describes all topics
            self._partitions = kafka_topics.of_topics(self._admin, list(self.names)) if self.names else []
            self._consumer.assign(self._partitions)
            for partition, offset in offsets_since(self._consumer, self._partitions, max(0, since)).items():
                self._consumer.seek(partition, offset)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Disconnect."""
        self._stack.close()

    def records(self, timeout_ms: int = POLL_MS) -> list[Any]:
        """Return new records, waiting briefly for some."""
        if self._partitions:
            return self._reader.read(timeout_ms)
        self._reader.stop.wait(timeout_ms / 1000)
        return []

    def read_all(self, take: Callable[[Any], None]) -> None:
        """Give all present records to a function.

        :raises KafkaError: the broker is unavailable
        """
        ends = kafka_topics.ends(self._admin, self._partitions) if self._partitions else {}
        for _ in range(END_POLLS):
            while records := self.records():
                for record in records:
                    take(record)
            if all(self._consumer.position(partition) >= end for partition, end in ends.items()):
                return
