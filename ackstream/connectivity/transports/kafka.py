"""Kafka as a transport: offsets are committed in order.

A target's acknowledgement is issued for a record that the cluster has stored. Source of the rules: Eclipse Ditto,
``AtLeastOnceConsumerStream``, ``RestartableKafkaConsumerStream``, ``KafkaPublisherActor`` (ditto.md 7).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition, errors
from kafka.structs import OffsetAndMetadata

from ackstream.client.core.group import SESSION_MS, GroupMember
from ackstream.client.core.messages import Deliveries, Work
from ackstream.connectivity.transports import transport
from ackstream.errors import AckstreamError, StartError
from ackstream.kafka import clients
from ackstream.kafka.clients import CLOSE_SECONDS, RESEND_SECONDS
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.kafka.topics import system_topics
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR, OK
from ackstream.protocol.ditto.connection_rules import Settlement, TargetAddress
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.errors import BAD_REQUEST

if TYPE_CHECKING:
    from ackstream.connectivity.transports.transport import Confirm, OutgoingMessage, Receiver
    from ackstream.settings import Kafka
    from ackstream.settings.connections import KafkaConnection, KafkaSourceSettings

log = logging.getLogger(__name__)


UNCOMMITTED = 10
"""Records of a partition that wait to be committed behind an unsettled one, as a multiple of ``max_in_flight``."""


class KafkaSource(transport.MessageSource):
    """Consumes the topics of a source as a member of the connection's consumer group."""

    def __init__(
        self, connection: KafkaConnection, _index: int, source: KafkaSourceSettings, own: Kafka, intake: Receiver
    ) -> None:
        super().__init__(connection.id, intake)
        self._id, self._qos, self._limit = connection.id, source.qos, source.max_in_flight
        self._deliveries = Deliveries()
        kafka, group = cluster(connection, own), own.group(f"ackstream-source-{connection.id}")
        self._consumer = clients.connect_consumer(
            kafka, group, auto_offset_reset=source.start, session_timeout_ms=SESSION_MS
        )
        if missing := sorted(set(source.addresses) - self._consumer.topics()):
            self._consumer.close(autocommit=False)
            raise StartError(
                f"The connection {self._id} reads the topic {missing[0]}, which {kafka.bootstrap} does not have: "
                f"create it there, or correct connections.sources.addresses."
            )
        self._member = GroupMember(self._consumer, group, source.addresses, self._deliveries, self._follow)
        self._reader = TopicReader(self._consumer, self._closing)

    def start(self) -> None:
        """Start; once this returns, the group reads everything that arrives."""
        self._thread.start()
        self._member.wait_until_joined()

    def _disconnect(self) -> None:
        # partitions that were lost since the last turn have another owner, whose offsets count
        self._deliveries.keep(self._consumer.assignment())
        # the metadata is the end of reading: the next owner knows which records may have been delivered before
        self._member.leave(lambda partition: str(self._deliveries.seen[partition]))

    def _turn(self) -> None:
        records = self._read()
        self._member.follow(records)
        for record in records:
            self._take(record)
        self._intake.turn()
        self._member.commit(time.monotonic())

    def _read(self) -> list[Any]:
        room, reading, limit = self._intake.room, self._member.partitions, UNCOMMITTED * self._limit
        # records that wait for an earlier one to be settled count, too: after a crash all of them are read again
        resting = {each for each in reading if not room or self._deliveries.open(each) >= limit}
        # polled without fetching, to stay a member of the group; a poll may take partitions away
        self._consumer.pause(*resting & self._consumer.assignment())
        records = self._reader.read(POLL_MS, room or 1)
        self._consumer.resume(*resting & self._consumer.assignment())
        return records

    def _take(self, record: Any) -> None:
        partition = TopicPartition(record.topic, record.partition)
        redelivered = record.offset < self._deliveries.seen[partition]
        work = self._deliveries.begin(partition, record.offset)
        if work is None:
            return
        message = external_message(record, self._id)
        drops = expired(message.headers, time.time() * 1000)
        if drops or self._qos == 0:
            # at most once: the offset is committed regardless of the settlement
            work.remaining = 0
        if not drops:
            self._intake.take(message, partial(self._done, work), delivered=int(redelivered))

    def _done(self, work: Work, _settlement: Settlement) -> None:
        work.remaining = 0

    def _follow(self, partition: TopicPartition, offset: int) -> None:
        """Track a partition; the metadata of its offset names the records that a previous owner may have delivered."""
        committed = self._consumer.committed(partition, metadata=True)
        if committed is None or committed.offset < 0:
            # commit a start position, in case this process is killed before anything is settled
            self._consumer.commit({partition: OffsetAndMetadata(offset, str(offset), -1)}, timeout_ms=5_000)
            seen = offset
        elif committed.metadata.isdigit():
            seen = int(committed.metadata)
        else:
            seen = self._consumer.end_offsets([partition])[partition]
        self._deliveries.start(partition, offset, seen)


