"""One shard of the correlation: open requests, early acknowledgements and decided requests of a part of the ids.

Pure: records and a watermark in, emissions out; the state goes to bytes and back. The law it keeps: for the same order
of records in each partition, what is decided does not depend on where batches are cut, as long as the watermark never
passes the timestamp of a record that was not read in an earlier batch or in this one. So nothing is decided by the
order in which partitions happen to be read: acknowledgements wait for their request, a record counts by its own
timestamp, and only the watermark lets time pass.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ackstream.jobs.correlate import decision
from ackstream.jobs.correlate import state as pendings
from ackstream.jobs.correlate.reading import Refusal, read_acknowledgements, read_signal
from ackstream.jobs.correlate.state import SIGNALS, Pending, Recent, Record
from ackstream.protocol.ditto.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.jobs.correlate.decision import Decision
    from ackstream.jobs.correlate.emissions import Writer
    from ackstream.jobs.correlate.reading import Rules
    from ackstream.protocol.ledger import SignalRow

STATE_VERSION = 1


class _ShardState(msgspec.Struct, array_like=True):
    """What a shard's blob holds; :data:`STATE_VERSION` names this shape."""

    open: dict[str, bytes]
    deadlines: list[tuple[int, str]]
    held: dict[str, list[Record]]
    hold_ends: list[tuple[int, str]]
    recent: list[tuple[int, bytes]]


_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(_ShardState).decode


