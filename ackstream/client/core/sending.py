"""Sending a record again until Kafka has it."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

from ackstream.kafka.clients import RESEND_SECONDS, may_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.core.connection import Producer


def _ignore(_report: object) -> None:
    """Do nothing with a report."""


def _keep() -> None:
    """Withdraw nothing."""


@dataclass(eq=False)
class Sending:
    """A record that Kafka has not stored yet.

    :ivar record: topic, key, value, headers and partition by name
    :ivar finished: called in :meth:`ReliableSender.turn`, with ``None`` once Kafka has it, or with the final error
    :ivar stored: called with the metadata as soon as Kafka has it, in the producer's thread
    :ivar withdrawn: asked before it is sent, and sent again; returns the error that it ends with instead
    :ivar give_up_at: the monotonic time after which a failure is final
    """

    record: dict[str, Any]
    finished: Callable[[BaseException | None], object] = _ignore
    stored: Callable[[Any], object] = _ignore
    withdrawn: Callable[[], BaseException | None] = _keep
    give_up_at: float = inf


class ReliableSender:
    """Sends each record until Kafka has stored it, or has refused it for good.

    A record that failed for a reason that may pass is sent again after 0.2 s, behind those sent meanwhile. Times are
    seconds of a monotonic clock. ``send`` may be called from any thread, ``turn`` from a single one.

    :ivar sending: the number of records that are on their way
    :ivar sending_bytes: the bytes of their values
    """

    def __init__(self, producer: Producer, *, ready: Callable[[], bool] = lambda: True) -> None:
        """Send with ``producer``.

        :param ready: whether records may be sent now; meanwhile they wait
        """
        self.sending = self.sending_bytes = 0
        self._producer, self._ready = producer, ready
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, Sending]] = []
        self._order = count()
        # filled by the producer's thread, emptied by that of turn()
        self._reports: deque[tuple[Sending, BaseException | None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of records that wait for their time, or for ``ready``."""
        return len(self._waiting)

    def send(self, sending: Sending, at: float = 0.0) -> None:
        """Send a record, at a later time if ``at`` is one."""
        if at > 0 or not self._ready():
            self._plan(sending, at)
        else:
            self._put(sending)

    def wait(self, now: float) -> float | None:
        """Return in how many seconds ``turn`` is due; ``None`` if no record waits for its time alone."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting and self._ready() else None

    def turn(self, now: float) -> None:
        """Send the records that are due, those that failed temporarily included, and finish others as ``settle``."""
        self.settle(now)
        while self._waiting and self._waiting[0][0] <= now and self._ready():
            with self._lock:
                sending = heapq.heappop(self._waiting)[2]
            self._put(sending)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Finish the records that Kafka has stored or refused; send nothing."""
        while self._reports:
            sending, error = self._reports.popleft()
            self._count(-1, sending)
            if error is not None and may_pass(error) and now < sending.give_up_at:
                self._plan(sending, now + RESEND_SECONDS)
            else:
                sending.finished(error)

    def _plan(self, sending: Sending, at: float) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (at, next(self._order), sending))

    def _put(self, sending: Sending) -> None:
        self._count(1, sending)
        if (reason := sending.withdrawn()) is not None:
            self._reports.append((sending, reason))
            return

        def stored(metadata: Any) -> None:
            self._reports.append((sending, None))
            sending.stored(metadata)

        self._producer.put(stored, lambda error: self._reports.append((sending, error)), **sending.record)

    def _count(self, change: int, sending: Sending) -> None:
        with self._lock:
            self.sending += change
            self.sending_bytes += change * len(sending.record["value"] or b"")
