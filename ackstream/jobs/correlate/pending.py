"""Open requests, those that may be amended, and answers whose label is not declared: encoded, in state or pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Literal

import numpy as np
from msgspec.structs import replace

from ackstream.jobs.correlate import decision, state
from ackstream.jobs.correlate.decision import Amended, Decide
from ackstream.jobs.correlate.readings import AckReading
from ackstream.jobs.correlate.state import Pending, Record
from ackstream.observe.metrics import DEADLINE, OLDEST_REQUEST, OPEN_REQUESTS, Tally
from ackstream.protocol.ditto.labels import DeclaredTimes
from ackstream.protocol.ditto.requests import foreign_to
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import REPLY_ID
from ackstream.settings.base import ENDLESS
from ackstream.spark.pieces import Numbers, PieceEntry, PieceStore
from ackstream.spark.records import Share, Shelf, Shelved

HOT_BYTES = 256 * 1024
"""Maximum bytes of open requests in the state of a shard, all of which each batch loads."""
FEW = 2_000
"""Up to this many are decoded to find the oldest one, in 2 ms; :data:`HOT_BYTES` has about a thousand."""
TOUCHED_BYTES = 1024
"""Or this many bytes for each correlation-id of the batch: a large batch opens many that the next one closes."""
MOST_SUCCESSORS = 32


class PendingRequests:
    """The open requests by the hash of their correlation-id and by deadline: decoded those of one hash at a time."""

    def __init__(self, store: PieceStore | None = None, shelved: Shelved | None = None) -> None:
        """Continue with the result of :meth:`dump`. ``store``: for entries beyond :data:`HOT_BYTES`; optional."""
        self._shelf = Shelf(store, shelved)
        self._touched = 0
        self.opened: dict[str | None, Pending] = {}
        """Those of one hash by correlation-id, to add to and remove from: from :meth:`open` to :meth:`close`."""
        self.size = 0
        """The bytes that :meth:`close` has added since its caller set it to 0."""

    def __len__(self) -> int:
        return len(self._shelf)

    def dump(self) -> Shelved:
        """Return all of them for the state."""
        return self._shelf.dump(self._limit)

    def put_aside(self) -> None:
        """Move the requests that were idle longest to pieces, during a batch."""
        self._shelf.trim(self._limit)

    @property
    def _limit(self) -> int:
        return max(HOT_BYTES, self._touched * TOUCHED_BYTES)

    def look_up(self, hashes: Numbers) -> None:
        """Make the requests of these hashes available: called before all else."""
        self._touched += len(hashes)
        self._shelf.look_up(hashes)

    def open(self, hash: int) -> None:  # noqa: A002 - a record's field
        """Decode the requests of a hash."""
        for entry in self._shelf.take(hash):
            pending = state.decode_pending(entry.body)
            self.opened[pending.correlation_id] = pending

    def match(
        self, record: Record, claimed: int, end: Callable[[Pending], int], hold_ms: int
    ) -> Pending | Literal["held", "later", "late", "orphan", "unrequested"]:
        """Return the request of the opened hash that an answer is for, or the reason why it does not count.

        ``held``: its request may follow; ``later``: it is late, and may amend the open request once that has timed out.

        :param claimed: until when requests that were decided claim the correlation-id, in epoch milliseconds
        :param end: returns the same of an open request
        :param hold_ms: how much older an answer may be than its request
        """
        pending = self.opened.get(record.correlation_id)
        if pending is None:
            return "held" if record.timestamp > claimed else "late"
        if pending.started_at > record.timestamp:
            # older than this request, whichever of the two was read first: for an earlier use of the id, or too old
            if record.timestamp <= claimed:
                return "late"
            if pending.started_at > record.timestamp + hold_ms:
                return "orphan"
        if record.timestamp > pending.deadline:
            if record.timestamp > end(pending):
                return "held"
            return "later" if pending.request.amend_ms else "late"
        return "unrequested" if _is_of_another(record, pending) else pending

    def due(self, before: int) -> Pending | None:
        """Return the first of them whose deadline is before a time."""
        due = [one for one in self.opened.values() if one.deadline < before]
        return min(due, key=attrgetter("deadline"), default=None)

    def close(self) -> None:
        """Keep those of the hash behind all others."""
        for pending in self.opened.values():
            body = state.encode(pending)
            self.size += len(body)
            self._shelf.add([PieceEntry(pending.hash, pending.deadline, body)])
        self.opened.clear()

    def measure(self, tally: Tally) -> None:
        """Set the gauges of the open requests, as of :meth:`dump`."""
        tally.set(OPEN_REQUESTS, value=len(self))
        if len(self) and (deadline := self.next_deadline) is not None:
            tally.set(DEADLINE, value=deadline / 1000)
        if (start := self.oldest_start) is not None:
            tally.set(OLDEST_REQUEST, value=start / 1000)

    def expired(self, watermark: int) -> Iterator[Pending]:
        """Yield the requests whose deadline is before a time, by deadline and hash, each as the only one of it."""
        for entry in self._shelf.due(watermark):
            pending = state.decode_pending(entry.body)
            self.opened[pending.correlation_id] = pending
            yield pending

    @property
    def next_deadline(self) -> int | None:
        """A lower bound of the deadlines (epoch milliseconds), as of :meth:`dump`; ``None``: no request is open."""
        return self._shelf.next_time

    @property
    def oldest_start(self) -> int | None:
        """The start of the oldest open request (epoch milliseconds), as of :meth:`dump`; ``None``: none is open.

        A piece, or a state beyond :data:`FEW`, counts by its earliest deadline: the oldest, if timeouts are equal.
        """
        return min((state.decode_head(entry.body).started_at for entry in self._shelf.first(FEW)), default=None)


def _is_of_another(record: Record, pending: Pending) -> bool:
    """Return whether an answer of the twin is to another command of the id, such as a copy of the request."""
    return record.source == state.TWIN_ACKS and record.headers[REPLY_ID] != pending.reply_id.encode()


class TimedOutRequests:
    """Requests that have timed out, and may be amended by late answers until they expire."""

    def __init__(self, store: PieceStore | None, shelved: Shelved, longest_ms: int) -> None:
        self.shelf = Shelf(store, shelved)
        self._longest_ms = longest_ms

    @staticmethod
    def defers(pending: Pending, reading: AckReading, record: Record) -> bool:
        """Keep a late answer that may amend an open request; return whether its record is read again after that."""
        if reading.kind == "acks":
            if foreign_to(pending.request, reading.topic, {}) is None:
                pending.keep_late(reading.received)
            return False
        # a response is needed whole
        if len(pending.successors) >= MOST_SUCCESSORS:
            return False
        pending.successors.append(record)
        return True

    def keep(self, request: Pending, end: int) -> Amended | None:
        """Keep a request; until its end each label may answer as if its deadline had not passed."""
        extended = dict.fromkeys(request.request.awaited, end)
        # an error that ended the wait is not an answer
        received = [one for one in request.received if one.label is not None]
        kept = replace(request, received=received, extended=extended, deadline=end, successors=[], late=[])
        for late in sorted(request.late, key=attrgetter("timestamp", "partition", "offset")):
            if late.timestamp <= end:
                applied = decision.acknowledge(kept, [late], self._longest_ms)
                if (decide := decision.count(kept, applied)) is not None:
                    return decision.amend(kept, decide, late.timestamp)
        self.shelf.add([PieceEntry(kept.hash, end, state.encode(kept))])
        return None

    def amend(self, reading: AckReading, record: Record) -> Amended | None:
        """Let a late answer count for its request; return the request and its decision if that succeeds now."""
        kept, amended = list[PieceEntry](), None
        for entry in self.shelf.take(record.hash):
            pending = state.decode_pending(entry.body)
            decide = self._apply(pending, reading, record)
            if decide is None:
                kept.append(replace(entry, body=state.encode(pending)))
            else:
                amended = decision.amend(pending, decide, record.timestamp)
        self.shelf.add(kept)
        return amended

    def _apply(self, pending: Pending, reading: AckReading, record: Record) -> Decide | None:
        # an older one is for an earlier use of the id
        in_time = pending.started_at <= record.timestamp <= pending.deadline
        if pending.correlation_id != record.correlation_id or not in_time or _is_of_another(record, pending):
            return None
        # one with a header of a wrong type has its row, as late
        with suppress(DittoError):
            return decision.count(pending, decision.apply(pending, reading, record, self._longest_ms))
        return None


class UndeclaredAnswers:
    """When labels were declared (:attr:`times`), and the answers that wait for a declaration (:attr:`shelf`)."""

    def __init__(self, store: PieceStore | None, known: state.ShardState, slack_ms: int) -> None:
        """Continue with a state; declarations count from ``slack_ms`` before their time on."""
        self.shelf, self.times, self._slack_ms = Shelf(store, known.undeclared), DeclaredTimes(known.declared), slack_ms
        # all declarations before this time have been read
        self._until = 0
        self._waiting: set[str] = set()

    def declare(self, record: Record) -> None:
        """Take in a declaration."""
        self.times.apply(record.value, record.timestamp - self._slack_ms)

    def take_in(self, share: Share[Record], until: int, net: Callable[..., None]) -> None:
        """Let a batch declare labels; add to it the records that have waited, and may now count or be refused.

        ``net``: as :func:`~ackstream.spark.records.guarded`, of a record and what decides it.
        These are taken in one order, as if they had been read together: an answer never waits behind a later one.
        """
        hashes, declared = set[int](), False
        for records in share:
            for record in records:
                if record.source == state.DECLARATIONS:
                    declared = True
                    net(record, self.declare)
                else:
                    hashes.add(record.hash)
        for body in self.release(hashes, until, declared=declared):
            share.add([state.decode_record(body)], len(body))

    def release(self, hashes: set[int], until: int, *, declared: bool) -> Iterator[bytes]:
        """Remove and yield the encoded records that may now count or be refused, and those with a hash of the batch."""
        # ``until``: all declarations before this time have been read; ``declared``: whether the batch has one
        self._until, self._waiting = until, set()
        if not len(self.shelf):
            return
        for entry in self.shelf.due(ENDLESS if declared else until):
            hashes.add(entry.hash)
            yield entry.body
        ordered = sorted(hashes)
        self.shelf.look_up(np.array(ordered, np.int64))
        for found in ordered:
            for entry in self.shelf.take(found):
                yield entry.body

    def judge(self, key: str, labels: Iterable[str | None], time: int) -> Literal["undeclared", "waiting"] | None:
        """Return the reason why an answer with these labels does not count now."""
        # later answers wait behind one that waits: which of them count must not depend on when a declaration is read
        if key in self._waiting:
            return "waiting"
        if all(self.times.covers(label or "", time) for label in labels):
            return None
        return "undeclared" if time < self._until else "waiting"

    def wait(self, key: str, record: Record) -> None:
        """Let an answer with a correlation-id wait."""
        self._waiting.add(key)
        self.shelf.add([state.record_entry(record, record.timestamp)])
