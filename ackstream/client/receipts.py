"""What a publisher gets for a message, and what it gets instead."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ackstream.client.errors import ClientError

Stage: TypeAlias = Literal["accepted", "persisted"]
"""How far a message has got: Kafka has stored it (milliseconds), or the tables hold it (a batch later)."""


class Receipt(msgspec.Struct, frozen=True):
    """A message was acknowledged.

    :ivar stage: what it was acknowledged for
    :ivar context: what the application gave along
    :ivar first: the first message this receipt is about; ``seq`` itself unless receipts are windowed
    :ivar duplicate: the service had it already; its first copy counts
    """

    seq: int
    stage: Stage
    context: Any
    first: int
    timestamp_ms: int
    duplicate: bool = False


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that was refused, with the stored copy, for the failed-write handler."""

    seq: int
    reason: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    context: Any


class PublishStatistics(msgspec.Struct, frozen=True):
    """Counts since the publisher began.

    ``published`` messages were numbered; ``accepted`` were stored by Kafka, ``acknowledged`` at the publisher's stage,
    ``failed`` refused; ``unpersisted`` are kept still. ``resent`` counts transmissions that were not the first, and
    ``window_closed`` how often a message had to wait for room.
    """

    published: int
    accepted: int
    acknowledged: int
    failed: int
    unpersisted: int
    resent: int
    window_closed: int


class WouldBlockError(ClientError):
    """The publish window is full, and the publisher was told not to wait."""


class AcknowledgementTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """No acknowledgement in time: the outcome is unknown. The message is kept, and may be stored or stored later."""


class ReaderTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Readers have not acknowledged in time: what they were waited for with is kept, and nothing is lost."""


class FlushTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Not everything was acknowledged in time; what was not is kept and goes on being sent."""


class LogonTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """No answer to the logon: the job that persists messages is not running, or far behind."""


class PublisherClosedError(ClientError):
    """The publisher was closed before the acknowledgement came; a store in a file keeps the message."""


# -- What a client has done so far, as frozen values.


class RequesterStatistics(msgspec.Struct, frozen=True):
    """Requests sent and how they ended; records of the reply topic that were not used, and why.

    ``sent`` is the sum of ``answered``, ``published`` (stored, no answer wanted), ``open``, ``no_reply``, ``not_sent``.
    ``foreign`` are replies to others, ``repeats`` came twice while a request with the same correlation-id was open,
    ``malformed`` were addressed to a request but are no replies, ``unreadable`` could not be unpacked.
    """

    sent: int
    answered: int
    published: int
    open: int
    no_reply: int
    not_sent: int
    repeats: int
    foreign: int
    malformed: int
    unreadable: int


class ResponderStatistics(msgspec.Struct, frozen=True):
    """Signals and what became of them.

    ``received`` is the sum of ``handled`` and ``skipped`` (no valid request); of the handled ones ``failed`` ended in
    an exception. ``answers`` are messages stored by the broker, ``delayed`` wait for their time, ``sending`` for the
    broker, ``lost`` were refused by it. ``unreadable`` records could not be unpacked.
    """

    received: int
    handled: int
    skipped: int
    failed: int
    answers: int
    delayed: int
    sending: int
    lost: int
    unreadable: int


class SubscriberStatistics(msgspec.Struct, frozen=True):
    """Signals and what became of them.

    ``received`` is the sum of ``handled``, ``dropped`` (not subscribed, filtered or hidden) and ``skipped`` (invalid);
    of the handled ones ``failed`` ended in an exception, ``unanswered`` were not acknowledged in their time. ``weak``
    are the weak acknowledgements for dropped ones. The rest is as in ``ResponderStatistics``.
    """

    received: int
    handled: int
    dropped: int
    skipped: int
    failed: int
    unanswered: int
    weak: int
    answers: int
    delayed: int
    sending: int
    lost: int
    unreadable: int


class Stored(msgspec.Struct, frozen=True):
    """Where the broker stored a request that is not answered; ``timestamp`` in epoch milliseconds."""

    correlation_id: str
    topic: str
    partition: int
    offset: int
    timestamp: int


class ReaderStatistics(msgspec.Struct, frozen=True):
    """Samples of publishers' messages and what became of them.

    ``received`` samples were stored and not refused; ``handed_out`` ones the application was given, ``acknowledged`` by
    it, ``filtered`` and ``replaced`` ones it never saw. ``failed`` ended in an exception of the handler, ``rejected``
    by the application. ``waiting`` messages are not known to be stored yet. ``repeats`` came twice or were acknowledged
    before, ``fetched`` came from the table, ``lost`` are in Kafka no more and no table was given.
    """

    received: int
    handed_out: int
    acknowledged: int
    filtered: int
    replaced: int
    failed: int
    rejected: int
    waiting: int
    repeats: int
    fetched: int
    lost: int
    unreadable: int
