"""Kafka as a transport for targets: an acknowledgement is issued for a record that the cluster has stored."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import (
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    PolicyViolationError,
    RetriableError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from ackstream.connectivity.transports.transport import OF_RECORD, Published, TargetPublisher, not_published
from ackstream.errors import AckstreamError, SettingsError
from ackstream.kafka import clients
from ackstream.kafka.clients import CLOSE_SECONDS, RESEND_SECONDS
from ackstream.kafka.topics import system_topics
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR, OK
from ackstream.protocol.ditto.connection_rules import TargetAddress
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.errors import BAD_REQUEST

if TYPE_CHECKING:
    from ackstream.connectivity.transports.transport import Confirm, OutgoingMessage
    from ackstream.settings import Kafka
    from ackstream.settings.connections import KafkaConnection

DELIVERY_SECONDS = 30.0
"""A cluster that has not stored a record for this time is away."""

REFUSED_SECONDS = 30.0
"""How long a refusal of a topic counts before the cluster is asked again."""

AWAY_SECONDS = 1.0
"""How long messages to a cluster that is away fail at once after a failed attempt."""

_MAX_REFUSED = 1_000
NO_CONTENT = 204


class SystemTopicError(InvalidTopicError):  # type: ignore[misc]  # kafka-python is not typed
    """A message is for a topic of this system, where its records would count."""


class UnknownTopicError(RetriableError):  # type: ignore[misc]  # kafka-python is not typed
    """The cluster answers that it has no such topic."""


_TEMPORARY = (RetriableError, KafkaTimeoutError)
_OF_TOPIC = (UnknownTopicError, InvalidTopicError, TopicAuthorizationFailedError, PolicyViolationError)


def refused(error: BaseException) -> Published:
    """Return the result of a record not stored: 500 if a retry may, else 400 (Ditto, ``KafkaExceptionConverter``)."""
    # unless a topic or record is at fault, or an address or header that Kafka cannot carry
    away = isinstance(error, KafkaError) and not isinstance(error, _OF_TOPIC + OF_RECORD)
    return not_published(error, INTERNAL_ERROR if isinstance(error, _TEMPORARY) else BAD_REQUEST, away=away)


class KafkaPublisher(TargetPublisher):
    """Publishes with one producer, from a thread that may block while a topic is still unknown."""

    def __init__(self, connection: KafkaConnection, own: Kafka) -> None:
        self._debug = connection.debug
        self._kafka = cluster(connection, own)
        self._system = system_topics(own) if _is_own(self._kafka, own) else frozenset()
        self._producer = clients.connect_producer(self._kafka, None, delivery_timeout=DELIVERY_SECONDS)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ackstream-publisher")
        self._closed_at = float("inf")
        # when the cluster counts as away, ``None`` while it answers; and until when nothing is tried then
        self._away_at: float | None = None
        self._resting_until = 0.0
        # topics that the cluster has refused, and until when that counts
        self._refused: dict[str, tuple[float, Published]] = {}
        self._admin: Any = None

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message; see :class:`.TargetPublisher`."""
        try:
            self._executor.submit(self._send, message, done)
        except RuntimeError as error:
            # a reply that comes when it is closed
            done(refused(KafkaTimeoutError(str(error))))

    def close(self) -> None:
        """Flush accepted messages, for at most 5 s before they are sent and as long afterwards."""
        self._closed_at = time.monotonic() + CLOSE_SECONDS
        self._executor.shutdown(cancel_futures=False)
        self._close_admin()
        clients.close_producer(self._producer)

    def _send(self, message: OutgoingMessage, done: Confirm) -> None:
        topic = ""
        try:
            where = TargetAddress.parse(message.address)
            topic = where.topic
            if topic in self._system:
                # of a placeholder; others are refused at the start
                raise SystemTopicError(f"The topic {topic} is the system's own.")  # noqa: TRY301 - as above
            known = self._known(topic)
            if known is not None:
                done(known)
                return
            key = None if where.key is None else where.key.encode()
            headers = [(name, value.encode()) for name, value in message.headers.items()]
            unknown = 0
            while (sent := self._attempt(where, message.payload, key, headers)) is None:
                unknown = unknown + 1 if self._is_unknown(topic) else 0
                # a broker that has just started may answer so once
                if unknown > 1:
                    raise UnknownTopicError(f"The cluster has no topic {topic}.")  # noqa: TRY301 - as the cluster might
                time.sleep(RESEND_SECONDS)
        except Exception as error:  # noqa: BLE001 - reported in the acknowledgement
            result = refused(error)
            if isinstance(error, _OF_TOPIC):
                self._remember(topic, result)
            done(result)
        else:
            sent.add_callback(partial(self._stored, done))
            sent.add_errback(lambda error: done(refused(error)))

    def _known(self, topic: str) -> Published | None:
        """Return the result of the message before it, if this one has the same without a try."""
        now = time.monotonic()
        until, result = self._refused.get(topic, (0.0, None))
        if result is not None and now < until:
            return result
        return refused(KafkaTimeoutError("The cluster is away.")) if now < self._resting_until else None

    def _remember(self, topic: str, result: Published) -> None:
        self._away_at = None
        self._refused.pop(topic, None)
        self._refused[topic] = (time.monotonic() + REFUSED_SECONDS, result)
        if len(self._refused) > _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _attempt(self, where: TargetAddress, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> Any:
        """Return the future of a record, ``None`` while its topic is unknown; raise after 30 s or if it is refused."""
        if time.monotonic() > self._closed_at:
            raise KafkaTimeoutError("The connection was closed before the message was sent.")
        try:
            sent = self._producer.send(where.topic, value, key, headers, where.partition)
        except (KafkaTimeoutError, LeaderNotAvailableError, ValueError) as error:
            if where.partition is not None and isinstance(error, ValueError):
                raise
        else:
            self._away_at = None
            return sent
        now = time.monotonic()
        if self._away_at is None:
            self._away_at = now + DELIVERY_SECONDS
        if now > min(self._away_at, self._closed_at):
            self._resting_until = now + AWAY_SECONDS
            raise KafkaTimeoutError("The partitions of the topic did not become known in time.")
        return None

    def _is_unknown(self, topic: str) -> bool:
        """Ask the cluster whether it has no such topic; raise if nothing can be published to it."""
        # the producer does not know: it forgets the partitions of a topic, too, that have no leader for a moment
        try:
            if self._admin is None:
                self._admin = clients.connect_admin(self._kafka)
            (found,) = self._admin.describe_topics([topic])
        except (KafkaError, AckstreamError):
            self._close_admin()
            return False
        error = for_code(found["error_code"])
        if error in _OF_TOPIC:
            raise error(topic)
        return error is UnknownTopicOrPartitionError

    def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(KafkaError):
                admin.close()

    def _stored(self, done: Confirm, metadata: Any) -> None:
        done(Published(OK, raw(record_metadata(metadata))) if self._debug else Published(NO_CONTENT))


def check_addresses(connection: KafkaConnection, own: Kafka) -> None:
    """Refuse the address of a target, or reply target, that is a topic of this system."""
    if not _shares_brokers(cluster(connection, own), own):
        return
    system = system_topics(own)
    addresses = [target.address for target in connection.targets]
    addresses += [source.reply_target.address for source in connection.sources if source.reply_target is not None]
    for address in addresses:
        if re.split("[/#]", address, maxsplit=1)[0] in system:
            raise SettingsError(
                f"The address {address} of the connection {connection.id} is a topic of the system, where records"
                f" count: name another topic in connections.targets.address or connections.sources.reply_target, or"
                f" another cluster in connections.bootstrap."
            )


def _shares_brokers(one: Kafka, other: Kafka) -> bool:
    own, others = ({address.strip() for address in each.bootstrap.split(",")} for each in (one, other))
    return not own.isdisjoint(others)


def _is_own(kafka: Kafka, own: Kafka) -> bool:
    """Return whether it is this system's cluster, which may have several names."""
    return _shares_brokers(kafka, own) or clients.cluster_id(kafka) == clients.cluster_id(own)


def record_metadata(metadata: Any) -> dict[str, Any]:
    """Return the payload that describes a stored record. Source: Eclipse Ditto, ``KafkaPublisherActor``."""
    return {
        "timestamp": metadata.timestamp,
        "serializedKeySize": metadata.serialized_key_size,
        "serializedValueSize": metadata.serialized_value_size,
        "topic": metadata.topic,
        "partition": metadata.partition,
        "offset": metadata.offset,
    }


def cluster(connection: KafkaConnection, own: Kafka) -> Kafka:
    """Return the cluster of a connection, by default ackstream's own; its topics have no prefix."""
    return own.at(connection.bootstrap, connection.security, connection.options, topic_prefix="")
