"""A consumer's side of a session at a queue: what is new, what may be settled, what is to be said. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.delivery.errors import NotConnectedError, OutcomeNotEnabledError
from ackstream.delivery.queues.ack_batch import AckBatches
from ackstream.protocol.queues import Alive, Bind, Bound, Delivered, NotSettled, Settle, Unbind, Unbound

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from ackstream.delivery.queues.ack_batch import AckBatch
    from ackstream.protocol.app_acks import Outcome
    from ackstream.protocol.queues import ConsumerRecord, ServiceRecord

BIND_MS = 2_000
"""How often a bind is repeated that is not answered."""

PARTS_OF_A_SESSION = 3
"""A sign of life may get lost twice."""


class QueueSession:
    """One life of a consumer at a queue. Times are milliseconds of any clock that only goes forward.

    Use: :meth:`hear` what comes, :meth:`settle` what is done, send what :meth:`due` returns.
    """

    def __init__(self, bind: Bind, ack_batch: int, ack_timeout_ms: int, counts: Counter[str]) -> None:
        """Begin with a bind that is due at once.

        :param ack_batch: so many acceptances are said together, or those that have waited ``ack_timeout_ms``
        :param counts: what happens is counted in it
        :raises InconsistentQosError: batches that might never be full
        """
        self._bind = bind
        self._next_ms: int | None = None
        self._last = 0
        self._held: set[str] = set()
        self._batches = AckBatches(ack_batch, ack_timeout_ms)
        self._counts = counts
        self.bound: Bound | None = None
        self.over: Unbound | None = None

    @property
    def id(self) -> int:
        """The session's number."""
        return self._bind.session

    @property
    def outcomes(self) -> set[str]:
        """How it may settle."""
        return {"accepted", *self._bind.outcomes}

    def hear(self, record: ServiceRecord) -> Delivered | NotSettled | None:
        """Take an answer of the service; return what the application is to know of.

        Answers to other sessions and other queues, and those that came before, are passed over.
        """
        if (record.queue, record.session) != (self._bind.queue, self.id) or self.over is not None:
            return None
        if isinstance(record, Unbound):
            self.over = record
            return None
        if record.number <= self._last:
            self._counts["copies"] += 1
            return None
        self._last = record.number
        if isinstance(record, Bound):
            self.bound = record
            self._batches.grant(record.backlog)
            return None
        if isinstance(record, Delivered):
            self._counts["received"] += 1
            self._held.add(record.message)
        else:
            self._counts["refused"] += 1
        return record

    def settle(self, delivery: Delivered, outcome: Outcome, now_ms: int) -> Iterator[Settle]:
        """Decide about a delivery; return what is to be said at once. A second decision changes nothing.

        :raises OutcomeNotEnabledError: the outcome was not declared
        :raises NotConnectedError: the session of the delivery is over
        """
        if delivery.session != self.id or self.over is not None:
            raise NotConnectedError(
                f"The session in which message {delivery.message} was delivered is over; it comes again."
            )
        if outcome not in self.outcomes:
            raise OutcomeNotEnabledError(
                f"Message {delivery.message} cannot be settled as {outcome}; give that outcome to the consumer when it"
                " is made."
            )
        if delivery.message not in self._held:
            return iter(())
        self._held.remove(delivery.message)
        self._counts[outcome] += 1
        return self._told(self._batches.add(delivery.message, now_ms, outcome))

    def due(self, now_ms: int) -> Iterator[ConsumerRecord]:
        """Return what is to be said by now: the bind until it is answered, signs of life, acks that have waited."""
        if self.over is not None:
            return
        if self._next_ms is None or now_ms >= self._next_ms:
            bound = self.bound
            self._next_ms = now_ms + (BIND_MS if bound is None else bound.session_ms // PARTS_OF_A_SESSION)
            yield self._bind if bound is None else Alive(self._bind.queue, self._bind.consumer, self.id)
        yield from self._told(self._batches.due(now_ms))

    def end(self) -> Iterator[ConsumerRecord]:
        """Return the last words; nothing can be settled afterwards."""
        if self.over is None:
            yield from self._told(self._batches.flush())
            self.over = Unbound(self._bind.queue, self._bind.consumer, self.id, "closed")
            yield Unbind(self._bind.queue, self._bind.consumer, self.id)

    def _told(self, batch: AckBatch | None) -> Iterator[Settle]:
        if batch is not None:
            yield Settle(self._bind.queue, self._bind.consumer, self.id, batch.messages, batch.outcome)
