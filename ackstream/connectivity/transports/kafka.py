"""Kafka as a transport: offsets are committed in order.

A target's acknowledgement is issued for a record that the cluster has stored. Source of the rules: Eclipse Ditto,
``AtLeastOnceConsumerStream``, ``RestartableKafkaConsumerStream``, ``KafkaPublisherActor`` (ditto.md 7).
"""

import threading
import time
from functools import partial
from typing import Any

from kafka import TopicPartition, errors
from kafka.structs import OffsetAndMetadata
from msgspec import UNSET

from ackstream.client.core.group import SESSION_MS, GroupMember
from ackstream.client.core.messages import OffsetProgress, Work
from ackstream.connectivity.transports import transport
from ackstream.connectivity.transports.brokers import DELIVERY_SECONDS, REMEMBERED, ConfirmingPublisher, Confirms
from ackstream.connectivity.transports.transport import Confirm, OutgoingMessage, Receiver
from ackstream.errors import AckstreamError, StartError
from ackstream.kafka import clients
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.kafka.topics import system_topics
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR, OK
from ackstream.protocol.ditto.connection_rules import Settlement, TargetAddress
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.errors import BAD_REQUEST
from ackstream.settings import Kafka
from ackstream.settings.connections import KafkaConnection, KafkaSourceSettings

UNCOMMITTED = 10
"""Records of a partition that wait to be committed behind an unsettled one, as a multiple of ``max_in_flight``."""


class KafkaSource(transport.MessageSource):
    """Consumes the topics of a source as a member of the connection's consumer group."""

    def __init__(
        self, connection: KafkaConnection, _index: int, source: KafkaSourceSettings, own: Kafka, intake: Receiver
    ) -> None:
        super().__init__(connection.id, intake)
        self._id, self._qos, self._limit = connection.id, source.qos, source.max_in_flight
        self._progress = OffsetProgress()
        # by partition, the offset after the last record that an earlier owner may have delivered
        self._seen: dict[TopicPartition, int] = {}
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
        self._member = GroupMember(self._consumer, group, source.addresses, self._progress, self._follow)
        self._reader = TopicReader(self._consumer, self._closing)
        self._reader.on_unreadable = self._take_unreadable

    def start(self) -> None:
        """Start; once this returns, the group reads everything that arrives."""
        self._thread.start()
        self._member.wait_until_joined()

    def _disconnect(self) -> None:
        # partitions that were lost since the last turn have another owner, whose offsets count
        self._progress.keep(self._consumer.assignment())
        # the metadata is the end of reading: the next owner knows which records may have been delivered before
        self._member.leave(lambda each: str(max(self._seen.get(each, 0), self._progress.next(each))))

    def _turn(self) -> None:
        records = self._read()
        self._member.follow(records)
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            self._hand_over(external_message(record, self._id), partition, record.offset)
        self._intake.turn()
        self._member.commit(time.monotonic())

    def _read(self) -> list[Any]:
        room, open_from = self._intake.room, self._progress.positions()
        # records that wait for an earlier one to be settled count, too: after a crash all of them are read again
        resting = {
            each
            for each in self._member.partitions
            if not room or self._progress.next(each) - open_from.get(each, 0) >= UNCOMMITTED * self._limit
        }
        # polled without fetching, to stay a member of the group; a poll may take partitions away
        self._consumer.pause(*resting & self._consumer.assignment())
        records = self._reader.read(POLL_MS, room or 1)
        self._consumer.resume(*resting & self._consumer.assignment())
        return records

    def _take_unreadable(self, partition: TopicPartition, offset: int, error: Exception) -> None:
        """Hand over a record that cannot be unpacked, or a batch that is too large, which becomes a dead letter."""
        topic, identity = partition.topic, "-".join(map(str, (self._id, *partition, offset)))
        message = transport.ExternalMessage(identity, {"kafka.topic": topic}, b"", unreadable=str(error), address=topic)
        self._hand_over(message, partition, offset)

    def _hand_over(self, message: transport.ExternalMessage, partition: TopicPartition, offset: int) -> None:
        work = self._progress.begin(partition, offset)
        if work is None:
            return
        drops = expired(message.headers, time.time() * 1000)
        # with qos 0 at most once: the offset is committed regardless of the settlement
        work.remaining = int(self._qos > 0 and not drops)
        if not drops:
            delivered = int(offset < self._seen.get(partition, 0))
            self._intake.take(message, partial(self._done, work), delivered=delivered)

    def _done(self, work: Work, _settlement: Settlement) -> None:
        work.remaining = 0

    def _follow(self, partition: TopicPartition, offset: int) -> None:
        """Track a partition; the metadata of its offset names the records that a previous owner may have delivered."""
        committed = self._consumer.committed(partition, metadata=True)
        if committed is None or committed.offset < 0:
            # commit a start position, in case this process is killed before anything is settled
            self._consumer.commit({partition: OffsetAndMetadata(offset, str(offset), -1)}, timeout_ms=5_000)
            self._seen[partition] = offset
        elif committed.metadata.isdigit():
            self._seen[partition] = int(committed.metadata)
        else:
            self._seen[partition] = self._consumer.end_offsets([partition])[partition]
        self._progress.start(partition, offset)


