"""A writer as its program sees it: room for samples, waiting for acknowledgements, callbacks.

Pure; what is acknowledged comes as events (from ``retention``), at least once. Rules: brokers.md R6, R8 to R10, R13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ackstream.protocol.app_acks import AutoReason
from ackstream.protocol.intervals import Interval, Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.delivery.readers.qos import WriterQos
    from ackstream.protocol.app_acks import ApplicationAcknowledged

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
