"""One shard of correlate: matches answers to requests, and judges the late, orphan, undeclared and early ones.

Pure: records and a watermark in, emissions out. The law it keeps: for the same order of records in each partition,
decisions do not depend on where batches are cut, nor on the order in which partitions are read, as long as the
watermark never passes the timestamp of an unread record: acknowledgements wait for their request, a record counts by
its own timestamp, and only the watermark advances time. No record stops it (:func:`~ackstream.spark.records.guarded`).
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from time import time_ns
from typing import Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from ackstream.jobs.correlate import decision, state
from ackstream.jobs.correlate.decision import Decide
from ackstream.jobs.correlate.pending import HOT_BYTES, PendingRequests, TimedOutRequests, UndeclaredAnswers
from ackstream.jobs.correlate.readings import AckReading, RecordReader, check_id
from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.state import Pending, Received, Record, ShardState
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.observe.metrics import EARLY_ACKS, Tally
from ackstream.protocol.ditto.record_requests import cancels
from ackstream.protocol.ledger import SignalRow
from ackstream.protocol.record_headers import CANCEL, REPLY_ID
from ackstream.settings import Correlate
from ackstream.spark.pieces import PieceEntry, PieceStore
from ackstream.spark.records import BUDGET, Share, Shelf, guarded

log = logging.getLogger(__name__)
R = TypeVar("R", Record, Pending)
Barred: TypeAlias = Literal["unrequested", "undeclared", "waiting"]
_NEVER = -(2**63)


class CorrelateShard:
    """The open requests of one shard: :meth:`load`, a :meth:`process` per batch, :meth:`dump`, :attr:`next_timeout`."""

    def __init__(
        self, limits: Correlate, topics: CorrelateTopics, writer: Writer, slack_ms: int = 0,
        store: PieceStore | None = None,
    ) -> None:  # fmt: skip
        """Start empty; decisions go to ``writer``.

        :param slack_ms: by how much an acknowledgement may seem older than its claim if undeclared labels are refused
            (clocks of brokers differ, outages delay acknowledgements); all time is that much later then, so claims are
            read first
        """
        self._limits, self._reader, self._writer = limits, RecordReader(limits, topics), writer
        self._refuses = limits.refuse_undeclared
        self._slack_ms = slack_ms if self._refuses else 0
        self._stores = state.stores(store)
        self._restore(ShardState())
        self._following: list[tuple[Iterable[Record], Callable[[Record], None]]] = []
        # of one hash: ids and rows of signals that are not recorded yet, acknowledgements that requesters get at the
        # end of the batch, and the end of the claim that was decided last
        self._unrecorded: dict[str, tuple[str, SignalRow]] = {}
        self._news: dict[str, dict[str, Received]] = {}
        self._claimed = _NEVER

    def load(self, version: int, blob: bytes) -> None:
        """Restore the state returned by :meth:`dump`, of a version that :func:`decode_state` can read."""
        self._restore(state.decode_state(version, blob))

    def _restore(self, known: ShardState) -> None:
        requests, held, undeclared, timed_out = self._stores
        self._pending = PendingRequests(requests, known.open)
        self._held = Shelf(held, known.held)
        self._undeclared = UndeclaredAnswers(undeclared, known, self._slack_ms)
        self._recent = state.Recent(self._limits.recent_memory, known.recent)
        self._timed_out = TimedOutRequests(timed_out, known.timed_out, self._limits.max_timeout)
        self._shelves = (self._held, self._undeclared.shelf, self._timed_out.shelf)

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` if nothing is left to remember."""
        shelves = [self._pending.dump(), *(shelf.dump(HOT_BYTES) for shelf in self._shelves)]
        opened, held, undeclared, timed_out = shelves
        known = ShardState(opened, held, undeclared, self._recent.dump(), self._undeclared.times.spans, timed_out)
        if not (any(shelves) or known.recent or known.declared):
            return None
        return state.STATE_VERSION, state.encode(known)

    def _put_aside(self) -> None:
        """Move to pieces, during a batch, the entries beyond the limit of a state."""
        self._pending.put_aside()
        for shelf in self._shelves:
            shelf.trim(HOT_BYTES)

    @property
    def next_timeout(self) -> int | None:
        """The earliest time (epoch milliseconds) at which the watermark causes a change."""
        times = (self._pending.next_deadline, *(shelf.next_time for shelf in self._shelves))
        return min((time + self._slack_ms for time in times if time is not None), default=None)

    def measure(self, tally: Tally) -> None:
        """Set the gauges of the open requests, and add the counts since the start."""
        self._pending.measure(tally)
        tally.set(EARLY_ACKS, value=len(self._held))
        self._writer.figures.measure(tally, time_ns() // 1_000_000)

    def process(self, share: Share[Record], watermark: int) -> Iterator[None]:
        """Process the records of a batch, then let time pass; pause when the emissions so far should be handed over.

        :param watermark: epoch milliseconds; all records before it have been read by the end of this batch
        """
        watermark -= self._slack_ms
        if self._refuses:
            net = partial(guarded, refuse=self._refuse, outputs=(self._writer.emissions,))
            self._undeclared.take_in(share, watermark, net)
        # a later part of a share may have records that are in time
        passed = watermark if share.whole else _NEVER
        for number, records in enumerate(filter(None, share)):
            if number:
                self._put_aside()
            groups = defaultdict[int, list[Record]](list)
            for record in records:
                groups[record.hash].append(record)
            hashes = np.sort(np.fromiter(groups, np.int64, len(groups)))
            decided = self._recent.look_up(hashes)
            self._pending.look_up(hashes)
            self._held.look_up(hashes)
            self._timed_out.shelf.look_up(hashes)
            # hash by hash: a request is finished before the next one displaces it from the processor's caches
            for found, own in groups.items():
                self._claimed = decided.get(found, _NEVER)
                self._pending.open(found)
                for _ in self._fold(own, self._process, passed):
                    self._put_aside()
                    yield
        for _ in self._expire(watermark):
            self._recent.dump()
            yield

    def _take(self, records: Iterable[R], decide: Callable[[R], None]) -> Iterator[None]:
        """Process records one by one, with those that follow from one; the failure of one concerns no other."""
        writer, pending, refuse = self._writer, self._pending, self._refuse
        outputs = (writer.emissions,)
        for record in records:
            guarded(record, decide, refuse, outputs)
            if self._following:
                following, self._following = self._following, []
                for more, how in following:
                    yield from self._take(more, how)
            if writer.size > BUDGET or pending.size > BUDGET:
                pending.size = 0
                yield

    def _fold(self, records: Iterable[R], decide: Callable[[R], None], passed: int) -> Iterator[None]:
        """Process the records of one hash; let time pass for its requests, and keep those that stay open."""
        yield from self._take(records, decide)
        if not self._pending.opened:
            return
        while (due := self._pending.due(passed)) is not None:
            yield from self._take([due], self._close)
        for signal_id, row in self._unrecorded.values():
            self._writer.record_signal(signal_id, row)
        self._unrecorded.clear()
        while self._news:
            key, news = self._news.popitem()
            self._writer.update(self._pending.opened[key], list(news.values()))
        self._pending.close()

    def _refuse(self, record: Record | Pending, error: Exception) -> None:
        if isinstance(record, Pending):
            # it was answered in any case
            raise error
        self._writer.fail(record, error, self._reader.address(record)[0])

    def _process(self, record: Record, *, early: bool = False) -> None:
        """Decide a record; ``early``: an answer that was held for its request, which is open now."""
        if (role := record.role) == state.SIGNALS:
            (self._cancel if cancels(record.headers, record.value) else self._open)(record)
        elif role != state.DECLARATIONS:
            pending = self._pending.opened.get(record.correlation_id)
            if pending is None or self._refuses or (received := self._reader.usual_ack(record, pending)) is None:
                self._answer(record, early=early)
                return
            pending.received.append(received)
            if len(pending.received) == len(pending.request.awaited):
                self._close(pending, decision.ACKNOWLEDGED, record.timestamp)

    def _open(self, record: Record) -> None:
        """Open a request, or record a signal that awaits nothing, or whose correlation-id is in use."""
        pending = self._pending.opened.get(record.correlation_id)
        if pending is not None and record.timestamp > self._recent.end(pending):
            # a new use of the id: it starts when the old one is decided, in any order of reading
            pending.successors.append(record)
        elif pending is not None or record.timestamp <= self._claimed:
            self._writer.duplicate(record)
        else:
            signal_id, row, opened = self._reader.signal_of(record)
            if opened is None:
                self._writer.record_signal(signal_id, row)
                return
            key = opened.correlation_id
            self._pending.opened[key] = opened
            self._unrecorded[key] = (signal_id, row)
            if held := self._held.take(record.hash):
                self._following.append((self._early(key, held), partial(self._process, early=True)))

    def _cancel(self, record: Record) -> None:
        """End a request that its requester cancels; a cancellation that fits none is recorded."""
        check_id(record)
        pending, identity = self._pending.opened.get(record.correlation_id), record.headers[CANCEL].decode()
        if pending is not None and pending.reply_id != identity and pending.successors:
            # it may be for a later use of the id
            pending.successors.append(record)
        elif pending is not None and decision.may_cancel(pending, record):
            self._close(pending, decision.cancel, record.timestamp)
        else:
            self._writer.late_cancel(record, "late" if record.timestamp <= self._claimed else "orphan")

    def _early(self, key: str, held: Iterable[PieceEntry]) -> Iterator[Record]:
        """Return the early answers to a request, in their order."""
        share = Share[Record]()
        for entry in held:
            record = state.decode_record(entry.body)
            if record.correlation_id == key:
                share.add([record], len(entry.body))
            else:
                self._held.add([state.record_entry(record, entry.time)])
        return chain.from_iterable(share)

    def _answer(self, record: Record, *, early: bool) -> None:
        """Count an answer for its request, let it wait, or record why it does not count."""
        reading = self._reader.answer_of(record)
        key = reading.correlation_id
        barred = None if early else self._barred(reading, record)
        judged = barred or self._pending.match(record, self._claimed, self._recent.end, self._limits.orphan_hold)
        if isinstance(judged, Pending):
            self._apply(judged, reading, record)
        elif judged == "held":
            self._held.add([state.record_entry(record, record.timestamp + self._limits.orphan_hold)])
        elif judged == "waiting":
            self._undeclared.wait(key, record)
        elif judged != "later" or not self._timed_out.defers(self._pending.opened[key], reading, record):
            self._writer.unmatched(reading, "late" if judged == "later" else judged)
            if judged == "late" and (amended := self._timed_out.amend(reading, record)) is not None:
                self._writer.outcome(*amended, None)

    def _apply(self, pending: Pending, reading: AckReading, record: Record) -> None:
        """Count an answer for its request, which it may complete."""
        applied = decision.apply(pending, reading, record, self._limits.max_timeout)
        self._writer.unused(reading.correlation_id, applied.received, pending, applied.note)
        # no step fails from here on
        decide = decision.count(pending, applied)
        if pending.request.progress and pending.request.response_required:
            for received, found in applied.received:
                if found in ("accepted", "progress"):
                    self._news.setdefault(pending.correlation_id, {})[received.label or ""] = received
        pending.keep_late(received for received, found in applied.received if found == "late")
        pending.note = applied.note or pending.note
        if applied.extended:
            pending.extend(applied.extended)
        if decide is not None:
            self._close(pending, decide, max(record.timestamp, pending.started_at))

    def _barred(self, reading: AckReading, record: Record) -> Barred | None:
        """Return why an answer counts for no request; ``waiting``: the declaration of its label may follow."""
        if record.source == state.TWIN_ACKS and REPLY_ID not in record.headers:
            # the twin reports an error even if its command awaits nothing
            return "unrequested"
        if not self._refuses:
            return None
        declared = record.role == state.ACKS and reading.kind == "acks"
        labels = [received.label for received in reading.received] if declared else []
        return self._undeclared.judge(reading.correlation_id, labels, record.timestamp)

    def _expire(self, watermark: int) -> Iterator[None]:
        """End the requests whose deadline has passed, then the holds of early acknowledgements, which are orphans."""
        for pending in self._pending.expired(watermark):
            if pending.successors:
                # no record of this batch needs to have their hash
                self._held.look_up(np.array([pending.hash]))
            yield from self._fold([pending], self._close, watermark)
        held = (state.decode_record(entry.body) for entry in self._held.due(watermark))
        yield from self._take(held, partial(self._release, watermark))
        self._recent.forget(watermark)
        self._undeclared.times.forget(watermark)
        deque(self._timed_out.shelf.due(watermark), maxlen=0)

    def _release(self, watermark: int, record: Record) -> None:
        """Record an early acknowledgement as an orphan, unless the hold has been made longer since it began."""
        end = record.timestamp + self._limits.orphan_hold
        if end >= watermark:
            self._held.add([state.record_entry(record, end)])
        else:
            # under limits that were lowered since it was held it may be unreadable now
            self._writer.unmatched(self._reader.answer_of(record), "orphan")

    def _close(self, pending: Pending, decide: Decide = decision.time_out, decided_at: int | None = None) -> None:
        """Answer a request, at its deadline if no time is given, and with an error if that fails."""
        key = pending.correlation_id
        del self._pending.opened[key]
        self._news.pop(key, None)
        self._claimed = self._recent.remember(pending)
        _, row = self._unrecorded.pop(key, (None, None))
        if decided_at is None:
            # a label with more time may have answered after the deadline of those that are missing
            decided_at = max([pending.deadline, *(received.timestamp for received in pending.received)])
        closing = pending, decide, decided_at, row
        guarded(closing, self._reply, self._reply_with_error, (self._writer.emissions,))
        if pending.successors:
            self._following.append((pending.successors, self._process))

    def _reply(self, closing: tuple[Pending, Decide, int, SignalRow | None]) -> None:
        """Write the answer to a request that ends, and record its signal with it, if that is not recorded yet."""
        pending, decide, decided_at, row = closing
        decided = decide(pending)
        self._writer.outcome(pending, decided, decided_at, row)
        if decided.completed_by == "timeout" and pending.request.amend_ms:
            amended = self._timed_out.keep(pending, self._recent.amend_end(pending))
            if amended is not None:
                self._writer.outcome(*amended, None)

    def _reply_with_error(self, closing: tuple[Pending, Decide, int, SignalRow | None], error: Exception) -> None:
        pending, _, decided_at, _ = closing
        key = pending.correlation_id
        log.error("The request %s cannot be answered", key, exc_info=error, extra={"correlation_id": key})
        # without the acknowledgements, one of which may be the cause
        bare = msgspec.structs.replace(pending, received=[])
        self._reply((bare, partial(decision.fail, error=error), decided_at, None))
