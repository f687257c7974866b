"""A queue as its consumers see it: sessions, numbered answers, and an event for everything that happens to a message.

Pure: records and a watermark in; answers, events and unreadable records out. A record counts at its own timestamp, and
time passes with records and the watermark alone. So for the same order of these nothing depends on where batches are
cut, nor on how often the output is taken.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import msgspec

from ackstream.jobs.queues.queue import Queue
from ackstream.jobs.queues.records import Arrival, Cause, ConsumerReport, Event, Unreadable, coordinates, read
from ackstream.jobs.queues.state import MessageLocation, QueueState, Segment, Segments
from ackstream.observe.metrics import QUEUE_CONSUMERS, QUEUE_DEPTH, QUEUE_OLDEST, Tally
from ackstream.protocol import queues
from ackstream.protocol.json import RecordError
from ackstream.settings.jobs import QueueSettings
from ackstream.spark.records import LOOKS, excused, guarded, read_state, timed

log = logging.getLogger(__name__)

STATE_VERSION, OLDEST_VERSION = 7, 5
MAX_SUBJECT_BYTES = 64_000_000
"""Maximum bytes of the topics of all messages in a queue; its state has a hundred further bytes for each message."""

PIECE = 20_000
"""Answers and events that are handed over together: some 250 bytes each."""


class _Session(msgspec.Struct, array_like=True):
    """A consumer's session: it ends at ``until``; ``number`` is that of its last answer."""

    id: int
    until: int
    number: int = 0
    pending: dict[str, int] = {}
    """By message: the number of a delivery that the consumer has not reported as handed out."""


class _EndpointState(msgspec.Struct, array_like=True):
    """The shape of the blob; :data:`STATE_VERSION` is its version."""

    now: int
    sessions: dict[str, _Session]
    locations: dict[str, MessageLocation]
    queue: QueueState
    segments: list[Segment] = []


