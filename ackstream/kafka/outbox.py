"""A few records of a driver on their way to Kafka: in order, and waited for."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaTimeoutError

from ackstream.kafka.clients import close_producer, connect_producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackstream.settings import Kafka

    OutgoingRecord = tuple[str, str | bytes | None, bytes | None, Sequence[tuple[str, str | bytes]]]
    """The real name of its topic, key, value and headers."""

SEND_SECONDS = 120.0
"""As long as a producer of Java tries: a broker that restarts, or a leader that moves, is no error."""
LINGER_MS = 5


class Outbox:
    """Sends records, and returns when the broker has all of them; connects when there are some."""

    def __init__(self, kafka: Kafka, seconds: float = SEND_SECONDS) -> None:
        """Connect to nothing yet.

        :param seconds: after which what the broker has not taken is an error
        """
        self._kafka, self._seconds = kafka, seconds
        self._producer: Any = None
        # the records of one call stay together
        self._lock = threading.Lock()

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Send records, those of a key in order; after an error some of them may have been sent, or still be.

        :raises UnreachableError: no broker answers
        :raises KafkaError: the broker does not take a record, or not in time
        """
        with self._lock:
            if self._producer is None:
                self._producer = connect_producer(
                    self._kafka, None, delivery_timeout=self._seconds, linger_ms=LINGER_MS
                )
            until = time.monotonic() + self._seconds
            try:
                sent = [self._queue(record, until) for record in records]
                for future in sent:
                    future.get(self._seconds)
            except BaseException:
                self._disconnect(0)
                raise

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._disconnect(1)

    def _queue(self, record: OutgoingRecord, until: float) -> Any:
        topic, key, value, headers = record
        named = [(name, _bytes(text)) for name, text in headers]
        while True:
            try:
                return self._producer.send(topic, value=value, key=_bytes(key), headers=named)
            except KafkaTimeoutError:
                # nobody has told the topic's partitions yet
                if time.monotonic() > until:
                    raise

    def _disconnect(self, seconds: float) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, seconds)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
