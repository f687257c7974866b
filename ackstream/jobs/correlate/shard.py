"""One shard of correlate: matches answers to requests, and judges the late, orphan, undeclared and early ones.

The module decision judges the answers to an open request: accepted, duplicate, unrequested or invalid.

Pure: records and a watermark in, emissions out; the state goes to bytes and back. The law it keeps: for the same order
of records in each partition, decisions do not depend on where batches are cut, as long as the watermark never passes
the timestamp of a record that was not read in this batch or an earlier one. So no decision depends on the order in
which partitions happen to be read: acknowledgements wait for their request, a record counts by its own timestamp, and
only the watermark lets time pass.

No record stops it (:func:`~ackstream.spark.records.guarded`): a record that fails becomes a dead letter with the
reason, and a request that cannot be answered gets an error as its answer.
"""

from __future__ import annotations

import heapq
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from ackstream.jobs.correlate import decision
from ackstream.jobs.correlate.pending import PendingRequests
from ackstream.jobs.correlate.readings import RecordReader
from ackstream.jobs.correlate.state import (
    ACKS,
    DECLARATIONS,
    SIGNALS,
    STATE_VERSION,
    TWIN_ACKS,
    Pending,
    Recent,
    Record,
    ShardState,
    decode_state,
    encode,
)
from ackstream.observe.metrics import DEADLINE, EARLY_ACKS, OLDEST_REQUEST, OPEN_REQUESTS
from ackstream.protocol.ditto.labels import DeclaredTimes
from ackstream.protocol.record_headers import REPLY_ID
from ackstream.spark.records import guarded, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ackstream.jobs.correlate.decision import Decide
    from ackstream.jobs.correlate.readings import AckReading, CorrelateTopics
    from ackstream.jobs.correlate.records import Writer
    from ackstream.observe.metrics import Tally
    from ackstream.protocol.dispositions import AckDisposition
    from ackstream.protocol.ledger import SignalRow
    from ackstream.settings import Correlate
    from ackstream.spark.pieces import PieceStore

    _Closing = tuple[Pending, Decide, int, SignalRow | None]
    """A request that ends, its decision, the time of the decision, and its signal row if it is not recorded yet."""

log = logging.getLogger(__name__)


