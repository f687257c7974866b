"""Work queues and their consumers, as deliveries and settlements show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.observe.sample_progress import SLICES
from ackstream.observe.trends import Latest, Trend
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, SettleMessages, Unbind, Unbound

if TYPE_CHECKING:
    from ackstream.protocol.queues import QueueAnswer, QueueRequest

KEPT, HELD = 1_000, 100_000
"""Maximum number of queues known, and of messages that consumers hold at one of them."""


class QueueLine(msgspec.Struct, frozen=True):
    """A queue: messages that its consumers hold, and what happened in the window.

    :ivar held: delivered to a consumer and not yet settled
    :ivar oldest: for how long the oldest of them is held, in milliseconds; ``None``: there is none
    :ivar most: the highest number of deliveries of one of them
    :ivar at: its last record
    """

    queue: str
    consumers: int
    held: int
    oldest: int | None
    most: int
    delivered: int
    redelivered: int
    settled: int
    dead: int
    at: int


class _Held(msgspec.Struct):
    consumer: str
    since: int
    count: int
    until: int


class _Queue:
    def __init__(self, queue: str, window: int) -> None:
        self.queue = queue
        self.at = 0
        self.held: dict[str, _Held] = {}
        self.consumers: dict[str, int] = {}
        trends = (Trend(max(1, window // SLICES), SLICES) for _ in range(4))
        self.delivered, self.redelivered, self.settled, self.dead = trends

    def release(self, consumer: str) -> None:
        """Forget a consumer, and what it held."""
        self.consumers.pop(consumer, None)
        self.held = {message: one for message, one in self.held.items() if one.consumer != consumer}


class QueueView:
    """What the consumers of all queues hold. Times are in epoch milliseconds."""

    def __init__(self, window: int) -> None:
        self._queues: Latest[str, _Queue] = Latest(lambda queue: _Queue(queue, window), KEPT)

    def request(self, request: QueueRequest, at: int) -> None:
        """Take what a consumer has sent."""
        one = self._touch(request.queue, at)
        if isinstance(request, SettleMessages):
            for message in request.messages:
                if one.held.pop(message, None) is not None:
                    one.settled.add(at)
        elif isinstance(request, (Bind, Alive)):
            one.consumers[request.consumer] = at
        elif isinstance(request, Unbind):
            one.release(request.consumer)

    def answer(self, answer: QueueAnswer, at: int) -> bool:
        """Take what a queue has sent; return whether it is a delivery that was not seen before."""
        one = self._touch(answer.queue, at)
        if isinstance(answer, Unbound):
            one.release(answer.consumer)
        elif isinstance(answer, Bound):
            one.consumers[answer.consumer] = at
        elif isinstance(answer, MessageDelivered):
            before = one.held.get(answer.message)
            if before is not None and before.count >= answer.count:
                # repeated after a crash, or because it did not arrive
                return False
            if before is not None or len(one.held) < HELD:
                one.held[answer.message] = _Held(answer.consumer, at, answer.count, answer.until)
            one.delivered.add(at)
            if answer.redelivered:
                one.redelivered.add(at)
            return True
        return False

    def dead(self, queue: str, at: int) -> None:
        """Count a dead letter of a queue."""
        self._touch(queue, at).dead.add(at)

    def lines(self, now: int) -> list[QueueLine]:
        """Return the queues, those with most messages held first."""
        found = []
        for one in self._queues:
            # a lease that has ended takes the message back
            one.held = {message: held for message, held in one.held.items() if not held.until or held.until > now}
            since = min((held.since for held in one.held.values()), default=None)
            found.append(
                QueueLine(
                    one.queue,
                    len(one.consumers),
                    len(one.held),
                    None if since is None else max(0, now - since),
                    max((held.count for held in one.held.values()), default=0),
                    one.delivered.total(now),
                    one.redelivered.total(now),
                    one.settled.total(now),
                    one.dead.total(now),
                    one.at,
                )
            )
        return sorted(found, key=lambda line: (-line.held, -line.delivered, line.queue))

    def _touch(self, queue: str, at: int) -> _Queue:
        one = self._queues.touch(queue)
        one.at = max(one.at, at)
        return one
