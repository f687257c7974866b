"""What a work queue holds and reports: events, messages, consumers, and the records of its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.protocol.queues import UnboundReason
from ackstream.protocol.readers import SampleOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.settings.queues import Fairness

ReturnReason: TypeAlias = SampleOutcome | UnboundReason | Literal["lease"]
EventKind: TypeAlias = Literal["delivered", "returned", "refused", "left"]


# -- events -----------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a message: a row of ``queue_events``. Times are epoch milliseconds.

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
    reason: ReturnReason
    consumer: str | None = None


# -- state -------------------------------------------------------------------------------------------------------------


class QueuedMessage(msgspec.Struct, array_like=True):
    """A message in the queue; ``holders`` maps its consumers to the ends of their leases."""

    id: str
    order: int
    expires_at: int | None
    eligible: bool
    barrier: bool
    deliveries: int = 0
    failures: int = 0
    not_before: int = 0
    holders: dict[str, int | None] = {}


class MessageLocation(msgspec.Struct, array_like=True):
    """Where a queued message is stored, and its last delivery."""

    topic: str
    partition: int
    offset: int
    batch: int
    subject: str | None
    received_at: int
    count: int = 0
    consumer: str | None = None

    @property
    def subject_bytes(self) -> int:
        """What its topic counts towards the size of the queue."""
        return len(self.subject or "")


class Consumer(msgspec.Struct, array_like=True):
    """A bound consumer; a ``backlog`` of 0 is unlimited, and one that is ``stopped`` wants no messages."""

    name: str
    backlog: int
    outcomes: frozenset[SampleOutcome]
    held: dict[str, None] = {}
    stopped: bool = False

    @property
    def has_room(self) -> bool:
        """Whether it may hold one more message, and wants one."""
        return not self.stopped and (not self.backlog or len(self.held) < self.backlog)


class QueueState(msgspec.Struct, array_like=True):
    """The state of a queue: messages oldest first, consumers in the order in which they bound."""

    messages: list[QueuedMessage]
    consumers: list[Consumer]
    early: dict[str, int]
    order: int
    turn: str | None


def choose(consumers: Sequence[Consumer], fairness: Fairness, last: str | None) -> Consumer | None:
    """Choose the consumer of the next message; ``None`` if all are full (brokers.md A37, AMPS-38).

    :param consumers: in the order in which they bound
    :param last: the consumer of the previous message, for ``round-robin``
    """
    turn = 0
    if fairness == "round-robin":
        turn = next((index for index, consumer in enumerate(consumers, 1) if consumer.name == last), 0)
    free = [consumer for consumer in (*consumers[turn:], *consumers[:turn]) if consumer.has_room]
    if fairness == "proportional":
        return min(free, key=lambda one: len(one.held) / one.backlog if one.backlog else 0.0, default=None)
    return next(iter(free), None)


# -- records of the operator -------------------------------------------------------------------------------------------


def message_id(topic: str, partition: int, offset: int) -> str:
    """Return the id in a queue of a message with these coordinates."""
    return f"{topic}-{partition}-{offset}"


class Arrival(msgspec.Struct, frozen=True):
    """A message of the table ``messages``, identified in a queue by its Kafka coordinates."""

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


class ConsumerReport(msgspec.Struct, frozen=True):
    """A record of a consumer, not decoded; ``value`` is ``None`` if it was too large to be read."""

    timestamp: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def coordinates(record: Arrival | ConsumerReport) -> tuple[int, int, int, int]:
    """Return what orders the records of a batch; at equal times, messages come first."""
    return record.timestamp, isinstance(record, ConsumerReport), record.partition, record.offset
