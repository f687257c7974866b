"""A work queue: each message goes to one consumer at a time until it is settled.

Pure; the caller passes the time (milliseconds), moves what :meth:`Queue.dispatch` returns, and looks at
:attr:`Queue.exits`. Rules: brokers.md S18 to S25 and A28 to A37; which of them hold is said in ``queue_rules``.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ackstream.errors import NotConnectedError, OutcomeNotEnabledError
from ackstream.jobs.queues.model import Consumer, Exit, QueuedDelivery, QueuedMessage, QueueState, Return, choose

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.jobs.queues.model import ExitReason, How, IgnoredReason
    from ackstream.protocol.readers import SampleOutcome
    from ackstream.settings.queues import QueueSettings


class Queue:
    """The messages of one queue and its consumers."""

    def __init__(self, rules: QueueSettings) -> None:
        """Begin empty."""
        self._rules = rules
        self._messages: dict[str, QueuedMessage] = {}
        self._order = 0
        self._waiting: list[tuple[int, str]] = []
        self._later: list[tuple[int, int, str]] = []
        self._timers: list[tuple[int, str]] = []
        self._early: dict[str, int] = {}
        self.consumers: dict[str, Consumer] = {}
        self._turn: str | None = None
        self.exits: list[Exit] = []
        """What left; whoever acts on it takes it away."""
        self.returns: list[Return] = []
        """What was given back, likewise; a message that then leaves is in both."""

    # -- messages in ---------------------------------------------------------------------------------------------------

    def enqueue(self, message: str, now: int, *, ttl_ms: int = 0, eligible: bool = True, barrier: bool = False) -> bool:
        """Add a message; ``False`` where it is here already.

        :param ttl_ms: the message's own time to live
        :param eligible: whether it may become a dead letter
        :param barrier: it waits until all earlier messages have left, then goes to all consumers (A36)
        """
        if message in self._messages:
            return False
        if self._early.pop(message, -1) >= now:
            self.exits.append(Exit(message, now, "settled", "settled-early"))
            return True
        ttls = [ttl for ttl in (ttl_ms if self._rules.respect_ttl else 0, self._rules.max_ttl) if ttl]
        self._order += 1
        added = QueuedMessage(message, self._order, now + min(ttls) if ttls else None, eligible, barrier)
        self._messages[message] = added
        self._wait(added)
        return True

    def _wait(self, message: QueuedMessage) -> None:
        heapq.heappush(self._waiting, (message.order, message.id))
        if message.expires_at is not None:
            heapq.heappush(self._timers, (message.expires_at, message.id))

    # -- consumers -----------------------------------------------------------------------------------------------------

    def bind(
        self, consumer: str, now: int, *, backlog: int | None = None, outcomes: Iterable[SampleOutcome] = ()
    ) -> int:
        """Add a consumer; return how many messages it may hold (0: any number). One of the same name is unbound first.

        :param backlog: what it asks for; it is granted up to the rule's, and all of that where it asks nothing
        :param outcomes: how it may settle besides ``accepted`` (S20)
        """
        self.unbind(consumer, now)
        limit = self._rules.max_backlog
        granted = limit if backlog is None else min(backlog, limit) if limit else backlog
        self.consumers[consumer] = Consumer(consumer, granted, frozenset({"accepted", *outcomes}))
        return granted

    def unbind(self, consumer: str, now: int) -> None:
        """Remove a consumer, which closed or was lost: what it held is given back, in the old order."""
        removed = self.consumers.pop(consumer, None)
        for message in removed.held if removed else ():
            held = self._messages.get(message)
            if held is not None:
                self._give_back(held, consumer, now)

    # -- out and back --------------------------------------------------------------------------------------------------

    def dispatch(self, now: int) -> list[QueuedDelivery]:
        """Let time pass, then deliver what can be delivered, oldest first, while a consumer has room."""
        self.advance(now)
        deliveries: list[QueuedDelivery] = []
        while (message := self._next()) is not None:
            consumers = list(self.consumers.values()) if message.barrier else self._chosen()
            if not consumers or (message.barrier and self._oldest() is not message):
                break
            heapq.heappop(self._waiting)
            deliveries += [self._deliver(message, consumer, now) for consumer in consumers]
        return deliveries

    def _next(self) -> QueuedMessage | None:
        while self._waiting:
            order, name = self._waiting[0]
            message = self._messages.get(name)
            if message is not None and message.order == order and not message.holders and not message.not_before:
                return message
            heapq.heappop(self._waiting)
        return None

    def _oldest(self) -> QueuedMessage | None:
        return next(iter(self._messages.values()), None)

    def _chosen(self) -> list[Consumer]:
        consumers = list(self.consumers.values())
        total = self._rules.max_total_backlog
        if total and sum(len(consumer.held) for consumer in consumers) >= total:
            return []
        chosen = choose(
            consumers[:1] if self._rules.type == "exclusive" else consumers, self._rules.fairness, self._turn
        )
        return [chosen] if chosen else []

    def deliver(self, message: str, consumer: str, now: int) -> QueuedDelivery | None:
        """Deliver one message to one consumer, if it is waiting and the consumer has room."""
        self.advance(now)
        found, taker = self._messages.get(message), self.consumers.get(consumer)
        if found is None or taker is None or found.holders or found.not_before or not taker.has_room:
            return None
        return self._deliver(found, taker, now)

    def _deliver(self, message: QueuedMessage, consumer: Consumer, now: int) -> QueuedDelivery:
        until = now + self._rules.lease if self._rules.lease else None
        if until is not None:
            heapq.heappush(self._timers, (until, message.id))
        message.holders[consumer.name] = until
        message.deliveries += 1
        consumer.held[message.id] = None
        self._turn = consumer.name
        if self._rules.at_most_once:
            self._leave(message, now, "settled", "sent")
        return QueuedDelivery(message.id, consumer.name, message.deliveries, now)

    def settle(self, consumer: str, message: str, outcome: SampleOutcome, now: int) -> IgnoredReason | None:
        """Take a consumer's decision about a message; ``None``: it is done, else why it has no effect.

        :raises OutcomeNotEnabledError: the consumer did not declare the outcome; the message stays with it
        :raises NotConnectedError: the consumer is not bound, and only holders may settle here
        """
        self.advance(now)
        settler = self.consumers.get(consumer)
        if settler is None and self._rules.settler == "holder":
            raise NotConnectedError(f"{consumer} is not bound; bind it again to get message {message} again.")
        if settler is not None and outcome not in settler.outcomes:
            raise OutcomeNotEnabledError(
                f"{consumer} cannot settle message {message} as {outcome}; declare that outcome when it is built."
            )
        found = self._messages.get(message)
        if found is None:
            if settler is not None and message in settler.held:
                # sent at most once: only the room it takes is left
                del settler.held[message]
                return None
            if self._rules.early:
                self._early[message] = now + self._rules.early
            return "not-in-queue"
        if consumer not in found.holders and self._rules.settler != "sublet":
            if found.holders:
                return "held-by-another"
            if self._rules.settler == "holder":
                return "not-held"
        self._decide(found, consumer, outcome, now)
        return None

    def _decide(self, message: QueuedMessage, consumer: str, outcome: SampleOutcome, now: int) -> None:
        if message.barrier and consumer in message.holders:
            self._give_back(message, consumer, now)
        elif outcome == "accepted":
            self._leave(message, now, "settled", "accepted")
        elif outcome == "rejected":
            self._bury(message, now, "rejected")
        else:
            message.failures += 1
            if self._rules.max_failures and message.failures >= self._rules.max_failures:
                self._bury(message, now, "max-failures")
            else:
                backoff = self._rules.backoff
                delay = backoff.delay(message.failures) if backoff else 0
                for holder in list(message.holders) or [consumer]:
                    self._give_back(message, holder, now, delay)

    def _give_back(self, message: QueuedMessage, consumer: str, now: int, delay: int = 0) -> None:
        if consumer in message.holders:
            del message.holders[consumer]
            self.returns.append(Return(message.id, consumer, now))
        self._forget(consumer, message.id)
        if message.holders:
            return
        if message.barrier:
            self._leave(message, now, "settled", "barrier")
        elif self._rules.max_deliveries and message.deliveries >= self._rules.max_deliveries:
            self._bury(message, now, "max-deliveries")
        elif message.expires_at is not None and message.expires_at <= now:
            self._bury(message, now, "expired")
        elif delay:
            message.not_before = now + delay
            heapq.heappush(self._later, (message.not_before, message.order, message.id))
        else:
            self._wait(message)

    def _bury(self, message: QueuedMessage, now: int, reason: ExitReason) -> None:
        wanted = message.eligible or not self._rules.respect_eligible
        self._leave(message, now, "dead-letter" if self._rules.dead_letters and wanted else "discarded", reason)

    def _leave(self, message: QueuedMessage, now: int, how: How, reason: ExitReason) -> None:
        del self._messages[message.id]
        if reason != "sent":
            for consumer in message.holders:
                self._forget(consumer, message.id)
        self.exits.append(Exit(message.id, now, how, reason))

    def _forget(self, consumer: str, message: str) -> None:
        if consumer in self.consumers:
            self.consumers[consumer].held.pop(message, None)

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Let time pass: leases and delays end, messages expire that nobody holds."""
        while self._timers and self._timers[0][0] <= now:
            at, name = heapq.heappop(self._timers)
            message = self._messages.get(name)
            if message is None:
                continue
            for consumer in [consumer for consumer, until in message.holders.items() if until == at]:
                self._give_back(message, consumer, at)
            if not message.holders and message.expires_at == at and name in self._messages:
                self._bury(message, at, "expired")
        while self._later and self._later[0][0] <= now:
            at, _, name = heapq.heappop(self._later)
            message = self._messages.get(name)
            if message is not None and message.not_before == at:
                message.not_before = 0
                self._wait(message)
        while self._early and next(iter(self._early.values())) < now:
            del self._early[next(iter(self._early))]

    @property
    def deadline(self) -> int | None:
        """When :meth:`dispatch` must be asked again."""
        times = [heap[0][0] for heap in (self._timers, self._later) if heap]
        return min(times, default=None)

    # -- state ---------------------------------------------------------------------------------------------------------

    def dump(self) -> QueueState | None:
        """Return what :meth:`load` needs; ``None`` where there is nothing to remember."""
        if not (self._messages or self.consumers or self._early):
            return None
        messages, consumers = list(self._messages.values()), list(self.consumers.values())
        return QueueState(messages, consumers, self._early, self._order, self._turn)

    @classmethod
    def load(cls, rules: QueueSettings, state: QueueState) -> Queue:
        """Go on where another one was; its rules may have changed since."""
        queue = cls(rules)
        queue._messages = {message.id: message for message in state.messages}
        queue.consumers = {consumer.name: consumer for consumer in state.consumers}
        queue._early, queue._order, queue._turn = state.early, state.order, state.turn
        for message in state.messages:
            ends = [*message.holders.values(), message.expires_at]
            queue._timers += [(end, message.id) for end in ends if end is not None]
            if message.not_before:
                queue._later.append((message.not_before, message.order, message.id))
            elif not message.holders:
                queue._waiting.append((message.order, message.id))
        # a sorted list is a heap
        queue._timers.sort()
        queue._later.sort()
        queue._waiting.sort()
        return queue

    # -- questions -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        """Iterate over the messages that have not left, oldest first."""
        return iter(self._messages)

    def __getitem__(self, message: str) -> QueuedMessage:
        return self._messages[message]
