"""Verdicts, counts over a window and in total, and trends."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.observe import outcomes
from ackstream.observe import outcomes as meters
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.envelopes import encode, error_envelope, raw
from ackstream.protocol.errors import thing_not_found
from tests.harness.ledgers import outcome


@pytest.mark.parametrize(
    ("status", "completed_by", "wanted"),
    [
        (200, "acknowledgements", "answered"),
        (204, "response", "answered"),
        (424, "acknowledgements", "failed"),
        (507, "acknowledgements", "failed"),
        (424, "timeout", "timed out"),
        (408, "timeout", "timed out"),
        (404, "error", "failed"),
        (400, "invalid", "failed"),
        # a party said 408 itself: the request did not wait to its deadline
        (408, "acknowledgements", "failed"),
    ],
)
def test_a_verdict_tells_answered_from_timed_out_from_failed(status: int, completed_by: str, wanted: str):
    assert outcomes.verdict(status, completed_by) == wanted


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [([], 0.5, None), ([7], 0.99, 7), ([1, 2, 3, 4], 0.5, 2), (list(range(1, 101)), 0.95, 95)],
)
def test_a_percentile_is_a_value_that_occurred(values: list[int], share: float, wanted: int | None):
    assert outcomes.percentiles(values, share) == [wanted]


@given(st.lists(st.integers(0, 10_000), min_size=1), st.floats(0, 1))
def test_the_share_of_a_percentile_is_not_above_it(values: list[int], share: float):
    (found,) = outcomes.percentiles(values, share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values)


def test_a_request_is_in_flight_until_it_is_decided():
    meter = outcomes.Meter(60_000)
    meter.opened("a", 1_000)
    meter.opened("b", 3_000)
    before = meter.snapshot(5_000)
    assert (before.in_flight, before.oldest) == (2, 4_000)
    meter.decided("a", 6_000, "answered", 5_000)
    after = meter.snapshot(7_000)
    assert (after.in_flight, after.oldest) == (1, 4_000)
    assert after.counts["answered"].p50 == 5_000


def test_what_is_older_than_the_window_stays_in_the_total():
    meter = outcomes.Meter(10_000)
    meter.decided("a", 1_000, "failed", 10)
    meter.decided("b", 9_000, "failed", 20)
    assert meter.snapshot(10_500).counts["failed"].recent == 2
    late = meter.snapshot(11_000).counts["failed"]
    assert (late.recent, late.total, late.p50) == (1, 2, 20)


def test_an_end_that_is_read_late_does_not_keep_older_ones_in_the_window():
    meter = outcomes.Meter(10_000)
    meter.decided("a", 9_000, "answered", 1)
    meter.decided("b", 1_000, "answered", 1)
    assert meter.snapshot(12_000).counts["answered"].recent == 1


def test_what_is_older_than_the_window_is_forgotten_while_nobody_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meters, "REMEMBERED", 1_000)
    meter, used = outcomes.Meter(60_000), []
    tracemalloc.start()
    try:
        for first in (0, 10_000):
            for second in range(first, first + 10_000):
                meter.decided(str(second), second * 1_000, "answered", 5_000)
            used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert used[1] - used[0] < 200_000
    assert meter.snapshot(19_999_000).counts["answered"].recent == 60


def test_the_copies_of_a_replayed_batch_count_once():
    meter = outcomes.Meter(60_000)
    meter.opened("a", 1_000)
    meter.opened("a", 1_000)
    meter.decided("a", 2_000, "answered", 1_000)
    meter.opened("a", 1_000)
    meter.decided("a", 2_000, "answered", 1_000)
    snapshot = meter.snapshot(3_000)
    assert snapshot.in_flight == 0
    assert snapshot.counts["answered"].total == 1


def test_only_so_many_decided_requests_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meters, "REMEMBERED", 2)
    meter = outcomes.Meter(60_000)
    for name in "abc":
        meter.decided(name, 1_000, "answered", 1)
    meter.decided("a", 1_000, "answered", 1)
    assert meter.snapshot(1_000).counts["answered"].total == 4


def signal(acks: tuple[str, ...] = ("a:b",), *, response_required: bool = True) -> ledger.SignalRow:
    return ledger.SignalRow(
        "c-1", None, "twin", "commands", "modify", "/", acks, response_required, 1_000, {}, 1_000, "signals", 0, 3
    )


OUTCOME = ledger.OutcomeRow("c-1", None, 200, "acknowledgements", ("a:b",), [], 1_000, 1_200, 200, "r1", "replies")


def record(signal: ledger.SignalRow | None = None, outcome: ledger.OutcomeRow | None = None) -> bytes:
    kind = "signal" if outcome is None else "outcome"
    return ledger.encode(ledger.LedgerRecord(kind, "r1", "q", 1, signal=signal, outcome=outcome))


def take(into: outcomes.Meter, value: bytes | None, at: int) -> None:
    entry = outcomes.read_entry("c-1", value, at)
    if entry is not None:
        into.take(entry)


def test_a_signal_opens_a_request_and_an_outcome_ends_it():
    meter = outcomes.Meter(60_000)
    take(meter, record(signal()), 1_500)
    assert meter.snapshot(2_000).in_flight == 1
    take(meter, record(outcome=OUTCOME), 3_000)
    snapshot = meter.snapshot(3_000)
    assert snapshot.in_flight == 0
    assert snapshot.counts["answered"].p50 == 2_000


def test_an_outcome_that_brings_its_signal_is_not_in_flight():
    meter = outcomes.Meter(60_000)
    take(meter, record(signal(), OUTCOME), 3_000)
    assert meter.snapshot(3_000).in_flight == 0


@pytest.mark.parametrize(
    ("acks", "response_required", "in_flight"), [((), False, 0), ((), True, 1), (("a:b",), False, 1)]
)
def test_a_signal_that_awaits_nothing_is_not_in_flight(
    acks: tuple[str, ...], *, response_required: bool, in_flight: int
):
    meter = outcomes.Meter(60_000)
    take(meter, record(signal(acks, response_required=response_required)), 1_500)
    assert meter.snapshot(2_000).in_flight == in_flight


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"no json", b"[]", b"\xff", b'{"kind":"ack","id":"r1","query_id":"q","batch_id":1,"acks":[]}',
        b'{"kind":"outcome","id":"r1","query_id":"q","batch_id":1,"outcome":{}}',
    ],
)  # fmt: skip
def test_anything_else_counts_for_nothing(value: bytes | None):
    meter = outcomes.Meter(60_000)
    take(meter, value, 1_000)
    snapshot = meter.snapshot(2_000)
    assert snapshot.in_flight == 0
    assert all(found.total == 0 for found in snapshot.counts.values())


def test_a_trend_has_the_verdicts_of_ten_minutes_and_the_newest_record_its_time():
    meter = outcomes.Meter(60_000)
    take(meter, outcome("r1"), 1_000_000)
    take(meter, outcome("r2", status=424, completed_by="timeout"), 1_009_999)
    take(meter, outcome("r2", status=424, completed_by="timeout"), 1_020_000)
    trends = meter.trends(1_029_999)
    assert {how: counts[-3:] for how, counts in trends.items()} == {
        "answered": [1, 0, 0], "timed out": [1, 0, 0], "failed": [0, 0, 0],
    }  # fmt: skip
    assert {len(counts) for counts in trends.values()} == {60}
    assert meter.newest == 1_020_000


def test_counts_are_those_of_the_last_spans_the_oldest_first() -> None:
    trend = outcomes.Trend(10, 3)
    for at in (5, 10, 19, 25):
        trend.add(at)
    trend.add(29, 4)
    assert trend.counts(29) == [1, 2, 5]
    assert trend.counts(30) == [2, 5, 0]
    assert trend.total(60) == 0


def test_what_comes_late_still_counts_in_its_span_unless_that_is_gone() -> None:
    trend = outcomes.Trend(10, 3)
    trend.add(25)
    trend.add(5)
    trend.add(-5)
    assert trend.counts(25) == [1, 0, 1]


@given(st.lists(st.integers(0, 200)), st.integers(1, 30), st.integers(1, 10))
def test_a_trend_counts_everything_once_and_keeps_no_more_than_its_spans(
    times: list[int], span: int, length: int
) -> None:
    trend = outcomes.Trend(span, length)
    for at in sorted(times):
        trend.add(at)
    now = max(times, default=0)
    first = (now // span - length + 1) * span
    assert trend.total(now) == sum(at >= first for at in times)
    assert len(trend._counts) <= length


ERROR = raw(thing_not_found("a:b").to_dict())


def decided(completed_by: str, status: int, *acks: tuple[str | None, int, str], reply: object = msgspec.UNSET) -> bytes:
    """Write what the correlation writes to its ledger."""
    rows = [
        ledger.AckRow("c-1", label, code, False, 0, 0, disposition, "acks", 0, 0, 0, ERROR)  # noqa: FBT003
        for label, code, disposition in acks
    ]
    outcome = ledger.OutcomeRow(
        "c-1",
        "a:b",
        status,
        completed_by,
        ("x-ack", "y-ack"),
        [],
        0,
        0,
        0,
        "r",
        None,
        reply,  # type: ignore[arg-type]
    )
    return ledger.encode(ledger.LedgerRecord("outcome", "r", "q", 1, acks=rows, outcome=outcome))


def test_an_outcome_has_an_entry_for_each_label_in_the_order_of_the_request() -> None:
    value = decided("timeout", 424, ("y-ack", 204, "accepted"), ("x-ack", 500, "late"))
    assert outcomes.read_outcome(value, "a:b") == outcomes.RequestOutcome(
        424, "timeout", [Acknowledgement("x-ack", 408), Acknowledgement("y-ack", 204)]
    )


def test_an_error_of_the_twin_is_the_last_that_was_used() -> None:
    found = outcomes.read_outcome(decided("error", 404, ("y-ack", 204, "accepted"), (None, 404, "accepted")), "a:b")
    assert found is not None
    assert (found.status, found.error) == (404, ERROR)


def test_why_a_request_was_refused_stands_in_its_reply() -> None:
    refusal = encode(error_envelope(thing_not_found("a:b"), thing_id="a:b", channel="twin", headers={}))
    found = outcomes.read_outcome(decided("invalid", 404, reply=msgspec.Raw(refusal)), "a:b")
    assert found is not None
    assert found.error == ERROR


def test_the_outcome_of_a_request_about_another_thing_is_not_the_one() -> None:
    assert outcomes.read_outcome(decided("timeout", 424), "a:b") is not None
    assert outcomes.read_outcome(decided("timeout", 424), "a:other") is None


def test_other_records_of_the_ledger_have_no_outcome() -> None:
    assert outcomes.read_outcome(ledger.encode(ledger.LedgerRecord("signal", "r", "q", 1)), "a:b") is None
    with pytest.raises(msgspec.MsgspecError):
        outcomes.read_outcome(b"nonsense", "a:b")
