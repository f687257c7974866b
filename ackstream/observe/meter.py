"""How requests end, over a sliding window and in total: counted from the ledger, for the live page and the terminal."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import UnknownTopicOrPartitionError

from ackstream.observe.topic_feed import TopicFeed
from ackstream.observe.trends import Trend
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Settings

Verdict = Literal["answered", "timed out", "failed"]
VERDICTS: tuple[Verdict, ...] = ("answered", "timed out", "failed")

BARS, BAR_MS = 60, 10_000
"""Of a trend: ten minutes."""

REMEMBERED = 50_000
"""Number of decided requests remembered by id, so that copies written by a replayed batch count once."""


def verdict(status: int, completed_by: str) -> Verdict:
    """Return how a request ended for its sender.

    ``timed out``: something was missing at the deadline; ``answered``: everything arrived and succeeded; ``failed``: a
    party or the system refused.
    """
    if completed_by == "timeout":
        return "timed out"
    return "answered" if is_success(status) else "failed"


def percentiles(values: Iterable[int], *shares: float) -> list[int | None]:
    """Return nearest-rank percentiles, ``None`` if there are no values; a share of 0.95 means the 95th."""
    ordered = sorted(values)
    return [ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None for share in shares]


def epoch_milliseconds() -> int:
    """Return the time of this machine."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Count:
    """Requests of one verdict: in the window, in total, and latencies of the window in milliseconds."""

    recent: int
    total: int
    p50: int | None
    p95: int | None


class Snapshot(msgspec.Struct, frozen=True):
    """The counts at one moment; durations are in milliseconds."""

    window: int
    counts: dict[Verdict, Count]
    in_flight: int
    oldest: int | None


class Meter:
    """Counts requests as they are opened and decided; the window is in ms, times are epoch ms of one clock."""

    def __init__(self, window: int) -> None:
        """Count what is recent in a window.

        :ivar newest: the broker's time of the newest record
        """
        self._window = window
        self._open: dict[str, int] = {}
        self._recent: deque[tuple[int, Verdict, int]] = deque()
        self._totals: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
        # ordered: the oldest is forgotten first
        self._decided: dict[str, None] = {}
        self._trends = {how: Trend(BAR_MS, BARS) for how in VERDICTS}
        self.newest: int | None = None

    def take(self, value: bytes | None, written_at: int) -> None:
        """Count a record of the ledger; ignore anything else.

        The latency is that of the answer: from the broker's time of the request to the broker's time of this record,
        which is sent together with the reply.
        """
        try:
            record = ledger.decode(value or b"")
        except UNREADABLE:
            return
        signal, outcome = record.signal, record.outcome
        self.newest = max(self.newest or 0, written_at)
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
        self._trends[how].add(at)
        self._recent.append((at, how, latency))
        # also while nobody looks
        while self._recent and self._recent[0][0] <= at - self._window:
            self._recent.popleft()

    def trends(self, now: int) -> dict[Verdict, list[int]]:
        """Return the requests decided in the last ten minutes, in bars of ten seconds, the oldest first."""
        return {how: trend.counts(now) for how, trend in self._trends.items()}

    def snapshot(self, now: int) -> Snapshot:
        """Return the counts; what lies a window or more before ``now`` is in the totals alone."""
        # one that was read late may stand behind younger ones
        recent = [one for one in self._recent if one[0] > now - self._window]
        counts = {}
        for how in VERDICTS:
            latencies = [latency for _, found, latency in recent if found == how]
            counts[how] = Count(len(latencies), self._totals[how], *percentiles(latencies, 0.5, 0.95))
        oldest = max(0, now - min(self._open.values())) if self._open else None
        return Snapshot(self._window, counts, len(self._open), oldest)


SILENT_MS = 15_000
"""A clock that has given no sign of life for so long is reported; allows for the difference between two clocks."""


def clock_warning(signed_at: int | None, now: int) -> str:
    """Return a sentence if the clock of requests stands still, else an empty text.

    :param signed_at: the time of its last sign of life, in epoch milliseconds; ``None``: there is none
    """
    if signed_at is not None and now - signed_at < SILENT_MS:
        return ""
    signs = "no sign of life yet"
    if signed_at is not None:
        signs = f"its last sign of life {(now - signed_at) // 1000} s ago"
    return f"The clock has given {signs}, so no request times out: is correlate running?"


class LedgerFeed(TopicFeed):
    """Reads the ledger, and looks at the clock of requests."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect, to read the records since a time in epoch milliseconds.

        :raises AckstreamError: the broker is unavailable or a topic is missing
        """
        super().__init__(settings, ["ledger"], since)

    def read_to_end(self, meter: Meter) -> None:
        """Feed all present records to a meter.

        :raises KafkaError: the broker is unavailable
        """
        self.read_all(lambda record: meter.take(record.value, record.timestamp))

    def warning(self) -> str:
        """Return a sentence if the clock of requests stands still, else an empty text.

        :raises KafkaError: the broker is unavailable
        """
        signs = TopicPartition(self._settings.kafka.topic("correlate-lease"), 0)
        try:
            latest = self._admin.list_partition_offsets({signs: OffsetSpec.MAX_TIMESTAMP})[signs].timestamp
        except UnknownTopicOrPartitionError:
            latest = -1
        return clock_warning(latest if latest >= 0 else None, epoch_milliseconds())
