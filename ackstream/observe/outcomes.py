"""How requests end, from the ledger: the outcome of one, and counts of all over a window, in total and over time."""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import TopicReader
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, is_success
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.errors import REQUEST_TIMEOUT
from ackstream.protocol.ledger import LedgerRecord
from ackstream.settings import Kafka


class Trend:
    """Counts in spans of equal length, the latest of which are kept; times are in epoch milliseconds."""

    def __init__(self, span: int, length: int) -> None:
        """Keep ``length`` counts of ``span`` milliseconds each."""
        self._span, self._length = span, length
        self._counts: dict[int, int] = {}

    def add(self, at: int, count: int = 1) -> None:
        """Count events at a time; events older than all spans are ignored."""
        slot = at // self._span
        if slot not in self._counts:
            newest = max(self._counts, default=slot)
            if slot <= newest - self._length:
                return
            self._counts = {kept: n for kept, n in self._counts.items() if kept > slot - self._length}
        self._counts[slot] = self._counts.get(slot, 0) + count

    def counts(self, now: int) -> list[int]:
        """Return the counts of the spans up to now, the oldest first."""
        last = now // self._span
        return [self._counts.get(slot, 0) for slot in range(last - self._length + 1, last + 1)]

    def total(self, now: int) -> int:
        """Return the sum of the counts."""
        return sum(self.counts(now))


Verdict = Literal["answered", "timed out", "failed"]
VERDICTS: tuple[Verdict, ...] = ("answered", "timed out", "failed")

BARS, BAR_MS = 60, 10_000
"""Bars of a trend, and milliseconds of each: ten minutes in all."""

REMEMBERED = 50_000
"""Number of decided requests remembered by id, so that copies written by a replayed batch count once."""


def verdict(status: int, completed_by: str) -> Verdict:
    """Return how a request ended for its sender; ``failed``: a party or the system refused."""
    # something was missing at the deadline
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


class LedgerEntry(NamedTuple):
    """A record of the ledger: its correlation-id, its bytes and their content, and the broker's time in epoch ms."""

    correlation_id: str
    value: bytes
    content: LedgerRecord
    at: int


def read_entry(correlation_id: str, value: bytes | None, at: int) -> LedgerEntry | None:
    """Decode a record of the ledger; return ``None`` for anything else."""
    content = ledger.read(value)
    return None if content is None else LedgerEntry(correlation_id, value or b"", content, at)


class Meter:
    """Counts requests as they are opened and decided; the window is in ms, times are epoch ms of one clock."""

    def __init__(self, window: int) -> None:
        """Count requests over a window; ``newest`` is the broker's time of the newest record."""
        self._window = window
        self._open: dict[str, int] = {}
        self._recent: deque[tuple[int, Verdict, int]] = deque()
        self._totals: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
        self._decided: Latest[str, None] = Latest(REMEMBERED)
        self._trends = {how: Trend(BAR_MS, BARS) for how in VERDICTS}
        self.newest: int | None = None

    def take(self, entry: LedgerEntry) -> None:
        """Count a record of the ledger."""
        record, written_at = entry.content, entry.at
        signal, outcome = record.signal, record.outcome
        self.newest = max(self.newest or 0, written_at)
        # one that is amended was counted with its timeout
        if outcome is not None and outcome.version is None:
            how = verdict(outcome.status, outcome.completed_by)
            # the answer is sent together with this record: its latency is between the broker's times of both
            self.decided(record.id, written_at, how, max(0, written_at - outcome.started_at))
        elif outcome is None and signal is not None and (signal.response_required or signal.requested_acks):
            self.opened(record.id, signal.received_at)

    def opened(self, identity: str, at: int) -> None:
        """Count a request that awaits something; a copy of a known one is ignored."""
        if identity not in self._decided:
            self._open.setdefault(identity, at)

    def decided(self, identity: str, at: int, how: Verdict, latency: int) -> None:
        """Count the end of a request, opened or not; a copy is ignored."""
        self._open.pop(identity, None)
        if identity in self._decided:
            return
        self._decided[identity] = None
        self._totals[how] += 1
        self._trends[how].add(at)
        self._recent.append((at, how, latency))
        # without waiting for the next snapshot
        while self._recent and self._recent[0][0] <= at - self._window:
            self._recent.popleft()

    def trends(self, now: int) -> dict[Verdict, list[int]]:
        """Return the requests decided in the last ten minutes, in bars of ten seconds, the oldest first."""
        return {how: trend.counts(now) for how, trend in self._trends.items()}

    def snapshot(self, now: int) -> Snapshot:
        """Return the counts; decisions a window or more before ``now`` are in the totals only."""
        # one that was read late may follow newer ones
        recent = [one for one in self._recent if one[0] > now - self._window]
        counts = {}
        for how in VERDICTS:
            latencies = [latency for _, found, latency in recent if found == how]
            counts[how] = Count(len(latencies), self._totals[how], *percentiles(latencies, 0.5, 0.95))
        oldest = max(0, now - min(self._open.values())) if self._open else None
        return Snapshot(self._window, counts, len(self._open), oldest)


class RequestOutcome(msgspec.Struct, frozen=True):
    """How a request ended: status, reason, an entry per awaited label, and the JSON of an error."""

    status: int
    completed_by: str
    entries: list[Acknowledgement] = []
    error: Raw | UnsetType = UNSET


def read_outcome(value: bytes, thing_id: str) -> RequestOutcome | None:
    """Return the outcome in a ledger record, ``None`` without one or about another thing; raises if malformed."""
    record = ledger.decode(value)
    decided, used = record.outcome, record.accepted
    # the thing of an unreadable request is unknown
    if decided is None or decided.thing_id not in (thing_id, None):
        return None
    status = {ack.label: ack.status for ack in used}
    needed = [label for label in decided.requested if label not in decided.unneeded]
    entries = [Acknowledgement(label, status.get(label) or REQUEST_TIMEOUT) for label in needed]
    error: Raw | UnsetType = UNSET
    if decided.completed_by in ("invalid", "cancelled") and decided.reply is not UNSET:
        error = decode(bytes(decided.reply)).value
    elif decided.completed_by in ("error", "response"):
        # the last one ended it
        error = used[-1].payload if used else UNSET
    return RequestOutcome(decided.status, decided.completed_by, entries, error)


class Outcomes(Closing):
    """Follows the ledger by one thread, for requests without a response; decodes only records that someone awaits."""

    def __init__(self, kafka: Kafka) -> None:
        """Connect; every outcome from now on is seen. ``UnreachableError``: no broker, or a topic is missing."""
        self._waiting: dict[bytes, tuple[Future[RequestOutcome], str]] = {}
        self._reader = TopicReader.at_end(kafka, kafka.topic("ledger"))
        self._reader.start("ackstream-outcomes", self._look)

    @contextmanager
    def expect(self, correlation_id: str, thing_id: str) -> Iterator[Future[RequestOutcome]]:
        """Wait for the outcome of a request about a thing during the block."""
        key = correlation_id.encode()
        future: Future[RequestOutcome] = Future()
        self._waiting[key] = future, thing_id
        try:
            yield future
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        """Stop reading; open futures stay unresolved."""
        self._reader.close()

    def _look(self, record: Any) -> None:
        future, thing_id = self._waiting.get(record.key or b"", (None, ""))
        if future is None or future.done():
            return
        outcome = read_outcome(record.value or b"", thing_id)
        if outcome is not None and future.set_running_or_notify_cancel():
            future.set_result(outcome)
