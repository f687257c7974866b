"""What the operator sends out: replies, ledger records, dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.jobs.correlate.decision import AckEntry, Decision
from ackstream.jobs.correlate.reading import SPRING_CORRELATION, AckReading, reply_topic
from ackstream.protocol import ledger
from ackstream.protocol.ditto.envelopes import encode, error_envelope
from ackstream.protocol.ditto.errors import DittoError
from ackstream.protocol.ledger import AckRow, LedgerRecord, OutcomeRow, SignalRow

if TYPE_CHECKING:
    from ackstream.jobs.correlate.reading import Rules
    from ackstream.jobs.correlate.state import Pending, Received, Record
    from ackstream.protocol.ditto.topics import TopicPath


class Emission(msgspec.Struct, frozen=True, gc=False):
    """One Kafka record to write.

    A reply has the fields from ``reply_id`` on, a dead letter its ``reason``; they become record headers.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    reply_id: str | None = None
    status: str | None = None
    completed_by: str | None = None
    spring_correlation: bytes | None = None
    reason: str | None = None


class Writer:
    """Turns decisions into emissions, in the order they are made."""

    def __init__(self, rules: Rules, query_id: str, batch_id: int) -> None:
        """Write for one call of the operator; query and batch mark each ledger record."""
        self._rules = rules
        self._query_id = query_id
        self._batch_id = batch_id
        self.emissions: list[Emission] = []

    def signal(self, signal_id: str, row: SignalRow) -> None:
        """Record a signal that awaits nothing, or that stays open beyond this batch."""
        self._ledger(row.correlation_id, "signal", signal_id, signal=row)

    def outcome(self, pending: Pending, answer: Decision, decided_at: int, row: SignalRow | None) -> None:
        """Answer a request and record how it ended.

        :param row: the request's signal row where it is not recorded yet
        """
        request = pending.request
        reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        if request.response_required:
            encoded = encode(answer.reply)
            reply = msgspec.Raw(encoded)
            self._reply(
                pending.reply_topic,
                pending.correlation_id,
                pending.reply_id,
                encoded,
                answer,
                pending.spring_correlation,
            )
        outcome = OutcomeRow(
            correlation_id=pending.correlation_id,
            thing_id=request.thing_id,
            status=answer.status,
            completed_by=answer.completed_by,
            requested=request.awaited,
            missing=answer.missing,
            started_at=pending.started_at,
            decided_at=decided_at,
            latency_ms=decided_at - pending.started_at,
            reply_id=pending.reply_id,
            reply_topic=pending.reply_topic if request.response_required else None,
            reply=reply,
        )
        acks = [self._ack(pending.correlation_id, entry, "accepted", pending) for entry in pending.received]
        self._ledger(pending.correlation_id, "outcome", pending.reply_id, signal=row, acks=acks, outcome=outcome)

    def refused(self, record: Record, error: DittoError, topic: TopicPath | None) -> None:
        """Tell the requester what is wrong with the request; record it as an outcome and as a dead letter."""
        key = record.correlation_id or ""
        rules = self._rules
        identity = ledger.reply_id(key, rules.signals, record.partition, record.offset)
        thing_id = None if topic is None else topic.thing_id
        reply = error_envelope(
            error,
            thing_id=thing_id,
            channel=None if topic is None else topic.channel,
            headers={"correlation-id": key},
        )
        encoded = encode(reply)
        answer = Decision(error.status, "invalid", [], reply)
        try:
            to = reply_topic(record, rules)
        except DittoError:
            to = rules.replies
        spring = record.headers.get(SPRING_CORRELATION)
        self._reply(to, key, identity, encoded, answer, spring)
        outcome = OutcomeRow(
            correlation_id=key,
            thing_id=thing_id,
            status=error.status,
            completed_by="invalid",
            requested=(),
            missing=[],
            started_at=record.timestamp,
            decided_at=record.timestamp,
            latency_ms=0,
            reply_id=identity,
            reply_topic=to,
            reply=msgspec.Raw(encoded),
        )
        self._ledger(key, "outcome", identity, outcome=outcome)
        self.unreadable(record, error)

    def unreadable(self, record: Record, error: DittoError) -> None:
        """Record what the protocol refuses, with its code and texts as the reason."""
        self.dead_letter(record, " ".join(filter(None, (f"{error.error}:", error.message, error.description))))

    def duplicate(self, record: Record) -> None:
        """Record a request whose correlation-id is in use or was, a moment ago: the first one answers for both."""
        self.dead_letter(record, "The correlation-id belongs to a request that is open or was decided recently.")

    def acknowledgements(self, correlation_id: str, entries: list[AckEntry], pending: Pending | None) -> None:
        """Record acknowledgements that were not used; the used ones are part of the outcome."""
        for entry in entries:
            if entry.disposition == "accepted":
                continue
            row = self._ack(correlation_id, entry.received, entry.disposition, pending)
            identity = f"{row.topic}-{row.partition}-{row.offset}-{row.index}"
            self._ledger(correlation_id, "ack", identity, acks=[row])

    def unused(self, reading: AckReading, record: Record, disposition: str) -> None:
        """Record all acknowledgements of a record that no request takes, without a latency: there may be no request."""
        self.acknowledgements(
            reading.correlation_id, [AckEntry(e, disposition) for e in reading.received(record)], None
        )

    def dead_letter(self, record: Record, reason: str) -> None:
        """Record what could not be used, in the ledger and, whole, on the dead letter topic."""
        topic = self._rules.source(record.source)
        row = ledger.dead_letter(
            reason,
            record.correlation_id,
            (topic, record.partition, record.offset),
            record.timestamp,
            record.key,
            record.value,
            truncated=record.value is not None and record.size > len(record.value),
        )
        identity = f"{topic}-{record.partition}-{record.offset}"
        self._ledger(record.correlation_id or identity, "dead-letter", identity, dead_letter=row)
        self.emissions.append(
            Emission(
                self._rules.dead_letters,
                record.key,
                record.value,
                reason=f"{reason} ({identity})",
            )
        )

    def _reply(
        self, topic: str, correlation_id: str, reply_id: str, value: bytes, answer: Decision, spring: bytes | None
    ) -> None:
        self.emissions.append(
            Emission(
                topic,
                correlation_id.encode(),
                value,
                reply_id,
                str(answer.status),
                answer.completed_by,
                spring,
            )
        )

    def _ledger(
        self,
        key: str,
        kind: str,
        identity: str,
        *,
        signal: SignalRow | None = None,
        acks: list[AckRow] | None = None,
        outcome: OutcomeRow | None = None,
        dead_letter: ledger.DeadLetterRow | None = None,
    ) -> None:
        record = LedgerRecord(kind, identity, self._query_id, self._batch_id, signal, acks, outcome, dead_letter)
        self.emissions.append(Emission(self._rules.ledger, key.encode(), ledger.encode(record)))

    def _ack(self, correlation_id: str, received: Received, disposition: str, pending: Pending | None) -> AckRow:
        latency = None if pending is None else max(0, received.timestamp - pending.started_at)
        return AckRow(
            correlation_id=correlation_id,
            label=received.label,
            status=received.status,
            weak=received.weak,
            received_at=received.timestamp,
            latency_ms=latency,
            disposition=disposition,
            topic=self._rules.acks,
            partition=received.partition,
            offset=received.offset,
            index=received.index,
            payload=msgspec.UNSET if received.payload is None else msgspec.Raw(received.payload),
        )
