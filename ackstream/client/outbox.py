"""Up to which offset everything is done, although answers are finished in any order."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kafka.errors import KafkaError

from ackstream.kafka.clients import SEND_AGAIN
from ackstream.protocol.record_headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


Place = TypeVar("Place", bound="Hashable")


@dataclass(eq=False)
class Work:
    """What one record still waits for: the number of its answers that are not stored yet."""

    offset: int
    remaining: int = 0


class OffsetProgress(Generic[Place]):
    """Follows the records of partitions.

    An offset may be committed when all records before it have no remaining work: what was not finished is read again
    after a restart.
    """

    def __init__(self) -> None:
        self._next: dict[Place, int] = {}
        self._work: dict[Place, deque[Work]] = {}

    def start(self, place: Place, offset: int) -> None:
        """Follow a partition from an offset on, unless it is followed already."""
        if place not in self._next:
            self._next[place] = offset
            self._work[place] = deque()

    def begin(self, place: Place, offset: int) -> Work | None:
        """Take up a record; ``None`` for one that was taken up before (it is read again after a rebalance)."""
        self.start(place, offset)
        if offset < self._next[place]:
            return None
        self._next[place] = offset + 1
        work = Work(offset)
        self._work[place].append(work)
        return work

    def keep(self, places: Iterable[Place]) -> None:
        """Forget all partitions but these: the others belong to somebody else now."""
        kept = set(places)
        for place in self._next.keys() - kept:
            del self._next[place], self._work[place]

    def positions(self) -> dict[Place, int]:
        """Return for each partition the offset that may be committed: the first that is not done, else the next."""
        found = {}
        for place, work in self._work.items():
            while work and work[0].remaining == 0:
                work.popleft()
            found[place] = work[0].offset if work else self._next[place]
        return found


# -- Answers on their way to the broker: some wait for their time, some for the broker; none is lost on the way.


log = logging.getLogger(__name__)

RESEND_SECONDS = 0.2


@dataclass(frozen=True, eq=False)
class Outgoing:
    """One answer, and the record whose work it is; ``topic`` is ``None`` for the usual one."""

    correlation_id: str
    key: bytes
    value: bytes
    work: Work
    topic: str | None = None


class Outbox:
    """Sends answers with a producer. Time is seconds of any clock that only goes forward.

    ``put``, ``hold`` and ``release`` may be called from any thread, everything else from one.
    """

    def __init__(self, producer: Any, topic: str) -> None:
        """Send to ``topic``."""
        self.stored = self.lost = self.sending = 0
        self._producer = producer
        self._topic = topic
        self._lock = threading.Lock()
        self._delayed: list[tuple[float, int, Outgoing]] = []
        self._order = count()
        # filled by the producer's thread, emptied by ours
        self._done: deque[Outgoing] = deque()
        self._refused: deque[tuple[Outgoing, BaseException]] = deque()

    @property
    def delayed(self) -> int:
        """The number of answers that wait for their time."""
        return len(self._delayed)

    def put(self, answer: Outgoing, delay: float, now: float) -> None:
        """Send an answer, now or after so many seconds; its work remains until the broker has stored it."""
        with self._lock:
            answer.work.remaining += 1
            if delay > 0:
                self._delay(answer, now + delay)
            else:
                self._send(answer)

    def hold(self, work: Work) -> None:
        """Keep the work of a record open until ``release``."""
        with self._lock:
            work.remaining += 1

    def release(self, work: Work) -> None:
        """End what ``hold`` began."""
        with self._lock:
            work.remaining -= 1

    def wait(self, now: float) -> float | None:
        """Return after how many seconds ``turn`` has to be called again; ``None`` where nothing waits for its time."""
        return max(0.0, self._delayed[0][0] - now) if self._delayed else None

    def turn(self, now: float) -> None:
        """Send what is due, finish the work of what the broker has stored, plan anew what it may still take."""
        self.settle(now)
        with self._lock:
            while self._delayed and self._delayed[0][0] <= now:
                self._send(heapq.heappop(self._delayed)[2])

    def settle(self, now: float) -> None:
        """Finish the work of what the broker has stored; send nothing."""
        with self._lock:
            while self._done:
                self._done.popleft().work.remaining -= 1
                self.sending -= 1
                self.stored += 1
            while self._refused:
                self._give_back(*self._refused.popleft(), now)

    def _give_back(self, answer: Outgoing, error: BaseException, now: float) -> None:
        self.sending -= 1
        if isinstance(error, SEND_AGAIN):
            self._delay(answer, now + RESEND_SECONDS)
        else:
            answer.work.remaining -= 1
            self.lost += 1
            log.error("Kafka does not take an answer to %s: %s", answer.correlation_id, error)

    def _delay(self, answer: Outgoing, until: float) -> None:
        heapq.heappush(self._delayed, (until, next(self._order), answer))

    def _send(self, answer: Outgoing) -> None:
        self.sending += 1
        headers = [(CORRELATION_ID, answer.correlation_id.encode())]
        try:
            sent = self._producer.send(answer.topic or self._topic, answer.value, answer.key, headers)
        except (KafkaError, ValueError) as error:
            self._refuse(answer, error)
        else:
            sent.add_callback(partial(self._finish, answer))
            sent.add_errback(partial(self._refuse, answer))

    def _finish(self, answer: Outgoing, _metadata: Any) -> None:
        self._done.append(answer)

    def _refuse(self, answer: Outgoing, error: BaseException) -> None:
        self._refused.append((answer, error))
