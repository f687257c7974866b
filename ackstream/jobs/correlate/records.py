"""The records of correlate: rows of frames in; replies, outcomes and other ledger records, and dead letters out.

:class:`Writer` makes all records that the job writes, and counts the figures of a batch.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from ackstream.jobs.correlate import decision
from ackstream.jobs.correlate.decision import Decision, Disposed
from ackstream.jobs.correlate.readings import AckReading, InvalidRequestError, ReplyAddress
from ackstream.jobs.correlate.state import SIGNALS, Pending, Received, Record
from ackstream.jobs.correlate.topics import CorrelateTopics, Destination
from ackstream.observe.metrics import ACKS, DEAD_LETTERS, DECISION, REPLY, REQUESTS, Metric, Tally
from ackstream.protocol import ledger, record_headers
from ackstream.protocol.dispositions import AckDisposition
from ackstream.protocol.ditto import envelopes
from ackstream.protocol.ditto.acknowledgements import PROCESSING
from ackstream.protocol.ditto.correlation_ids import is_too_long
from ackstream.protocol.ditto.record_requests import ACK_HEADERS, REQUEST_HEADERS, cancels
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError, internal_error, request_cancelled
from ackstream.protocol.ledger import AckRow, DeadLetterRow, LedgerRecord, OutcomeRow, SignalRow

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DUPLICATE = "duplicate"
"""The code of a request whose correlation-id is in use."""

REASON_CHARACTERS = 4_096
"""The characters of a reason that a dead letter keeps; it may repeat a faulty value."""


class _Header(msgspec.Struct):
    key: str
    value: bytes | None = None


# Spark's to_json writes binary as base64, which is how msgspec reads bytes
_headers = msgspec.json.Decoder(list[_Header]).decode
_USED = {
    record_headers.CANCEL,
    *REQUEST_HEADERS,
    *ACK_HEADERS,
    record_headers.REPLY_ID,
    record_headers.REPLY_TO,
    record_headers.ORIGINATOR_SIGNATURE,
    record_headers.SPRING_REPLY_PARTITION,
    record_headers.SPRING_REPLY_TOPIC,
    record_headers.SPRING_CORRELATION_ID,
    record_headers.TRACEPARENT,
}


def read_records(frame: pd.DataFrame) -> Iterator[Record]:
    """Read rows of the operator's input."""
    *columns, texts, topics = [frame[name].tolist() for name in Record.__struct_fields__]
    # of a repeated header the last counts; most records have none of these
    headers = [
        {header.key: header.value for header in _headers(text) if header.value and header.key in _USED} if text else {}
        for text in texts
    ]
    yield from starmap(Record, zip(*columns, headers, topics, strict=True))


class Emission(msgspec.Struct, frozen=True, gc=False):
    """A Kafka record; a reply's fields from ``reply_id`` on and a dead letter's ``reason`` become record headers."""

    topic: str
    key: bytes | None
    value: bytes | None
    reply_id: str | None = None
    status: str | None = None
    completed_by: str | None = None
    spring_correlation: bytes | None = None
    reason: str | None = None
    traceparent: bytes | None = None
    partition: int | None = None
    version: str | None = None