class CorrelateShard:
    """The open requests of one shard.

    Use: :meth:`load`, one :meth:`process` a batch, then :meth:`dump` and :attr:`next_timeout`.
    """

    def __init__(self, rules: Rules, writer: Writer) -> None:
        """Start empty; decisions go to ``writer``."""
        self._rules = rules
        self._write = writer
        # an untouched request stays encoded: a batch pays for what it touches
        self._open: dict[str, Pending | bytes] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._held: dict[str, list[Record]] = {}
        self._hold_ends: list[tuple[int, str]] = []
        self._recent = Recent(rules.recent_memory_ms)
        self._decided: dict[int, int] = {}
        self._opened: dict[str, SignalRow] = {}

    def load(self, version: int, blob: bytes) -> None:
        """Take over the state that :meth:`dump` gave; see ``migrations`` for older versions."""
        state = _decode_state(migrate(version, blob))
        self._open = dict(state.open)
        self._deadlines = state.deadlines
        self._held = state.held
        self._hold_ends = state.hold_ends
        self._recent = Recent(self._rules.recent_memory_ms, state.recent)

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` where nothing is left to remember."""
        recent = self._recent.dump()
        self._prune()
        if not (self._open or self._held or recent):
            return None
        opened = {key: value if isinstance(value, bytes) else pendings.dump(value) for key, value in self._open.items()}
        state = _ShardState(opened, self._deadlines, self._held, self._hold_ends, recent)
        return STATE_VERSION, _encode_state(state)

    def _prune(self) -> None:
        """Leave out what the heaps hold of decided requests and released acknowledgements."""
        if len(self._deadlines) > 2 * len(self._open):
            self._deadlines = sorted(entry for entry in self._deadlines if entry[1] in self._open)
        if len(self._hold_ends) > 2 * len(self._held):
            self._hold_ends = sorted(entry for entry in self._hold_ends if entry[1] in self._held)

    @property
    def next_timeout(self) -> int | None:
        """The earliest time (epoch milliseconds) the watermark must pass for something to happen."""
        ends = [heap[0][0] for heap in (self._deadlines, self._hold_ends) if heap]
        return min(ends, default=None)

    def process(self, records: Sequence[Record], watermark: int) -> None:
        """Take the records of a batch, then let time pass.

        :param records: in any order; they are taken by (timestamp, source, partition, offset)
        :param watermark: epoch milliseconds; all records before it have been read by the end of this batch
        """
        if records:
            hashes = np.unique(np.fromiter((record.hash for record in records), np.int64, len(records)))
            self._decided = self._recent.look_up(hashes)
        for record in in_order(records):
            self._take(record)
        self._expire(watermark)
        for key, row in self._opened.items():
            opened = self._find(key)
            if opened is not None:
                self._write.signal(opened.reply_id, row)
        self._opened = {}

    # -- records ------------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        if record.source == SIGNALS:
            self._take_signal(record)
        else:
            self._take_acknowledgement(record)

    def _take_signal(self, record: Record) -> None:
        key = record.correlation_id
        owner = self._find(key)
        if owner is not None:
            if record.timestamp > self._recent.end(owner.deadline):
                # a new use of the id: it starts when the old one is decided, whatever the order of reading
                owner.successors.append(record)
            else:
                self._write.duplicate(record)
            return
        end = self._decided.get(record.hash)
        if end is not None and record.timestamp <= end:
            self._write.duplicate(record)
            return
        try:
            reading = read_signal(record, self._rules)
        except Refusal as refusal:
            self._write.refused(record, refusal.error, refusal.topic)
            return
        if reading.pending is None:
            self._write.signal(reading.signal_id, reading.row)
        else:
            self._start(reading.pending, reading.row)

    def _start(self, opened: Pending, row: SignalRow) -> None:
        key = opened.correlation_id
        self._open[key] = opened
        self._opened[key] = row
        heapq.heappush(self._deadlines, (opened.deadline, key))
        for early in self._held.pop(key, ()):
            self._take_acknowledgement(early)

    def _take_acknowledgement(self, record: Record) -> None:
        try:
            reading = read_acknowledgements(record, self._rules)
        except DittoError as error:
            self._write.unreadable(record, error)
            return
        key = reading.correlation_id
        owner = self._find(key)
        if owner is not None and owner.started_at > record.timestamp:
            # from before this request, whichever of the two was read first: for an earlier use of the id, or too old
            late = record.timestamp <= self._decided.get(record.hash, -1)
            if late or owner.started_at > record.timestamp + self._rules.orphan_hold_ms:
                self._write.unused(reading, record, "late" if late else "orphan")
                return
        end = self._decided.get(record.hash) if owner is None else self._recent.end(owner.deadline)
        if end is None or record.timestamp > end:
            self._hold(key, record)
        elif owner is None or record.timestamp > owner.deadline:
            self._write.unused(reading, record, "late")
        else:
            entries, answer = decision.apply(owner, reading, record)
            self._write.acknowledgements(key, entries, owner)
            if answer is not None:
                self._close(owner, answer, max(record.timestamp, owner.started_at))

    def _hold(self, key: str, record: Record) -> None:
        self._held.setdefault(key, []).append(record)
        heapq.heappush(self._hold_ends, (record.timestamp + self._rules.orphan_hold_ms, key))

    def _find(self, key: str | None) -> Pending | None:
        if key is None:
            return None
        found = self._open.get(key)
        if isinstance(found, bytes):
            found = self._open[key] = pendings.load(found)
        return found

    # -- time ---------------------------------------------------------------------------------------------------------

    def _expire(self, watermark: int) -> None:
        while self._deadlines and self._deadlines[0][0] < watermark:
            deadline, key = heapq.heappop(self._deadlines)
            owner = self._find(key)
            # the entry of a request that was decided in time stays in the heap until now
            if owner is not None and owner.deadline == deadline:
                self._close(owner, decision.time_out(owner), deadline)
        while self._hold_ends and self._hold_ends[0][0] < watermark:
            end, key = heapq.heappop(self._hold_ends)
            self._release(key, end)
        self._recent.forget(watermark)

    def _release(self, key: str, end: int) -> None:
        """Give up on the early acknowledgements whose hold has ended."""
        kept = []
        for record in self._held.pop(key, ()):
            if record.timestamp + self._rules.orphan_hold_ms > end:
                kept.append(record)
            else:
                self._write.unused(read_acknowledgements(record, self._rules), record, "orphan")
        if kept:
            self._held[key] = kept

    def _close(self, owner: Pending, answer: Decision, decided_at: int) -> None:
        key = owner.correlation_id
        del self._open[key]
        self._decided[owner.hash] = self._recent.remember(owner.hash, owner.deadline)
        self._write.outcome(owner, answer, decided_at, self._opened.pop(key, None))
        for record in owner.successors:
            self._take_signal(record)


def open_requests(version: int, blob: bytes) -> list[bytes]:
    """Return the open requests of a shard's state, encoded as ``pending`` has them."""
    return list(_decode_state(migrate(version, blob)).open.values())


def in_order(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records by (timestamp, source, partition, offset), the order within a partition kept in any case.

    A broker's clock may be set back; a partition's records then count with the latest time seen before them.
    """
    if len(records) < 2:  # noqa: PLR2004
        return records
    times, sources, partitions, offsets = np.array(
        [(record.timestamp, record.source, record.partition, record.offset) for record in records], dtype=np.int64
    ).T
    by_place = np.lexsort((offsets, partitions, sources))
    ordered, places = times[by_place], sources[by_place] << 32 | partitions[by_place]
    same_place = places[1:] == places[:-1]
    if np.any(same_place & (ordered[1:] < ordered[:-1])):
        for start, end in _runs(same_place):
            ordered[start:end] = np.maximum.accumulate(ordered[start:end])
        times[by_place] = ordered
    return [records[index] for index in np.lexsort((offsets, partitions, sources, times)).tolist()]


def _runs(same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Return (start, end) of each run of equal neighbours."""
    bounds = [0, *(np.flatnonzero(~same) + 1).tolist(), len(same) + 1]
    return list(pairwise(bounds))


def migrate(version: int, blob: bytes) -> bytes:
    """Bring a blob of an older version to :data:`STATE_VERSION`; there is none yet.

    :raises ValueError: for a version this release does not know
    """
    if version != STATE_VERSION:
        raise ValueError(f"The state has version {version}; this release reads version {STATE_VERSION}.")
    return blob
