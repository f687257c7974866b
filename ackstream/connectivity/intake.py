"""The messages of one source in flight: the answers that they wait for, and their settlements.

Source of the rules: Eclipse Ditto, ``ResponseCollectorActor``, ``OutboundMappingProcessorActor``, ``ResponseType``,
``BaseConsumerActor`` (ditto.md 4, 7).
"""

from __future__ import annotations

import logging
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from ackstream.connectivity.inbound import Inbound, InboundRequest, Mapped, RejectedSignal
from ackstream.connectivity.system import SourceFailure, System, statuses
from ackstream.connectivity.transports.transport import OF_RECORD, outgoing, text_headers
from ackstream.errors import AckstreamError
from ackstream.observe.metrics import CONNECTION_MESSAGES, FIGURES
from ackstream.protocol.ditto.acknowledgements import response_type
from ackstream.protocol.ditto.connection_rules import Settlement, SettlementAnswer, settle
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import BAD_REQUEST, TOO_LARGE, DittoError, label_not_unique, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.client.core.labels import Labels
    from ackstream.connectivity.transports.transport import Confirm, ExternalMessage, OutgoingMessage, Published
    from ackstream.protocol.ditto.twin.access import Access
    from ackstream.settings.connections import ReplyTarget, ResponseKind, Source

    Done = Callable[[Settlement], None]
    Publish = Callable[[OutgoingMessage, Confirm], None]
    Answer: TypeAlias = "SettlementAnswer | SourceFailure | Exception | None"

log = logging.getLogger(__name__)

_MAY_PASS = (AckstreamError, KafkaError, OSError)
"""Errors of a signal that was not sent, which another attempt may not meet."""

CHECK_SECONDS = 1.0
"""How often messages are checked for an expired wait."""


class Intake:
    """The :class:`.Receiver` of a source: sends the signals of its messages and settles each one."""

    def __init__(
        self,
        connection_id: str,
        source: Source,
        system: System,
        publish: Publish,
        labels: Labels,
        access: Access,
        rests: Callable[[], bool],
    ) -> None:
        """Send the signals of messages to ``system`` and their replies with ``publish``, as far as access permits.

        :param labels: acknowledgements are rejected while another client holds one of them, and wait while their lease
            is late
        :param rests: returns whether no message may be taken, as while too many replies wait
        """
        self._connection_id = connection_id
        self._labels = labels
        self._reply_target = source.reply_target
        self._inbound = Inbound(connection_id, source, access)
        self._limit = source.max_in_flight
        self._system = system
        self._send_reply = publish
        self._open: dict[Collector, Done] = {}
        # filled by client threads, drained by ``turn``
        self._received: SimpleQueue[tuple[_Part, Answer]] = SimpleQueue()
        # acknowledgements that wait for the lease of their label
        self._late: list[_Part] = []
        self._check_at = 0.0
        self._rests = rests

    @property
    def room(self) -> int:
        """How many more messages may be in flight."""
        return 0 if self._rests() else max(0, self._limit - len(self._open))

    def take(self, message: ExternalMessage, done: Done, *, redelivered: bool = False) -> None:
        """Accept a message; see :class:`.Receiver`."""
        now = time.monotonic()
        reason, parts = message.unreadable, []
        if not reason:
            try:
                parts = self._inbound.read(message)
            except Exception as error:
                log.exception("A message of %s cannot be mapped (%s).", self._connection_id, message.identity)
                reason = repr(error)
        collector = Collector(1 if reason else len(parts), now)
        self._open[collector] = done
        if reason:
            # redelivery would fail in the same way
            self._system.give_up(message, reason, partial(self._receive, _Part(collector, message, None)))
            return
        for mapped in parts:
            self._send(_Part(collector, message, mapped), redelivered=redelivered)
        self._decide(collector, now)

    def turn(self, timeout: float = 0.0) -> None:
        """Process received answers; see :class:`.Receiver`."""
        try:
            entry = self._received.get(timeout=timeout) if timeout > 0 else self._received.get_nowait()
            while True:
                self._note(*entry)
                entry = self._received.get_nowait()
        except Empty:
            pass
        late, self._late = self._late, []
        for part in late:
            if part.collector in self._open:
                self._send(part)
        now = time.monotonic()
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
            # redelivery would fail in the same way
            self._send(part._replace(mapped=_unsendable(part.mapped, answer)))
            return
        now = time.monotonic()
        part.collector.receive(answer, now)
        self._decide(part.collector, now)

    def _decide(self, collector: Collector, now: float) -> None:
        settlement = collector.settlement(now)
        if settlement is not None and (done := self._open.pop(collector, None)) is not None:
            FIGURES.count(CONNECTION_MESSAGES, self._connection_id, "inbound", settlement)
            done(settlement)

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


def _unsendable(mapped: Mapped | None, error: Exception) -> RejectedSignal:
    """Return the refusal of a signal that Kafka does not accept, or that a client library cannot send."""
    status = TOO_LARGE if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError) else BAD_REQUEST
    refused = DittoError(status, "connectivity:message.not.sendable", f"The signal cannot be sent: {shown(error)}")
    envelope = mapped.envelope if isinstance(mapped, InboundRequest) else mapped
    if not isinstance(envelope, Envelope):
        return RejectedSignal(refused, None, {}, rejects=False)
    return RejectedSignal(refused, envelope.topic, envelope.headers, rejects=False)


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

    def receive(self, answer: SettlementAnswer | SourceFailure | None, now: float) -> None:
        """Record an answer, an error in its place, or ``None`` if it will never arrive."""
        if isinstance(answer, SettlementAnswer):
            self._answers.append(answer)
        elif answer is None:
            self._missing = True
        elif self._failure is None:
            self._failure = answer.status
        self.received_at = now

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
    """Convert an answer to a request with headers ``asked``; ``None`` without a reply target that expects its kind."""
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
    return response_type(statuses(answer)) if answer.topic.criterion == "acks" else "response"
