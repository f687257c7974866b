"""A queue as its consumers know it over the wire: sessions, numbered answers, and an event of all that happens.

Pure: records and a watermark in; answers, events and what could not be read out; the state goes to bytes and back. A
record counts by its own timestamp, and time passes with records and with the watermark alone; so for the same order of
records nothing depends on where batches are cut, and a batch that runs again says the same again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ackstream.errors import OutcomeNotEnabledError
from ackstream.jobs.queues.model import Arrival, Event, QueueState, Unreadable, coordinates
from ackstream.jobs.queues.queue import Queue
from ackstream.protocol import queues
from ackstream.protocol.queues import (
    Bind,
    Bound,
    ConsumerRecord,
    MessageDelivered,
    NotSettled,
    QueueRecordError,
    Refusal,
    ServiceRecord,
    SettleMessages,
    Unbind,
    Unbound,
    UnboundReason,
)
from ackstream.spark.order import timed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackstream.jobs.queues.model import ConsumerReport, Happened
    from ackstream.protocol.readers import SampleOutcome
    from ackstream.settings.queues import QueueSettings

STATE_VERSION = 1
MAX_TTL_MS = 100 * 365 * 86_400_000
"""Longer ones would leave the range of times."""


class _Session(msgspec.Struct, array_like=True):
    id: int
    until: int
    number: int = 0


class _Place(msgspec.Struct, array_like=True):
    """Where a message is, and its last delivery."""

    topic: str
    partition: int
    offset: int
    batch: int
    subject: str | None
    received_at: int
    count: int = 0
    consumer: str | None = None


class _EndpointState(msgspec.Struct, array_like=True):
    """What the blob holds; :data:`STATE_VERSION` names this shape."""

    now: int
    sessions: dict[str, _Session]
    places: dict[str, _Place]
    queue: QueueState


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_EndpointState).decode


class Endpoint:
    """One queue and the sessions of its consumers.

    Use: :meth:`load`, one :meth:`process` a batch, then :meth:`dump` and :attr:`next_timeout`.
    """

    def __init__(self, name: str, rules: QueueSettings, session_ms: int) -> None:
        """Begin empty.

        :param session_ms: after so long without a word from it a consumer is lost
        """
        self._name = name
        self._rules = rules
        self._session_ms = session_ms
        self._queue = Queue(rules)
        self._sessions: dict[str, _Session] = {}
        self._places: dict[str, _Place] = {}
        self._now = 0
        self.answers: list[ServiceRecord] = []
        self.events: list[Event] = []
        self.unreadable: list[Unreadable] = []

    def load(self, version: int, blob: bytes) -> None:
        """Take over the state that :meth:`dump` gave.

        :raises ValueError: a version this release does not know
        """
        if version != STATE_VERSION:
            raise ValueError(f"The state has version {version}; this release reads version {STATE_VERSION}.")
        state = _decode(blob)
        self._now, self._sessions, self._places = state.now, state.sessions, state.places
        self._queue = Queue.load(self._rules, state.queue)

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` where nothing is left to remember."""
        queue = self._queue.dump()
        if queue is None:
            return None
        return STATE_VERSION, _encode(_EndpointState(self._now, self._sessions, self._places, queue))

    @property
    def next_timeout(self) -> int | None:
        """The earliest time (epoch milliseconds) at which something happens by itself."""
        times = [session.until for session in self._sessions.values()]
        if self._queue.deadline is not None:
            times.append(self._queue.deadline)
        return min(times, default=None)

    def process(self, arrivals: Sequence[Arrival], said: Sequence[ConsumerReport], watermark: int) -> None:
        """Take what a batch brings; it adds to ``answers``, ``events`` and ``unreadable``.

        :param watermark: all that consumers said before this time (epoch milliseconds) was read before this batch
        """
        self._pass_time(watermark)
        received: list[Arrival | ConsumerReport] = [*arrivals, *said]
        for timestamp, record in timed(received, coordinates):
            self._pass_time(timestamp)
            if isinstance(record, Arrival):
                self._arrive(record)
            else:
                self._hear(record)
            self._dispatch()

    # -- records ------------------------------------------------------------------------------------------------------

    def _arrive(self, record: Arrival) -> None:
        message = record.id
        ttl_ms = min(record.ttl_ms, MAX_TTL_MS)
        new = self._queue.enqueue(
            message, record.timestamp, ttl_ms=ttl_ms, eligible=record.eligible, barrier=record.barrier
        )
        if new:
            self._places[message] = _Place(
                record.topic, record.partition, record.offset, record.batch, record.subject, record.timestamp
            )

    def _hear(self, said: ConsumerReport) -> None:
        try:
            record = queues.read(said.value)
        except QueueRecordError as error:
            self.unreadable.append(Unreadable(said.key, said.value, str(error)))
            return
        session = self._sessions.get(record.consumer)
        if isinstance(record, Bind):
            self._bind(record, session)
        elif session is None or session.id != record.session:
            self._hear_stranger(record, session)
        else:
            session.until = self._now + self._session_ms
            if isinstance(record, SettleMessages):
                self._settle(record, session)
            elif isinstance(record, Unbind):
                self._end(record.consumer, "closed", self._now)

    def _hear_stranger(self, record: ConsumerRecord, session: _Session | None) -> None:
        """Take the word of one who is not bound where anybody may settle; else say that it is not."""
        if isinstance(record, SettleMessages) and session is None and self._rules.settler != "holder":
            self._settle(record, None)
        elif not isinstance(record, Unbind):
            reason: UnboundReason = "lost" if session is None else "replaced"
            self.answers.append(Unbound(self._name, record.consumer, record.session, reason))

    def _bind(self, record: Bind, session: _Session | None) -> None:
        consumer = record.consumer
        if session is None or session.id != record.session:
            if session is not None:
                self._end(consumer, "replaced", self._now)
            session = self._sessions[consumer] = _Session(record.session, 0)
            self._queue.bind(consumer, self._now, backlog=record.backlog, outcomes=record.outcomes)
        session.until = self._now + self._session_ms
        granted, lease = self._queue.consumers[consumer].backlog, self._rules.lease
        number = self._number(session)
        self.answers.append(Bound(self._name, consumer, session.id, number, granted, lease, self._session_ms))

    def _settle(self, record: SettleMessages, session: _Session | None) -> None:
        for message in record.messages:
            refusal: Refusal | None
            try:
                refusal = self._queue.settle(record.consumer, message, record.outcome, self._now)
            except OutcomeNotEnabledError:
                refusal = "outcome-not-enabled"
            if refusal is not None:
                self._event(message, self._now, "refused", record.consumer, record.outcome, refusal)
                number = 0 if session is None else self._number(session)
                self.answers.append(
                    NotSettled(self._name, record.consumer, record.session, number, message, record.outcome, refusal)
                )
            self._note(record.outcome, record.consumer)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _pass_time(self, now: int) -> None:
        """End sessions and leases in the order of their ends, then deliver what came free."""
        if now <= self._now:
            return
        self._now = now
        while lost := min(self._sessions.items(), key=_end_of_session, default=None):
            consumer, session = lost
            if session.until > now:
                break
            self._queue.advance(session.until)
            self._note("lease")
            self._end(consumer, "lost", session.until)
        self._queue.advance(now)
        self._note("lease")
        self._dispatch()

    def _end(self, consumer: str, reason: UnboundReason, at: int) -> None:
        session = self._sessions.pop(consumer)
        self._queue.unbind(consumer, at)
        self._note(reason)
        self.answers.append(Unbound(self._name, consumer, session.id, reason))

    # -- what is told -------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        for delivery in self._queue.dispatch(self._now):
            place = self._places[delivery.message]
            place.count, place.consumer = delivery.count, delivery.consumer
            session = self._sessions[delivery.consumer]
            self._event(delivery.message, self._now, "delivered", delivery.consumer)
            self.answers.append(
                MessageDelivered(
                    self._name,
                    delivery.consumer,
                    session.id,
                    self._number(session),
                    delivery.message,
                    place.topic,
                    place.partition,
                    place.offset,
                    place.batch,
                    delivery.count,
                    place.subject,
                )
            )
        self._note("sent")

    def _note(self, why: SampleOutcome | UnboundReason | Literal["lease", "sent"], consumer: str | None = None) -> None:
        """Turn what the queue says into events; ``why`` is what made it give messages back."""
        for returned in self._queue.returns:
            self._event(returned.message, returned.at, "returned", returned.consumer, reason=why)
        for left in self._queue.exits:
            self._event(left.message, left.at, "left", consumer, left.how, left.reason)
            self._places.pop(left.message, None)
        self._queue.returns, self._queue.exits = [], []

    def _event(
        self,
        message: str,
        at: int,
        event: Happened,
        consumer: str | None = None,
        outcome: str | None = None,
        reason: str | None = None,
    ) -> None:
        place = self._places.get(message)
        if place is None:
            self.events.append(Event(self._name, message, at, event, consumer, 0, outcome, reason))
            return
        self.events.append(
            Event(
                self._name,
                message,
                at,
                event,
                consumer or place.consumer,
                place.count,
                outcome,
                reason,
                place.topic,
                place.partition,
                place.offset,
                place.batch,
                place.subject,
                place.received_at,
            )
        )

    def _number(self, session: _Session) -> int:
        session.number += 1
        return session.number


def answer_unknown(name: str, said: Iterable[ConsumerReport]) -> tuple[list[ServiceRecord], list[Unreadable]]:
    """Return what consumers of a queue are told that there is not, and what of theirs cannot be read."""
    answers: list[ServiceRecord] = []
    unreadable = []
    for record in said:
        try:
            heard = queues.read(record.value)
        except QueueRecordError as error:
            unreadable.append(Unreadable(record.key, record.value, str(error)))
        else:
            answers.append(Unbound(name, heard.consumer, heard.session, "unknown-queue"))
    return answers, unreadable


def _end_of_session(entry: tuple[str, _Session]) -> int:
    return entry[1].until
