"""A consumer's session at a queue: its messages and the records to send. No I/O; times in ms of a monotonic clock."""

from collections import Counter, deque
from collections.abc import Iterator
from math import inf

import msgspec

from ackstream.client.core.lifetime import AGAIN_SECONDS, ALIVE_PER_LEASE, Session
from ackstream.client.queues.queued_messages import FlowQos
from ackstream.errors import InconsistentQosError, NotConnectedError, OutcomeNotEnabledError, PreconditionNotMetError
from ackstream.protocol import queues
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, NotSettled, SettleMessages, Unbind, Unbound
from ackstream.protocol.readers import SampleOutcome

MAX_MISSING = 1_000
"""Maximum number of deliveries that one record reports as lost."""

MAX_BATCH = 1_000
"""Maximum number of messages settled by one record, which stays far smaller than Kafka's limit."""


class AckBatches:
    """The acceptances of one consumer at one queue that are waiting to be sent (brokers.md A29)."""

    def __init__(self, bind: Bind, size: int = 1, timeout_ms: int = 1_000) -> None:
        """Send acceptances when ``size`` are waiting, or when the oldest has waited for ``timeout_ms``."""
        if size < 1 or timeout_ms < 0 or (size > 1 and timeout_ms == 0):
            raise InconsistentQosError(
                f"Batches of {size} after {timeout_ms} ms: at least 1, and more than 0 ms for more than 1, are needed."
            )
        self._identity = (bind.queue, bind.consumer, bind.session)
        self._size, self._timeout_ms = min(size, MAX_BATCH), timeout_ms
        self._waiting: list[str] = []
        self.deadline: int | None = None

    def grant(self, backlog: int) -> None:
        """Reduce the size to the granted backlog (0: any number): a larger batch would never be full."""
        if backlog:
            self._size = min(self._size, backlog)

    def add(self, message: str, now: int, outcome: SampleOutcome = "accepted") -> list[SettleMessages]:
        """Add a settlement; return the records to send now. Outcomes besides ``accepted`` are sent at once, alone."""
        if outcome != "accepted":
            return [SettleMessages(*self._identity, (message,), outcome)]
        self._waiting.append(message)
        self.deadline = now + self._timeout_ms if self.deadline is None else self.deadline
        return self.flush() if len(self._waiting) >= self._size else []

    def due(self, now: int) -> list[SettleMessages]:
        return self.flush() if self.deadline is not None and now >= self.deadline else []

    def flush(self) -> list[SettleMessages]:
        messages, self._waiting, self.deadline = tuple(self._waiting), [], None
        return [SettleMessages(*self._identity, messages)] if messages else []


