"""The records of the queues job: messages and consumers' reports that come in, events that go out."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.observe.metrics import DEAD_LETTERS, FIGURES, QUEUE_DELIVERIES, QUEUE_LEFT, QUEUE_REDELIVERIES, Figures
from ackstream.protocol import queues
from ackstream.protocol.json import RecordError
from ackstream.protocol.queues import QueueAnswer, QueueRequest, Settlement, Unbound, UnboundReason

NAME = "queues"
"""The name of the job."""

EventKind: TypeAlias = Literal["delivered", "returned", "refused", "left"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An event of a message: a row of ``queue_events``. Times are epoch milliseconds.

    :ivar consumer: the consumer that received, held or settled it
    :ivar count: how often it has been delivered
    :ivar outcome: how it was settled; for a message that left, its disposition
    :ivar reason: why it was returned, refused, or left
    """

    queue: str
    message: str
    at: int
    event: EventKind
    consumer: str | None = None
    count: int = 0
    outcome: str | None = None
    reason: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    batch: int | None = None
    subject: str | None = None
    received_at: int | None = None


class Cause(NamedTuple):
    """Why messages are returned: ``consumer`` is the one that settled, if a settlement is the reason."""

    at: int
    reason: Settlement | UnboundReason | Literal["lease", "unavailable"]
    consumer: str | None = None


def message_id(topic: str, partition: int, offset: int) -> str:
    """Return the id in a queue of a message with these coordinates."""
    return f"{topic}-{partition}-{offset}"


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A message of the table ``messages``, identified in a queue by its Kafka coordinates.

    :ivar ttl_ms: its own time to live, if the queue respects those; 0: none
    :ivar eligible: whether it may become a dead letter
    :ivar barrier: it waits until all earlier messages have left, then goes to all consumers (A36)
    """

    timestamp: int
    topic: str
    partition: int
    offset: int
    batch: int
    subject: str | None = None
    ttl_ms: int = 0
    eligible: bool = True
    barrier: bool = False

    @property
    def id(self) -> str:
        """Its id in the queue."""
        return message_id(self.topic, self.partition, self.offset)


class ConsumerReport(msgspec.Struct, frozen=True, gc=False):
    """A record of a consumer, not decoded; ``value`` is ``None`` if it was too large to be read."""

    timestamp: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def coordinates(record: Arrival | ConsumerReport) -> tuple[int, int, int, int]:
    """Return the key that orders the records of a batch; at equal times, messages come first."""
    return record.timestamp, isinstance(record, ConsumerReport), record.partition, record.offset


Unreadable: TypeAlias = tuple[ConsumerReport, str]
"""A record that cannot be decoded, and why."""


def read(report: ConsumerReport) -> QueueRequest:
    """Read a consumer's record. Raises RecordError if it is unreadable."""
    if report.value is None:
        raise RecordError("The record is too large.")
    return queues.read(report.value)


def answer_unknown(name: str, reports: Iterable[ConsumerReport]) -> tuple[list[QueueAnswer], list[Unreadable]]:
    """Reject the consumers of an unknown queue; also return their unreadable records, and why they are."""
    answers: list[QueueAnswer] = []
    unreadable = []
    for report in reports:
        try:
            record = read(report)
        except RecordError as error:
            unreadable.append((report, str(error)))
        else:
            answers.append(Unbound(name, record.consumer, record.session, "unknown-queue"))
    return answers, unreadable


def count(events: Iterable[Event], unreadable: int, figures: Figures = FIGURES) -> None:
    """Count the events of a batch, and the records that could not be read."""
    figures.count(DEAD_LETTERS, NAME, "unreadable", by=unreadable)
    for event in events:
        if event.event == "delivered":
            figures.count(QUEUE_DELIVERIES, event.queue)
            figures.count(QUEUE_REDELIVERIES, event.queue, by=event.count > 1)
        elif event.event == "left":
            figures.count(QUEUE_LEFT, event.queue, event.outcome or "")
            figures.count(DEAD_LETTERS, NAME, event.reason or "", by=event.outcome == "dead-letter")
