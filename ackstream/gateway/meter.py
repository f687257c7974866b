"""Count how requests end, over a sliding window and in total."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["answered", "timed out", "failed"]
VERDICTS: tuple[Verdict, ...] = ("answered", "timed out", "failed")

REMEMBERED = 100_000
"""Number of decided requests remembered by id, so that copies written by a replayed batch count once."""


def verdict(status: int, completed_by: str) -> Verdict:
    """Return how a request ended for its sender.

    ``timed out``: something was missing at the deadline; ``answered``: everything arrived and succeeded; ``failed``: a
    party or the system refused.
    """
    if completed_by == "timeout":
        return "timed out"
    return "answered" if is_success(status) else "failed"


def percentile(ordered: Sequence[int], share: float) -> int | None:
    """Return the nearest-rank percentile, a value that occurred.

    :param ordered: ascending
    :param share: 0.95 for the 95th
    :returns: ``None`` for an empty sequence
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True)
class Count:
    """Requests of one verdict: in the window, in total, and latencies of the window in milliseconds."""

    recent: int
    total: int
    p50: int | None
    p95: int | None


@dataclass(frozen=True)
class Snapshot:
    """The counts at one moment; durations are in milliseconds."""

    window: int
    counts: dict[Verdict, Count]
    in_flight: int
    oldest: int | None


class Meter:
    """Counts requests as they are opened and decided; times are epoch milliseconds of one clock."""

    def __init__(self, window: int) -> None:
        """Count over ``window`` milliseconds."""
        self._window = window
        self._open: dict[str, int] = {}
        self._recent: deque[tuple[int, Verdict, int]] = deque()
        self._totals: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
        # ordered: the oldest is forgotten first
        self._decided: dict[str, None] = {}

    def take(self, value: bytes | None, written_at: int) -> None:
        """Count a record of the ledger; ignore anything else.

        The latency is that of the answer: from the broker's time of the request to the broker's time of this record,
        which is sent together with the reply.

        :param written_at: the record's timestamp
        """
        try:
            record = ledger.decode(value or b"")
        except UNREADABLE:
            return
        signal, outcome = record.signal, record.outcome
        if outcome is not None:
            how = verdict(outcome.status, outcome.completed_by)
            self.decided(record.id, written_at, how, max(0, written_at - outcome.started_at))
        elif signal is not None and (signal.response_required or signal.requested_acks):
            self.opened(record.id, signal.received_at)

    def opened(self, identity: str, at: int) -> None:
        """Count a request that is awaited; a copy of one that is known counts no more."""
        if identity not in self._decided:
            self._open.setdefault(identity, at)

    def decided(self, identity: str, at: int, how: Verdict, latency: int) -> None:
        """Count the end of a request, opened or not; a copy counts no more."""
        self._open.pop(identity, None)
        if identity in self._decided:
            return
        self._decided[identity] = None
        if len(self._decided) > REMEMBERED:
            del self._decided[next(iter(self._decided))]
        self._totals[how] += 1
        self._recent.append((at, how, latency))

    def snapshot(self, now: int) -> Snapshot:
        """Return the counts; what lies a window or more before ``now`` is in the totals alone."""
        # several partitions are read: the ends are nearly in order, not quite
        while self._recent and self._recent[0][0] <= now - self._window:
            self._recent.popleft()
        kept = [entry for entry in self._recent if entry[0] > now - self._window]
        counts = {}
        for how in VERDICTS:
            latencies = sorted(latency for _, found, latency in kept if found == how)
            counts[how] = Count(
                len(latencies), self._totals[how], percentile(latencies, 0.5), percentile(latencies, 0.95)
            )
        oldest = max(0, now - min(self._open.values())) if self._open else None
        return Snapshot(self._window, counts, len(self._open), oldest)
