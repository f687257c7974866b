"""Ledger records as correlate writes them, with the parts that a test is about."""

from __future__ import annotations

from typing import Any

from ackstream.protocol.ledger import AckRow, LedgerRecord, OutcomeRow, SignalRow, encode

_SIGNAL = {
    "thing_id": "a:b", "channel": "twin", "criterion": "commands", "action": "modify", "path": "/",
    "requested_acks": ("a:b",), "response_required": True, "timeout_ms": 10_000, "headers": {}, "received_at": 1,
    "topic": "signals", "partition": 0, "offset": 0,
}  # fmt: skip
_OUTCOME = {
    "thing_id": "a:b", "status": 200, "completed_by": "acknowledgements", "requested": ("a:b",), "missing": [],
    "started_at": 1, "decided_at": 2, "latency_ms": 1, "reply_id": "r", "reply_topic": "replies",
}  # fmt: skip


def signal(identity: str, **parts: Any) -> bytes:
    """Return the record of a request that stays open."""
    row = SignalRow(correlation_id=identity, **{**_SIGNAL, **parts})
    return encode(LedgerRecord("signal", identity, "query", 1, signal=row))


def outcome(identity: str, acks: list[AckRow] | None = None, **parts: Any) -> bytes:
    """Return the record of a decided request, with the acknowledgements that were used."""
    row = OutcomeRow(correlation_id=identity, **{**_OUTCOME, **parts})
    return encode(LedgerRecord("outcome", identity, "query", 1, acks=acks, outcome=row))


def accepted(identity: str, label: str, status: int) -> AckRow:
    """Return an acknowledgement that was used."""
    return AckRow(identity, label, status, weak=False, received_at=2, latency_ms=1, disposition="accepted",
                  topic="acks", partition=0, offset=0, index=0)  # fmt: skip
