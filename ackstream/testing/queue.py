"""A work queue in memory: its rules are those of the queues job, its consumers those of the SDK."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ackstream.client.core.lifetime import Lifetime, call_handler
from ackstream.client.core.messages import Message
from ackstream.client.options import QueueOptions
from ackstream.client.queues._queue_session import AckBatches, QueueSession
from ackstream.client.queues.queue_consumer import QueueConsumer
from ackstream.client.queues.queued_messages import FlowQos, QueueMessage, Settle, outcomes_of
from ackstream.client.reading.samples import Sample
from ackstream.jobs.queues.queue import Queue
from ackstream.jobs.queues.records import Arrival, Event
from ackstream.protocol.queues import Bind, Bound, MessageDelivered, NotSettled, QueueAnswer, SettleMessages
from ackstream.protocol.readers import SampleOutcome
from ackstream.settings.jobs import QueueSettings
from ackstream.testing.memory import VirtualConnection, VirtualTime

AT_ONCE = 10
BATCH_MS = 1_000
"""How often a message is delivered at one time; after that, its next delivery takes a batch."""


class QueueSystem(VirtualTime):
    """One work queue, its messages and its consumers; for one thread.

    A message is delivered when it is published, or when its consumer has room again; handlers run at once.
    Supported: deliveries, outcomes, leases, extended work, delays, limits of deliveries and failures,
    times to live, dead letters, fairness and exclusive queues.
    Not supported: sessions that end because a consumer is silent, ``ack_batch``, transport acks, barriers.

    :ivar events: the events of messages, as rows of the table ``queue_events``
    """

    def __init__(self, settings: QueueSettings, *, start_ms: int = 0) -> None:
        """Start with an empty queue of ``settings`` (one of ``[[queues]]``), at ``start_ms`` in epoch milliseconds."""
        super().__init__(start_ms)
        self.settings = settings
        self.events: list[Event] = []
        self._messages: dict[str, Sample] = {}
        self._queue = Queue(settings, self._note)
        self._links: dict[str, _QueueLinkInMemory] = {}
        self._connection = VirtualConnection(self)
        self._connection.queue_link = partial(_QueueLinkInMemory, self, self._queue, self._links)
        self._busy = False
        # how often each message was delivered at this time
        self._delivered: Counter[str] = Counter()
        self._returned: list[str] = []

    def consumer(self, *, name: str, **options: Any) -> QueueConsumer:
        """Return a consumer of the queue; a second one of the same name takes the messages of the first.

        The options are those of ``QueueConsumer``; ``receive`` does not wait: it returns ``None`` if there is nothing.
        """
        made = QueueConsumer(self._connection, queue=self.settings.name, name=name, **options)
        self.settle()
        return made

    def publish(
        self,
        value: bytes,
        *,
        topic: str | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes | None] | None = None,
        ttl_ms: int = 0,
    ) -> str:
        """Put a message of any topic into the queue; return its id there.

        :param ttl_ms: its own time to live, if the queue respects those; 0: none
        """
        number = len(self._messages)
        arrival = Arrival(self.now, "messages", 0, number, 0, ttl_ms=ttl_ms)
        own = dict(headers or {})
        self._messages[arrival.id] = Sample("publisher", topic, key, value, own, self.now, number + 1, 0, number)
        self._queue.enqueue(arrival)
        self.settle()
        return arrival.id

    @property
    def depth(self) -> int:
        """The number of messages in the queue, those that consumers hold included."""
        return len(self._queue.messages)

    @property
    def dead_letters(self) -> list[tuple[Message, str]]:
        """The messages that were given up, each with the reason."""
        given_up = (event for event in self.events if event.outcome == "dead-letter")
        return [(self._messages[event.message], str(event.reason)) for event in given_up]

    def settle(self) -> None:
        """Deliver messages, and let the handlers work, until nothing moves."""
        if self._busy:
            # a handler settles, or publishes: the loop below goes on
            return
        self._busy = True
        try:
            moved = True
            while moved:
                while self._returned:
                    message = self._returned.pop()
                    if self._delivered[message] >= AT_ONCE:
                        self._queue.delay(message, self.now + BATCH_MS)
                before = len(self.events)
                self._queue.dispatch(self.now)
                for event in self.events[before:]:
                    if event.event == "delivered" and event.consumer is not None:
                        self._queue.receive(event.consumer, event.message, self.now)
                        self._delivered[event.message] += 1
                self.turn()
                moved = len(self.events) > before
        finally:
            self._busy = False

    def _note(self, event: Event) -> None:
        self.events.append(event)
        link = self._links.get(event.consumer or "")
        if link is None:
            return
        if event.event == "delivered":
            link.deliver(event, self._messages[event.message])
        elif event.event == "returned":
            self._returned.append(event.message)
            link.take_back(event.message)

    def _due(self) -> int | None:
        deadline = self._queue.deadline
        return None if deadline is None else max(self.now, deadline)

    def _step(self, now: int) -> None:
        if now > self.now:
            self._delivered.clear()
        self.now = now
        self._queue.advance(now)
        self.settle()


class _QueueLinkInMemory:
    """Stands for the ``QueueLink`` of a consumer, whose parameters it has: the session is that of the SDK."""

    def __init__(
        self,
        system: QueueSystem,
        queue: Queue,
        links: dict[str, _QueueLinkInMemory],
        options: QueueOptions,
        _life: Lifetime,
        settle: Settle,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.stopped = threading.Event()
        self._system, self._queue, self._links = system, queue, links
        self._options, self._settle, self._name = options, settle, options.name
        outcomes = outcomes_of(options.mode, options.outcomes)
        self._bind = Bind(options.queue, options.name, 0, options.backlog, outcomes)
        self._session = QueueSession(self._bind, AckBatches(self._bind), self.counts, FlowQos())
        self._ready: dict[str, QueueMessage] = {}
        # of the answers of the queue
        self._number = 0

    @property
    def bound(self) -> Bound | None:
        return self._session.bound

    def start(self, _timeout: float) -> None:
        # this consumer takes over the messages of an earlier one of its name
        if (replaced := self._links.pop(self._name, None)) is not None:
            replaced.close()
        self._links[self._name] = self
        self._queue.bind(self._bind, self._system.now)
        rules, granted = self._system.settings, self._queue.consumers[self._name].backlog
        # no session ends because its consumer is silent
        self._receive(Bound, granted, rules.lease, 0, rules.max_lease)

    def _receive(self, answer: Callable[..., QueueAnswer], *content: Any) -> Any:
        self._number += 1
        received = answer(self._bind.queue, self._name, 0, self._number, *content)
        self._session.receive(received, self._system.now)
        self._session.report(self._system.now)
        return received

    def deliver(self, event: Event, content: Sample) -> None:
        place = "messages", 0, content.offset, 0
        delivery = self._receive(MessageDelivered, event.message, *place, event.count, content.topic)
        self._ready[event.message] = QueueMessage.of(content, delivery, self._settle, self)

    def take_back(self, message: str) -> None:
        self.counts["expired"] += self._ready.pop(message, None) is not None

    def next(self, _timeout: float | None) -> QueueMessage | None:
        if not self._ready or self._session.stopped or self.stopped.is_set():
            return None
        message = self._ready.pop(next(iter(self._ready)))
        self._queue.hand_out(self._name, message.id, self._system.now)
        self._session.hand_out(message.delivery, self._system.now)
        self._session.report(self._system.now)
        return message

    def settle(self, delivery: MessageDelivered, outcome: SampleOutcome) -> None:
        self._send(self._session.settle(delivery, outcome, self._system.now))

    def lease_left(self, delivery: MessageDelivered) -> int | None:
        return self._session.lease_left(delivery, self._system.now)

    def work_on(self, delivery: MessageDelivered) -> None:
        self._send(self._session.working(delivery, self._system.now))

    def _send(self, records: Iterable[SettleMessages]) -> None:
        for record in records:
            (message,) = record.messages
            refusal = self._queue.settle(self._name, message, record.outcome, self._system.now)
            if refusal is not None:
                call_handler(self._options.on_refused, self._receive(NotSettled, message, record.outcome, refusal))
            self._system.settle()

    def halt(self, *, halted: bool) -> None:
        self._session.stopped = halted
        if self._links.get(self._name) is self:
            self._queue.consumers[self._name].stopped = halted
        self._system.settle()

    def stop(self) -> None:
        self.stopped.set()
        self._ready.clear()

    def close(self) -> None:
        self.stop()
        list(self._session.end())
        # unless another consumer has taken its name
        if self._links.get(self._name) is self:
            del self._links[self._name]
            self._queue.unbind(self._name, self._system.now, "closed")
            self._system.settle()