class CorrelateShard:
    """The open requests of one shard: :meth:`load`, a :meth:`process` per batch, :meth:`dump`, :attr:`next_timeout`."""

    def __init__(
        self,
        limits: Correlate,
        topics: CorrelateTopics,
        writer: Writer,
        slack_ms: int = 0,
        store: PieceStore | None = None,
    ) -> None:
        """Start empty; decisions go to ``writer``.

        :param slack_ms: by how much an acknowledgement may seem older than its claim if undeclared labels are refused
            (clocks of brokers differ, outages delay acknowledgements); all time is that much later then, so claims are
            read first
        :param store: for open requests that are idle for long; ``None``: all are in the state
        """
        self._topics = topics
        self._reply_bytes = topics.value_bytes
        self._reader = RecordReader(limits, topics)
        self._writer = writer
        self._orphan_hold_ms = limits.orphan_hold
        self._recent_memory_ms = limits.recent_memory
        self._pending = PendingRequests(store)
        self._held: dict[str, list[Record]] = {}
        self._hold_ends: list[tuple[int, str]] = []
        self._recent = Recent(self._recent_memory_ms)
        self._decided: dict[int, int] = {}
        self._unrecorded: dict[str, SignalRow] = {}
        self._refuses = limits.refuse_undeclared
        self._slack_ms = slack_ms if self._refuses else 0
        self._declared = DeclaredTimes({})
        # all declarations before this time have been read
        self._declared_until = 0
        self._undeclared: list[Record] = []
        self._waiting: set[str] = set()

    def load(self, version: int, blob: bytes) -> None:
        """Restore the state returned by :meth:`dump`, of a version that :func:`decode_state` can read."""
        state = decode_state(version, blob)
        self._pending.load(state)
        self._held = state.held
        self._hold_ends = state.hold_ends
        self._recent = Recent(self._recent_memory_ms, state.recent)
        self._declared = DeclaredTimes(state.declared)
        self._undeclared = state.undeclared

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` if nothing is left to remember."""
        if len(self._hold_ends) > 2 * len(self._held):
            # most are of acknowledgements that were released
            self._hold_ends = sorted(entry for entry in self._hold_ends if entry[1] in self._held)
        recent, declared = self._recent.dump(), self._declared.spans
        state = ShardState({}, [], self._held, self._hold_ends, recent, declared, self._undeclared)
        self._pending.dump(state)
        kept = state.open or state.pieces.named or state.pieces.dropped
        if not (kept or self._held or recent or declared or self._undeclared):
            return None
        return STATE_VERSION, encode(state)

    @property
    def next_timeout(self) -> int | None:
        """The earliest time (epoch milliseconds) that changes something once the watermark passes it."""
        deadline = self._pending.next_deadline
        ends = [] if deadline is None else [deadline]
        ends += [end for end, _ in self._hold_ends[:1]]
        ends += [record.timestamp for record in self._undeclared]
        return min(ends) + self._slack_ms if ends else None

    def measure(self, tally: Tally) -> None:
        """Set the gauges of the open requests, and add the counts since the start."""
        tally.set(OPEN_REQUESTS, value=len(self._pending))
        tally.set(EARLY_ACKS, value=sum(map(len, self._held.values())))
        if len(self._pending) and (deadline := self._pending.next_deadline) is not None:
            tally.set(DEADLINE, value=deadline / 1000)
        if (start := self._pending.oldest_start) is not None:
            tally.set(OLDEST_REQUEST, value=start / 1000)
        self._writer.figures.measure(tally, time.time_ns() // 1_000_000)

    def process(self, records: Sequence[Record], watermark: int) -> None:
        """Process the records of a batch, then let time pass.

        :param records: in any order; they are processed by (timestamp, source, partition, offset)
        :param watermark: epoch milliseconds; all records before it have been read by the end of this batch
        """
        watermark -= self._slack_ms
        if self._refuses:
            records = self._declare(records, watermark)
        if records:
            hashes = np.unique(np.fromiter((record.hash for record in records), np.int64, len(records)))
            self._decided = self._recent.look_up(hashes)
            self._pending.recall(hashes)
        self._take(in_order(records))
        self._expire(watermark)
        for key, row in self._unrecorded.items():
            pending = self._pending.find(key)
            if pending is not None:
                self._writer.record_signal(pending.reply_id, row)
        self._unrecorded = {}

    # -- records ------------------------------------------------------------------------------------------------------

    def _take(self, records: Iterable[Record], decide: Callable[[Record], None] | None = None) -> None:
        """Process records one by one, by default each by its source; the failure of one concerns no other."""
        decide, refuse, outputs = decide or self._process, self._refuse, (self._writer.emissions,)
        for record in records:
            guarded(record, decide, refuse, outputs)

    def _refuse(self, record: Record, error: Exception) -> None:
        self._writer.fail(record, error, self._reader.address(record)[0])

    def _process(self, record: Record) -> None:
        if record.source == SIGNALS:
            self._open(record)
        else:
            self._answer(record)

    def _open(self, record: Record) -> None:
        """Open a request, or record a signal that awaits nothing, or whose correlation-id is in use."""
        key = record.correlation_id
        pending = self._pending.find(key)
        if pending is not None and record.timestamp > self._recent.end(pending):
            # a new use of the id: it starts when the old one is decided, in any order of reading
            pending.successors.append(record)
        elif pending is not None or record.timestamp <= self._decided.get(record.hash, -1):
            self._writer.duplicate(record)
        else:
            signal_id, row, opened = self._reader.signal_of(record)
            if opened is None:
                self._writer.record_signal(signal_id, row)
                return
            key = opened.correlation_id
            self._pending.add(opened)
            self._unrecorded[key] = row
            if key in self._held:
                self._take(self._held.pop(key), partial(self._answer, early=True))

    def _answer(self, record: Record, *, early: bool = False) -> None:
        """Count an answer for its request, let it wait, or record why it does not count.

        ``early``: it was held for its request, which is open now.
        """
        reading = self._reader.answer_of(record)
        key = reading.correlation_id
        judged = (None if early else self._barred(reading, record)) or self._match(key, record)
        if isinstance(judged, Pending):
            applied = decision.apply(judged, reading, record)
            self._writer.unused(key, applied.received, judged, applied.note)
            # nothing fails from here on
            judged.received += [received for received, found in applied.received if found == "accepted"]
            judged.note = applied.note or judged.note
            if applied.decide is not None:
                self._close(judged, applied.decide, max(record.timestamp, judged.started_at))
        elif judged == "held":
            self._held.setdefault(key, []).append(record)
            heapq.heappush(self._hold_ends, (record.timestamp + self._orphan_hold_ms, key))
        elif judged == "waiting":
            self._waiting.add(key)
            self._undeclared.append(record)
        else:
            self._writer.unmatched(reading, judged)

    def _match(self, key: str, record: Record) -> Pending | AckDisposition | Literal["held"]:
        """Return the request that an answer is for, or why it does not count; ``held``: its request may follow."""
        pending = self._pending.find(key)
        if pending is not None and pending.started_at > record.timestamp:
            # older than this request, whichever of the two was read first: for an earlier use of the id, or too old
            if record.timestamp <= self._decided.get(record.hash, -1):
                return "late"
            if pending.started_at > record.timestamp + self._orphan_hold_ms:
                return "orphan"
        if pending is None or record.timestamp > pending.deadline:
            end = self._decided.get(record.hash) if pending is None else self._recent.end(pending)
            return "held" if end is None or record.timestamp > end else "late"
        if record.source == TWIN_ACKS and record.headers[REPLY_ID] != pending.reply_id.encode():
            # of another command with the same correlation-id, such as a copy of the request
            return "unrequested"
        return pending

    # -- declared labels ----------------------------------------------------------------------------------------------

    def _declare(self, records: Sequence[Record], watermark: int) -> list[Record]:
        """Take in the declarations; return the other records and those that have waited for a declaration.

        These are taken in one order, as if they had been read together: an answer never waits behind a later one.
        """
        others, self._undeclared, self._waiting = self._undeclared, [], set()
        self._take((record for record in records if record.source == DECLARATIONS), self._declare_labels)
        others += [record for record in records if record.source != DECLARATIONS]
        self._declared_until = watermark
        return others

    def _declare_labels(self, record: Record) -> None:
        self._declared.apply(record.value, record.timestamp - self._slack_ms)

    def _barred(self, reading: AckReading, record: Record) -> Literal["unrequested", "undeclared", "waiting"] | None:
        """Return why an answer does not count for any request; ``waiting``: the declaration of its label may follow.

        All later answers of its correlation-id wait behind it: which of them count, and which complete the request,
        must not depend on when a declaration is read.
        """
        if record.source == TWIN_ACKS and REPLY_ID not in record.headers:
            # the twin reports an error even if its command awaits nothing
            return "unrequested"
        if not self._refuses:
            return None
        if reading.correlation_id in self._waiting:
            return "waiting"
        own = reading.received if record.source == ACKS and reading.kind == "acks" else ()
        if all(self._declared.covers(received.label or "", record.timestamp) for received in own):
            return None
        return "undeclared" if record.timestamp < self._declared_until else "waiting"

    # -- time ---------------------------------------------------------------------------------------------------------

    def _expire(self, watermark: int) -> None:
        for pending in self._pending.expired(watermark):
            self._close(pending, decision.time_out, pending.deadline)
        while self._hold_ends and self._hold_ends[0][0] < watermark:
            end, key = heapq.heappop(self._hold_ends)
            self._release(key, end)
        self._recent.forget(watermark)
        self._declared.forget(watermark)

    def _release(self, key: str, end: int) -> None:
        """Record the early acknowledgements whose hold has ended as orphans."""
        held = self._held.pop(key, ())
        kept = [record for record in held if record.timestamp + self._orphan_hold_ms > end]
        self._take([record for record in held if record.timestamp + self._orphan_hold_ms <= end], self._orphan)
        if kept:
            self._held[key] = kept
            # under a longer hold than before the restart nothing else would end it
            heapq.heappush(self._hold_ends, (min(each.timestamp for each in kept) + self._orphan_hold_ms, key))

    def _orphan(self, record: Record) -> None:
        # under limits that were lowered since it was held it may be unreadable now
        self._writer.unmatched(self._reader.answer_of(record), "orphan")

    def _close(self, pending: Pending, decide: Decide, decided_at: int) -> None:
        """Answer a request, with an error if that fails."""
        key = pending.correlation_id
        self._pending.remove(key)
        self._decided[pending.hash] = self._recent.remember(pending)
        closing = pending, decide, decided_at, self._unrecorded.pop(key, None)
        guarded(closing, self._reply, self._reply_with_error, (self._writer.emissions,))
        if pending.successors:
            self._take(pending.successors)

    def _reply(self, closing: _Closing) -> None:
        pending, decide, decided_at, row = closing
        decided = decision.shorten(pending, decide(pending), self._reply_bytes)
        to = self._topics.destination(pending.reply_topic, pending.reply_partition, len(decided.reply))
        self._writer.outcome(pending, decided, to, decided_at, row)

    def _reply_with_error(self, closing: _Closing, error: Exception) -> None:
        pending, _, decided_at, _ = closing
        key = pending.correlation_id
        log.error("The request %s cannot be answered", key, exc_info=error, extra={"correlation_id": key})
        # without the acknowledgements, one of which may be the cause
        bare = msgspec.structs.replace(pending, received=[])
        self._reply((bare, partial(decision.fail, error=error), decided_at, None))
