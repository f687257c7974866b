"""Consuming from Kafka: offsets are committed in order, a rejected record makes its partition be read again.

Source of the rules: Eclipse Ditto, ``AtLeastOnceConsumerStream``, ``RestartableKafkaConsumerStream`` (ditto.md 7).
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, RetriableError
from kafka.structs import OffsetAndMetadata

from ackstream.client.errors import UnreachableError
from ackstream.client.worker import Assignments
from ackstream.connectivity.deliveries import Deliveries, Delivery
from ackstream.connectivity.transport import ExternalMessage, Published
from ackstream.connectivity.transport import KafkaSettlement as Action
from ackstream.connectivity.transport import kafka as action_of
from ackstream.errors import StartError
from ackstream.kafka import clients
from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.protocol.ditto.connections import TargetAddress
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.ditto.errors import kafka_message_rejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.intake import Intake
    from ackstream.connectivity.transport import OutgoingMessage
    from ackstream.protocol.ditto.settlement import Settlement
    from ackstream.settings import Kafka
    from ackstream.settings.connections import KafkaSourceSettings

    Done = Callable[[Published | Exception], None]


log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
COMMIT_SECONDS = 1.0
SESSION_MS = 10_000
_CLOSE_MS = 5_000


class KafkaSource(Closing):
    """Reads the topics of a source with a thread of its own, as a member of the connection's consumer group."""

    def __init__(self, connection_id: str, source: KafkaSourceSettings, kafka: Kafka, intake: Intake) -> None:
        """Connect.

        :raises UnreachableError: no broker
        :raises StartError: it has no such topic
        """
        self._id = connection_id
        self._qos = source.qos
        self._intake = intake
        self._deliveries: Deliveries[TopicPartition] = Deliveries()
        self._places: set[TopicPartition] = set()
        self._paused: dict[TopicPartition, float] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0
        self._joined = threading.Event()
        self._closing = threading.Event()
        self._consumer = clients.connect_consumer(
            kafka, f"ackstream-{connection_id}", auto_offset_reset=source.start, session_timeout_ms=SESSION_MS
        )
        missing = sorted(set(source.addresses) - self._consumer.topics())
        if missing:
            self._consumer.close(autocommit=False)
            raise StartError(
                f"The connection {connection_id} reads the topic {missing[0]}, which {kafka.bootstrap} does not have: "
                f"create it there, or correct connections.sources.addresses."
            )
        self._assignments = Assignments()
        self._consumer.subscribe(list(source.addresses), listener=self._assignments)
        self._reader = TopicReader(self._consumer, self._closing)
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{connection_id}", daemon=True)

    def start(self) -> None:
        """Begin; when this returns, what comes from now on is read (by the group).

        :raises UnreachableError: the group gives this member no partitions
        """
        self._thread.start()
        if not self._joined.wait(JOIN_SECONDS):
            raise UnreachableError(
                f"The group ackstream-{self._id} gave the connection no partitions within {JOIN_SECONDS:g} s: look "
                f"into the log of its broker."
            )

    def close(self) -> None:
        """Stop, and commit what is settled; what is on its way comes again with the next start."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._intake.forget()
        try:
            # where the reading ended, so that the next reader knows what may have come before
            self._consumer.commit(
                {
                    place: OffsetAndMetadata(offset, str(self._deliveries.seen(place)), -1)
                    for place, offset in self._deliveries.positions().items()
                },
                timeout_ms=_CLOSE_MS,
            )
        except KafkaError as error:
            log.warning("The last offsets of the connection %s were not committed: %s", self._id, error)
        self._consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)

    def _run(self) -> None:
        while not self._closing.is_set():
            records = self._read()
            if self._assignments.changed.is_set():
                self._take_partitions(records)
            for record in records:
                self._take(record)
            self._intake.turn()
            now = time.monotonic()
            self._read_again(now)
            self._commit(now)

    def _read(self) -> list[Any]:
        room = self._intake.room
        if room:
            return self._reader.read(POLL_MS, room)
        # nothing is taken, but the group has to see that this member lives
        resting = self._places - self._paused.keys()
        self._consumer.pause(*resting)
        records = self._reader.read(POLL_MS, 1)
        self._consumer.resume(*resting)
        return records

    def _take(self, record: Any) -> None:
        place = TopicPartition(record.topic, record.partition)
        delivery = self._deliveries.begin(place, record.offset)
        if delivery is None:
            return
        if self._qos == 0:
            # at most once: its offset is committed, whatever becomes of it
            self._deliveries.settle(delivery)
        message = external(record, self._id)
        if expired(message.headers, time.time() * 1000):
            self._deliveries.settle(delivery)
        else:
            self._intake.take(message, partial(self._done, delivery), redelivered=delivery.redelivered)

    def _done(self, delivery: Delivery[TopicPartition], settlement: Settlement) -> None:
        if action_of(settlement, qos=self._qos) is Action.CONSUME_AGAIN:
            self._deliveries.reject(delivery)
        else:
            self._deliveries.settle(delivery)

    def _read_again(self, now: float) -> None:
        """Go back to rejected records, after a while; the other partitions go on."""
        for place in [place for place, until in self._paused.items() if until <= now]:
            del self._paused[place]
            if place in self._places:
                self._consumer.resume(place)
        for place, (offset, wait) in self._deliveries.again().items():
            rejected = kafka_message_rejected(f"{place.topic}-{place.partition}-{offset}")
            log.warning("%s %s It is read again in %g s.", rejected.message, rejected.error, wait)
            self._consumer.seek(place, offset)
            self._consumer.pause(place)
            self._paused[place] = now + wait

    def _take_partitions(self, records: list[Any]) -> None:
        """Follow the partitions that the group has given this member, from where it is going to read them."""
        self._assignments.changed.clear()
        places = set(self._consumer.assignment())
        self._deliveries.keep(places)
        self._paused = {place: until for place, until in self._paused.items() if place in places}
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        try:
            for place in places - self._deliveries.positions().keys():
                offset = first.get(place)
                if offset is None:
                    offset = self._consumer.position(place, timeout_ms=_CLOSE_MS)
                if offset is None:
                    raise KafkaError(f"the offset of {place} is not known")  # noqa: TRY301 - as if position() said so
                self._deliveries.start(place, offset, self._seen(place, offset))
        except (KafkaError, AssertionError) as error:
            log.warning("Asking for the offsets of the connection %s failed and is tried again: %s", self._id, error)
            self._assignments.changed.set()
        else:
            self._places = places
            self._joined.set()

    def _seen(self, place: TopicPartition, offset: int) -> int:
        """Return up to where records of a partition may have come to whoever read it before."""
        committed = self._consumer.committed(place, metadata=True)
        if committed is None or committed.offset < 0:
            # from now on the group has a place, should this process be killed before anything is settled
            self._consumer.commit({place: OffsetAndMetadata(offset, str(offset), -1)}, timeout_ms=_CLOSE_MS)
            return offset
        if committed.metadata.isdigit():
            return int(committed.metadata)
        return int(self._consumer.end_offsets([place])[place])

    def _commit(self, now: float) -> None:
        if now < self._commit_at:
            return
        self._commit_at = now + COMMIT_SECONDS
        positions = self._deliveries.positions()
        if positions != self._committed:
            offsets = {place: OffsetAndMetadata(offset, "", -1) for place, offset in positions.items()}
            self._consumer.commit_async(offsets, callback=self._note_commit)

    def _note_commit(self, offsets: dict[Any, OffsetAndMetadata], answer: Any) -> None:
        if isinstance(answer, Exception):
            log.warning("Committing offsets of the connection %s failed and is tried again: %s", self._id, answer)
        else:
            self._committed = {place: offset.offset for place, offset in offsets.items()}


def external(record: Any, connection_id: str) -> ExternalMessage:
    """Return a Kafka record as a message; ``kafka.topic``, ``kafka.key`` and ``kafka.timestamp`` are headers, too."""
    headers = {name.lower(): value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    headers |= {"kafka.topic": record.topic, "kafka.timestamp": str(record.timestamp)}
    if record.key is not None:
        headers["kafka.key"] = record.key.decode("utf-8", "replace")
    identity = f"{connection_id}-{record.topic}-{record.partition}-{record.offset}"
    return ExternalMessage(identity, headers, record.value or b"")


def expired(headers: Any, now_ms: float) -> bool:
    """Tell whether a message has outlived itself: ``creation-time`` and ``ttl``, in milliseconds."""
    try:
        return int(headers["creation-time"]) + int(headers["ttl"]) <= now_ms
    except (KeyError, ValueError):
        return False


# -- Publishing to Kafka.


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
        self._producer = clients.connect_producer(kafka, None, delivery_timeout=DELIVERY_SECONDS)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ackstream-publisher")

    def publish(self, message: OutgoingMessage, done: Done) -> None:
        """Send a message; see ``Publisher``."""
        self._executor.submit(self._send, message, done)

    def status_of(self, error: Exception) -> int:
        """Return 500 for what may go well another time, else 400. Source: Ditto's ``KafkaExceptionConverter``."""
        return INTERNAL_ERROR if isinstance(error, (RetriableError, KafkaTimeoutError)) else BAD_REQUEST

    def close(self) -> None:
        """Send what was accepted, for at most 5 s."""
        self._executor.shutdown(cancel_futures=False)
        clients.close_producer(self._producer, _CLOSE_SECONDS)

    def _send(self, message: OutgoingMessage, done: Done) -> None:
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
