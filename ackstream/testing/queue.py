"""A work queue in memory: its rules are those of the queues job, its consumers those of the SDK."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ackstream.client.core.lifetime import Lifetime
from ackstream.client.core.messages import Message
from ackstream.client.options import MAX_BATCH, QueueOptions
from ackstream.client.queues.queue_consumer import QueueConsumer
from ackstream.client.queues.queued_messages import AckMode, QueueMessage, Settle, outcomes_of, settled_already
from ackstream.client.reading.samples import Sample
from ackstream.errors import NotConnectedError, OutcomeNotEnabledError
from ackstream.jobs.queues.queue import Queue
from ackstream.jobs.queues.records import Arrival, Event
from ackstream.protocol.queues import MessageDelivered
from ackstream.protocol.readers import SampleOutcome
from ackstream.settings.jobs import QueueSettings
from ackstream.testing.memory import VirtualConnection, VirtualTime

AT_ONCE = 10
BATCH_MS = 1_000
"""How often a message is delivered at one time; after that, its next delivery takes a batch."""


class QueueSystem(VirtualTime):
    """One work queue, its messages and its consumers; for one thread.

    A message is delivered when it is published, or when its consumer has room again; handlers run at once.
    Supported: deliveries, outcomes, leases, work that goes on, delays, limits of deliveries and failures,
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

    def consumer(
        self,
        *,
        name: str,
        handler: Callable[[QueueMessage], object] | None = None,
        batch_handler: Callable[[list[QueueMessage]], object] | None = None,
        max_batch: int = MAX_BATCH,
        mode: AckMode = "client",
        backlog: int | None = None,
        outcomes: Iterable[SampleOutcome] = (),
    ) -> QueueConsumer:
        """Return a consumer of the queue; a second one of the same name takes the messages of the first.

        Parameters are those of ``QueueConsumer``; ``receive`` does not wait: it returns ``None`` if there is nothing.
        """
        made = QueueConsumer(
            self._connection,
            queue=self.settings.name,
            name=name,
            handler=handler,
            batch_handler=batch_handler,
            max_batch=max_batch,
            mode=mode,
            backlog=backlog,
            outcomes=outcomes,
        )
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
        self._messages[arrival.id] = Sample(
            "publisher", topic, key, value, dict(headers or {}), self.now, number + 1, 0, number
        )
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
        return [
            (self._messages[event.message], str(event.reason))
            for event in self.events
            if event.outcome == "dead-letter"
        ]

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
    """Stands for the ``QueueLink`` of a consumer, whose parameters it has."""

    bound = None

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
        self._options, self._settle = options, settle
        self._name, self._outcomes = options.name, outcomes_of(options.mode, options.outcomes)
        self._ready: dict[str, QueueMessage] = {}
        self._settled: set[int] = set()
        self._halted = False

    def start(self, _timeout: float) -> None:
        # the messages of an earlier consumer of the name come here
        if (replaced := self._links.pop(self._name, None)) is not None:
            replaced.stop()
        self._links[self._name] = self
        self._queue.bind(self._name, self._system.now, backlog=self._options.backlog, outcomes=self._outcomes)

    def deliver(self, event: Event, content: Sample) -> None:
        delivery = MessageDelivered(
            event.queue, self._name, 0, len(self._system.events), event.message, "messages", 0, content.offset, 0,
            event.count, content.topic,
        )  # fmt: skip
        self.counts["received"] += 1
        self._ready[event.message] = QueueMessage.of(content, delivery, self._settle, self)

    def take_back(self, message: str) -> None:
        self.counts["expired"] += self._ready.pop(message, None) is not None

    def next(self, _timeout: float | None) -> QueueMessage | None:
        if not self._ready or self._halted or self.stopped.is_set():
            return None
        message = self._ready.pop(next(iter(self._ready)))
        self._queue.hand_out(self._name, message.id, self._system.now)
        return message

    def settle(self, delivery: MessageDelivered, outcome: SampleOutcome) -> None:
        self._check_bound()
        if outcome not in ("accepted", *self._outcomes):
            raise OutcomeNotEnabledError(f"The consumer {self._name} did not declare the outcome {outcome}.")
        if delivery.number in self._settled:
            # a message that is settled a second time may be with a consumer again, perhaps this one
            return
        self._settled.add(delivery.number)
        refusal = self._queue.settle(self._name, delivery.message, outcome, self._system.now)
        self._system.settle()
        self.counts[outcome if refusal is None else "refused"] += 1

    def _check_bound(self) -> None:
        if self.stopped.is_set():
            raise NotConnectedError(
                f"The consumer {self._name} is no longer bound; the queue delivers the message again."
            )

    def lease_left(self, _delivery: MessageDelivered) -> None:
        """Return no time: none passes while the application works."""

    def work_on(self, delivery: MessageDelivered) -> None:
        self._check_bound()
        if delivery.number in self._settled:
            raise settled_already(delivery)
        refusal = self._queue.settle(self._name, delivery.message, "working", self._system.now)
        self.counts["refused"] += refusal is not None

    def halt(self, *, halted: bool) -> None:
        self._halted = halted
        if self._links.get(self._name) is self:
            self._queue.consumers[self._name].stopped = halted
        self._system.settle()

    def stop(self) -> None:
        self.stopped.set()
        self._ready.clear()

    def close(self) -> None:
        # unless another consumer has taken its name
        if self._links.get(self._name) is self:
            del self._links[self._name]
            self._queue.unbind(self._name, self._system.now, "closed")
            self._system.settle()
