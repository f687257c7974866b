"""The messages of one source in flight: who still has to answer, and how each message is settled.

Source of the rules: Eclipse Ditto, ``ResponseCollectorActor``, ``OutboundMappingProcessorActor``, ``ResponseType``,
``BaseConsumerActor`` (ditto.md 4, 7).
"""

from __future__ import annotations

import logging
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.connectivity.inbound import Inbound, InboundRequest, RejectedSignal
from ackstream.connectivity.transport import outgoing, text_headers
from ackstream.protocol.ditto.acknowledgements import read_ack, read_acks, response_type
from ackstream.protocol.ditto.connections import Settlement, SettlementAnswer, settle
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.connectivity.system import System
    from ackstream.connectivity.transport import ExternalMessage, OutgoingMessage, TargetPublisher
    from ackstream.settings.connections import ReplyTarget, ResponseKind, Source

    Done = Callable[[Settlement], None]


log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How often messages are checked for an expired wait."""


class Intake:
    """Accepts messages and settles each one; used by a single thread, which calls ``turn`` regularly."""

    def __init__(self, connection_id: str, source: Source, system: System, publisher: TargetPublisher) -> None:
        """Send the signals of messages to ``system`` and their replies to ``publisher``."""
        self._connection_id = connection_id
        self._reply_target = source.reply_target
        self._inbound = Inbound(connection_id, source)
        self._limit = source.max_in_flight
        self._system = system
        self._publisher = publisher
        self._open: dict[Collector, Done] = {}
        # filled by client threads, drained by ``turn``
        self._received: SimpleQueue[tuple[Collector, SettlementAnswer | SourceFailure | None]] = SimpleQueue()
        self._check_at = 0.0

    @property
    def room(self) -> int:
        """How many more messages may be accepted before the in-flight limit."""
        return max(0, self._limit - len(self._open))

    def take(self, message: ExternalMessage, done: Done, *, redelivered: bool = False) -> None:
        """Accept a message; ``done`` is called once, in this thread, with its settlement.

        :param redelivered: it may have been delivered before
        """
        try:
            parts = self._inbound.read(message)
        except Exception:
            # redelivery would fail in the same way
            log.exception(
                "A message of %s cannot be mapped and is dropped (%s).", self._connection_id, message.identity
            )
            parts = []
        now = time.monotonic()
        collector = Collector(sum(not isinstance(part, RejectedSignal) for part in parts), now)
        self._open[collector] = done
        for part in parts:
            if isinstance(part, RejectedSignal):
                self._publish(published_error(part, self._reply_target, self._connection_id))
                if part.rejects:
                    collector.receive(SourceFailure(part.error.status), now)
                continue
            received = partial(self._receive, collector)
            try:
                if isinstance(part, Envelope):
                    self._system.relay(part, received)
                else:
                    replied = partial(self._reply, part)
                    self._system.ask(part, redelivered=redelivered, replied=replied, received=received)
            except Exception:
                log.exception("A signal of %s was not sent (%s).", self._connection_id, message.identity)
                collector.receive(None, now)
        self._decide(collector, now)

    def turn(self, timeout: float = 0.0) -> None:
        """Process received answers, waiting up to ``timeout`` seconds for the first."""
        try:
            entry = self._received.get(timeout=timeout) if timeout > 0 else self._received.get_nowait()
            while True:
                collector, answer = entry
                now = time.monotonic()
                collector.receive(answer, now)
                self._decide(collector, now)
                entry = self._received.get_nowait()
        except Empty:
            pass
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            for collector in list(self._open):
                self._decide(collector, now)

    def forget(self) -> None:
        """Forget all messages; they will be delivered again."""
        self._open.clear()

    def _decide(self, collector: Collector, now: float) -> None:
        settlement = collector.settlement(now)
        if settlement is not None and (done := self._open.pop(collector, None)) is not None:
            done(settlement)

    def _receive(self, collector: Collector, answer: SettlementAnswer | SourceFailure | None) -> None:
        self._received.put((collector, answer))

    def _reply(self, asked: InboundRequest, answer: Envelope) -> None:
        headers = asked.envelope.headers
        self._publish(published_reply(answer, headers, self._reply_target, self._connection_id))

    def _publish(self, message: OutgoingMessage | None) -> None:
        if message is not None:
            self._publisher.publish(message, self._published)

    def _published(self, result: object) -> None:
        if isinstance(result, BaseException):
            log.warning("A reply of %s was not published: %s", self._connection_id, result)


IDLE_SECONDS = 100.0
"""Seconds without an answer after which the wait is abandoned."""


class Collector:
    """Collects the answers for one message until its settlement is known. Times are monotonic seconds."""

    def __init__(self, expected: int, now: float) -> None:
        """Wait for a number of answers."""
        self._expected = expected
        self._answers: list[SettlementAnswer] = []
        self._failure: int | None = None
        self._missing = False
        self._received_at = now

    def receive(self, answer: SettlementAnswer | SourceFailure | None, now: float) -> None:
        """Record an answer, an error in its place, or ``None`` if it will never arrive."""
        if isinstance(answer, SettlementAnswer):
            self._answers.append(answer)
        elif answer is None:
            self._missing = True
        elif self._failure is None:
            self._failure = answer.status
        self._received_at = now

    def settlement(self, now: float) -> Settlement | None:
        """Return how to settle the message, or ``None`` while that is open."""
        if self._failure is not None:
            return settle(self._expected, error_status=self._failure)
        complete = len(self._answers) >= self._expected and not self._missing
        if complete or self._missing or now - self._received_at >= IDLE_SECONDS:
            return settle(self._expected, self._answers, complete=complete)
        return None


class SourceFailure(msgspec.Struct, frozen=True):
    """The status of an error received in place of an answer."""

    status: int


def published_reply(
    answer: Envelope, asked: Mapping[str, Any], target: ReplyTarget | None, connection_id: str
) -> OutgoingMessage | None:
    """Convert an answer for the reply target; ``None`` without a target or if its kind is not expected.

    :param asked: headers of the request: source of the correlation-id and of placeholders
    """
    if target is None or response_kind(answer) not in target.expected:
        return None
    headers = dict(answer.headers)
    if CORRELATION_ID in asked:
        headers[CORRELATION_ID] = asked[CORRELATION_ID]
    named = msgspec.structs.replace(answer, headers=headers)
    return outgoing(named, target.address, target.header_mapping, connection_id, further=text_headers(asked))


def published_error(refused: RejectedSignal, target: ReplyTarget | None, connection_id: str) -> OutgoingMessage | None:
    """Convert the error of a rejected signal for the reply target, or return ``None``."""
    topic = refused.topic
    answer = error_envelope(
        refused.error,
        thing_id=None if topic is None else topic.thing_id,
        channel=None if topic is None else topic.channel,
        headers=refused.headers,
    )
    return published_reply(answer, refused.headers, target, connection_id)


def response_kind(answer: Envelope) -> ResponseKind:
    """Classify an answer: acknowledgements are a ``response`` if all succeeded, else a ``nack``."""
    if answer.topic.criterion == "errors":
        return "error"
    return response_type(_statuses(answer)) if answer.topic.criterion == "acks" else "response"


def verdict(answer: Envelope, *, completed_by: str, live: bool) -> SettlementAnswer | SourceFailure:
    """Return what an answer means for the settlement of the requesting message.

    :param completed_by: what ended the wait, from the record headers of the reply
    :param live: the request was a live command or message, so any response counts as processed
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
