"""What readers have acknowledged of a publisher's messages: waiting for them, room for more, callbacks."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ackstream.client.errors import SettleTimeout
from ackstream.client.receipts import ReaderTimeout
from ackstream.errors import InconsistentQosError
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.readers import ApplicationAcknowledged, AutoReason, SamplesDone, WriterAsks, WriterState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.readers.qos import WriterQos
    from ackstream.protocol.intervals import Interval
    from ackstream.protocol.readers import Answer


log = logging.getLogger(__name__)

ASK_SECONDS = 3.0
SETTLE_TIMEOUT = 30.0


class ReaderAcknowledgements:
    """The part of a publisher that asks about its readers."""

    _readers: Acknowledged | None

    def wait_for_acknowledgments(self, max_wait: float | None = None) -> None:
        """Wait until everybody who matters has acknowledged everything, including what is published meanwhile.

        Those are the required roles of settle, each with its quorum, and all other readers that are there.

        :param max_wait: seconds; ``None``: for ever
        :raises ReaderTimeout: not everything was; says for whom the oldest message waits
        """
        self._asked_readers.wait(max_wait)

    def is_sample_app_acknowledged(self, seq: int) -> bool:
        """Tell whether everybody who matters has acknowledged a message."""
        return self._asked_readers.is_done(seq)

    @property
    def first_unacknowledged(self) -> int | None:
        """The number of the oldest message that somebody has not acknowledged; ``None``: there is none."""
        return self._asked_readers.first_unacknowledged

    def waiting_for(self, timeout: float = SETTLE_TIMEOUT) -> tuple[str, ...]:
        """Ask who has not acknowledged the oldest message: readers by name, then roles that lack some.

        :raises SettleTimeout: nobody answers
        """
        return self._asked_readers.waiting_for(timeout)

    @property
    def _asked_readers(self) -> Acknowledged:
        if self._readers is None:
            raise InconsistentQosError(
                "This publisher does not ask about its readers: give it `writer_qos`, such as WriterQos()."
            )
        return self._readers


class Acknowledged:
    """The samples of one writer and what settle says of them. Safe to use from several threads."""

    def __init__(
        self,
        qos: WriterQos,
        writer: str,
        ask: Callable[[WriterAsks], None],
        handler: Callable[[Callback], None] | None,
    ) -> None:
        """Begin without samples; :meth:`begin` makes it ready.

        :param ask: sends a record to settle
        :param handler: gets each reader's acknowledgement of each sample, once
        :raises InconsistentQosError: the qos names roles, which are a setting of settle
        """
        if qos.required:
            raise InconsistentQosError(
                "Required subscriptions hold for all writers: put them under `required` in [settle] of"
                " conf/ackstream.toml, not into a publisher's qos."
            )
        self.qos = qos
        self._question = WriterAsks(writer)
        self._ask = ask
        self._handler = handler
        self._changed = threading.Condition()
        self._publications: Publications | None = None
        self._state: WriterState | None = None
        # what is done before it is known where the samples begin
        self._early: list[Interval] = []
        self._ended: Exception | None = None

    def begin(self, first: int, next_seq: int, timeout: float) -> None:
        """Ask how far the samples are that were written before.

        :param first: the first that the publisher knows of, for a writer of which settle knows nothing
        :param next_seq: the next sample
        :raises SettleTimeout: nobody answers
        """
        state = self._fresh_state(timeout)
        with self._changed:
            start = state.released + 1 if state.written else first
            self._publications = Publications(self.qos, start=start, written=next_seq - 1)
            self._release(state.released)

    def take(self, answer: Answer) -> None:
        """Take what settle says."""
        if isinstance(answer, ApplicationAcknowledged):
            self._call(answer)
            return
        with self._changed:
            if isinstance(answer, WriterState):
                self._state = answer
            if isinstance(answer, (SamplesDone, WriterState)):
                self._early += answer.intervals if isinstance(answer, SamplesDone) else answer.done
                self._release(answer.released)
            self._changed.notify_all()

    def end(self, error: Exception) -> None:
        """Fail who waits, and who comes later."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    # -- samples -------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether a new sample has to wait."""
        with self._changed:
            return self._known.full

    def write(self) -> None:
        """Note a new sample; there is room for it."""
        with self._changed:
            self._known.write()

    def wait_for_room(self) -> None:
        """Wait for at most ``max_blocking_ms``.

        :raises ReaderTimeout: there is no room
        """
        with self._changed:
            seconds = self.qos.max_blocking_ms / 1000
            if not self._changed.wait_for(lambda: self._ended is not None or not self._known.full, seconds):
                raise ReaderTimeout(
                    f"{self.qos.max_samples} messages wait for readers, and none was acknowledged within"
                    f" {seconds:g} s; the oldest is {self._known.first_unacknowledged}."
                )
            if self._ended is not None:
                raise self._ended

    def wait(self, max_wait: float | None) -> None:
        """Wait until everything is acknowledged, including what is written meanwhile.

        :raises ReaderTimeout: it was not, within so many seconds
        """
        until = None if max_wait is None else time.monotonic() + max_wait
        with self._changed:
            while self._known.retained:
                if self._ended is not None:
                    raise self._ended
                left = ASK_SECONDS if until is None else until - time.monotonic()
                if left <= 0:
                    oldest = self._known.first_unacknowledged
                    waiting = ", ".join(self._state.waiting_for) if self._state is not None else ""
                    raise ReaderTimeout(
                        f"Message {oldest} and perhaps others were not acknowledged within {max_wait:g} s"
                        + (f"; the oldest waits for {waiting}." if waiting else ".")
                    )
                # what was said while nobody listened is told again
                self._ask(self._question)
                self._changed.wait_for(
                    lambda: self._ended is not None or not self._known.retained, min(left, ASK_SECONDS)
                )

    def is_done(self, seq: int) -> bool:
        """Tell whether everybody who matters has acknowledged a sample."""
        with self._changed:
            return self._known.is_sample_app_acknowledged(seq)

    @property
    def first_unacknowledged(self) -> int | None:
        """The oldest sample that is not done."""
        with self._changed:
            return self._known.first_unacknowledged

    def waiting_for(self, timeout: float) -> tuple[str, ...]:
        """Ask who has not acknowledged the oldest sample.

        :raises SettleTimeout: nobody answers
        """
        return self._fresh_state(timeout).waiting_for

    def _fresh_state(self, timeout: float) -> WriterState:
        until = time.monotonic() + timeout
        with self._changed:
            before = self._state
            while (state := self._state) is None or state is before:
                if self._ended is not None:
                    raise self._ended
                left = until - time.monotonic()
                if left <= 0:
                    raise SettleTimeout(
                        f"Nobody says within {timeout:g} s how far the messages of {self._question.writer} are: start"
                        " the job that settles acknowledgements (`ackstream submit settle`)."
                    )
                self._ask(self._question)
                self._changed.wait_for(
                    lambda: self._state is not before or self._ended is not None, min(left, ASK_SECONDS)
                )
            return state

    def _release(self, released: int) -> None:
        if self._publications is not None:
            self._publications.acknowledge(self._early)
            self._publications.release(released)
            self._early.clear()

    @property
    def _known(self) -> Publications:
        if self._publications is None:
            raise RuntimeError("begin() comes first")
        return self._publications

    def _call(self, event: ApplicationAcknowledged) -> None:
        with self._changed:
            found = [] if self._publications is None else self._publications.notify(event)
        for callback in found if self._handler is not None else ():
            try:
                self._handler(callback)  # type: ignore[misc]  # looked at above
            except Exception:
                log.exception("A handler of the publisher failed.")


