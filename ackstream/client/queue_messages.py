"""The messages of a work queue as its consumer gets them, fetched from Kafka or from the table ``messages``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from ackstream.client import samples
from ackstream.client.errors import MessageGoneError
from ackstream.kafka import clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ackstream.client.samples import Sample
    from ackstream.protocol.queues import MessageDelivered
    from ackstream.protocol.readers import SampleOutcome
    from ackstream.settings import Kafka, Lake

POLL_MS = 200
PATIENCE_SECONDS = 10.0
NEAR = 1_000
"""The most records that are read to reach the next wanted one; a seek costs a request of its own."""

Location = tuple[str, int, int]
"""Topic, partition and offset."""


@dataclass(frozen=True, eq=False)
class QueueMessage:
    """One delivery of a message, which belongs to its consumer until it is settled.

    Safe to settle from any thread and in any order; see :class:`QueueConsumer` for who settles when.
    """

    delivery: MessageDelivered
    content: Sample
    _settle: Callable[[QueueMessage, SampleOutcome], None] = field(repr=False)

    @property
    def id(self) -> str:
        """Its id in the queue, the same in each delivery."""
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
        """How often it has been delivered, including this time."""
        return self.delivery.count

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery.redelivered

    def settle(self, outcome: SampleOutcome = "accepted") -> None:
        """Settle the message; a second time has no effect.

        :raises OutcomeNotEnabledError: the consumer did not declare the outcome; it keeps the message
        :raises NotConnectedError: the session in which it was delivered is over; it is redelivered, here or elsewhere
        """
        self._settle(self, outcome)


class MessageFetcher:
    """Reads records by their offsets, nearby ones in one request. For one thread."""

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

    def fetch(self, deliveries: Sequence[MessageDelivered]) -> dict[str, Sample]:
        """Return the messages by their ids.

        :raises MessageGoneError: one is neither in Kafka nor in the table, or the table is unknown
        :raises KafkaError: the broker does not answer in time; to be retried
        """
        wanted = {(delivery.topic, delivery.partition, delivery.offset): delivery for delivery in deliveries}
        found = self._from_kafka(wanted)
        gone = {location: delivery for location, delivery in wanted.items() if location not in found}
        if gone:
            found |= self._from_table(gone)
        return {delivery.message: found[location] for location, delivery in wanted.items()}

    def _from_kafka(self, wanted: Iterable[Location]) -> dict[Location, Sample]:
        pending: dict[Any, list[int]] = {}
        for topic, partition, offset in sorted(wanted, reverse=True):
            pending.setdefault(TopicPartition(topic, partition), []).append(offset)
        found: dict[Location, Sample] = {}
        for partition, beginning in self._consumer.beginning_offsets(list(pending)).items():
            # what Kafka has deleted is read from the table
            pending[partition] = [offset for offset in pending[partition] if offset >= beginning]
        positions: dict[Any, int] = {}
        assigned: set[Any] = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while pending := {partition: offsets for partition, offsets in pending.items() if offsets}:
            if changed := pending.keys() != assigned:
                assigned = set(pending)
                self._consumer.assign(sorted(assigned))
            for partition, offsets in pending.items():
                position = positions.get(partition)
                far = position is None or offsets[-1] > position + NEAR
                if far or changed:
                    self._consumer.seek(partition, offsets[-1] if far else position)
            for partition, records in self._consumer.poll(timeout_ms=POLL_MS).items():
                until = time.monotonic() + PATIENCE_SECONDS
                positions[partition] = records[-1].offset + 1
                _take(records, pending[partition], found)
            if time.monotonic() > until:
                raise KafkaTimeoutError(f"no records of {', '.join(map(str, pending))}")
        return found

    def _from_table(self, gone: Mapping[Location, MessageDelivered]) -> dict[Location, Sample]:
        if self._lake is None:
            raise MessageGoneError(
                f"Message {next(iter(gone.values())).message} is no longer in Kafka: give the consumer the lake of the"
                " settings, whose table messages has it."
            )
        # loads slowly, and most consumers never need it
        from ackstream.lake import reading  # noqa: PLC0415

        rows = reading.batch_messages(self._lake, {delivery.batch for delivery in gone.values()})
        stored = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
        for location, delivery in gone.items():
            if location not in stored:
                raise MessageGoneError(f"Message {delivery.message} is neither in Kafka nor in the table messages.")
        return {location: samples.of_row(stored[location]) for location in gone}


def _take(records: Iterable[Any], offsets: list[int], found: dict[Location, Sample]) -> None:
    """Move the wanted records of a partition to ``found``; ``offsets`` are those still wanted, the lowest last."""
    for record in records:
        while offsets and offsets[-1] < record.offset:
            # it has been deleted meanwhile
            offsets.pop()
        if offsets and offsets[-1] == record.offset:
            offsets.pop()
            sample = samples.of_record(record)
            if sample is not None:
                found[record.topic, record.partition, record.offset] = sample
