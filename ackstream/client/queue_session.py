"""A consumer's side of a session at a queue: what is new, what may be settled, what is to be said. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ackstream.errors import InconsistentQosError, NotConnectedError, OutcomeNotEnabledError
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, NotSettled, SettleMessages, Unbind, Unbound
from ackstream.protocol.readers import SampleOutcome

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

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

    def hear(self, record: ServiceRecord) -> MessageDelivered | NotSettled | None:
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
        if isinstance(record, MessageDelivered):
            self._counts["received"] += 1
            self._held.add(record.message)
        else:
            self._counts["refused"] += 1
        return record

    def settle(self, delivery: MessageDelivered, outcome: SampleOutcome, now_ms: int) -> Iterator[SettleMessages]:
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

    def _told(self, batch: AckBatch | None) -> Iterator[SettleMessages]:
        if batch is not None:
            yield SettleMessages(self._bind.queue, self._bind.consumer, self.id, batch.messages, batch.outcome)


# -- Acknowledgements of queue messages, collected on the consumer's side (brokers.md A29).


class AckBatch(msgspec.Struct, frozen=True):
    """What goes out at once: plain acknowledgements of several messages, or one message with another outcome."""

    messages: tuple[str, ...]
    outcome: SampleOutcome = "accepted"


class AckBatches:
    """The acknowledgements of one consumer and one queue that wait to be sent."""

    def __init__(self, size: int = 1, timeout_ms: int = 1_000) -> None:
        """Begin with none.

        :param size: so many go out together
        :param timeout_ms: or those that wait so long
        :raises InconsistentQosError: a batch without a timeout might never be full
        """
        if size < 1 or timeout_ms < 0 or (size > 1 and timeout_ms == 0):
            raise InconsistentQosError(
                f"Batches of {size} after {timeout_ms} ms: at least 1, and more than 0 ms for more than 1, are needed."
            )
        self._size = size
        self._timeout_ms = timeout_ms
        self._waiting: list[str] = []
        self._since: int | None = None

    def grant(self, backlog: int) -> None:
        """Take the backlog that was granted: a batch larger than it would never be full (0: any number)."""
        if backlog:
            self._size = min(self._size, backlog)

    def add(self, message: str, now: int, outcome: SampleOutcome = "accepted") -> AckBatch | None:
        """Add a message; return what goes out now. Other outcomes than ``accepted`` go at once, alone."""
        if outcome != "accepted":
            return AckBatch((message,), outcome)
        self._waiting.append(message)
        self._since = now if self._since is None else self._since
        return self.flush() if len(self._waiting) >= self._size else None

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again."""
        return None if self._since is None else self._since + self._timeout_ms

    def due(self, now: int) -> AckBatch | None:
        """Return what has waited long enough."""
        deadline = self.deadline
        return self.flush() if deadline is not None and now >= deadline else None

    def flush(self) -> AckBatch | None:
        """Return what waits, as on closing."""
        if not self._waiting:
            return None
        batch, self._waiting, self._since = AckBatch(tuple(self._waiting)), [], None
        return batch


# -- What a handler's end means for the message it was called with (brokers.md S17, A30).


AckMode: TypeAlias = Literal["client", "auto", "auto-cancel"]
"""Who acknowledges: the application by its calls; or the library after the handler, which leaves the message with its
consumer where the handler raised (Solace), or gives it back (AMPS)."""


def after_handler(mode: AckMode, *, raised: bool) -> SampleOutcome | None:
    """Return how the library settles a message when its handler has ended; ``None``: it does not.

    It knows of the handler alone: work that was handed to another thread may not be done yet.
    """
    if mode == "client":
        return None
    if not raised:
        return "accepted"
    return "failed" if mode == "auto-cancel" else None


def takes_call(mode: AckMode, outcome: SampleOutcome) -> bool:
    """Tell whether a call of the application settles anything; an ``accepted`` where the library does it does not.

    :raises OutcomeNotEnabledError: another outcome where the library settles
    """
    if mode != "client" and outcome != "accepted":
        raise OutcomeNotEnabledError(f"A message cannot be settled as {outcome} where the library acknowledges.")
    return mode == "client"
