"""The messages of one source in flight: the answers that they wait for, their attempts, and their settlements.

Source of the rules: Eclipse Ditto, ``ResponseCollectorActor``, ``OutboundMappingProcessorActor``, ``ResponseType``,
``BaseConsumerActor`` (ditto.md 4, 7).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import msgspec
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from ackstream.client.core.labels import Labels
from ackstream.connectivity.inbound import Inbound, InboundRequest, Mapped, RejectedSignal
from ackstream.connectivity.system import Answer, SourceFailure, System, Verdict, statuses
from ackstream.connectivity.transports import transport
from ackstream.connectivity.transports.transport import Confirm, ExternalMessage, OutgoingMessage, Published
from ackstream.errors import AckstreamError
from ackstream.kafka.clients import OF_RECORD, backoff
from ackstream.observe.metrics import CONNECTION_MESSAGES, FIGURES
from ackstream.protocol.ditto.acknowledgements import is_success, response_type
from ackstream.protocol.ditto.connection_rules import Settlement, SettlementAnswer, settle
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.ditto.twin.access import Access
from ackstream.protocol.errors import BAD_REQUEST, TOO_LARGE, DittoError, label_not_unique, shown
from ackstream.settings.connections import Connection, ReplyTarget, ResponseKind, Source

Done = Callable[[Settlement], None]
Publish = Callable[[OutgoingMessage, Confirm], None]

log = logging.getLogger(__name__)

_UNSENDABLE, _GIVEN_UP = "connectivity:message.not.sendable", "connectivity:message.given.up"
_MAY_PASS = (AckstreamError, KafkaError, OSError)
"""Errors of a signal that was not sent which may not recur in another attempt."""

CHECK_SECONDS = 1.0
"""How often messages are checked for an expired wait."""
PAUSE_SECONDS = 30.0
"""Maximum time between two attempts: RabbitMQ ends a channel with a message that is not settled for half an hour."""


@dataclass(eq=False)
class _Taken:
    """A message until it is settled, its attempts, and how many of them failed with an answer."""

    message: ExternalMessage
    done: Done
    able: bool
    failures: int
    attempts: int = 0
    parts: list[Mapped] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.message.payload) + sum(map(len, self.message.headers.values()))


class Intake:
    """The :class:`.Receiver` of a source: sends the signals of its messages and settles each one.

    A message whose failure may be temporary is retried alone, so that no other one is executed again with it. Once
    the system has answered its last attempt, it becomes a dead letter; attempts without an answer do not count.
    """

    def __init__(
        self,
        connection: Connection,
        source: Source,
        system: System,
        publish: Publish,
        labels: Labels,
        access: Access,
        rests: Callable[[], bool],
    ) -> None:
        """Send signals to ``system`` and their replies with ``publish``; while it ``rests``, no message is taken."""
        self._connection_id = connection_id = connection.id
        self._max_attempts, self._qos = connection.max_attempts, source.qos
        # acknowledgements are rejected while another client holds one of them, and wait while their lease is late
        self._labels = labels
        self._reply_target = source.reply_target
        self._inbound = Inbound(connection_id, source, access)
        self._limit = source.max_in_flight
        self._system = system
        self._send_reply = publish
        self._open: dict[Collector, _Taken] = {}
        # messages to be retried, with their times
        self._waiting: dict[_Taken, float] = {}
        self._bytes = 0
        # filled by client threads, drained by ``turn``
        self._received: SimpleQueue[tuple[_Part, Answer]] = SimpleQueue()
        # acknowledgements that wait for the lease of their label
        self._late: list[_Part] = []
        self._check_at = 0.0
        self._rests = rests

    @property
    def room(self) -> int:
        """How many more messages may be in flight."""
        if self._rests() or self._bytes >= transport.MAX_BYTES:
            return 0
        return max(0, self._limit - len(self._open) - len(self._waiting))

    def take(self, message: ExternalMessage, done: Done, *, delivered: int = 0, able: bool = True) -> None:
        """Accept a message; see :class:`.Receiver`."""
        taken = _Taken(message, done, able, failures=delivered)
        self._bytes += taken.size
        self._try(taken, redelivered=delivered > 0)

    def _try(self, taken: _Taken, *, redelivered: bool) -> None:
        now, message = time.monotonic(), taken.message
        reason = message.unreadable
        taken.attempts += 1
        if not reason:
            try:
                taken.parts = self._inbound.read(message)
            except Exception as error:
                log.exception("A message of %s cannot be mapped (%s).", self._connection_id, message.identity)
                reason = repr(error)
        if reason:
            # another attempt would fail in the same way
            self._give_up(taken, reason, now)
            return
        collector = Collector(len(taken.parts), now)
        self._open[collector] = taken
        for mapped in taken.parts:
            self._send(_Part(collector, message, mapped), redelivered=redelivered)
        self._decide(collector, now)

    def _give_up(self, taken: _Taken, reason: str, now: float) -> None:
        collector = Collector(1, now)
        self._open[collector] = taken
        self._system.give_up(taken.message, reason, partial(self._receive, _Part(collector, taken.message, None)))

    def turn(self, timeout: float = 0.0) -> None:
        """Process received answers; see :class:`.Receiver`."""
        with suppress(Empty):
            self._note(*self._received.get(timeout > 0, timeout))
            while True:
                self._note(*self._received.get_nowait())
        late, self._late = self._late, []
        for part in late:
            if part.collector in self._open:
                self._send(part)
        now = time.monotonic()
        for taken in [taken for taken, due in self._waiting.items() if due <= now]:
            del self._waiting[taken]
            self._try(taken, redelivered=True)
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            for part in self._late:
                # the answer is late for a reason of this system: its wait begins again
                part.collector.received_at = now
            for collector in list(self._open):
                self._decide(collector, now)

    def forget(self) -> None:
        """Forget all messages; see :class:`.Receiver`."""
        self._open.clear()
        self._waiting.clear()
        self._late.clear()

    def _send(self, part: _Part, *, redelivered: bool = False) -> None:
        """Send a part of a message; the collector receives its result in any case."""
        received, mapped = partial(self._receive, part), part.mapped
        try:
            if isinstance(mapped, RejectedSignal):
                self._refuse(part.message, mapped, received)
            elif isinstance(mapped, InboundRequest):
                replied = partial(self._reply, mapped)
                self._system.ask(mapped, redelivered=redelivered, replied=replied, received=received)
            elif isinstance(mapped, Envelope):
                self._forward(part, mapped, received)
        except Exception as error:
            log.exception("A signal of %s was not sent (%s).", self._connection_id, part.message.identity)
            may_pass = isinstance(error, _MAY_PASS) and not isinstance(error, OF_RECORD)
            received(None if may_pass or isinstance(mapped, RejectedSignal) else error)

    def _forward(self, part: _Part, answer: Envelope, received: Callable[[Answer], None]) -> None:
        """Forward an acknowledgement, if the connection holds its label, or a live response."""
        if answer.topic.criterion != "acks" or self._labels.complete:
            self._system.relay(answer, received)
        elif self._labels.taken:
            taken = RejectedSignal(label_not_unique(), answer.topic, answer.headers, rejects=True)
            self._refuse(part.message, taken, received)
        else:
            self._late.append(part)

    def _refuse(self, message: ExternalMessage, refused: RejectedSignal, received: Callable[[Answer], None]) -> None:
        self._publish(published_error(refused, self._reply_target, self._connection_id))
        # once it is stored: a message that was rejected before that might be lost
        answer = SourceFailure(refused.error.status) if refused.rejects else SettlementAnswer(())
        self._system.give_up(message, refused.error.message, received, answer)

    def _note(self, part: _Part, answer: Answer) -> None:
        if isinstance(answer, Exception):
            # another attempt would fail in the same way
            large = isinstance(answer, MessageSizeTooLargeError | RecordListTooLargeError)
            why = f"The signal cannot be sent: {shown(answer)}"
            refused = _refused(part.mapped, DittoError(TOO_LARGE if large else BAD_REQUEST, _UNSENDABLE, why))
            self._send(part._replace(mapped=refused))
            return
        now = time.monotonic()
        part.collector.receive(answer, now)
        self._decide(part.collector, now)

    def _decide(self, collector: Collector, now: float) -> None:
        settlement = collector.settlement(now)
        if settlement is None or (taken := self._open.pop(collector, None)) is None:
            return
        FIGURES.count(CONNECTION_MESSAGES, self._connection_id, "inbound", settlement)
        if not transport.redelivers(settlement, self._qos, able=taken.able):
            self._bytes -= taken.size
            taken.done(settlement)
            return
        status = collector.failure
        taken.failures += status is not None
        if status is None or taken.failures < self._max_attempts:
            self._waiting[taken] = now + min(backoff(taken.attempts), PAUSE_SECONDS)
            return
        why = f"It failed {taken.failures} times, as often as connections.max_attempts permits; last with {status}."
        error = DittoError(status, _GIVEN_UP, why)
        for mapped in taken.parts:
            self._publish(published_error(_refused(mapped, error), self._reply_target, self._connection_id))
        self._give_up(taken, why, now)

    def _receive(self, part: _Part, answer: Answer) -> None:
        self._received.put((part, answer))

    def _reply(self, asked: InboundRequest, answer: Envelope) -> None:
        headers, answer = asked.envelope.headers, self._inbound.readable(asked, answer)
        self._publish(published_reply(answer, headers, self._reply_target, self._connection_id))

    def _publish(self, message: OutgoingMessage | None) -> None:
        if message is not None:
            self._send_reply(message, self._published)

    def _published(self, result: Published) -> None:
        if not result.succeeded:
            log.warning("A reply of %s was not published: %s", self._connection_id, result.reason)


class _Part(NamedTuple):
    """A part of a message; ``None`` if the message could not be mapped."""

    collector: Collector
    message: ExternalMessage
    mapped: Mapped | None


def _refused(mapped: Mapped | None, error: DittoError) -> RejectedSignal:
    envelope = mapped.envelope if isinstance(mapped, InboundRequest) else mapped
    if not isinstance(envelope, Envelope):
        return RejectedSignal(error, None, {}, rejects=False)
    return RejectedSignal(error, envelope.topic, envelope.headers, rejects=False)


IDLE_SECONDS = 100.0
"""Seconds without an answer after which the wait is abandoned."""


class Collector:
    """Collects the answers for one message until its settlement is known. Times are monotonic seconds."""

    def __init__(self, expected: int, now: float) -> None:
        self._expected = expected
        self._answers: list[SettlementAnswer] = []
        self._failure: int | None = None
        self._missing = False
        self.received_at = now

    def receive(self, answer: Verdict | None, now: float) -> None:
        """Record an answer, an error in its place, or ``None`` if it will never arrive."""
        if isinstance(answer, SettlementAnswer):
            self._answers.append(answer)
        elif answer is None:
            self._missing = True
        elif self._failure is None:
            self._failure = answer.status
        self.received_at = now

    @property
    def failure(self) -> int | None:
        """The status of the system's answer, if that is a failure."""
        failed = [status for answer in self._answers if answer.failed for status in answer.statuses]
        return max(failed, default=None) if self._failure is None else self._failure

    def settlement(self, now: float) -> Settlement | None:
        """Return how to settle the message, or ``None`` while that is open."""
        if self._failure is not None:
            return settle(self._expected, error_status=self._failure)
        complete = len(self._answers) >= self._expected and not self._missing
        if complete or self._missing or now - self.received_at >= IDLE_SECONDS:
            return settle(self._expected, self._answers, complete=complete)
        return None