def external_message(record: Any, connection_id: str) -> transport.ExternalMessage:
    """Convert a record, with headers ``kafka.topic``, ``kafka.key`` and ``kafka.timestamp``."""
    headers = {name.lower(): value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    # only of the record: a header must not replace a missing key
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


NO_CONTENT = 204


class SystemTopicError(errors.InvalidTopicError):  # type: ignore[misc]  # kafka-python is not typed
    """A message is for a topic of this system, where its records would count."""


class UnknownTopicError(errors.RetriableError):  # type: ignore[misc]  # kafka-python is not typed
    """The cluster reports that it has no such topic."""


_OF_TOPIC = (
    UnknownTopicError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
    errors.PolicyViolationError,
)


def refused(error: BaseException) -> transport.Published:
    """Return the result of a record not stored: 500 if a retry may, else 400 (Ditto, ``KafkaExceptionConverter``)."""
    # unless a topic or record is at fault, or an address or header that Kafka cannot carry
    away = isinstance(error, errors.KafkaError) and not isinstance(error, _OF_TOPIC + clients.OF_RECORD)
    status = INTERNAL_ERROR if isinstance(error, errors.RetriableError) else BAD_REQUEST
    return transport.not_published(error, status, away=away)


class _Aside(Confirms):
    """The messages to a topic not yet known to be usable, and the time of the next lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.look_at = time.monotonic()
        self.until = self.look_at + DELIVERY_SECONDS
        self.asked = False


class KafkaPublisher(ConfirmingPublisher):
    """Publishes with one producer. Messages to an unusable topic wait, without delaying others."""

    def __init__(self, connection: KafkaConnection, own: Kafka) -> None:
        super().__init__(f"{connection.id}-publisher")
        self._debug = connection.debug
        self._kafka = cluster(connection, own)
        is_own = shares_brokers(self._kafka, own) or clients.cluster_id(self._kafka) == clients.cluster_id(own)
        self._system = system_topics(own) if is_own else frozenset()
        self._producer = clients.connect_producer(self._kafka, None, delivery_timeout=DELIVERY_SECONDS)
        self._arrived = threading.Event()
        # for a topic that is not among these the producer might block
        self._usable: Latest[str, None] = Latest(REMEMBERED)
        self._waiting: dict[str, _Aside] = {}
        self._thread.start()

    def _wake(self) -> None:
        self._arrived.set()

    def _unconfirmed(self) -> list[_Aside]:
        return list(self._waiting.values())

    def _turn(self) -> None:
        self._arrived.wait(clients.RESEND_SECONDS)
        self._arrived.clear()
        while self._accepted:
            self._send(*self._accepted.popleft())
        now = time.monotonic()
        due = {topic: aside for topic, aside in self._waiting.items() if now >= aside.look_at}
        problems = self._problems(list(due)) if due else {}
        for topic, aside in due.items():
            self._look(topic, aside, problems.get(topic), now)

    def _disconnect(self) -> None:
        clients.close_producer(self._producer)

    def _send(self, message: OutgoingMessage, done: Confirm) -> None:
        try:
            where = TargetAddress.parse(message.address)
            if where.topic in self._system:
                # of a placeholder; others are refused at the start
                raise SystemTopicError(f"The topic {where.topic} is the system's own.")  # noqa: TRY301 - as below
            sent = self._attempt(where, message) if where.topic in self._usable else None
        except Exception as error:  # noqa: BLE001 - reported in the acknowledgement
            done(refused(error))
            return
        if sent is None:
            self._usable.pop(where.topic, None)
            self._waiting.setdefault(where.topic, _Aside()).add(message, done)
        else:
            sent.add_callback(partial(self._stored, done))
            sent.add_errback(lambda error: done(refused(error)))

    def _attempt(self, where: TargetAddress, message: OutgoingMessage) -> Any:
        """Return the future of a record, ``None`` if its topic has no partitions now; raise if it is refused."""
        key = None if where.key is None else where.key.encode()
        headers = [(name, value.encode()) for name, value in message.headers.items()]
        try:
            return self._producer.send(where.topic, message.payload, key, headers, where.partition)
        except (errors.KafkaTimeoutError, errors.LeaderNotAvailableError, ValueError) as error:
            if where.partition is not None and isinstance(error, ValueError):
                raise
            return None

    def _look(self, topic: str, aside: _Aside, problem: Exception | None, now: float) -> None:
        """Send the messages to a topic that is usable now; report them if it is refused, or not usable for 30 s."""
        late = now > aside.until
        if late:
            problem = errors.KafkaTimeoutError("The topic did not become usable in time.")
        # a broker that has just started may not know a topic
        refuses = isinstance(problem, _OF_TOPIC) and (aside.asked or not isinstance(problem, UnknownTopicError))
        aside.asked, aside.look_at = True, now + clients.RESEND_SECONDS
        if problem is None:
            self._usable[topic] = None
        elif not (late or refuses):
            return
        for each in aside.give_up():
            if problem is None:
                self._send(each.message, each.done)
            else:
                each.done(refused(problem))
        if aside.idle:
            del self._waiting[topic]

    def _problems(self, topics: list[str]) -> dict[str, Exception]:
        """Look up why topics cannot be published to; a usable one has no entry."""
        try:
            with clients.connect_admin(self._kafka) as admin:
                found = {each["name"]: errors.for_code(each["error_code"]) for each in admin.describe_topics(topics)}
        except (errors.KafkaError, AckstreamError) as error:
            return dict.fromkeys(topics, error)
        unknown = errors.UnknownTopicOrPartitionError
        return {
            topic: UnknownTopicError(f"The cluster has no topic {topic}.") if kind is unknown else kind(topic)
            for topic, kind in found.items()
            if kind is not errors.NoError
        }

    def _stored(self, done: Confirm, metadata: Any) -> None:
        described = raw(record_metadata(metadata)) if self._debug else UNSET
        done(transport.Published(OK if self._debug else NO_CONTENT, described))


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
