"""A queue consumer's connections: what it says, what it hears, where the messages are."""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from ackstream.client.errors import MessageGoneError
from ackstream.client.readers import samples
from ackstream.client.readers.samples import COLUMNS, SERVICE_HEADERS, of_row
from ackstream.kafka import clients
from ackstream.kafka.partitions import PartitionAssignment
from ackstream.kafka.reader import TopicReader
from ackstream.protocol import queues
from ackstream.protocol.queues import QueueRecordError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ackstream.protocol.queues import ConsumerRecord, MessageDelivered, ServiceRecord
    from ackstream.protocol.readers import SampleOutcome
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
            consumer = clients.connect_consumer(kafka, None, auto_offset_reset="earliest")
            stack.callback(consumer.close, autocommit=False, timeout_ms=1_000)
            clients.check_topics(consumer, kafka, self._topic, heard, kafka.topic("messages"))
            try:
                self._places = PartitionAssignment(consumer, self._key, addressed=(heard,))
            except KafkaError as error:
                raise clients.unreachable(kafka) from error
            self._reader = TopicReader(consumer, stop)
            self._producer = clients.connect_producer(
                kafka, self._topic, delivery_timeout=DELIVERY_SECONDS, linger_ms=2
            )
            stack.callback(clients.close_producer, self._producer, _CLOSE_SECONDS)
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
        if time.monotonic() - self._looked > clients.METADATA_MS / 1000:
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


# -- A message of a work queue as its consumer gets it, and what a consumer counts.


@dataclass(frozen=True, eq=False)
class QueueMessage:
    """One delivery of a message, which is its consumer's until it is settled.

    Safe to settle from any thread and in any order; see :class:`QueueConsumer` for who settles when.
    """

    delivery: MessageDelivered
    content: Content
    _settle: Callable[[QueueMessage, SampleOutcome], None] = field(repr=False)

    @property
    def id(self) -> str:
        """Its name in the queue, the same in each delivery."""
        return self.delivery.message

    @property
    def topic(self) -> str | None:
        """The subject that its publisher named."""
        return self.delivery.subject

    @property
    def key(self) -> bytes | None:
        """The application's key."""
        return self.content.key

    @property
    def value(self) -> bytes | None:
        """The message itself."""
        return self.content.value

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        """The application's own record headers."""
        return self.content.headers

    @property
    def count(self) -> int:
        """How often it has been delivered, this time included."""
        return self.delivery.count

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery.redelivered

    def settle(self, outcome: SampleOutcome = "accepted") -> None:
        """Decide about it; a second decision changes nothing.

        :raises OutcomeNotEnabledError: the consumer did not declare the outcome; the message stays with it
        :raises NotConnectedError: the session in which it was delivered is over: it comes again, here or elsewhere
        """
        self._settle(self, outcome)


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counts since the consumer began.

    ``received`` deliveries came, ``copies`` of them again after a crash of the service (the application never saw
    those); ``accepted``, ``failed`` and ``rejected`` were settled, ``refused`` settlements had no effect; ``lost``
    sessions ended because the service did not hear of the consumer in time.
    """

    received: int
    copies: int
    accepted: int
    failed: int
    rejected: int
    refused: int
    lost: int


# -- The messages that a queue's deliveries name: fetched where they are, in Kafka or in the table ``messages``.


POLL_MS = 200
PATIENCE_SECONDS = 10.0
NEAR = 1_000
"""Records up to which the next wanted one is waited for; a jump costs a request of its own."""


@dataclass(frozen=True)
class Content:
    """What the publisher sent; ``headers`` are the application's own, of a name that comes twice the last value."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    timestamp_ms: int


Place = tuple[str, int, int]


class Fetcher:
    """Reads records by their offsets, the near ones in one go. For one thread."""

    def __init__(self, kafka: Kafka, lake: Lake | None) -> None:
        """Connect.

        :param lake: where the table is, for messages that Kafka has deleted
        :raises UnreachableError: no broker
        """
        self._lake = lake
        self._consumer = clients.connect_consumer(kafka, None, auto_offset_reset="earliest", fetch_max_wait_ms=50)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close(autocommit=False)

    def fetch(self, deliveries: Sequence[MessageDelivered]) -> dict[str, Content]:
        """Return the messages by their ids.

        :raises MessageGoneError: one is not in Kafka, and there is no other place to look, or it is not there either
        :raises KafkaError: the broker does not answer in time; to be tried again
        """
        wanted = {(one.topic, one.partition, one.offset): one for one in deliveries}
        found = self._from_kafka(wanted)
        gone = {place: one for place, one in wanted.items() if place not in found}
        if gone:
            found |= self._from_table(gone)
        return {one.message: found[place] for place, one in wanted.items()}

    def _from_kafka(self, wanted: Iterable[Place]) -> dict[Place, Content]:
        pending: dict[Any, list[int]] = {}
        for topic, partition, offset in sorted(wanted, reverse=True):
            pending.setdefault(TopicPartition(topic, partition), []).append(offset)
        found: dict[Place, Content] = {}
        for place, beginning in self._consumer.beginning_offsets(list(pending)).items():
            # what Kafka has deleted is looked for elsewhere
            pending[place] = [offset for offset in pending[place] if offset >= beginning]
        positions: dict[Any, int] = {}
        assigned: set[Any] = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while pending := {place: offsets for place, offsets in pending.items() if offsets}:
            if changed := pending.keys() != assigned:
                assigned = set(pending)
                self._consumer.assign(sorted(assigned))
            for place, offsets in pending.items():
                position = positions.get(place)
                far = position is None or offsets[-1] > position + NEAR
                if far or changed:
                    self._consumer.seek(place, offsets[-1] if far else position)
            for place, records in self._consumer.poll(timeout_ms=POLL_MS).items():
                until = time.monotonic() + PATIENCE_SECONDS
                positions[place] = records[-1].offset + 1
                _take(records, pending[place], found)
            if time.monotonic() > until:
                raise KafkaTimeoutError(f"nothing came from {', '.join(map(str, pending))}")
        return found

    def _from_table(self, gone: Mapping[Place, MessageDelivered]) -> dict[Place, Content]:
        one = next(iter(gone.values()))
        if self._lake is None:
            raise MessageGoneError(
                f"Message {one.message} is no longer in Kafka: give the consumer the lake of the settings, whose table"
                " messages has it."
            )
        batches = sorted({delivery.batch for delivery in gone.values()})
        found = {}
        for row in samples.stored_rows(self._lake, ("topic", *COLUMNS), lambda field: field("batch").isin(batches)):
            place = (row["topic"], row["partition"], row["offset"])
            if place in gone:
                sample = of_row(row)
                found[place] = Content(sample.key, sample.value, sample.headers, sample.timestamp_ms)
        for place, delivery in gone.items():
            if place not in found:
                raise MessageGoneError(f"Message {delivery.message} is neither in Kafka nor in the table messages.")
        return found


def _take(records: Iterable[Any], offsets: list[int], found: dict[Place, Content]) -> None:
    """Take the wanted records of a partition; ``offsets`` are what is still wanted, the lowest last."""
    for record in records:
        while offsets and offsets[-1] < record.offset:
            # it has been deleted meanwhile
            offsets.pop()
        if offsets and offsets[-1] == record.offset:
            offsets.pop()
            headers = dict(record.headers)
            own = {name: value for name, value in headers.items() if name not in SERVICE_HEADERS}
            place = (record.topic, record.partition, record.offset)
            found[place] = Content(headers.get("key"), record.value, own, record.timestamp)
