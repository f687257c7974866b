from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.gateway import meter as meters
from ackstream.gateway.meter import Meter, percentile, verdict


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
    assert verdict(status, completed_by) == wanted


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [([], 0.5, None), ([7], 0.99, 7), ([1, 2, 3, 4], 0.5, 2), (list(range(1, 101)), 0.95, 95)],
)
def test_a_percentile_is_a_value_that_occurred(values: list[int], share: float, wanted: int | None):
    assert percentile(values, share) == wanted


@given(st.lists(st.integers(0, 10_000), min_size=1), st.floats(0, 1))
def test_the_share_of_a_percentile_is_not_above_it(values: list[int], share: float):
    found = percentile(sorted(values), share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values)


def test_a_request_is_in_flight_until_it_is_decided():
    meter = Meter(60_000)
    meter.opened("a", 1_000)
    meter.opened("b", 3_000)
    before = meter.snapshot(5_000)
    assert (before.in_flight, before.oldest) == (2, 4_000)
    meter.decided("a", 6_000, "answered", 5_000)
    after = meter.snapshot(7_000)
    assert (after.in_flight, after.oldest) == (1, 4_000)
    assert after.counts["answered"].p50 == 5_000


def test_what_is_older_than_the_window_stays_in_the_total():
    meter = Meter(10_000)
    meter.decided("a", 1_000, "failed", 10)
    meter.decided("b", 9_000, "failed", 20)
    assert meter.snapshot(10_500).counts["failed"].recent == 2
    late = meter.snapshot(11_000).counts["failed"]
    assert (late.recent, late.total, late.p50) == (1, 2, 20)


def test_an_end_that_is_read_late_does_not_keep_older_ones_in_the_window():
    meter = Meter(10_000)
    meter.decided("a", 9_000, "answered", 1)
    meter.decided("b", 1_000, "answered", 1)
    assert meter.snapshot(12_000).counts["answered"].recent == 1


def test_the_copies_of_a_replayed_batch_count_once():
    meter = Meter(60_000)
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
    meter = Meter(60_000)
    for name in "abc":
        meter.decided(name, 1_000, "answered", 1)
    meter.decided("a", 1_000, "answered", 1)
    assert meter.snapshot(1_000).counts["answered"].total == 4
