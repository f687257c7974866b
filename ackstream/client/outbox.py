"""Answers on their way to the broker: some wait for their time, some for the broker's confirmation; none is lost."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

from ackstream.kafka.clients import RESEND_SECONDS, SEND_AGAIN
from ackstream.protocol.record_headers import CORRELATION_ID

if TYPE_CHECKING:
    from ackstream.client.group import Work

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Outgoing:
    """An answer, and the work of the record that it belongs to; ``topic`` is ``None`` for the outbox's own topic."""

    correlation_id: str
    key: bytes
    value: bytes
    work: Work
    topic: str | None = None


class Outbox:
    """Sends answers with a producer. Times are seconds of a monotonic clock.

    ``put``, ``hold`` and ``release`` may be called from any thread, everything else from a single one.
    """

    def __init__(self, producer: Any, topic: str) -> None:
        """Send to ``topic``."""
        self.stored = self.lost = self.sending = 0
        self._producer = producer
        self._topic = topic
        self._lock = threading.Lock()
        self._delayed: list[tuple[float, int, Outgoing]] = []
        self._order = count()
        # filled by the producer's thread, emptied by the owner's
        self._done: deque[Outgoing] = deque()
        self._refused: deque[tuple[Outgoing, BaseException]] = deque()

    @property
    def delayed(self) -> int:
        """The number of answers that wait for their time."""
        return len(self._delayed)

    def put(self, answer: Outgoing, delay: float, now: float) -> None:
        """Send an answer after ``delay`` seconds; its work remains open until the broker has stored it."""
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
        """Undo a ``hold``."""
        with self._lock:
            work.remaining -= 1

    def wait(self, now: float) -> float | None:
        """Return after how many seconds ``turn`` is due; ``None`` if no answer waits for its time."""
        return max(0.0, self._delayed[0][0] - now) if self._delayed else None

    def turn(self, now: float) -> None:
        """Send the answers that are due, finish the work of stored ones, reschedule those that failed temporarily."""
        self.settle(now)
        with self._lock:
            while self._delayed and self._delayed[0][0] <= now:
                self._send(heapq.heappop(self._delayed)[2])

    def settle(self, now: float) -> None:
        """Finish the work of the answers that the broker has stored; send nothing."""
        with self._lock:
            while self._done:
                self._done.popleft().work.remaining -= 1
                self.sending -= 1
                self.stored += 1
            while self._refused:
                self._handle_refusal(*self._refused.popleft(), now)

    def _handle_refusal(self, answer: Outgoing, error: BaseException, now: float) -> None:
        self.sending -= 1
        if isinstance(error, SEND_AGAIN):
            self._delay(answer, now + RESEND_SECONDS)
        else:
            answer.work.remaining -= 1
            self.lost += 1
            log.error("Kafka rejected an answer to %s: %s", answer.correlation_id, error)

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
