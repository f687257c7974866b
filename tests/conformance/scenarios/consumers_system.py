"""A queue with one consumer's flow between the broker and the consumer's library, driven through ``delivery``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.jobs.queues.queue import Queue
from tests.conformance.models.transport import Retransmissions, TransportAcks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.jobs.queues.model import How, QueuedDelivery
    from ackstream.settings.queues import QueueRules
    from tests.conformance.scenarios.scenario import Json

CONSUMER = "consumer"
STATES = {"dead-letter": "dmq", "discarded": "deleted", "settled": "acked"}
SECOND = 1_000


class Endpoint:
    """The queue, its consumer, and all that was seen of them."""

    def __init__(self, given: Json, rules: QueueRules) -> None:
        self._given = given
        self.queue = Queue(rules)
        self._ids: dict[str, Any] = {}
        self.now = 0
        lost = given.get("lose_transport_ack", [])
        self._lost = set(lost if isinstance(lost, list) else [lost])
        self._begin_flow()
        self.transport_acks: list[Json] = []
        self.sent_at: list[int] = []
        self.callbacks = 0
        self.delivered: dict[Any, None] = {}
        self.deliveries: dict[str, int] = {}
        self.redelivered: list[Any] = []
        self.delays: list[int] = []
        self._failed_at: dict[str, int] = {}

    def _begin_flow(self) -> None:
        """Begin with empty hands on both sides; a flow has its own numbers on the wire."""
        names = {"sub_window": "window", "threshold_pct": "threshold_percent", "sub_ack_ms": "ack_ms"}
        values = {name: self._given[word] for word, name in names.items() if word in self._given}
        self._flow = TransportAcks(**values, max_unacknowledged=self._given.get("max_delivered_unacked"))
        self._unconfirmed = Retransmissions()
        self._wire: list[Any] = []

    # -- what a scenario does ------------------------------------------------------------------------------------------

    def enqueue(self, message: Any) -> None:
        """Put a message into the queue, once."""
        if str(message) not in self._ids:
            self._ids[str(message)] = message
            ttl_ms = int(self._given.get("msg_ttl_s", 0) * SECOND)
            self.queue.enqueue(str(message), self.now, ttl_ms=ttl_ms, eligible=self._given.get("dmq_eligible", True))

    def bind(self, outcomes: Iterable[Any]) -> None:
        """Bind the consumer with a new flow, unless it is bound."""
        if CONSUMER not in self.queue.consumers:
            self.queue.bind(CONSUMER, self.now, outcomes=outcomes)
            self._begin_flow()
        self.move()

    def unbind(self) -> None:
        """Take the consumer away."""
        self.queue.unbind(CONSUMER, self.now)
        self._unconfirmed = Retransmissions()

    def settle(self, message: Any, outcome: Any) -> bool:
        """Settle a message; return whether it had an effect."""
        effective = self.queue.settle(CONSUMER, str(message), outcome, self.now) is None
        if effective and outcome == "failed":
            self._failed_at[str(message)] = self.now
        self.move()
        return effective

    # -- time ----------------------------------------------------------------------------------------------------------

    def _deadlines(self) -> list[int]:
        deadlines = (self.queue.deadline, self._flow.deadline, self._unconfirmed.deadline)
        return [deadline for deadline in deadlines if deadline is not None]

    def advance(self, until: int) -> None:
        """Let time pass up to a step."""
        while (deadlines := self._deadlines()) and min(deadlines) <= until:
            self.now = max(self.now, min(deadlines))
            self.move()
        self.now = max(self.now, until)
        self.move()

    def settle_down(self) -> None:
        """Let time pass until nothing is left to happen."""
        while deadlines := self._deadlines():
            self.advance(min(deadlines))

    def wait_for(self, message: Any) -> None:
        """Let time pass until the consumer has a message whose redelivery is delayed."""
        name = str(message)
        while name in self.queue and self.queue[name].not_before and CONSUMER in self.queue.consumers:
            self.advance(self.queue[name].not_before)

    def move(self) -> None:
        """Carry what is due now."""
        for delivery in self.queue.dispatch(self.now):
            self._deliver(delivery)
        for number in self._unconfirmed.due(self.now):
            self._send(number)
        up_to = self._flow.due(self.now)
        if up_to is not None:
            self.transport_acks.append({"up_to": self._wire[up_to - 1], "at_ms": self.now, "t_ms": self.now})
            lost = self._lost.intersection(self._wire[:up_to])
            self._lost -= lost
            if not lost:
                self._unconfirmed.acknowledge(up_to)

    def _deliver(self, delivery: QueuedDelivery) -> None:
        message = self._ids[delivery.message]
        self.delivered[message] = None
        self.deliveries[delivery.message] = delivery.count
        if delivery.redelivered:
            self.redelivered.append(message)
        failed_at = self._failed_at.pop(delivery.message, None)
        if failed_at is not None:
            self.delays.append(delivery.at - failed_at)
        self._wire.append(message)
        self._send(len(self._wire))

    def _send(self, number: int) -> None:
        """Send a message over the wire; the library drops what it has already."""
        self.sent_at.append(self.now)
        self._unconfirmed.sent(number, self.now)
        if self._flow.receive(number, self.now):
            self.callbacks += 1

    # -- what can be seen ----------------------------------------------------------------------------------------------

    @property
    def content(self) -> list[Any]:
        """The messages in the queue, delivered or not."""
        return [self._ids[name] for name in self.queue]

    def left(self, how: How) -> list[Any]:
        """Return the messages that left so, in the order of leaving."""
        return [self._ids[exit_.message] for exit_ in self.queue.exits if exit_.how == how]

    @property
    def state(self) -> str | None:
        """What has become of the first message."""
        if not self._ids:
            return None
        first = next(iter(self._ids))
        for exit_ in self.queue.exits:
            if exit_.message == first:
                return STATES[exit_.how]
        return "delivered" if self.queue[first].holders else "queued"
