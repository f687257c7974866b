""""""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer

from ackstream.errors import AckstreamError
from ackstream.kafka.topics import ensure_topics
from ackstream.observe import meter as meters
from ackstream.observe.meter import LedgerFeed, Meter, clock_warning, percentiles, verdict
from ackstream.protocol import ledger
from ackstream.settings import Settings
from tests.harness.ledgers import outcome

if TYPE_CHECKING:
    from ackstream.settings import Kafka


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
    assert percentiles(values, share) == [wanted]


@given(st.lists(st.integers(0, 10_000), min_size=1), st.floats(0, 1))
def test_the_share_of_a_percentile_is_not_above_it(values: list[int], share: float):
    (found,) = percentiles(values, share)
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


def test_what_is_older_than_the_window_is_forgotten_while_nobody_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meters, "REMEMBERED", 1_000)
    meter, used = Meter(60_000), []
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


def signal(acks: tuple[str, ...] = ("a:b",), *, response_required: bool = True) -> ledger.SignalRow:
    return ledger.SignalRow(
        "c-1", None, "twin", "commands", "modify", "/", acks, response_required, 1_000, {}, 1_000, "signals", 0, 3
    )


OUTCOME = ledger.OutcomeRow("c-1", None, 200, "acknowledgements", ("a:b",), [], 1_000, 1_200, 200, "r1", "replies")


def record(signal: ledger.SignalRow | None = None, outcome: ledger.OutcomeRow | None = None) -> bytes:
    kind = "signal" if outcome is None else "outcome"
    return ledger.encode(ledger.LedgerRecord(kind, "r1", "q", 1, signal=signal, outcome=outcome))


def test_a_signal_opens_a_request_and_an_outcome_ends_it():
    meter = Meter(60_000)
    meter.take(record(signal()), 1_500)
    assert meter.snapshot(2_000).in_flight == 1
    meter.take(record(outcome=OUTCOME), 3_000)
    snapshot = meter.snapshot(3_000)
    assert snapshot.in_flight == 0
    assert snapshot.counts["answered"].p50 == 2_000


def test_an_outcome_that_brings_its_signal_is_not_in_flight():
    meter = Meter(60_000)
    meter.take(record(signal(), OUTCOME), 3_000)
    assert meter.snapshot(3_000).in_flight == 0


@pytest.mark.parametrize(
    ("acks", "response_required", "in_flight"), [((), False, 0), ((), True, 1), (("a:b",), False, 1)]
)
def test_a_signal_that_awaits_nothing_is_not_in_flight(
    acks: tuple[str, ...], *, response_required: bool, in_flight: int
):
    meter = Meter(60_000)
    meter.take(record(signal(acks, response_required=response_required)), 1_500)
    assert meter.snapshot(2_000).in_flight == in_flight


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"no json", b"[]", b"\xff", b'{"kind":"ack","id":"r1","query_id":"q","batch_id":1,"acks":[]}',
        b'{"kind":"outcome","id":"r1","query_id":"q","batch_id":1,"outcome":{}}',
    ],
)  # fmt: skip
def test_anything_else_counts_for_nothing(value: bytes | None):
    meter = Meter(60_000)
    meter.take(value, 1_000)
    snapshot = meter.snapshot(2_000)
    assert snapshot.in_flight == 0
    assert all(found.total == 0 for found in snapshot.counts.values())


pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    settings = Settings(kafka=kafka)
    ensure_topics(settings, ("signals", "acks", "ledger"))
    return settings


def write(settings: Settings, topic: str, values: list[bytes]) -> int:
    """Write records, each with its own key; return the broker's time of the last one."""
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, linger_ms=0) as producer:
        sent = [
            producer.send(settings.kafka.topic(topic), key=str(number).encode(), value=value)
            for number, value in enumerate(values)
        ]
        return max(int(future.get(timeout=30).timestamp) for future in sent)


def test_a_feed_counts_what_was_written_since(settings: Settings):
    last = write(settings, "ledger", [outcome(f"r{number}") for number in range(10)])
    write(settings, "ledger", [b"no json", outcome("r10"), outcome("r10")])
    meter = Meter(60_000)
    with LedgerFeed(settings, 0) as feed:
        feed.read_to_end(meter)
        assert meter.snapshot(last).counts["answered"].total == 11
        write(settings, "ledger", [outcome("r11")])
        feed.read_to_end(meter)
        assert meter.snapshot(last).counts["answered"].total == 12


def test_a_feed_leaves_out_what_is_older(settings: Settings):
    last = write(settings, "ledger", [outcome("r0")])
    meter = Meter(60_000)
    with LedgerFeed(settings, last + 3_600_000) as feed:
        feed.read_to_end(meter)
    assert meter.snapshot(last).counts["answered"].total == 0


def test_a_trend_has_the_verdicts_of_ten_minutes_and_the_newest_record_its_time():
    meter = Meter(60_000)
    meter.take(outcome("r1"), 1_000_000)
    meter.take(outcome("r2", status=424, completed_by="timeout"), 1_009_999)
    meter.take(outcome("r2", status=424, completed_by="timeout"), 1_020_000)
    trends = meter.trends(1_029_999)
    assert {how: counts[-3:] for how, counts in trends.items()} == {
        "answered": [1, 0, 0], "timed out": [1, 0, 0], "failed": [0, 0, 0],
    }  # fmt: skip
    assert {len(counts) for counts in trends.values()} == {60}
    assert meter.newest == 1_020_000


@pytest.mark.parametrize(
    ("signed_at", "warning"),
    [
        (100_000, ""),
        (90_000, ""),
        # the broker's clock is ahead of this machine's
        (130_000, ""),
        (26_000, "The clock has given its last sign of life 74 s ago, so no request times out: is correlate running?"),
        (None, "The clock has given no sign of life yet, so no request times out: is correlate running?"),
    ],
)
def test_a_clock_that_stands_still_is_reported(signed_at: int | None, warning: str):
    assert clock_warning(signed_at, 100_000) == warning


def test_a_feed_knows_when_the_clock_last_gave_a_sign_of_life(settings: Settings):
    with LedgerFeed(settings, 0) as feed:
        assert "no sign of life yet" in feed.warning()
        ensure_topics(settings, ["correlate-lease"])
        assert "no sign of life yet" in feed.warning()
        write(settings, "correlate-lease", [b"0"])
        assert feed.warning() == ""


def test_a_topic_that_is_not_there_is_one_sentence(kafka: Kafka):
    with pytest.raises(AckstreamError, match=r"There is no topic .*ledger"):
        LedgerFeed(Settings(kafka=kafka), 0)
