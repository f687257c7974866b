"""Records exchanged between a consumer and a work queue.

A consumer sends on ``app-acks`` and receives on ``queue-deliveries``; the key of both is its name. A *session* is one
life of a consumer at a queue: a number that the consumer chooses, a new one each time it binds. The answers to a
session are numbered from 1 without gaps, so that the consumer recognizes the copies sent after a crash.
"""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ackstream.protocol.json import reader
from ackstream.protocol.readers import Name, SampleOutcome

TYPES = ("queue_bind", "queue_alive", "queue_unbind", "queue_settle", "queue_drain")
"""Values of ``type`` on ``app-acks`` that are addressed to queues."""

Settlement: TypeAlias = SampleOutcome | Literal["working"]
"""How a message is settled; ``working`` settles nothing: its holder continues working, and its lease starts again."""

Refusal: TypeAlias = Literal["outcome-not-enabled", "not-held", "held-by-another", "not-in-queue", "max-lease"]
"""Why a settlement has no effect (brokers.md S20, A34); ``max-lease``: the lease may not last longer."""

UnboundReason: TypeAlias = Literal["closed", "lost", "replaced", "unknown-queue"]
"""Why a session ended: the consumer closed it, was silent too long, or was replaced; or the queue does not exist."""

Session: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
"""A whole number that every JSON reader represents exactly."""

MAX_BACKLOG = 2**31 - 1
PREFETCH = 255
"""Maximum messages held by a consumer that names no backlog, as by default in a flow of Solace."""

MessageId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=300)]
"""A topic of Kafka has at most 249 characters; partition and offset follow."""


class _Record(msgspec.Struct, frozen=True):
    queue: Name
    consumer: Name
    session: Session


class Bind(_Record, frozen=True, omit_defaults=True, tag_field="type", tag="queue_bind"):
    """Begins a session of a consumer.

    :ivar backlog: messages it wants to hold at once; granted up to the queue's limit (A32); ``None``: ``PREFETCH``
    :ivar outcomes: the outcomes it may settle with besides ``accepted`` (S20)
    :ivar stopped: the consumer wants no messages for the moment
    """

    backlog: Annotated[int, Meta(ge=1, le=MAX_BACKLOG)] | None = None
    outcomes: tuple[SampleOutcome, ...] = ()
    stopped: bool = False


class Alive(_Record, frozen=True, omit_defaults=True, tag_field="type", tag="queue_alive"):
    """Keeps a session alive; sent several times within its lease. It is the transport ack (S15) and settles nothing.

    :ivar received: the answers up to this number have arrived, or were reported as missing: the leases of their
        messages begin
    :ivar missing: the numbers of answers that were passed over and not yet reported: their messages are delivered again
    :ivar stopped: the consumer wants no messages for the moment
    :ivar handed_out: the application has received the messages of the answers up to this number: their deliveries count
    """

    received: int = 0
    missing: tuple[int, ...] = ()
    stopped: bool = False
    handed_out: int = 0


class Unbind(_Record, frozen=True, omit_defaults=True, tag_field="type", tag="queue_unbind"):
    """Ends a session; its messages go to others. ``handed_out`` is as in :class:`Alive`."""

    handed_out: int = 0


class SettleMessages(_Record, frozen=True, omit_defaults=True, tag_field="type", tag="queue_settle"):
    """Settles messages with one outcome, or restarts their leases (``working``).

    :ivar unavailable: this consumer cannot read them, and gives them back for others, with any outcome: a message
        that none of the queue's consumers can read is given up
    """

    messages: tuple[MessageId, ...]
    outcome: Settlement = "accepted"
    unavailable: bool = False


class Drain(_Record, frozen=True, tag_field="type", tag="queue_drain"):
    """Gives up the messages of a queue that were published before this record.

    ``consumer`` is the operator, and ``session`` the number of the order: its copies have no effect, and no answer.
    """


QueueRequest: TypeAlias = Bind | Alive | Unbind | SettleMessages | Drain
"""Sent by a consumer, or by an operator."""


class Bound(_Record, frozen=True, tag_field="type", tag="bound"):
    """The session has begun, or continues: missing numbers before this one were lost.

    :ivar backlog: messages it may hold at once (0: any number)
    :ivar lease_ms: how long it may hold a message from the record on that reports it as received (0: forever)
    :ivar session_ms: the session is lost after this time without a record from the consumer
    :ivar max_lease_ms: how long it may hold a message that its application has received, if it continues working and
        there is a lease
    """

    number: int
    backlog: int
    lease_ms: int
    session_ms: int
    max_lease_ms: int


class MessageDelivered(_Record, frozen=True, omit_defaults=True, tag_field="type", tag="delivered"):
    """A message belongs to the consumer until it is settled, or its lease or the session ends.

    :ivar message: its id in the queue
    :ivar topic: with ``partition`` and ``offset`` its coordinates in Kafka, and in the table ``messages``
    :ivar batch: its batch in that table
    :ivar count: 1 for the first delivery; deliveries that never reached the application do not count
    """

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
        """Return whether it was delivered before."""
        return self.count > 1


class NotSettled(_Record, frozen=True, tag_field="type", tag="not_settled"):
    """A settlement of a message has no effect."""

    number: int
    message: str
    outcome: Settlement
    reason: Refusal


class Unbound(_Record, frozen=True, tag_field="type", tag="unbound"):
    """The session has ended; its messages go to others."""

    reason: UnboundReason


class Drained(_Record, frozen=True, tag_field="type", tag="drained"):
    """Follows a :class:`Drain`, after ``count`` messages have left the queue."""

    count: int


QueueAnswer: TypeAlias = Bound | MessageDelivered | NotSettled | Unbound | Drained
"""Sent by the service."""

read: Callable[[bytes], QueueRequest] = reader(QueueRequest, "a queue's consumer")
read_answer: Callable[[bytes], QueueAnswer] = reader(QueueAnswer, "a queue")
write = msgspec.json.Encoder().encode