def external_message(record: Any, connection_id: str) -> transport.ExternalMessage:
    """Convert a record, with headers ``kafka.topic``, ``kafka.key`` and ``kafka.timestamp``."""
    headers = {name.lower(): value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    # of the record alone: a header must not stand for a missing key
    headers.pop("kafka.key", None)
    if record.key is not None:
        headers["kafka.key"] = record.key.decode("utf-8", "replace")
    headers |= {"kafka.topic": record.topic, "kafka.timestamp": str(record.timestamp)}
    identity = f"{connection_id}-{record.topic}-{record.partition}-{record.offset}"
    return transport.ExternalMessage(identity, headers, record.value or b"", address=record.topic)


def expired(headers: Any, now_ms: float) -> bool:
    """Return whether ``creation-time`` plus ``ttl`` (headers, in milliseconds) has passed."""
    try:
        return int(headers["creation-time"]) + int(headers["ttl"]) <= now_ms
    except (KeyError, ValueError):
        return False


DELIVERY_SECONDS = 30.0
"""A cluster that has not stored a record for this time is away."""

REFUSED_SECONDS, AWAY_SECONDS = 30.0, 1.0
"""How long a refusal of a topic counts; how long messages to a cluster that is away fail at once after an attempt."""

_MAX_REFUSED = 1_000
NO_CONTENT = 204


class SystemTopicError(errors.InvalidTopicError):  # type: ignore[misc]  # kafka-python is not typed
    """A message is for a topic of this system, where its records would count."""


class UnknownTopicError(errors.RetriableError):  # type: ignore[misc]  # kafka-python is not typed
    """The cluster answers that it has no such topic."""


_OF_TOPIC = (
    UnknownTopicError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
    errors.PolicyViolationError,
)


def refused(error: BaseException) -> transport.Published:
    """Return the result of a record not stored: 500 if a retry may, else 400 (Ditto, ``KafkaExceptionConverter``)."""
    # unless a topic or record is at fault, or an address or header that Kafka cannot carry
    away = isinstance(error, errors.KafkaError) and not isinstance(error, _OF_TOPIC + transport.OF_RECORD)
    return transport.not_published(
        error, INTERNAL_ERROR if isinstance(error, errors.RetriableError) else BAD_REQUEST, away=away
    )


class KafkaPublisher(transport.TargetPublisher):
    """Publishes with one producer, from a thread that may block while a topic is still unknown."""

    def __init__(self, connection: KafkaConnection, own: Kafka) -> None:
        self._debug = connection.debug
        self._kafka = cluster(connection, own)
        is_own = shares_brokers(self._kafka, own) or clients.cluster_id(self._kafka) == clients.cluster_id(own)
        self._system = system_topics(own) if is_own else frozenset()
        self._producer = clients.connect_producer(self._kafka, None, delivery_timeout=DELIVERY_SECONDS)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ackstream-publisher")
        self._closed_at = float("inf")
        # when the cluster counts as away, ``None`` while it answers; and until when nothing is tried then
        self._away_at: float | None = None
        self._resting_until = 0.0
        # topics that the cluster has refused, and until when that counts
        self._refused: Latest[str, tuple[float, transport.Published]] = Latest(_MAX_REFUSED)
        self._admin: Any = None

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message; see :class:`.TargetPublisher`."""
        try:
            self._executor.submit(self._send, message, done)
        except RuntimeError as error:
            # a reply that comes when it is closed
            done(refused(errors.KafkaTimeoutError(str(error))))

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
            if (known := self._known(topic)) is not None:
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
                self._away_at, self._refused[topic] = None, (time.monotonic() + REFUSED_SECONDS, result)
            done(result)
        else:
            sent.add_callback(partial(self._stored, done))
            sent.add_errback(lambda error: done(refused(error)))

    def _known(self, topic: str) -> transport.Published | None:
        """Return the result of the message before it, if this one has the same without a try."""
        now = time.monotonic()
        until, result = self._refused.get(topic, (0.0, None))
        if result is not None and now < until:
            return result
        return refused(errors.KafkaTimeoutError("The cluster is away.")) if now < self._resting_until else None

    def _attempt(self, where: TargetAddress, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> Any:
        """Return the future of a record, ``None`` while its topic is unknown; raise after 30 s or if it is refused."""
        if time.monotonic() > self._closed_at:
            raise errors.KafkaTimeoutError("The connection was closed before the message was sent.")
        try:
            sent = self._producer.send(where.topic, value, key, headers, where.partition)
        except (errors.KafkaTimeoutError, errors.LeaderNotAvailableError, ValueError) as error:
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
            raise errors.KafkaTimeoutError("The partitions of the topic did not become known in time.")
        return None

    def _is_unknown(self, topic: str) -> bool:
        """Ask the cluster whether it has no such topic; raise if nothing can be published to it."""
        # the producer does not know: it forgets the partitions of a topic, too, that have no leader for a moment
        try:
            if self._admin is None:
                self._admin = clients.connect_admin(self._kafka)
            (found,) = self._admin.describe_topics([topic])
        except (errors.KafkaError, AckstreamError):
            self._close_admin()
            return False
        error = errors.for_code(found["error_code"])
        if error in _OF_TOPIC:
            raise error(topic)
        return error is errors.UnknownTopicOrPartitionError

    def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(errors.KafkaError):
                admin.close()

    def _stored(self, done: Confirm, metadata: Any) -> None:
        done(
            transport.Published(OK, raw(record_metadata(metadata))) if self._debug else transport.Published(NO_CONTENT)
        )


def shares_brokers(one: Kafka, other: Kafka) -> bool:
    """Return whether two clusters have an address in common; one cluster may have several."""
    own, others = ({address.strip() for address in each.bootstrap.split(",")} for each in (one, other))
    return not own.isdisjoint(others)


def record_metadata(metadata: Any) -> dict[str, Any]:
    """Return the payload that describes a stored record. Source: Eclipse Ditto, ``KafkaPublisherActor``."""
    sizes = {"serializedKeySize": metadata.serialized_key_size, "serializedValueSize": metadata.serialized_value_size}
    place = {"topic": metadata.topic, "partition": metadata.partition, "offset": metadata.offset}
    return {"timestamp": metadata.timestamp, **sizes, **place}


def cluster(connection: KafkaConnection, own: Kafka) -> Kafka:
    """Return the cluster of a connection, by default ackstream's own; its topics have no prefix."""
    return own.at(connection.bootstrap, connection.security, connection.options, topic_prefix="")


TRANSPORT = transport.Transport(KafkaPublisher, KafkaSource)
