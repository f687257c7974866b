"""What a client has done so far, as frozen values."""

from __future__ import annotations

import msgspec


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
