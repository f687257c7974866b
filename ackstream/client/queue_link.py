"""A queue consumer's connections: what it says, what it hears, where the messages are."""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ackstream.client import connection
from ackstream.client.fetching import Fetcher
from ackstream.client.places import Places
from ackstream.client.reader import Reader
from ackstream.protocol import queues
from ackstream.protocol.queues import QueueRecordError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from ackstream.protocol.queues import ConsumerRecord, ServiceRecord
    from ackstream.settings import Kafka, Lake

log = logging.getLogger(__name__)

DELIVERY_SECONDS = 120.0
_CLOSE_SECONDS = 5.0


class QueueLink:
    """Connections under the name of one consumer. ``say`` may be called from any thread, one at a time."""

    def __init__(self, kafka: Kafka, name: str, lake: Lake | None, stop: threading.Event) -> None:
        """Connect; what is said to this name from now on will be heard.

        :param stop: ends a wait for the broker
        :raises UnreachableError: no broker, or a topic is missing
        """
        self._key = name.encode()
        self._topic, heard = kafka.topic("app-acks"), kafka.topic("queue-deliveries")
        self._unsaid: deque[ConsumerRecord] = deque()
        self._looked = time.monotonic()
        with ExitStack() as stack:
            consumer = connection.connect_consumer(kafka, None, auto_offset_reset="earliest")
            stack.callback(consumer.close, autocommit=False, timeout_ms=1_000)
            connection.check_topics(consumer, kafka, self._topic, heard, kafka.topic("messages"))
            try:
                self._places = Places(consumer, self._key, addressed=(heard,))
            except KafkaError as error:
                raise connection.unreachable(kafka) from error
            self._reader = Reader(consumer, stop)
            self._producer = connection.connect_producer(
                kafka, self._topic, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
            stack.callback(connection.close_producer, self._producer, _CLOSE_SECONDS)
            self._fetcher = Fetcher(kafka, lake)
            stack.callback(self._fetcher.close)
            self.fetch = self._fetcher.fetch
            self._connections = stack.pop_all()

    def close(self) -> None:
        """Send what was said (for at most 5 s) and disconnect."""
        self._connections.close()

    def say(self, *records: ConsumerRecord) -> None:
        """Send records, behind those that could not be sent before."""
        self._unsaid.extend(records)
        while self._unsaid:
            try:
                self._producer.send(self._topic, queues.write(self._unsaid[0]), self._key)
            except (KafkaError, ValueError) as error:
                log.warning("A word to a queue waits for the broker: %s", error)
                return
            self._unsaid.popleft()

    def heard(self, timeout_ms: int) -> Iterator[ServiceRecord]:
        """Return what has been said to this name; wait for it so long."""
        if time.monotonic() - self._looked > connection.METADATA_MS / 1000:
            self._looked = time.monotonic()
            try:
                self._places.update()
            except KafkaError as error:
                log.warning("Looking for new partitions failed and is tried again: %s", error)
        for record in self._reader.read(timeout_ms):
            if record.key == self._key:
                try:
                    yield queues.read_answer(record.value)
                except QueueRecordError as error:
                    log.warning("%s", error)
