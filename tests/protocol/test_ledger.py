from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.gateway.meter import Meter
from ackstream.protocol.ledger import count_records

SIGNAL = {"requested_acks": ["a:b"], "received_at": 1_000, "response_required": True, "value": {"any": "thing"}}
OUTCOME = {"status": 200, "completed_by": "acknowledgements", "started_at": 1_000, "reply": {"topic": "…"}}


def record(**parts: Any) -> bytes:
    return json.dumps({"id": "r1", "query_id": "q", "batch_id": 1, **parts}).encode()


def test_a_signal_opens_and_an_outcome_ends():
    meter = Meter(60_000)
    count_records(meter, record(kind="signal", signal=SIGNAL), 1_500)
    assert meter.snapshot(2_000).in_flight == 1
    count_records(meter, record(kind="outcome", outcome=OUTCOME), 3_000)
    snapshot = meter.snapshot(3_000)
    assert snapshot.in_flight == 0
    assert snapshot.counts["answered"].p50 == 2_000


def test_an_outcome_that_brings_its_signal_is_not_in_flight():
    meter = Meter(60_000)
    count_records(meter, record(kind="outcome", signal=SIGNAL, outcome=OUTCOME), 3_000)
    assert meter.snapshot(3_000).in_flight == 0


@pytest.mark.parametrize(
    ("acks", "response_required", "in_flight"), [([], False, 0), ([], True, 1), (["a:b"], False, 1)]
)
def test_a_signal_that_awaits_nothing_is_not_in_flight(acks: list[str], *, response_required: bool, in_flight: int):
    meter = Meter(60_000)
    signal = SIGNAL | {"requested_acks": acks, "response_required": response_required}
    count_records(meter, record(kind="signal", signal=signal), 1_500)
    assert meter.snapshot(2_000).in_flight == in_flight


@pytest.mark.parametrize(
    "value", [None, b"", b"no json", b"[]", b"\xff", record(kind="ack", acks=[]), record(kind="outcome", outcome={})]
)
def test_anything_else_counts_for_nothing(value: bytes | None):
    meter = Meter(60_000)
    count_records(meter, value, 1_000)
    snapshot = meter.snapshot(2_000)
    assert snapshot.in_flight == 0
    assert all(found.total == 0 for found in snapshot.counts.values())
