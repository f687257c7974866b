"""The targets of a connection: what happens in the system goes to them, and is acknowledged."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.client.closing import Closing
from ackstream.client.records import correlation_id
from ackstream.client.worker import Worker
from ackstream.connectivity.outbound import Outbound, answer_of
from ackstream.protocol.acknowledgements import Acknowledgement, acknowledgement
from ackstream.protocol.envelopes import decode
from ackstream.protocol.errors import DittoError
from ackstream.protocol.issued import issued_ack
from ackstream.protocol.subscriptions import Publication, publication, weak_acks

if TYPE_CHECKING:
    from ackstream.client.progress import Work
    from ackstream.connections import KafkaConnection, MqttConnection
    from ackstream.connectivity.outbound import Extra, Publishing
    from ackstream.connectivity.publishing import Published, Publisher
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

MAX_PUBLISHING = 1_000
"""With so many messages on their way to the other system, no further signals are read."""

WAIT_SECONDS = 0.5


class Outlets(Closing):
    """Publishes what targets want. After a crash some signals are published again, none is left out."""

    def __init__(
        self, connection: KafkaConnection | MqttConnection, kafka: Kafka, publisher: Publisher, extra: Extra
    ) -> None:
        """Connect to the system's Kafka.

        :param extra: gives the fields of a thing
        :raises UnreachableError: no broker, or a topic is missing
        """
        self._id = connection.id
        self._outbound = Outbound(connection)
        self._publisher = publisher
        self._extra = extra
        self._room = threading.BoundedSemaphore(MAX_PUBLISHING)
        self._closing = threading.Event()
        live = self._outbound.streams & {"live-commands", "messages"}
        topics = ["events", "signals"] if live else ["events"]
        self._worker = Worker(
            kafka, topics, self._handle, group=f"ackstream-connection-{connection.id}", start="latest"
        )

    def start(self) -> None:
        """Begin; when this returns, every signal from now on is published."""
        self._worker.run()

    def close(self) -> None:
        """Stop; what is not published comes again with the next start."""
        self._closing.set()
        self._worker.close()

    def _handle(self, record: Any, work: Work) -> None:
        signal = self._publication(record)
        if signal is None:
            return
        moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
        plan = self._outbound.plan(signal, moment, self._extra)
        self._answer(signal, [*weak_acks(signal, plan.weak), *plan.failed], work)
        for publishing in plan.publishings:
            self._worker.outbox.hold(work)
            while not self._room.acquire(timeout=WAIT_SECONDS):
                if self._closing.is_set():
                    # it comes again with the next start
                    return
            self._publisher.publish(publishing.message, partial(self._published, signal, publishing, work))

    def _publication(self, record: Any) -> Publication | None:
        try:
            envelope = decode(record.value or b"")
            identity = correlation_id(record.headers, envelope.headers, (record.topic, record.partition, record.offset))
            return publication(envelope, identity)
        except DittoError as error:
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            return None

    def _published(
        self, signal: Publication, publishing: Publishing, work: Work, result: Published | Exception
    ) -> None:
        if isinstance(result, Exception):
            where = publishing.message.address
            log.warning("%s of %s was not published to %s: %s", signal.correlation_id, self._id, where, result)
        try:
            if publishing.label is not None:
                self._answer(signal, [self._issued(signal, publishing.label, result)], work)
        except Exception:
            log.exception("The acknowledgement of %s was not sent.", signal.correlation_id)
        finally:
            self._worker.outbox.release(work)
            self._room.release()

    def _issued(self, signal: Publication, label: str, result: Published | Exception) -> Acknowledgement:
        headers = signal.envelope.headers
        if isinstance(result, Exception):
            return issued_ack(label, result, headers, self._publisher.status_of(result))
        return acknowledgement(label, result.status, result.payload, headers)

    def _answer(self, signal: Publication, acks: list[Acknowledgement], work: Work) -> None:
        if acks:
            self._worker.send(signal.correlation_id, answer_of(signal, acks), work)
