"""Records between a consumer and a work queue.

A consumer speaks on ``app-acks`` and hears on ``queue-deliveries``; the key of both is its name. A *session* is one
life of a consumer at a queue: a number the consumer chooses, another one each time it binds. The answers to a session
are numbered from 1 without a gap, so that a copy that the service sends after a crash is known as one.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ackstream.protocol.json import decoded
from ackstream.protocol.readers import SampleOutcome

TYPES = ("queue_bind", "queue_alive", "queue_unbind", "queue_settle")
"""Values of ``type`` on ``app-acks`` that are for queues."""

Refusal: TypeAlias = Literal["outcome-not-enabled", "not-held", "held-by-another", "not-in-queue"]
"""Why a settlement has no effect (brokers.md S20, A34)."""

UnboundReason: TypeAlias = Literal["closed", "lost", "replaced", "unknown-queue"]
"""Why a session is over: by its own word; not heard of in time, or before; another of the same name came; no queue."""

Session: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
"""What every JSON reader takes for a whole number."""

# -- what a consumer says


class Bind(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="queue_bind"):
    """Give me messages.

    :ivar backlog: messages it wants to hold at once; granted up to the queue's limit (A32)
    :ivar outcomes: how it may settle besides ``accepted`` (S20)
    """

    queue: str
    consumer: str
    session: Session
    backlog: Annotated[int, Meta(ge=1)] | None = None
    outcomes: tuple[SampleOutcome, ...] = ()


class Alive(msgspec.Struct, frozen=True, tag_field="type", tag="queue_alive"):
    """I am still here; said several times within the time of a session."""

    queue: str
    consumer: str
    session: Session


class Unbind(msgspec.Struct, frozen=True, tag_field="type", tag="queue_unbind"):
    """I am leaving: what I hold is for others."""

    queue: str
    consumer: str
    session: Session


class SettleMessages(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="queue_settle"):
    """I have decided about these messages."""

    queue: str
    consumer: str
    session: Session
    messages: tuple[str, ...]
    outcome: SampleOutcome = "accepted"


ConsumerRecord: TypeAlias = Bind | Alive | Unbind | SettleMessages

# -- what it hears


class Bound(msgspec.Struct, frozen=True, tag_field="type", tag="bound"):
    """The session has begun.

    :ivar backlog: messages it may hold at once (0: any number)
    :ivar lease_ms: how long it may hold each (0: for ever)
    :ivar session_ms: after so long without a word from it the session is lost
    """

    queue: str
    consumer: str
    session: int
    number: int
    backlog: int
    lease_ms: int
    session_ms: int


class MessageDelivered(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="delivered"):
    """A message is yours until you settle it, or its lease or your session ends.

    :ivar message: its id in the queue
    :ivar topic: where in Kafka it is, with ``partition`` and ``offset``; the table ``messages`` names it likewise
    :ivar batch: its batch in that table
    :ivar count: 1 for the first delivery
    """

    queue: str
    consumer: str
    session: int
    number: int
    message: str
    topic: str
    partition: int
    offset: int
    batch: int
    count: int
    subject: str | None = None

    @property
    def redelivered(self) -> bool:
        """Tell whether it was delivered before."""
        return self.count > 1


class NotSettled(msgspec.Struct, frozen=True, tag_field="type", tag="not_settled"):
    """A settlement of a message has no effect."""

    queue: str
    consumer: str
    session: int
    number: int
    message: str
    outcome: SampleOutcome
    reason: Refusal


class Unbound(msgspec.Struct, frozen=True, tag_field="type", tag="unbound"):
    """The session is over; what it held is for others."""

    queue: str
    consumer: str
    session: int
    reason: UnboundReason


ServiceRecord: TypeAlias = Bound | MessageDelivered | NotSettled | Unbound

_consumer_decoder: msgspec.json.Decoder[ConsumerRecord] = msgspec.json.Decoder(ConsumerRecord)
_service_decoder: msgspec.json.Decoder[ServiceRecord] = msgspec.json.Decoder(ServiceRecord)
_encode = msgspec.json.Encoder().encode


class QueueRecordError(ValueError):
    """A record cannot be read; the text says what is wrong with it."""


def read(value: bytes) -> ConsumerRecord:
    """Read what a consumer says.

    :raises QueueRecordError: it is no JSON of one of these records
    """
    return decoded(_consumer_decoder, value, "a queue's consumer", QueueRecordError)


def read_answer(value: bytes) -> ServiceRecord:
    """Read what a consumer hears.

    :raises QueueRecordError: it is no JSON of one of these records
    """
    return decoded(_service_decoder, value, "a queue", QueueRecordError)


def write(record: ConsumerRecord | ServiceRecord) -> bytes:
    """Return the JSON of a record."""
    return _encode(record)