# -- A writer as its program sees it: room for samples, waiting for acknowledgements, callbacks.
# Pure; what is acknowledged comes as events (from ``retention``), at least once. Rules: brokers.md R6, R8 to R10, R13.


WaitResult: TypeAlias = Literal["OK", "TIMEOUT"]


class Callback(msgspec.Struct, frozen=True):
    """What ``on_application_acknowledgment`` is told: one reader, one sample."""

    reader: str
    role: str | None
    seq: int
    response: bytes | None
    auto: AutoReason | None

    @property
    def valid_response(self) -> bool:
        """Tell whether there is response data."""
        return self.response is not None


class Publications:
    """The samples of one writer that its program has written."""

    def __init__(self, qos: WriterQos, *, start: int = 1, written: int | None = None) -> None:
        """Begin with sample ``start``.

        :param written: the last sample that there is already; without, there is none
        """
        self._qos = qos
        self._done = Intervals(start=start)
        self._notified: dict[str, Intervals] = {}
        self.written = start - 1 if written is None else max(written, start - 1)

    def write(self) -> int | None:
        """Return the number of a new sample; ``None`` where there is no room, then ask again or give up after the wait.

        With ``keep-last`` the oldest sample makes room, acknowledged or not.
        """
        if self.full:
            return None
        if self._qos.max_samples is not None and self._kept() >= self._qos.max_samples:
            self._done.add(self._done.first_hole)
        self.written += 1
        return self.written

    @property
    def full(self) -> bool:
        """Whether a new sample has to wait for room."""
        limit = self._qos.max_samples
        return limit is not None and self._qos.history == "keep-all" and self._kept() >= limit

    def _kept(self) -> int:
        return sum(last - first + 1 for first, last in self.retained)

    def blocked_until(self, now: int) -> int:
        """Return when a write that found no room at ``now`` times out."""
        return now + self._qos.max_blocking_ms

    def acknowledge(self, runs: Iterable[Interval]) -> None:
        """Take samples that are done: every role and every reader that counts has acknowledged them."""
        self._done.merge(runs)

    def release(self, up_to: int) -> None:
        """Take that all samples up to one are done."""
        if up_to >= self._done.start:
            self._done.add(self._done.start, up_to)

    @property
    def retained(self) -> list[Interval]:
        """The samples that are kept, as runs; a best-effort writer keeps none."""
        if not self._qos.reliable or self.written < self._done.start:
            return []
        return self._done.missing(self._done.start, self.written)

    def is_sample_app_acknowledged(self, seq: int) -> bool:
        """Tell whether a sample is done."""
        return seq <= self.written and seq in self._done

    @property
    def first_unacknowledged(self) -> int | None:
        """The oldest sample that is kept."""
        return self.retained[0][0] if self.retained else None

    def notify(self, event: ApplicationAcknowledged) -> list[Callback]:
        """Return the callbacks of an event, by samples: each reader and sample once, however often told."""
        notified = self._notified.setdefault(event.reader, Intervals(start=self._done.start))
        new = notified.add(event.first, min(event.last, self.written)) if event.first <= self.written else []
        if event.response is None and not self._qos.propagate_no_response:
            return []
        return [
            Callback(event.reader, event.role, seq, event.response, event.auto)
            for first, last in new
            for seq in range(first, last + 1)
        ]

    def wait(self, now: int, max_wait_ms: int) -> Wait:
        """Begin to wait until everything is acknowledged, including what is written meanwhile (R8)."""
        return Wait(self, now + max_wait_ms)


class Wait:
    """A ``wait_for_acknowledgments`` that is going on."""

    def __init__(self, publications: Publications, deadline: int) -> None:
        self._publications = publications
        self.deadline = deadline

    def result(self, now: int) -> WaitResult | None:
        """Return how it has ended, or ``None`` while it has not; ask after each acknowledgement and at the deadline."""
        if not self._publications.retained:
            return "OK"
        return "TIMEOUT" if now >= self.deadline else None
