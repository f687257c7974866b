"""The ledger: one JSON record a decision, written by correlate, read by archive.

A record has a stable id derived from Kafka coordinates, the query and batch that wrote it, and one or more parts: the
request's signal row, rows of acknowledgements, an outcome, a dead letter. A request that stays open at the end of its
batch has its signal row written at once (kind ``signal``), so that requests in flight are in the tables too; its
outcome follows without it.
"""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from ackstream.gateway.meter import verdict

if TYPE_CHECKING:
    from ackstream.gateway.meter import Meter


DEAD_LETTER_BYTES = 65_536
"""How much of a dead letter's value the ledger keeps; the whole is in the topic it came from."""


class SignalRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """A command or message as it was received; times in epoch milliseconds."""

    correlation_id: str
    thing_id: str | None
    channel: str | None
    criterion: str
    action: str | None
    path: str
    requested_acks: tuple[str, ...]
    response_required: bool
    timeout_ms: int
    headers: dict[str, object]
    received_at: int
    topic: str
    partition: int
    offset: int
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class AckRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """One acknowledgement (or response, or error) and what became of it; times in epoch milliseconds."""

    correlation_id: str
    label: str | None
    status: int | None
    weak: bool
    received_at: int
    latency_ms: int | None
    disposition: str
    topic: str
    partition: int
    offset: int
    index: int
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class OutcomeRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """What a request came to; times in epoch milliseconds of event time."""

    correlation_id: str
    thing_id: str | None
    status: int
    completed_by: str
    requested: tuple[str, ...]
    missing: list[str]
    started_at: int
    decided_at: int
    latency_ms: int
    reply_id: str
    reply_topic: str | None
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class DeadLetterRow(msgspec.Struct, omit_defaults=True, frozen=True):
    """A record that could not be used, with the reason; key and value in base64."""

    reason: str
    correlation_id: str | None
    topic: str
    partition: int
    offset: int
    received_at: int
    key: str | None
    value: str | None
    truncated: bool


class LedgerRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """What one Kafka record of the ledger topic holds."""

    kind: str
    id: str
    query_id: str
    batch_id: int
    signal: SignalRow | None = None
    acks: list[AckRow] | None = None
    outcome: OutcomeRow | None = None
    dead_letter: DeadLetterRow | None = None


encode = msgspec.json.Encoder().encode


def reply_id(correlation_id: str, topic: str, partition: int, offset: int) -> str:
    """Return the reply's id: a hash of the correlation-id and the request's coordinates, 32 hexadecimal digits."""
    return blake2b(f"{correlation_id}\n{topic}\n{partition}\n{offset}".encode(), digest_size=16).hexdigest()


def dead_letter(
    reason: str,
    correlation_id: str | None,
    coordinates: tuple[str, int, int],
    received_at: int,
    key: bytes | None,
    value: bytes | None,
    *,
    truncated: bool,
) -> DeadLetterRow:
    """Describe a record that could not be used.

    :param coordinates: topic, partition, offset
    :param truncated: the value is already less than what came
    """
    kept = None if value is None else value[:DEAD_LETTER_BYTES]
    return DeadLetterRow(
        reason=reason,
        correlation_id=correlation_id,
        topic=coordinates[0],
        partition=coordinates[1],
        offset=coordinates[2],
        received_at=received_at,
        key=_base64(key),
        value=_base64(kept),
        truncated=truncated or kept != value,
    )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


# -- The ledger as a meter wants it: no values, no replies, only what opens and what ends a request.


class _Signal(msgspec.Struct):
    requested_acks: list[str]
    received_at: int
    response_required: bool = True


class _Outcome(msgspec.Struct):
    status: int
    completed_by: str
    started_at: int


class _Record(msgspec.Struct):
    kind: str
    id: str
    signal: _Signal | None = None
    outcome: _Outcome | None = None


_decode = msgspec.json.Decoder(_Record).decode


def count_records(meter: Meter, value: bytes | None, written_at: int) -> None:
    """Let a record of the ledger count; what is no such record counts for nothing.

    The latency is that of the answer: from the broker's time of the request to the broker's time of this record, which
    leaves together with the reply.

    :param written_at: the record's timestamp, epoch milliseconds
    """
    try:
        record = _decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    if record.outcome is not None:
        outcome = record.outcome
        how = verdict(outcome.status, outcome.completed_by)
        meter.decided(record.id, written_at, how, max(0, written_at - outcome.started_at))
    elif record.signal is not None and (record.signal.response_required or record.signal.requested_acks):
        meter.opened(record.id, record.signal.received_at)