class Writer:
    """Turns decisions into emissions, in order."""

    def __init__(self, topics: CorrelateTopics, query_id: str, batch_id: int) -> None:
        """Write for one call of the operator; query and batch mark each ledger record."""
        self._topics = topics
        # by the numbers of the state: SIGNALS, ACKS, …
        self._sources = topics.signals, topics.acks, topics.twin_acks, topics.declarations
        self._limit = topics.value_bytes
        self._written, self._batch = (query_id, batch_id), str(batch_id)
        self._buffer = bytearray()
        self.emissions: list[Emission] = []
        self.size = 0
        """The bytes of the emissions' values."""
        self.figures = RequestFigures()

    def take(self) -> list[Emission]:
        """Return the emissions so far, and forget them."""
        taken = self.emissions.copy()
        # guarded() rolls this list back
        self.emissions.clear()
        self.size = 0
        return taken

    def record_signal(self, signal_id: str, row: SignalRow) -> None:
        """Record a signal that awaits nothing, or that stays open beyond this batch."""
        self._ledger(row.correlation_id, LedgerRecord("signal", signal_id, *self._written, signal=row))

    def outcome(self, pending: Pending, decided: Decision, decided_at: int, row: SignalRow | None) -> None:
        """Reply to a request if it requires that, and record how it ended; ``row``: its signal row if unrecorded."""
        request, key, started, topic, reply = pending.request, pending.correlation_id, pending.started_at, None, None
        amended = decided.completed_by == "amended"
        if request.response_required:
            decided = decision.shorten(pending, decided, self._limit)
            topic, partition = self._to(pending, reply := decided.reply)
        outcome = OutcomeRow(
            key, request.thing_id, decided.status, decided.completed_by, request.awaited, decided.missing, started,
            decided_at, decided_at - started, pending.reply_id, topic, UNSET if reply is None else Raw(reply),
            decided.unneeded, 2 if amended else None,
        )  # fmt: skip
        # those of an amended request already have their rows
        acks = [] if amended else [self._ack(key, received, "accepted", started) for received in pending.received]
        if reply is not None:
            self._reply(outcome, reply, partition, pending.spring_correlation, record_headers.trace_of(pending.headers))
        self._ledger(key, LedgerRecord("outcome", outcome.id, *self._written, row, acks, outcome))
        self.figures.decided(outcome, len(acks))

    def update(self, pending: Pending, acks: Sequence[Received]) -> None:
        """Publish acknowledgements of an open request to its requester, if they can be written: the reply has them."""
        try:
            reply = decision.update(pending, acks, self._limit)
        except Exception:
            log.exception("An update of the request %s cannot be written", pending.correlation_id)
            reply = None
        if reply is None:
            return
        key, (topic, partition) = pending.correlation_id.encode(), self._to(pending, reply)
        spring, trace = pending.spring_correlation, record_headers.trace_of(pending.headers)
        # a replayed batch has its number
        own = (pending.reply_id, str(PROCESSING), record_headers.UPDATE, spring, None, trace, partition, self._batch)
        self.size += len(reply)
        self.emissions.append(Emission(topic, key, reply, *own))

    def invalid(self, record: Record, error: DittoError, topic: TopicPath | None, address: ReplyAddress) -> None:
        """Reply to an invalid request with its error; record it as an outcome and as a dead letter."""
        key = record.correlation_id or ""
        if is_too_long(key):
            key = self._identity(record)
        thing_id, channel = (None, None) if topic is None else (topic.thing_id, topic.channel)
        answer = envelopes.error_envelope(error, thing_id=thing_id, channel=channel, headers={"correlation-id": key})
        reply = envelopes.encode(answer)
        reply_topic, partition = self._topics.destination(address.topic, address.partition, len(reply))
        identity, at = ledger.reply_id(key, *self._coordinates(record)), record.timestamp
        outcome = OutcomeRow(
            key, thing_id, error.status, "invalid", (), [], at, at, 0, identity, reply_topic, Raw(reply)
        )
        trace = record_headers.checked_trace(record.headers.get(record_headers.TRACEPARENT))
        self._reply(outcome, reply, partition, address.spring_correlation, trace)
        self._ledger(key, LedgerRecord("outcome", outcome.reply_id, *self._written, outcome=outcome))
        self.figures.decided(outcome, 0)
        self.unreadable(record, error)

    def fail(self, record: Record, error: Exception, address: ReplyAddress) -> None:
        """Record the failure of a record; a signal is answered, too."""
        topic = None
        if isinstance(error, InvalidRequestError):
            topic, error = error.topic, error.error
        elif not isinstance(error, DittoError):
            about = {"correlation_id": record.correlation_id}
            log.error("The record %s cannot be processed", self._identity(record), exc_info=error, extra=about)
            error = internal_error(type(error).__name__)
        if record.role == SIGNALS and not cancels(record.headers, record.value):
            self.invalid(record, error, topic, address)
        else:
            self.unreadable(record, error)

    def unreadable(self, record: Record, error: DittoError) -> None:
        """Record a dead letter for a record that the protocol rejects; the reason is the error's code and texts."""
        reason = " ".join(filter(None, (f"{error.error}:", error.message, error.description)))
        self.dead_letter(record, error.error, reason)

    def duplicate(self, record: Record) -> None:
        """Record a dead letter for a request whose correlation-id is in use, or was until recently."""
        reason = "The correlation-id belongs to a request that is open or was decided recently."
        self.dead_letter(record, DUPLICATE, reason)

    def unused(
        self, correlation_id: str, entries: list[Disposed], pending: Pending | None, note: str | None = None
    ) -> None:
        """Record acknowledgements that were not accepted, with a latency if their request is known; ``note``: why."""
        started = None if pending is None else pending.started_at
        for received, disposition in entries:
            if disposition != "accepted":
                row = self._ack(correlation_id, received, disposition, started, note)
                self._ledger(correlation_id, LedgerRecord("ack", row.id, *self._written, acks=[row]))
                self.figures.dispositions[row.disposition] += 1

    def late_cancel(self, record: Record, disposition: AckDisposition) -> None:
        """Record a cancellation that fits no open request, as an answer without a label."""
        status, at = request_cancelled().status, record.timestamp
        own = (record.partition, record.offset, 0, False, record.source, record.topic)
        self.unused(record.correlation_id or "", [(Received(None, status, None, b"{}", at, *own), disposition)], None)

    def unmatched(self, reading: AckReading, disposition: AckDisposition) -> None:
        """Record all acknowledgements of a record that belongs to no open request."""
        self.unused(reading.correlation_id, [(received, disposition) for received in reading.received], None)

    def dead_letter(self, record: Record, code: str, reason: str) -> None:
        """Record an unusable record in the ledger, copy it whole to the dead letter topic, and count it by ``code``."""
        self.figures.dead_letters[code] += 1
        reason, identity = reason[:REASON_CHARACTERS], self._identity(record)
        correlation_id = None if is_too_long(record.correlation_id or "") else record.correlation_id
        cut = record.value is not None and record.size > len(record.value)
        place = (*self._coordinates(record), record.timestamp)
        row = DeadLetterRow(reason, correlation_id, *place, record.key, record.value, truncated=cut).cut()
        written = LedgerRecord("dead-letter", identity, *self._written, dead_letter=row)
        self._ledger(correlation_id or identity, written)
        self.size += len(record.value or b"")
        copy = Emission(self._topics.dead_letters, row.key, record.value, reason=f"{reason} ({identity})")
        self.emissions.append(copy)

    def _coordinates(self, record: Record | Received) -> tuple[str, int, int]:
        return record.topic or self._sources[record.source], record.partition, record.offset

    def _identity(self, record: Record) -> str:
        return "-".join(map(str, self._coordinates(record)))

    def _to(self, pending: Pending, reply: bytes) -> Destination:
        return self._topics.destination(pending.reply_topic, pending.reply_partition, len(reply))

    def _reply(
        self, outcome: OutcomeRow, reply: bytes, partition: int | None, spring: bytes | None, trace: bytes | None
    ) -> None:
        """Write a reply to its outcome's topic, with Spring's correlation-id and the trace of the request."""
        key, status = outcome.correlation_id.encode(), str(outcome.status)
        version = None if outcome.version is None else str(outcome.version)
        own = (outcome.reply_id, status, outcome.completed_by, spring, None, trace, partition, version)
        self.size += len(reply)
        self.emissions.append(Emission(outcome.reply_topic or self._topics.replies, key, reply, *own))

    def _ledger(self, key: str, record: LedgerRecord) -> None:
        # a buffer of its own would grow, and move, several times
        ledger.encode_into(record, self._buffer)
        value = bytes(self._buffer)
        for part in (value,) if len(value) <= self._limit else ledger.divide(record, self._limit):
            self.size += len(part)
            self.emissions.append(Emission(self._topics.ledger, key.encode(), part))

    def _ack(
        self, key: str, received: Received, found: AckDisposition, started_at: int | None, reason: str | None = None
    ) -> AckRow:
        """Return the row of an acknowledgement; ``started_at``: of its request, if it has one."""
        at, payload, own = received.timestamp, received.payload, received
        return AckRow(
            key, own.label, own.status, own.weak, at, None if started_at is None else max(0, at - started_at), found,
            *self._coordinates(own), own.index, UNSET if payload is None else Raw(payload), reason, own.codec,
        )  # fmt: skip


