"""Publishing to Kafka."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaTimeoutError, RetriableError

from ackstream.client import connection
from ackstream.client.closing import Closing
from ackstream.connectivity.publishing import Published
from ackstream.protocol.addresses import TargetAddress
from ackstream.protocol.envelopes import raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.messages import Outgoing
    from ackstream.settings import Kafka

    Done = Callable[[Published | Exception], None]

DELIVERY_SECONDS = 30.0
NO_CONTENT, OK, BAD_REQUEST, INTERNAL_ERROR = 204, 200, 400, 500
_CLOSE_SECONDS = 5.0


class KafkaPublisher(Closing):
    """Sends with one producer; a thread of its own waits where a topic is not known yet."""

    def __init__(self, kafka: Kafka, *, debug: bool = False) -> None:
        """Connect.

        :param debug: acknowledgements tell where a record went
        :raises UnreachableError: no broker
        """
        self._debug = debug
        self._producer = connection.connect_producer(kafka, None, delivery_timeout=DELIVERY_SECONDS)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ackstream-publisher")

    def publish(self, message: Outgoing, done: Done) -> None:
        """Send a message; see ``Publisher``."""
        self._executor.submit(self._send, message, done)

    def status_of(self, error: Exception) -> int:
        """Return 500 for what may go well another time, else 400. Source: Ditto's ``KafkaExceptionConverter``."""
        return INTERNAL_ERROR if isinstance(error, (RetriableError, KafkaTimeoutError)) else BAD_REQUEST

    def close(self) -> None:
        """Send what was accepted, for at most 5 s."""
        self._executor.shutdown(cancel_futures=False)
        connection.close_producer(self._producer, _CLOSE_SECONDS)

    def _send(self, message: Outgoing, done: Done) -> None:
        try:
            where = TargetAddress.parse(message.address)
            sent = self._producer.send(
                where.topic,
                message.payload,
                None if where.key is None else where.key.encode(),
                [(name, value.encode()) for name, value in message.headers.items()],
                where.partition,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the acknowledgement tells it
            done(error)
        else:
            sent.add_callback(partial(self._stored, done))
            sent.add_errback(done)

    def _stored(self, done: Done, metadata: Any) -> None:
        done(Published(OK, raw(facts(metadata))) if self._debug else Published(NO_CONTENT))


def facts(metadata: Any) -> dict[str, Any]:
    """Return what an acknowledgement tells of a stored record. Source: Ditto's ``KafkaPublisherActor``."""
    return {
        "timestamp": metadata.timestamp,
        "serializedKeySize": metadata.serialized_key_size,
        "serializedValueSize": metadata.serialized_value_size,
        "topic": metadata.topic,
        "partition": metadata.partition,
        "offset": metadata.offset,
    }
