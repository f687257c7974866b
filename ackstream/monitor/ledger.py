"""The ledger as a meter wants it: no values, no replies, only what opens and what ends a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.monitor.meter import verdict

if TYPE_CHECKING:
    from ackstream.monitor.meter import Meter


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


def count(meter: Meter, value: bytes | None, written_at: int) -> None:
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
