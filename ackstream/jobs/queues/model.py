"""What a queue holds and what it says: messages, consumers, deliveries, returns, exits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ackstream.protocol.readers import SampleOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.settings.queues import Fairness


How: TypeAlias = Literal["settled", "dead-letter", "discarded"]
ExitReason: TypeAlias = Literal[
    "accepted", "sent", "rejected", "max-deliveries", "max-failures", "expired", "settled-early", "barrier"
]
IgnoredReason: TypeAlias = Literal["not-held", "held-by-another", "not-in-queue"]


class QueuedDelivery(msgspec.Struct, frozen=True):
    """A message goes to a consumer: ``count`` 1 is the first delivery."""

    message: str
    consumer: str
    count: int
    at: int

    @property
    def redelivered(self) -> bool:
        """Tell whether it was delivered before."""
        return self.count > 1


class Return(msgspec.Struct, frozen=True):
    """A consumer holds a message no longer, which has not left for that."""

    message: str
    consumer: str
    at: int


class Exit(msgspec.Struct, frozen=True):
    """A message has left the queue."""

    message: str
    at: int
    how: How
    reason: ExitReason


class QueuedMessage(msgspec.Struct, array_like=True):
    """A message in the queue; ``holders`` have it, until the time of their lease."""

    id: str
    order: int
    expires_at: int | None
    eligible: bool
    barrier: bool
    deliveries: int = 0
    failures: int = 0
    not_before: int = 0
    holders: dict[str, int | None] = {}


class Consumer(msgspec.Struct, array_like=True):
    """A bound consumer: ``backlog`` 0 is without limit."""

    name: str
    backlog: int
    outcomes: frozenset[SampleOutcome]
    held: dict[str, None] = {}

    @property
    def has_room(self) -> bool:
        """Tell whether it may hold one more message."""
        return not self.backlog or len(self.held) < self.backlog


class QueueState(msgspec.Struct, array_like=True):
    """All that a queue remembers: messages oldest first, consumers in the order they came."""

    messages: list[QueuedMessage]
    consumers: list[Consumer]
    early: dict[str, int]
    order: int
    turn: str | None


# -- Which consumer gets the next message (brokers.md A37, AMPS-38).


def choose(consumers: Sequence[Consumer], fairness: Fairness, last: str | None) -> Consumer | None:
    """Return the consumer for a message, of those that have room; ``None`` where none has.

    :param consumers: in the order they came
    :param last: who got the message before, for ``round-robin``
    """
    free = [consumer for consumer in consumers if consumer.has_room]
    if not free:
        return None
    if fairness == "fast":
        return free[0]
    if fairness == "proportional":
        return min(free, key=_load)
    names = [consumer.name for consumer in consumers]
    turn = names.index(last) + 1 if last in names else 0
    in_turn = {name: index for index, name in enumerate(names[turn:] + names[:turn])}
    return min(free, key=lambda consumer: in_turn[consumer.name])


def _load(consumer: Consumer) -> float:
    return len(consumer.held) / consumer.backlog if consumer.backlog else 0.0


# -- What goes into a queue's operator and what comes out of it, besides the records of the wire.


class Arrival(msgspec.Struct, frozen=True):
    """A message of the table ``messages``; its id in a queue are its Kafka coordinates."""

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
        """Its name in the queue."""
        return f"{self.topic}-{self.partition}-{self.offset}"


class ConsumerReport(msgspec.Struct, frozen=True):
    """A record of a consumer as it came."""

    timestamp: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes


class Unreadable(msgspec.Struct, frozen=True):
    """A record of no use, and why."""

    key: bytes | None
    value: bytes
    reason: str


Happened: TypeAlias = Literal["delivered", "returned", "refused", "left"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a message: a row of ``queue_events``. Times are epoch milliseconds.

    :ivar consumer: who got it, had it or spoke of it
    :ivar count: how often it has been delivered
    :ivar outcome: how it was settled; of a message that left, what became of it
    :ivar reason: why it was given back, refused, or left
    """

    queue: str
    message: str
    at: int
    event: Happened
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


def coordinates(record: Arrival | ConsumerReport) -> tuple[int, int, int, int]:
    """Return what orders the records of a batch; of one time, messages come first."""
    return record.timestamp, isinstance(record, ConsumerReport), record.partition, record.offset
