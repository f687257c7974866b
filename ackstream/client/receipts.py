"""What clients report: receipts of messages, the location of a stored request, and statistics."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Stage: TypeAlias = Literal["accepted", "persisted"]
"""What a receipt confirms: Kafka has stored the message (milliseconds), or the tables hold it (a batch later)."""


class Receipt(msgspec.Struct, frozen=True):
    """The acknowledgement of a message.

    :ivar context: what the application passed to ``publish``
    :ivar first: the first message that this receipt covers; ``seq`` itself unless receipts are windowed
    :ivar duplicate: it was already stored; the first copy counts
    """

    seq: int
    stage: Stage
    context: Any
    first: int
    timestamp_ms: int
    duplicate: bool = False


class FailedMessage(msgspec.Struct, frozen=True):
    """A refused message or a duplicate, with the stored copy, for the failed-write handler."""

    seq: int
    reason: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    context: Any


class PublishStatistics(msgspec.Struct, frozen=True):
    """Counts since the publisher started.

    ``published`` messages were numbered, ``accepted`` stored by Kafka, ``acknowledged`` at the publisher's stage,
    ``failed`` refused; ``unpersisted`` are still in the store. ``resent`` counts retransmissions, ``window_closed`` how
    often a message had to wait for room.
    """

    published: int
    accepted: int
    acknowledged: int
    failed: int
    unpersisted: int
    resent: int
    window_closed: int


class RequesterStatistics(msgspec.Struct, frozen=True):
    """Requests by outcome, and unused records of the reply topic by reason.

    ``sent`` is the sum of ``answered``, ``published`` (stored, without a reply), ``open``, ``no_reply``, ``not_sent``.
    ``foreign`` replies belong to other requesters, ``repeats`` are duplicates that arrived while a request with the
    same correlation-id was open, ``malformed`` records were addressed to a request but are not replies, ``unreadable``
    ones could not be unpacked.
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


class Stored(msgspec.Struct, frozen=True):
    """Where the broker stored a request without a reply; ``timestamp`` in epoch milliseconds."""

    correlation_id: str
    topic: str
    partition: int
    offset: int
    timestamp: int


class ReaderStatistics(msgspec.Struct, frozen=True):
    """Samples of publishers' messages by outcome.

    ``received`` samples were stored and not refused; the application got the ``handed_out`` ones, acknowledged the
    ``acknowledged`` ones, and never saw ``filtered`` and ``replaced`` ones. ``failed`` ended in an exception of the
    handler; the application rejected the ``rejected`` ones. ``waiting`` messages are not known to be stored yet.
    ``repeats`` are duplicates or were acknowledged before, ``fetched`` were read from the table, ``lost`` are no longer
    in Kafka and could not be read from a table.
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