class QueueSession:
    """One session of a consumer at a queue; the caller sends the records that its methods return.

    :ivar unanswered: whether a question to the queue has no answer yet: the bind, or one each third of a session
    :ivar stopped: whether the consumer wants no messages for the moment, which the next record reports
    """

    def __init__(
        self, bind: Bind, batches: AckBatches, counts: Counter[str], flow: FlowQos, *, stopped: bool = False
    ) -> None:
        """Begin with a bind that is due at once."""
        self._bind = bind
        self._identity = (bind.queue, bind.consumer, bind.session)
        self._session: Session[int] = Session(AGAIN_SECONDS * 1_000)
        # a sign of life of a session that does not exist: the queue only answers, after the settlements before it
        self._question = Alive(bind.queue, bind.consumer, (bind.session + 1) % 2**53)
        self._pause = self._ask_at = inf
        self.unanswered = True
        self._last, self._flow = 0, flow
        self.stopped, self._reported_stop = stopped, False
        # deliveries that have arrived and are not reported, and since when there are some
        self._unreported, self._since = 0, 0
        # the numbers that were passed over and are not reported, and the reports that Kafka may not have
        self._missing: deque[int] = deque()
        self._unconfirmed: dict[Alive, None] = {}
        self.held: dict[str, MessageDelivered] = {}
        """The deliveries that are not settled."""
        # when leases end: they start with the report of the delivery, and again with that of the handing out
        self._lease_ends: dict[str, int] = {}
        # when the application received the messages, and when it last extended its work
        self._worked: dict[str, tuple[int, int]] = {}
        self._handed_out = self._reported_out = self._handings = 0
        self._batches, self._counts = batches, counts
        self._outcomes = {"accepted", *bind.outcomes}
        self.bound: Bound | None = None
        self.over: Unbound | None = None

    def receive(self, record: queues.QueueAnswer, now_ms: int = 0) -> MessageDelivered | NotSettled | None:
        """Receive an answer; return it if it concerns the application. Duplicates and foreign answers are ignored."""
        if record.queue != self._bind.queue or self.over is not None:
            return None
        if record.session in (self._bind.session, self._question.session):
            self.unanswered, self._ask_at = False, now_ms + self._pause
        if record.session != self._bind.session or isinstance(record, queues.Drained):
            return None
        if isinstance(record, Unbound):
            self.over = record
            return None
        if record.number <= self._last:
            self._counts["copies"] += 1
            return None
        # limited, since a number may have any value
        if passed := range(max(self._last + 1, record.number - 100_000), record.number):
            self._missing += passed
            self._counts["missing"] += len(passed)
        self._last = record.number
        if isinstance(record, Bound):
            self.bound = record
            self._pause = record.session_ms / ALIVE_PER_LEASE
            self._ask_at = now_ms + self._pause
            self._session.begin(record.number, self._pause)
            self._batches.grant(record.backlog)
            return None
        if isinstance(record, MessageDelivered):
            self._since = self._since if self._news else now_ms
            self._unreported += 1
            self._counts["received"] += 1
            self._forget(record.message)
            self.held[record.message] = record
        else:
            self._counts["refused"] += 1
            if record.outcome == "working" and record.reason != "max-lease" and record.message in self._lease_ends:
                self._lease_ends[record.message] = now_ms
        return record

    def settle(self, delivery: MessageDelivered, outcome: SampleOutcome, now_ms: int) -> list[SettleMessages]:
        """Settle a delivery; return the records to send at once. A second time has no effect."""
        self._check_session(delivery)
        if outcome not in self._outcomes:
            raise OutcomeNotEnabledError(
                f"Message {delivery.message} cannot be settled as {outcome}; name that outcome when you create the"
                " consumer."
            )
        if self.held.get(delivery.message) is not delivery:
            # settled already: the message may have been delivered again
            return []
        self._forget(delivery.message)
        self._counts[outcome] += 1
        return self._batches.add(delivery.message, now_ms, outcome)

    def _check_session(self, delivery: MessageDelivered) -> None:
        if delivery.session != self._bind.session or self.over is not None:
            raise NotConnectedError(
                f"The session in which message {delivery.message} was delivered is over; it will be redelivered."
            )

    def working(self, delivery: MessageDelivered, now_ms: int) -> list[SettleMessages]:
        """Restart the lease of a delivery; return the records to send: at most one each third of a lease."""
        self._check_session(delivery)
        if self.held.get(delivery.message) is not delivery:
            raise PreconditionNotMetError(
                f"Delivery {delivery.count} of message {delivery.message} is settled, or its lease has ended: end the"
                " work."
            )
        since, last = self._worked.get(delivery.message, (now_ms, now_ms))
        if self.bound is None or not self.bound.lease_ms or now_ms - last < self.bound.lease_ms / ALIVE_PER_LEASE:
            return []
        self._worked[delivery.message] = since, now_ms
        self._begin_lease(delivery.message, self.bound, now_ms)
        return [SettleMessages(*self._identity, (delivery.message,), "working")]

    def _begin_lease(self, message: str, bound: Bound, now_ms: int) -> None:
        since, _ = self._worked.get(message, (now_ms, now_ms))
        self._lease_ends[message] = min(now_ms + bound.lease_ms, since + bound.max_lease_ms)

    def hand_out(self, delivery: MessageDelivered, now_ms: int) -> list[queues.QueueRequest]:
        """Note that the application gets a delivery; return the records that Kafka should have before.

        Those are acceptances and the report of this, for the first, second, fourth, eighth … delivery of a session. So
        if a message always ends its process, those before it are settled after a few sessions, and it is the first.
        """
        if delivery.session != self._bind.session or self.over is not None:
            return []
        self._since = self._since if self._news else now_ms
        self._handed_out = delivery.number
        self._worked[delivery.message] = now_ms, now_ms
        self._handings += 1
        left = self.lease_left(delivery, now_ms)
        if self._handings.bit_count() == 1:
            return [*self._batches.flush(), self.report(now_ms)]
        if left is not None and self.bound is not None and left < self.bound.lease_ms / 2:
            # the lease may end before a later report
            return [self.report(now_ms)]
        return []

    def _forget(self, message: str) -> None:
        self.held.pop(message, None)
        self._lease_ends.pop(message, None)
        self._worked.pop(message, None)

    def refuse(self, delivery: MessageDelivered) -> list[SettleMessages]:
        """Return the records to send about a delivery whose message cannot be read here: it is for others."""
        if self.held.get(delivery.message) is not delivery or self.over is not None:
            return []
        self._forget(delivery.message)
        self._counts["unavailable"] += 1
        return [SettleMessages(*self._identity, (delivery.message,), "rejected", unavailable=True)]

    def lease_left(self, delivery: MessageDelivered, now_ms: int) -> int | None:
        """Return how long a delivery is the consumer's at least; ``None``: as long as the session."""
        lease = self.bound.lease_ms if self.bound is not None else 0
        if not lease or delivery.session != self._bind.session:
            return None
        # the queue counts from the record of the report, which comes later
        return max(0, self._lease_ends.get(delivery.message, now_ms + lease) - now_ms)

    def expire(self, delivery: MessageDelivered, now_ms: int) -> bool:
        """Return whether the lease of a delivery has ended; if so, it is not the consumer's any more."""
        # the queue may have delivered it again meanwhile
        held = self.held.get(delivery.message) is delivery
        if held and self.lease_left(delivery, now_ms) != 0:
            return False
        if held:
            self._forget(delivery.message)
        self._counts["expired"] += 1
        return True

    def due(self, now_ms: int) -> Iterator[queues.QueueRequest]:
        """Return the records that are due: the bind until it is answered, signs of life, waiting acceptances."""
        if self.over is not None:
            return
        due = self._session.due(now_ms)
        if due == "begin":
            self._reported_stop = self.stopped
            yield msgspec.structs.replace(self._bind, stopped=self.stopped)
        elif due == "alive" or (self.bound is not None and self._reports(now_ms)):
            yield self.report(now_ms)
        yield from self._batches.due(now_ms)
        if now_ms >= self._ask_at:
            self.unanswered, self._ask_at = True, now_ms + self._pause
            yield self._question

    @property
    def _news(self) -> bool:
        return self._unreported > 0 or self._handed_out > self._reported_out

    def _reports(self, now_ms: int) -> bool:
        if self._missing or self.stopped != self._reported_stop:
            return True
        full = self._unreported >= self._flow.threshold(self.bound.backlog if self.bound else 0)
        return full or (self._news and now_ms >= self._since + self._flow.ack_time * 1000)

    def report(self, now_ms: int) -> Alive:
        """Return the sign of life to send now, which begins the leases of the deliveries that it reports."""
        self._session.sent(now_ms)
        missing = tuple(self._missing.popleft() for _ in range(min(len(self._missing), MAX_MISSING)))
        received = self._received
        handed_out = min(self._handed_out, received)
        if self.bound is not None and self.bound.lease_ms:
            for message, delivery in self.held.items():
                got = self._reported_out < delivery.number <= handed_out
                if got or (delivery.number <= received and message not in self._lease_ends):
                    self._begin_lease(message, self.bound, now_ms)
        self._unreported, self._reported_stop, self._reported_out = 0, self.stopped, handed_out
        sign = Alive(*self._identity, received, missing, self.stopped, handed_out)
        if missing:
            self._unconfirmed[sign] = None
        return sign

    @property
    def _received(self) -> int:
        """Up to which number the service may forget deliveries: those whose report it may not have are above."""
        unreported = [*self._missing, *(number for one in list(self._unconfirmed) for number in one.missing)]
        return min([self._last + 1, *unreported]) - 1

    def stored(self, sign: Alive, _metadata: object = None) -> None:
        """Note that Kafka has a report of missing deliveries; may be called by any thread."""
        self._unconfirmed.pop(sign, None)

    def not_stored(self, sign: Alive) -> None:
        """Report the missing deliveries of this sign of life again, as they are by then; for any thread."""
        if sign in self._unconfirmed:
            self._missing += sign.missing
            self.stored(sign)

    def end(self) -> Iterator[queues.QueueRequest]:
        """Return the last records to send; nothing can be settled afterwards."""
        if self.over is None:
            yield from self._batches.flush()
            self.over = Unbound(*self._identity, "closed")
            yield Unbind(*self._identity, min(self._handed_out, self._received))