NAME = "correlate"
_CLASSES = range(1, 6)


class RequestFigures:
    """The numbers of one shard in one batch: dispositions of acknowledgements, dead letters by code."""

    def __init__(self) -> None:
        self.dispositions: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        # starts and latencies in turn: a tick may end many requests
        self._decided: dict[tuple[str, int], array[int]] = {}

    def decided(self, outcome: OutcomeRow, accepted: int) -> None:
        """Count a decision, and the acknowledgements that it took into account."""
        key = outcome.completed_by, outcome.status // 100
        if (times := self._decided.get(key)) is None:
            times = self._decided[key] = array("q")
        times.append(outcome.started_at)
        times.append(outcome.latency_ms)
        if accepted:
            self.dispositions["accepted"] += accepted

    def measure(self, tally: Tally, now_ms: int) -> None:
        """Add the numbers to those of other batches; ``now_ms``: this machine's, until which a sender waits."""
        for (completed_by, hundreds), times in self._decided.items():
            # a party may answer with any number
            tally.count(
                REQUESTS, completed_by, f"{hundreds}xx" if hundreds in _CLASSES else "other", by=len(times) // 2
            )
            started, latencies = np.frombuffer(times, np.int64).reshape(-1, 2).T
            tally.observe_counts(DECISION, completed_by, **_counted(DECISION, latencies))
            tally.observe_counts(REPLY, completed_by, **_counted(REPLY, np.maximum(now_ms - started, 0)))
        for disposition, count in self.dispositions.items():
            tally.count(ACKS, disposition, by=count)
        for code, count in self.dead_letters.items():
            tally.count(DEAD_LETTERS, NAME, code, by=count)


def _counted(metric: Metric, milliseconds: Any) -> dict[str, Any]:
    """Return how many values are in each bucket of a histogram, and their sum in seconds."""
    seconds = milliseconds / 1000
    counts = np.bincount(np.searchsorted(np.array(metric.buckets), seconds), minlength=len(metric.buckets) + 1)
    return {"counts": counts.tolist(), "total": float(seconds.sum())}