class Endpoint:
    """A queue and its sessions: :meth:`load`, a :meth:`process` per batch, :meth:`dump`, :attr:`next_timeout`."""

    def __init__(self, rules: QueueSettings, session_ms: int) -> None:
        """Begin empty. ``session_ms``: how long a consumer may be silent before its session ends."""
        self._name = rules.name
        self._rules = rules
        self._session_ms = session_ms
        self._sessions: dict[str, _Session] = {}
        self._locations: dict[str, MessageLocation] = {}
        self._segments = Segments(self._locations)
        self._queue = Queue(rules, self._record, self._segments)
        self._queue.full = self._is_full
        self._subject_bytes = 0
        self._now, self._most = 0, PIECE
        self.answers: list[queues.QueueAnswer] = []
        self.events: list[Event] = []
        self.unreadable: list[Unreadable] = []

    def load(self, version: int, blob: bytes) -> None:
        """Restore what :meth:`dump` returned; raise ``ValueError`` if this release cannot read the version."""
        state = read_state(_EndpointState, STATE_VERSION, version, blob, oldest=OLDEST_VERSION)
        for consumer in state.queue.consumers if version < STATE_VERSION else ():
            # it had whether an application got a message, and not since when
            consumer.held = {name: state.now if since is True else since for name, since in consumer.held.items()}
        self._now, self._sessions = state.now, state.sessions
        self._locations.update(state.locations)
        self._segments.load(state.segments)
        subjects = sum(len(at.subject or "") for at in state.locations.values())
        self._subject_bytes = subjects + self._segments.subject_bytes
        self._queue.load(state.queue)

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` if there is nothing to remember."""
        self._queue.put_aside()
        queue, segments = self._queue.dump(), self._segments.dump()
        if queue is None:
            return None
        state = _EndpointState(self._now, self._sessions, self._locations, queue, segments)
        return STATE_VERSION, msgspec.msgpack.encode(state)

    @property
    def next_timeout(self) -> int | None:
        """The earliest time (epoch milliseconds) at which something happens without a record."""
        times = [session.until for session in self._sessions.values()]
        if times:
            times.append(self._now + self._session_ms // LOOKS)
        if self._queue.deadline is not None:
            times.append(self._queue.deadline)
        return min(times, default=None)

    def measure(self, tally: Tally) -> None:
        """Set the gauges of the queue, as of the last :meth:`dump`."""
        first = next(iter(self._queue.messages.values()), None)
        oldest = self._segments.oldest
        if first is not None and (oldest is None or first.order < oldest[0]):
            oldest = first.order, self._locations[first.id].received_at
        tally.set(QUEUE_DEPTH, self._name, value=self._queue.depth)
        tally.set(QUEUE_CONSUMERS, self._name, value=len(self._queue.consumers))
        if oldest is not None:
            tally.set(QUEUE_OLDEST, self._name, value=oldest[1] / 1000)

    def process(self, arrivals: Sequence[Arrival], reports: Sequence[ConsumerReport], watermark: int) -> Iterator[None]:
        """Process the records of a batch; append to ``answers``, ``events`` and ``unreadable``; pause to :meth:`take`.

        :param watermark: consumers' records before this time (epoch milliseconds) were read before this batch
        """
        yield from self._pass_time(watermark)
        records: list[Arrival | ConsumerReport] = [*arrivals, *reports]
        for timestamp, record in timed(records, coordinates):
            if timestamp > self._now:
                yield from self._pass_time(timestamp)
            guarded(record, self._take, self._fail)
            self._queue.dispatch(self._now)
            if self._is_full():
                yield from self._in_pieces(self._queue.dispatch, self._now)

    def take(self) -> tuple[list[queues.QueueAnswer], list[Unreadable], list[Event]]:
        """Return answers, unreadable records and events, which are the caller's from now on."""
        found = self.answers, self.unreadable, self.events
        self.answers, self.unreadable, self.events = [], [], []
        return found

    def _is_full(self) -> bool:
        return len(self.answers) + len(self.events) >= self._most

    def _in_pieces(self, step: Callable[[int], None], now: int) -> Iterator[None]:
        step(now)
        while self._is_full():
            yield
            self._most = len(self.answers) + len(self.events) + PIECE
            step(now)

    def _arrive(self, record: Arrival) -> None:
        if self._queue.find(record.id) is not None:
            return
        location = self._locations[record.id] = MessageLocation(
            record.topic, record.partition, record.offset, record.batch, record.subject, record.timestamp
        )
        self._subject_bytes += location.subject_bytes
        self._queue.enqueue(record, room=self._subject_bytes <= MAX_SUBJECT_BYTES)

    def _fail(self, record: Arrival | ConsumerReport, error: Exception) -> None:
        """Give up a message, or a report that is unreadable or fails: its output matches the state, and stays."""
        if isinstance(error, RecordError) and not isinstance(record, Arrival):
            self.unreadable.append((record, str(error)))
            return
        log.error("A record of the queue %s failed: %r", self._name, record, exc_info=error)
        if isinstance(record, Arrival):
            self._queue.messages.pop(record.id, None)
            self._record(Event(self._name, record.id, self._now, "left", None, 0, "dead-letter", "error"))
        else:
            self.unreadable.append((record, f"It cannot be processed: {error!r}."))

    def _take(self, arrived: Arrival | ConsumerReport) -> None:
        if isinstance(arrived, Arrival):
            self._arrive(arrived)
            return
        record = read(arrived)
        session = self._sessions.get(record.consumer)
        if isinstance(record, queues.Bind):
            self._bind(record, session)
        elif isinstance(record, queues.Drain):
            self._drain(record, arrived.timestamp)
        elif session is None or session.id != record.session:
            self._read_unbound(record, session)
        else:
            session.until = self._now + self._session_ms
            if isinstance(record, queues.SettleMessages):
                self._settle(record, session)
            elif isinstance(record, queues.Alive):
                self._hear(record, session)
            elif isinstance(record, queues.Unbind):
                self._hand_out(record, session)
                self._end(record.consumer, "closed", self._now)

    def _read_unbound(self, record: queues.QueueRequest, session: _Session | None) -> None:
        """Apply settlements of an unbound consumer where anyone may settle; otherwise report that it is not bound."""
        if isinstance(record, queues.SettleMessages) and session is None and self._rules.settler != "holder":
            self._settle(record, None)
        elif not isinstance(record, queues.Unbind):
            reason: queues.UnboundReason = "lost" if session is None else "replaced"
            self.answers.append(queues.Unbound(self._name, record.consumer, record.session, reason))

    def _bind(self, record: queues.Bind, session: _Session | None) -> None:
        consumer = record.consumer
        if session is None or session.id != record.session:
            if session is not None:
                self._end(consumer, "replaced", self._now)
            session = self._sessions[consumer] = _Session(record.session, 0)
            self._queue.bind(record, self._now)
        session.until = self._now + self._session_ms
        self._queue.consumers[consumer].stopped = record.stopped
        self._confirm(consumer, session)

    def _confirm(self, consumer: str, session: _Session) -> None:
        granted, number = self._queue.consumers[consumer].backlog, self._number(session)
        times = self._rules.lease, self._session_ms, self._rules.max_lease
        self.answers.append(queues.Bound(self._name, consumer, session.id, number, granted, *times))

    def _hear(self, record: queues.Alive, session: _Session) -> None:
        """Deliver again the messages that a consumer reports as missing; a new number reveals further losses.

        Those that it has not received are usually under way: only a later number distinguishes that from a loss.
        """
        consumer = record.consumer
        self._queue.consumers[consumer].stopped = record.stopped
        missing, under_way = set(record.missing), False
        for message, number in list(session.pending.items()):
            held = self._queue.messages.get(message)
            if held is None or consumer not in held.holders:
                # delivered at most once
                del session.pending[message]
            elif number in missing:
                self._deliver(message, consumer, self._locations[message])
                under_way = True
            elif number <= record.received:
                self._queue.receive(consumer, message, self._now)
            else:
                under_way = True
        self._hand_out(record, session)
        if under_way:
            self._confirm(consumer, session)

    def _hand_out(self, record: queues.Alive | queues.Unbind, session: _Session) -> None:
        for message, number in list(session.pending.items()):
            if number <= record.handed_out:
                del session.pending[message]
                self._queue.hand_out(record.consumer, message, self._now)

    def _settle(self, record: queues.SettleMessages, session: _Session | None) -> None:
        consumer, outcome = record.consumer, record.outcome
        for message in record.messages:
            refusal = self._queue.settle(consumer, message, outcome, self._now, unavailable=record.unavailable)
            if refusal is not None:
                self._record(Event(self._name, message, self._now, "refused", consumer, 0, outcome, refusal))
                number = 0 if session is None else self._number(session)
                answer = (self._name, consumer, record.session, number, message, outcome, refusal)
                self.answers.append(queues.NotSettled(*answer))

    def _drain(self, record: queues.Drain, at: int) -> None:
        def end(number: int) -> None:
            self.answers.append(queues.Drained(self._name, record.consumer, record.session, number))

        self._queue.drain(record.session, at, Cause(self._now, "rejected", record.consumer), end)

    def _pass_time(self, now: int) -> Iterator[None]:
        """End sessions and leases in the order of their ends, then deliver the messages they held."""
        if now <= self._now:
            return
        excess = excused(self._now, now, self._session_ms)
        if excess and self._sessions:
            for session in self._sessions.values():
                session.until += excess
            self._queue.extend(excess)
        self._now = now
        lost = [(session.until, consumer) for consumer, session in self._sessions.items() if session.until <= now]
        for until, consumer in sorted(lost, key=itemgetter(0)):
            yield from self._in_pieces(self._queue.advance, until)
            self._end(consumer, "lost", until)
        yield from self._in_pieces(self._queue.dispatch, now)

    def _end(self, consumer: str, reason: queues.UnboundReason, at: int) -> None:
        session = self._sessions.pop(consumer)
        self._queue.unbind(consumer, at, reason)
        self.answers.append(queues.Unbound(self._name, consumer, session.id, reason))

    def _record(self, event: Event) -> None:
        """Record an event, with the location of its message if the queue has it; a delivery is sent too."""
        location = self._locations.get(event.message)
        if location is not None:
            if event.event == "delivered" and event.consumer is not None:
                location.count, location.consumer = event.count, event.consumer
                self._deliver(event.message, event.consumer, location)
            else:
                holder = self._sessions.get(event.consumer or location.consumer or "")
                if holder is not None and event.event != "refused":
                    holder.pending.pop(event.message, None)
            if event.event == "left":
                del self._locations[event.message]
                self._subject_bytes -= location.subject_bytes
            # five times as fast as a copy of its fields by their names
            event = Event(
                event.queue, event.message, event.at, event.event, event.consumer or location.consumer, location.count,
                event.outcome, event.reason, location.topic, location.partition, location.offset, location.batch,
                location.subject, location.received_at,
            )  # fmt: skip
        self.events.append(event)

    def _deliver(self, message: str, consumer: str, location: MessageLocation) -> None:
        session = self._sessions[consumer]
        at = (location.topic, location.partition, location.offset, location.batch)
        number = session.pending[message] = self._number(session)
        answer = (self._name, consumer, session.id, number, message, *at, location.count, location.subject)
        self.answers.append(queues.MessageDelivered(*answer))

    def _number(self, session: _Session) -> int:
        session.number += 1
        return session.number
