"""A work queue: each message goes to one consumer at a time until it is settled.

Pure; the caller passes the time (milliseconds) and receives every delivery, return and exit as an event, in order.
A lease begins with :meth:`Queue.receive`, anew with ``working``; a delivery counts, and the lease begins anew, when
:meth:`Queue.hand_out` or a settlement shows that the application got it. Rules: brokers.md S18 to S25, A28 to A37.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from ackstream.jobs.queues.records import Arrival, Cause, Event, EventKind
from ackstream.jobs.queues.state import SEGMENT, Consumer, QueuedMessage, QueueState, Segments, choose
from ackstream.protocol.dispositions import ExitReason, MessageDisposition
from ackstream.protocol.queues import PREFETCH, Bind, Refusal, Settlement, UnboundReason
from ackstream.settings.jobs import QueueSettings

MAX_EARLY = 10_000
"""Maximum number of settlements remembered because their message has not arrived yet; the oldest are forgotten."""

UNREADABLE_MS = 300_000
MAX_UNREADABLE = 10_000
"""How long a message that no bound consumer can read waits for one that can (a rolling deployment); how many may."""

MAX_DRAINS = 10
"""Orders to drain the queue that are remembered, to recognize their copies."""

MAX_TTL_MS = 100 * 365 * 86_400_000
"""Longer times to live would leave the range of timestamps."""

STEP_MS = 1_000
"""Expiring messages are taken from segments for this time at once."""


class Queue:
    """The messages of one queue and its consumers."""

    def __init__(self, rules: QueueSettings, notify: Callable[[Event], None], segments: Segments | None = None) -> None:
        """Begin empty.

        ``notify`` is called for every delivery, return and exit; it must not call the queue. ``segments``: where it can
        put messages aside. While ``full`` is true, time stands still: :meth:`dispatch` is to be called again.
        """
        self._rules = rules
        self._notify = notify
        self.full: Callable[[], bool] = lambda: False
        self.messages: dict[str, QueuedMessage] = {}
        """The messages that have not left, nor been put aside; in their order after :meth:`put_aside`."""
        self.consumers: dict[str, Consumer] = {}
        self._order = 0
        self._turn: str | None = None
        self._waiting: list[tuple[int, str]] = []
        self._timers: list[tuple[int, str]] = []
        """When leases and delays end, and messages expire."""
        self._early: dict[str, int] = {}
        self._drained: dict[int, int] = {}
        self._draining: Iterator[None] = iter(())
        self._unreadable: set[str] = set()
        self._segments = Segments({}) if segments is None else segments

    def enqueue(self, arrival: Arrival, *, room: bool = True) -> None:
        """Add a message that is not in the queue; a full queue, or one without ``room`` for it, gives it up."""
        message, now, own = arrival.id, arrival.timestamp, min(arrival.ttl_ms, MAX_TTL_MS)
        if self._early.pop(message, -1) >= now:
            self._notify(Event(self._rules.name, message, now, "left", outcome="settled", reason="settled-early"))
            return
        ttls = [ttl for ttl in (own if self._rules.respect_ttl else 0, self._rules.max_ttl) if ttl]
        self._order += 1
        expires_at = now + min(ttls) if ttls else None
        added = QueuedMessage(message, self._order, expires_at, arrival.eligible, arrival.barrier)
        self.messages[message] = added
        if now <= max(self._drained.values(), default=-1):
            self._give_up(added, Cause(now, "rejected"), "drained")
        elif not room or 0 < self._rules.max_depth < self.depth:
            self._give_up(added, Cause(now, "rejected"), "queue-full")
        else:
            self._wait(added)

    @property
    def depth(self) -> int:
        """How many messages have not left."""
        return len(self.messages) + len(self._segments)

    def find(self, message: str) -> QueuedMessage | None:
        """Return a message that has not left."""
        found = self.messages.get(message)
        if found is None and (taken := self._segments.take(message)):
            self._take_back(taken)
            (found,) = taken
        return found

    def _take_back(self, messages: Iterable[QueuedMessage]) -> None:
        for message in messages:
            self.messages[message.id] = message
            self._wait(message)

    def _wait(self, message: QueuedMessage) -> None:
        heapq.heappush(self._waiting, (message.order, message.id))
        if message.expires_at is not None:
            heapq.heappush(self._timers, (message.expires_at, message.id))

    def bind(self, record: Bind, now: int) -> None:
        """Add a consumer in place of any other of its name."""
        consumer = record.consumer
        self.unbind(consumer, now, "replaced")
        wanted = PREFETCH if record.backlog is None else record.backlog
        granted = min(wanted, self._rules.max_backlog or wanted)
        for message in self.messages.values():
            # it may have the key or codec that it lacked
            message.unreadable -= {consumer}
            if message.given_up_at and message.not_before == message.given_up_at:
                message.not_before = 0
                self._wait(message)
            # without room for it, it is unknown whether the consumer can read it
            message.given_up_at = 0
            self._unreadable.discard(message.id)
        self.consumers[consumer] = Consumer(consumer, granted, frozenset({"accepted", *record.outcomes}))

    def unbind(self, consumer: str, now: int, reason: UnboundReason) -> None:
        """Remove a consumer; the messages it holds return to their old positions."""
        removed = self.consumers.get(consumer)
        for message in list(removed.held) if removed else ():
            if (held := self.messages.get(message)) is not None:
                self._give_back(held, consumer, Cause(now, reason))
        self.consumers.pop(consumer, None)
        if not self.consumers:
            # an empty queue without bound consumers has no state
            self._turn = None

    def dispatch(self, now: int) -> None:
        """Advance the time, then deliver messages, oldest first, while a consumer has room."""
        self.advance(now)
        passed: list[tuple[int, str]] = []
        while (message := self._next()) is not None and not self.full():
            if self.consumers and self.consumers.keys() <= message.unreadable:
                self._wait_for_readers(message, now)
                continue
            consumers = choose(message, self.consumers.values(), self._rules, self._turn)
            if not consumers and message.unreadable and len(passed) < PREFETCH:
                # the consumers that can read it are full: others may have room for later messages
                passed.append(heapq.heappop(self._waiting))
                continue
            if not consumers or (message.barrier and any(one.order < message.order for one in self.messages.values())):
                break
            heapq.heappop(self._waiting)
            for consumer in consumers:
                self._deliver(message, consumer, now)
            if self._rules.at_most_once:
                # it stays in the consumers' backlogs until they settle it
                del self.messages[message.id]
                self._report(message, now, "left", None, "settled", "sent")
        for place in passed:
            heapq.heappush(self._waiting, place)

    def _wait_for_readers(self, message: QueuedMessage, now: int) -> None:
        """Keep a message that no bound consumer can read for a while, then give it up."""
        self._unreadable.add(message.id)
        message.given_up_at = message.given_up_at or now + UNREADABLE_MS
        if message.given_up_at <= now or len(self._unreadable) > MAX_UNREADABLE:
            self._give_up(message, Cause(now, "unavailable"), "unavailable")
        else:
            message.not_before = message.given_up_at
            heapq.heappush(self._timers, (message.not_before, message.id))

    def _next(self) -> QueuedMessage | None:
        while self._waiting or self._segments.first is not None:
            if self._segments.first is not None and (not self._waiting or self._segments.first < self._waiting[0][0]):
                self._take_back(self._segments.take_first())
            order, name = self._waiting[0]
            message = self.messages.get(name)
            if message is not None and message.order == order and not message.holders and not message.not_before:
                return message
            heapq.heappop(self._waiting)
        return None

    def _deliver(self, message: QueuedMessage, consumer: Consumer, now: int) -> None:
        message.holders[consumer.name] = None
        message.deliveries += 1
        consumer.held[message.id] = None
        self._turn = consumer.name
        self._report(message, now, "delivered", consumer.name)

    def receive(self, consumer: str, message: str, now: int) -> None:
        """Begin the lease of a message that its consumer has received."""
        held = self.messages.get(message)
        if held is not None and held.holders.get(consumer, 0) is None:
            self._lease(held, consumer, now)

    def hand_out(self, consumer: str, message: str, now: int) -> Refusal | None:
        """Count the delivery of a message that the application has got; begin its lease anew, or return why not."""
        found = self.messages.get(message)
        if found is None or consumer not in found.holders:
            return None
        held = self.consumers[consumer].held
        held[message] = now if held[message] is None else held[message]
        return self._lease(found, consumer, now)

    def _lease(self, message: QueuedMessage, consumer: str, now: int) -> Refusal | None:
        if not self._rules.lease:
            return None
        end = now + self._rules.lease
        if (since := self.consumers[consumer].held[message.id]) is not None:
            end = min(end, since + self._rules.max_lease)
        if end > (message.holders[consumer] or now):
            message.holders[consumer] = end
            heapq.heappush(self._timers, (end, message.id))
        elif end < now + self._rules.lease:
            return "max-lease"
        return None

    def delay(self, message: str, until: int) -> None:
        """Deliver a message that waits not before a time."""
        found = self.find(message)
        if found is not None and not found.holders and found.not_before < until:
            found.not_before = until
            heapq.heappush(self._timers, (until, message))

    def settle(
        self, consumer: str, message: str, outcome: Settlement, now: int, *, unavailable: bool = False
    ) -> Refusal | None:
        """Apply a consumer's settlement of a message; return why it has no effect, or ``None`` if it has.

        :param unavailable: the consumer cannot read the message, which is for others, with any outcome
        """
        self.advance(now)
        settler = self.consumers.get(consumer)
        # before all else: the event of any settlement names the source of the message
        found = self.find(message)
        working = outcome == "working" and not unavailable
        if not (settler is None or outcome in settler.outcomes or working or unavailable):
            return "outcome-not-enabled"
        if found is None:
            if settler is not None and message in settler.held:
                # delivered at most once: settling frees the backlog
                if not working:
                    del settler.held[message]
                return None
            # with any other outcome it stays in the queue that it will arrive in
            if self._rules.early and outcome == "accepted" and not unavailable:
                self._early[message] = now + self._rules.early
                if len(self._early) > MAX_EARLY:
                    del self._early[next(iter(self._early))]
            return "not-in-queue"
        who = "holder" if working else self._rules.settler
        if consumer not in found.holders and who != "sublet":
            if found.holders:
                return "held-by-another"
            if who == "holder":
                return "not-held"
        return self._apply(found, Cause(now, "unavailable" if unavailable else outcome, consumer))

    def _apply(self, message: QueuedMessage, cause: Cause) -> Refusal | None:
        consumer = str(cause.consumer)
        if cause.reason == "working":
            return self.hand_out(consumer, message.id, cause.at)
        if message.barrier and consumer in message.holders:
            self._give_back(message, consumer, cause)
        elif cause.reason == "unavailable":
            if consumer in message.holders:
                message.unreadable |= {consumer}
                self._give_back(message, consumer, cause)
        elif cause.reason == "accepted":
            self._leave(message, cause, "settled", "accepted")
        elif cause.reason == "rejected":
            self._give_up(message, cause, "rejected")
        else:
            message.failures += 1
            if self._rules.max_failures and message.failures >= self._rules.max_failures:
                self._give_up(message, cause, "max-failures")
            else:
                delay = self._rules.backoff.delay(message.failures) if self._rules.backoff else 0
                for holder in list(message.holders) or [consumer]:
                    self._give_back(message, holder, cause, delay)
        return None

    def _give_back(self, message: QueuedMessage, holder: str, cause: Cause, delay: int = 0) -> None:
        if holder in message.holders:
            del message.holders[holder]
            self._report(message, cause.at, "returned", holder, None, cause.reason)
            # any other settlement shows that the application of its holder got it
            got = cause.consumer is not None or self.consumers[holder].held[message.id] is not None
            message.deliveries -= not got or cause.reason == "unavailable"
        self._release(holder, message.id)
        if message.holders:
            return
        if message.barrier:
            self._leave(message, cause, "settled", "barrier")
        elif self._rules.max_deliveries and message.deliveries >= self._rules.max_deliveries:
            self._give_up(message, cause, "max-deliveries")
        elif message.expires_at is not None and message.expires_at <= cause.at:
            self._give_up(message, cause, "expired")
        elif delay:
            message.not_before = cause.at + delay
            heapq.heappush(self._timers, (message.not_before, message.id))
        else:
            self._wait(message)

    def drain(self, order: int, until: int, cause: Cause, end: Callable[[int], None]) -> None:
        """Give up all messages received up to a time, those that arrive later too; an order counts once.

        The next :meth:`dispatch` does it, and then calls ``end`` with the number of messages.
        """
        if order in self._drained:
            return
        self._drained[order] = until
        if len(self._drained) > MAX_DRAINS:
            del self._drained[next(iter(self._drained))]
        self._draining = self._drain(until, cause, end)

    def _drain(self, until: int, cause: Cause, end: Callable[[int], None]) -> Iterator[None]:
        number = 0
        while True:
            taken = self._segments.take_received(until)
            self._take_back(taken)
            for message in taken or list(self.messages.values()):
                if self._segments.locations[message.id].received_at <= until:
                    self._give_up(message, cause, "drained")
                    number += 1
                    if self.full():
                        yield
            if not taken:
                end(number)
                return

    def _give_up(self, message: QueuedMessage, cause: Cause, reason: ExitReason) -> None:
        wanted = message.eligible or not self._rules.respect_eligible
        self._leave(message, cause, "dead-letter" if self._rules.dead_letters and wanted else "discarded", reason)

    def _leave(self, message: QueuedMessage, cause: Cause, how: MessageDisposition, reason: ExitReason) -> None:
        del self.messages[message.id]
        self._unreadable.discard(message.id)
        for holder in message.holders:
            self._release(holder, message.id)
        self._report(message, cause.at, "left", cause.consumer, how, reason)

    def _report(self, message: QueuedMessage, at: int, event: EventKind, consumer: str | None, *why: Any) -> None:
        self._notify(Event(self._rules.name, message.id, at, event, consumer, message.deliveries, *why))

    def _release(self, consumer: str, message: str) -> None:
        if consumer in self.consumers:
            self.consumers[consumer].held.pop(message, None)

    def advance(self, now: int) -> None:
        """Drain, then advance the time: leases and delays end, and messages without a holder expire."""
        next(self._draining, None)
        while True:
            at, name = self._timers[0] if self._timers else (now + 1, "")
            due = self._segments.next_time
            if due is not None and due <= min(now, at):
                self._take_back(self._segments.take_due(min(now, due + STEP_MS)))
                continue
            if at > now or self.full():
                break
            heapq.heappop(self._timers)
            message = self.messages.get(name)
            if message is None:
                continue
            cause = Cause(at, "lease")
            for consumer in [consumer for consumer, until in message.holders.items() if until == at]:
                self._give_back(message, consumer, cause)
            if not message.holders and message.expires_at == at and name in self.messages:
                self._give_up(message, cause, "expired")
            elif message.not_before == at:
                message.not_before = 0
                self._wait(message)
        while self._early and next(iter(self._early.values())) < now:
            del self._early[next(iter(self._early))]

    def extend(self, milliseconds: int) -> None:
        """Let every lease last longer, and its limit be later."""
        for message in self.messages.values():
            for consumer, until in message.holders.items():
                held = self.consumers[consumer].held
                if (since := held[message.id]) is not None:
                    held[message.id] = since + milliseconds
                if until is not None:
                    message.holders[consumer] = until + milliseconds
                    heapq.heappush(self._timers, (until + milliseconds, message.id))

    @property
    def deadline(self) -> int | None:
        """When to call :meth:`dispatch` again; ``None`` if nothing is scheduled."""
        times = (*(at for at, _ in self._timers[:1]), self._segments.next_time)
        return min((at for at in times if at is not None), default=None)

    def put_aside(self) -> None:
        """Put messages that wait into segments; the first ones stay, and the latest, which do not fill one."""
        ordered = sorted(self.messages.values(), key=attrgetter("order"))
        waiting = [one for one in ordered if not (one.holders or one.not_before or one.unreadable)]
        for start in range(SEGMENT, len(waiting) - SEGMENT + 1, SEGMENT):
            self._segments.add(waiting[start : start + SEGMENT])
            for message in waiting[start : start + SEGMENT]:
                del self.messages[message.id]
        self.messages = {message.id: message for message in ordered if message.id in self.messages}

    def dump(self) -> QueueState | None:
        """Return the state for :meth:`load`, without segments; ``None`` if it is empty without bound consumers."""
        if not (self.depth or self.consumers or self._early or self._drained):
            return None
        messages, consumers = list(self.messages.values()), list(self.consumers.values())
        return QueueState(messages, consumers, self._early, self._order, self._turn, self._drained)

    def load(self, state: QueueState) -> None:
        """Restore a state in an empty queue; the rules may have changed since it was saved."""
        self.messages = {message.id: message for message in state.messages}
        self.consumers = {consumer.name: consumer for consumer in state.consumers}
        self._early, self._order, self._turn, self._drained = state.early, state.order, state.turn, state.drained
        self._unreadable = {message.id for message in state.messages if message.given_up_at}
        # a sorted list is a heap
        self._timers = sorted(
            (end, one.id)
            for one in state.messages
            for end in (*one.holders.values(), one.expires_at, one.not_before)
            if end
        )
        self._waiting = sorted((one.order, one.id) for one in state.messages if not (one.not_before or one.holders))
