"""The messages of one source that are on their way through the system."""

from __future__ import annotations

import logging
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.connectivity.inbound import Asked, Inbound, Refused, Relayed
from ackstream.connectivity.transport import outgoing, text_headers
from ackstream.protocol.ditto.acknowledgements import read_ack, read_acks, response_type
from ackstream.protocol.ditto.envelopes import error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.ditto.settlement import Settlement, SettlementAnswer, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.system import Received, System
    from ackstream.connectivity.transport import ExternalMessage, OutgoingMessage, TargetPublisher
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.settlement import Settlement
    from ackstream.settings.connections import Source

    Done = Callable[[Settlement], None]
    from collections.abc import Mapping

    from ackstream.settings.connections import ReplyTarget, ResponseKind


log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""So often is looked for messages whose wait is to be given up."""


class Intake:
    """Takes messages, and says of each what becomes of it; for one thread, which calls ``turn`` again and again."""

    def __init__(self, connection_id: str, source: Source, system: System, publisher: TargetPublisher) -> None:
        """Send what the messages mean to ``system``, and their answers to ``publisher``."""
        self._connection_id = connection_id
        self._reply_target = source.reply_target
        self._inbound = Inbound(connection_id, source)
        self._limit = source.max_in_flight
        self._system = system
        self._publisher = publisher
        self._open: dict[Collector, Done] = {}
        # filled by the threads of the clients, emptied by ours
        self._news: SimpleQueue[tuple[Collector, SettlementAnswer | SourceFailure | None]] = SimpleQueue()
        self._check_at = 0.0

    @property
    def room(self) -> int:
        """How many more messages may be taken: beyond the limit none is read."""
        return max(0, self._limit - len(self._open))

    def take(self, message: ExternalMessage, done: Done, *, redelivered: bool = False) -> None:
        """Take a message; ``done`` is called once, in this thread, with what becomes of it.

        :param redelivered: it may have come before
        """
        now = time.monotonic()
        collector = Collector(now)
        self._open[collector] = done
        try:
            parts = self._inbound.read(message)
        except Exception:
            # it would fail the next time, too
            log.exception("A message of %s was left out (%s).", self._connection_id, message.identity)
            parts = []
        expected = 0
        for part in parts:
            if isinstance(part, Refused):
                self._publish(published_error(part, self._reply_target, self._connection_id))
                if part.rejects:
                    collector.receive(SourceFailure(part.error.status), now)
                continue
            expected += 1
            try:
                self._send(part, partial(self._receive, collector), redelivered=redelivered)
            except Exception:
                log.exception("A signal of %s was not sent (%s).", self._connection_id, message.identity)
                collector.receive(None, now)
        collector.expect(expected, now)
        self._decide(collector, now)

    def _send(self, part: Asked | Relayed, received: Received, *, redelivered: bool) -> None:
        if isinstance(part, Relayed):
            self._system.relay(part.envelope, received)
        else:
            self._system.ask(part, redelivered=redelivered, replied=partial(self._reply, part), received=received)

    def turn(self, timeout: float = 0.0) -> None:
        """Let answers count that have come; wait for the first one at most so many seconds."""
        try:
            news = self._news.get(timeout=timeout) if timeout > 0 else self._news.get_nowait()
            while True:
                collector, answer = news
                now = time.monotonic()
                collector.receive(answer, now)
                self._decide(collector, now)
                news = self._news.get_nowait()
        except Empty:
            pass
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            for collector in list(self._open):
                self._decide(collector, now)

    def forget(self) -> None:
        """Let go of all messages: they come again."""
        self._open.clear()

    def _decide(self, collector: Collector, now: float) -> None:
        settlement = collector.settlement(now)
        done = None if settlement is None else self._open.pop(collector, None)
        if settlement is not None and done is not None:
            done(settlement)

    def _receive(self, collector: Collector, answer: SettlementAnswer | SourceFailure | None) -> None:
        self._news.put((collector, answer))

    def _reply(self, asked: Asked, answer: Envelope) -> None:
        headers = asked.envelope.headers
        self._publish(published_reply(answer, headers, self._reply_target, self._connection_id))

    def _publish(self, message: OutgoingMessage | None) -> None:
        if message is not None:
            self._publisher.publish(message, self._published)

    def _published(self, result: object) -> None:
        if isinstance(result, BaseException):
            log.warning("An answer of %s was not published: %s", self._connection_id, result)


# -- The answers to the signals of one message, until it is known what becomes of the message.
# Source of the rules: Eclipse Ditto, ``ResponseCollectorActor`` (ditto.md 7).


IDLE_SECONDS = 100.0
"""So long after the last news the wait is given up."""


class Collector:
    """Collects the answers of one message. Time is seconds of any clock that only goes forward."""

    def __init__(self, now: float) -> None:
        """Begin to wait; how many answers there will be is not known yet."""
        self._expected: int | None = None
        self._answers: list[SettlementAnswer] = []
        self._failure: int | None = None
        self._missing = False
        self._news_at = now

    def expect(self, number: int, now: float) -> None:
        """Say how many answers there will be."""
        self._expected = number
        self._news_at = now

    def receive(self, answer: SettlementAnswer | SourceFailure | None, now: float) -> None:
        """Take an answer, an error that came instead, or ``None``: this one will never come."""
        if isinstance(answer, SettlementAnswer):
            self._answers.append(answer)
        elif answer is None:
            self._missing = True
        elif self._failure is None:
            self._failure = answer.status
        self._news_at = now

    def settlement(self, now: float) -> Settlement | None:
        """Return what becomes of the message; ``None`` as long as that is open."""
        if self._failure is not None:
            return settle(self._expected or 0, error_status=self._failure)
        arrived = self._expected is not None and len(self._answers) >= self._expected
        if arrived and not self._missing:
            return settle(self._expected, self._answers)
        if self._missing or now - self._news_at >= IDLE_SECONDS:
            return settle(self._expected, self._answers, complete=False)
        return None


# -- What is published at a source's reply-target, and what an answer means for the settlement of its message.
# Source of the rules: Eclipse Ditto, ``OutboundMappingProcessorActor``, ``ResponseType``, ``BaseConsumerActor``
# (ditto.md 4, 7).


class SourceFailure(msgspec.Struct, frozen=True):
    """An error that came instead of an answer, by its status."""

    status: int


def published_reply(
    answer: Envelope, asked: Mapping[str, Any], target: ReplyTarget | None, connection_id: str
) -> OutgoingMessage | None:
    """Return an answer as it is published; ``None`` where its kind is not expected, or nobody is to get it.

    :param asked: the headers of the request, whose correlation-id the answer has; placeholders find them too
    """
    if target is None or response_kind(answer) not in target.expected:
        return None
    headers = dict(answer.headers)
    if CORRELATION_ID in asked:
        headers[CORRELATION_ID] = asked[CORRELATION_ID]
    named = msgspec.structs.replace(answer, headers=headers)
    return outgoing(named, target.address, target.header_mapping, connection_id, further=text_headers(asked))


def published_error(refused: Refused, target: ReplyTarget | None, connection_id: str) -> OutgoingMessage | None:
    """Return the error of what was refused as it is published, or ``None``."""
    topic = refused.topic
    answer = error_envelope(
        refused.error,
        thing_id=None if topic is None else topic.thing_id,
        channel=None if topic is None else topic.channel,
        headers=refused.headers,
    )
    return published_reply(answer, refused.headers, target, connection_id)


def response_kind(answer: Envelope) -> ResponseKind:
    """Return how an answer counts: acknowledgements are a ``response`` where all succeeded, else a ``nack``."""
    if answer.topic.criterion == "errors":
        return "error"
    return response_type(_statuses(answer)) if answer.topic.criterion == "acks" else "response"


def verdict(answer: Envelope, *, completed_by: str, live: bool) -> SettlementAnswer | SourceFailure:
    """Return what an answer means for the message that asked.

    :param completed_by: what ended the wait, as the record headers of a reply tell
    :param live: the request was a live command or message, so that a response is the business of the two who talk
    """
    if answer.topic.criterion == "acks":
        return SettlementAnswer(_statuses(answer))
    status = answer.status or 500
    if completed_by != "response":
        return SourceFailure(status)
    return SettlementAnswer((status,), live=live)


def _statuses(answer: Envelope) -> tuple[int, ...]:
    acks = read_acks(answer) if answer.topic.subject is None else [read_ack(answer)]
    return tuple(ack.status for ack in acks)
