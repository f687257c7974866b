"""What a queue holds and what it says: messages, consumers, deliveries, returns, exits."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ackstream.protocol.app_acks import Outcome

How: TypeAlias = Literal["settled", "dead-letter", "discarded"]
ExitReason: TypeAlias = Literal[
    "accepted", "sent", "rejected", "max-deliveries", "max-failures", "expired", "settled-early", "barrier"
]
IgnoredReason: TypeAlias = Literal["not-held", "held-by-another", "not-in-queue"]


class Delivery(msgspec.Struct, frozen=True):
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


class Message(msgspec.Struct, array_like=True):
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
    outcomes: frozenset[Outcome]
    held: dict[str, None] = {}

    @property
    def has_room(self) -> bool:
        """Tell whether it may hold one more message."""
        return not self.backlog or len(self.held) < self.backlog


class QueueState(msgspec.Struct, array_like=True):
    """All that a queue remembers: messages oldest first, consumers in the order they came."""

    messages: list[Message]
    consumers: list[Consumer]
    early: dict[str, int]
    order: int
    turn: str | None
