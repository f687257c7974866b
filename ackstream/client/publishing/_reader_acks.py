"""The acknowledgements of readers as a publisher sees them: waiting for them, flow control, and callbacks.

Rules: brokers.md R6, R8 to R10, R13. The settle job reports acknowledgements at least once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from ackstream.client.core.lifetime import Awaited, call_handler
from ackstream.client.errors import ReaderTimeout
from ackstream.client.reading.samples import WriterQos, settle_silent
from ackstream.protocol import readers
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.readers import ApplicationAcknowledged, AutoReason, SamplesDone, WriterState, WriterStateRequest

ASK_SECONDS = 3.0
SETTLE_TIMEOUT = 30.0
ROLES_AGAIN_SECONDS = 600.0
"""How often a publisher without a question names its required roles again (or each third of ``settle.durable_lease``,
after which settle forgets those of silent writers, if that is more often)."""


class Callback(msgspec.Struct, frozen=True):
    """The argument of ``on_application_acknowledgment``: one reader has acknowledged one sample."""

    reader: str
    role: str | None
    seq: int
    response: bytes | None
    auto: AutoReason | None

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
        ask: Callable[[WriterStateRequest], None],
        handler: Callable[[Callback], object] | None,
    ) -> None:
        super().__init__()
        # the number of the last sample
        self.written = 0
        self._qos, self._question = qos, WriterStateRequest(writer, qos.required)
        self._ask, self._handler = ask, handler
        self._start = 1
        self._done = Intervals()
        # done, or replaced unacknowledged with `keep-last`
        self._gone = Intervals()
        self._notified: dict[str, Intervals] = {}
        self._state: WriterState | None = None
        self._asked_at = self._answered_at = time.monotonic()

    def begin(self, first: int, next_seq: int, holes: Iterable[Interval], timeout: float) -> None:
        """Ask settle which samples of earlier runs are complete; ``holes`` are numbers of none, unless it knows these.

        :param first: the first sample that the publisher keeps, for a writer that settle does not know
        """
        state = self.fresh_state(timeout)
        with self.changed:
            self._start = state.released + 1 if state.written else first
            self.written = max(next_seq, self._start) - 1
            new = [(max(low, state.written + 1), high) for low, high in holes if high > state.written]
            self._finish(new, self._start - 1)

    def receive(self, answer: readers.Answer) -> None:
        if isinstance(answer, ApplicationAcknowledged):
            self._notify(answer)
            return
        with self.changed:
            if isinstance(answer, WriterState):
                self._state, self._answered_at = answer, time.monotonic()
            if isinstance(answer, (SamplesDone, WriterState)):
                self._finish(answer.intervals if isinstance(answer, SamplesDone) else answer.done, answer.released)
            self.changed.notify_all()

    def keep_roles(self) -> None:
        """Name the roles again, if it is time, or if settle has not answered; to be called now and then."""
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

    def fresh_state(self, timeout: float) -> WriterState:
        """Ask settle for the state of the writer, and wait for the answer."""
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
        new = self._done.merge([*runs, (1, released)] if released > 0 else runs)
        self._gone.merge(new)

    def _notify(self, event: ApplicationAcknowledged) -> None:
        """Call the handler about an event, by sample; each reader and sample once, however often it is reported."""
        with self.changed:
            if event.first > self.written:
                return
            notified = self._notified.setdefault(event.reader, Intervals(start=self._start))
            new = notified.add(event.first, min(event.last, self.written))
        if event.response is not None or self._qos.propagate_no_response:
            for seq in (number for first, last in new for number in range(first, last + 1)):
                call_handler(self._handler, Callback(event.reader, event.role, seq, event.response, event.auto))