def published_reply(
    answer: Envelope, asked: Mapping[str, Any], target: ReplyTarget | None, connection_id: str
) -> OutgoingMessage | None:
    """Convert the answer to a request with headers ``asked``; ``None`` without a reply target for its kind."""
    if target is None or response_kind(answer) not in target.expected:
        return None
    headers = dict(answer.headers)
    if CORRELATION_ID in asked:
        headers[CORRELATION_ID] = asked[CORRELATION_ID]
    named = msgspec.structs.replace(answer, headers=headers)
    further = transport.text_headers(asked)
    return transport.outgoing(named, target.address, target.header_mapping, connection_id, further=further)


def published_error(refused: RejectedSignal, target: ReplyTarget | None, connection_id: str) -> OutgoingMessage | None:
    """Convert the error of a rejected signal for the reply target, or return ``None``."""
    topic = refused.topic
    thing_id, channel = (None, None) if topic is None else (topic.thing_id, topic.channel)
    answer = error_envelope(refused.error, thing_id=thing_id, channel=channel, headers=refused.headers)
    return published_reply(answer, refused.headers, target, connection_id)


def response_kind(answer: Envelope) -> ResponseKind:
    """Classify an answer: acknowledgements are a ``response`` if all succeeded, else a ``nack``."""
    if answer.topic.criterion == "errors":
        return "error"
    if answer.topic.criterion != "acks" or is_success(answer.status or 0):
        return "response"
    return response_type(statuses(answer))
