"""The acknowledgements that a publisher waits for, of the service and of readers.

After a logon, and while the service does not answer, messages are sent again (pure decisions). Acknowledgements of
readers, which the settle job reports at least once, end waits and limit the flow: brokers.md R6, R8 to R10, R13.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from ackstream.client.core.lifetime import Awaited, call_handler
from ackstream.client.errors import ReaderTimeout
from ackstream.client.reading.samples import WriterQos, settle_silent
from ackstream.protocol import readers
from ackstream.protocol.dispositions import DUPLICATE
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import CONFLATION_MS, MAX_NUMBER

Takeovers: TypeAlias = Sequence[tuple[str, int]]
"""The takeovers in the answer to a logon (``CommandAck``)."""

RENUMBERED = "renumbered"
"""The reason of a message that is sent under a new number: another store has used its own."""


class Logon(NamedTuple):
    """The consequences of a logon: the messages to send again now, and the runs of numbers that will never be sent."""

    resent: list[int]
    holes: list[Interval]


def last_own(session: str, takeovers: Takeovers) -> int:
    """Return the last number that a store which took over with ``session`` used: before the next store."""
    sessions = [name for name, _ in takeovers]
    if session in sessions[:-1]:
        return takeovers[sessions.index(session) + 1][1]
    # of a session before all remembered takeovers it is only known that others have followed
    forgotten = session and sessions[:-1] and session != sessions[-1]
    return 0 if forgotten else MAX_NUMBER


MAX_TIMEOUT_MS = 60_000
"""Upper limit of the estimate, however long answers take."""

MAX_PAUSE_MS = 300_000
"""Maximum pause between repetitions to a silent service, unless the timeout is longer."""

MAX_BURST = 1_024
"""Maximum number of messages that are sent again at a time."""


class Retransmission:
    """When an unanswered message is sent again. Pure; times are milliseconds of any clock that only goes forward.

    Source: seed004, two seconds without an acknowledgement (``PUB_ACK_TIME``), without limit (brokers.md 3.1 S4). Here
    an answer takes a batch, and acknowledgements are cumulative, so:

    - there is one timer, that of the oldest message: it begins when Kafka has stored the message, or when the last
      acknowledgement arrived, if that is later;
    - it is longer where answers usually take longer: the estimate is that of TCP (RFC 6298), which begins with three
      times as long as the answer to the logon took; the interval of merged acks comes on top;
    - a silent service gets the oldest message alone again, each time after twice as long (RFC 6298, 5.5). Only if it
      answers that, and is silent about the next ones, they were lost, and twice as many are sent with each timeout. An
      answer to messages that were sent once, or a copy called a duplicate (as in RFC 3522), shows that it is late.
    """

    def __init__(self, ack_timeout_ms: int, conflation_ms: int | None = None) -> None:
        """Wait at least ``ack_timeout_ms``, plus the time for which the service holds back merged acks."""
        self._shortest = ack_timeout_ms
        self._held_back = CONFLATION_MS if conflation_ms is None else conflation_ms
        self._mean: float | None = None
        self._deviation, self._answered = 0.0, 0
        self.repeated: dict[int, int] = {}
        """Unanswered messages that were sent again, and when first: the answer may be to either copy."""
        self._burst = 1
        # how long the last answer took, if it was to the originals
        self._perhaps: int | None = None
        # doubled with each repetition since the last answer
        self._factor = 1

    @property
    def timeout_ms(self) -> int:
        """Maximum wait of the oldest message for an answer."""
        expected = 0.0 if self._mean is None else self._mean + 4 * self._deviation
        return max(self._shortest, min(round(expected), MAX_TIMEOUT_MS) + self._held_back)

    def measure(self, duration_ms: int) -> None:
        if self._mean is None:
            self._mean, self._deviation = duration_ms, duration_ms / 2
        else:
            self._deviation += (abs(self._mean - duration_ms) - self._deviation) / 4
            self._mean += (duration_ms - self._mean) / 8

    def due(self, sent: Mapping[int, int], now: int) -> list[int]:
        """Return those of ``sent`` (all unanswered, ascending, with when each was sent last) to send again now."""
        oldest = next(iter(sent.values()), None)
        timeout = self.timeout_ms
        pause = max(timeout, min(timeout * self._factor, MAX_PAUSE_MS))
        if oldest is None or now < max(oldest, self._answered) + pause:
            return []
        if pause < MAX_PAUSE_MS:
            self._factor *= 2
        again = list(islice(sent, self._burst))
        for seq in again:
            self.repeated.setdefault(seq, sent[seq])
        return again

    def answered(self, sent: Mapping[int, int], now: int) -> None:
        """Note that messages were acknowledged or refused; ``sent`` is when each was sent last."""
        if not sent:
            return
        self._answered, self._factor, self._perhaps = now, 1, None
        once = [at for seq, at in sent.items() if seq not in self.repeated]
        firsts = [self.repeated.pop(seq) for seq in sent if seq in self.repeated]
        if once:
            self.measure(now - once[0])
            self._burst = 1
            return
        self._perhaps = now - firsts[0]
        if not self.repeated:
            self._burst = min(2 * self._burst, MAX_BURST)

    def note(self, reason: str | None) -> None:
        """Take the reason for an answer into account: one to a duplicate shows that the original was not lost."""
        if reason == DUPLICATE:
            if self._perhaps is not None:
                self.measure(self._perhaps)
            self._perhaps, self._burst = None, 1


ASK_SECONDS = 3.0
SETTLE_TIMEOUT = 30.0
ROLES_AGAIN_SECONDS = 600.0
"""How often an idle publisher names its required roles again (or each third of ``settle.durable_lease``,
after which settle forgets those of silent writers, if that is more often)."""


class Callback(msgspec.Struct, frozen=True):
    """The argument of ``on_application_acknowledgment``: one reader has acknowledged one sample."""

    reader: str
    role: str | None
    seq: int
    response: bytes | None
    auto: readers.AutoReason | None

    @property
    def valid_response(self) -> bool:
        """Whether there is response data."""
        return self.response is not None


class WriterAcknowledgements(Awaited):
    """The samples of one writer: which are complete, which are kept, and which callbacks were made."""

    def __init__(
        self,
        qos: WriterQos,
        writer: str,
        ask: Callable[[readers.WriterStateRequest], None],
        handler: Callable[[Callback], object] | None,
    ) -> None:
        super().__init__()
        # the number of the last sample
        self.written = 0
        self._qos, self._question = qos, readers.WriterStateRequest(writer, qos.required)
        self._ask, self._handler = ask, handler
        self._start = 1
        self._done = Intervals()
        # done, or replaced unacknowledged with `keep-last`
        self._gone = Intervals()
        self._notified: dict[str, Intervals] = {}
        self._state: readers.WriterState | None = None
        self._asked_at = self._answered_at = time.monotonic()

    def begin(self, first: int, next_seq: int, holes: Iterable[Interval], timeout: float) -> None:
        """Query which samples of earlier runs are complete; ``holes`` are unused numbers, unless settle knows them.

        :param first: the first sample that the publisher keeps, for a writer that settle does not know
        """
        state = self.fresh_state(timeout)
        with self.changed:
            self._start = state.released + 1 if state.written else first
            self.written = max(next_seq, self._start) - 1
            new = [(max(low, state.written + 1), high) for low, high in holes if high > state.written]
            self._finish(new, self._start - 1)

    def receive(self, answer: readers.Answer) -> None:
        if isinstance(answer, readers.ApplicationAcknowledged):
            self._notify(answer)
            return
        with self.changed:
            if isinstance(answer, readers.WriterState):
                self._state, self._answered_at = answer, time.monotonic()
            if isinstance(answer, (readers.SamplesDone, readers.WriterState)):
                done = answer.intervals if isinstance(answer, readers.SamplesDone) else answer.done
                self._finish(done, answer.released)
            self.changed.notify_all()

    def keep_roles(self) -> None:
        """Name the roles again if that is due, or if settle has not answered; to be called regularly."""
        pause = SETTLE_TIMEOUT
        if self._answered_at >= self._asked_at:
            lease_ms = None if self._state is None else self._state.lease_ms
            pause = ROLES_AGAIN_SECONDS if lease_ms is None else min(ROLES_AGAIN_SECONDS, lease_ms / 3_000)
        if self._qos.required and time.monotonic() >= self._asked_at + pause:
            self._send()

    @property
    def full(self) -> bool:
        limit = self._qos.max_samples
        return limit is not None and self._qos.history == "keep-all" and self._kept >= limit

    def write(self) -> None:
        """Count a new sample, for which there is room; with ``keep-last`` the oldest one makes room."""
        with self.changed:
            if self._qos.max_samples is not None and self._kept >= self._qos.max_samples:
                self._gone.add(self._gone.first_hole)
            self.written += 1

    def wait_for_room(self) -> None:
        seconds = self._qos.max_blocking_ms / 1000
        if not self.wait_for(lambda: not self.full, seconds):
            raise ReaderTimeout(
                f"{self._qos.max_samples} messages wait for readers, and none was acknowledged within"
                f" {seconds:g} s; the oldest is {self.first_unacknowledged}."
            )

    def wait(self, max_wait: float | None) -> None:
        # the answers repeat reports that were missed
        if self.retained and not self.wait_for(
            lambda: not self.retained, max_wait, self._describe, ask=self._send, again=ASK_SECONDS
        ):
            raise ReaderTimeout(self._describe(f"within {max_wait:g} s"))

    def _describe(self, within: str = "yet") -> str:
        waiting = ", ".join(self._state.waiting_for) if self._state is not None else ""
        return (
            f"Message {self.first_unacknowledged} of {self._question.writer} and perhaps others were not acknowledged"
            f" {within}{'; the oldest waits for ' if waiting else ''}{waiting}."
        )

    def is_complete(self, seq: int) -> bool:
        """Return whether a sample is complete; one that was replaced before is not."""
        with self.changed:
            return seq <= self.written and seq in self._done

    @property
    def retained(self) -> list[Interval]:
        """The samples that are kept, as runs; a best-effort writer keeps none."""
        with self.changed:
            return self._gone.missing(1, self.written) if self._qos.reliable and self.written else []

    @property
    def first_unacknowledged(self) -> int | None:
        retained = self.retained
        return retained[0][0] if retained else None

    def fresh_state(self, timeout: float) -> readers.WriterState:
        """Request the state of the writer from settle, and wait for the answer."""
        before, roles = self._state, self._qos.required

        def is_answer() -> bool:
            # an answer to an earlier publisher of the name may be on its way, with other roles
            state = self._state
            return state is not None and state is not before and roles in (None, state.required)

        if not self.wait_for(is_answer, timeout, ask=self._send, again=ASK_SECONDS) or self._state is None:
            raise settle_silent(f"The state of the messages of {self._question.writer} was not reported", timeout)
        return self._state

    def _send(self) -> None:
        self._asked_at = time.monotonic()
        self._ask(self._question)

    @property
    def _kept(self) -> int:
        return sum(last - first + 1 for first, last in self.retained)

    def _finish(self, runs: Iterable[Interval], released: int) -> None:
        self._gone.merge(self._done.merge([*runs, (1, released)] if released > 0 else runs))

    def _notify(self, event: readers.ApplicationAcknowledged) -> None:
        """Call the handler about an event, by sample; each reader and sample once, however often it is reported."""
        with self.changed:
            if event.first > self.written:
                return
            notified = self._notified.setdefault(event.reader, Intervals(start=self._start))
            new = notified.add(event.first, min(event.last, self.written))
        if event.response is not None or self._qos.propagate_no_response:
            for seq in (number for first, last in new for number in range(first, last + 1)):
                call_handler(self._handler, Callback(event.reader, event.role, seq, event.response, event.auto))
