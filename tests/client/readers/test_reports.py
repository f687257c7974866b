from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.readers.qos import ReaderQos
from ackstream.client.readers.reports import AckReports
from ackstream.errors import BadParameterError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AppAckConf


def _reports(**qos: int) -> AckReports:
    return AckReports(ReaderQos(kind="application-explicit", **qos), "R1", "w1")


def _conf(app_ack: AppAck) -> AppAckConf:
    return AppAckConf(app_ack.reader, app_ack.writer, app_ack.epoch, app_ack.count)


def _acknowledge(reports: AckReports, now: int, *samples: int) -> None:
    for sample in samples:
        reports.acknowledge(sample, sample, now)


def _sent(reports: AckReports, now: int) -> AppAck:
    app_ack = reports.due(now)
    assert app_ack is not None
    return app_ack


def test_enough_samples_go_at_once_as_few_intervals() -> None:
    reports = _reports(samples_per_app_ack=6)
    _acknowledge(reports, 10, 1, 2, 3, 5, 6)
    assert reports.due(10) is None
    _acknowledge(reports, 10, 9)
    assert _sent(reports, 10).intervals == (AckInterval(1, 3), AckInterval(5, 6), AckInterval(9, 9))


def test_fewer_go_when_the_period_is_over_for_the_oldest() -> None:
    reports = _reports(samples_per_app_ack=10, app_ack_period_ms=1_000)
    _acknowledge(reports, 100, 1)
    _acknowledge(reports, 700, 2)
    assert (reports.deadline, reports.due(1_099)) == (1_100, None)
    assert _sent(reports, 1_100).intervals == (AckInterval(1, 2),)


def test_it_is_sent_again_each_period_with_the_next_count_until_it_is_confirmed() -> None:
    reports = _reports()
    _acknowledge(reports, 0, 1)
    counts = [_sent(reports, at).count for at in (0, 5_000, 10_000)]
    assert counts == [1, 2, 3]
    assert reports.confirm(AppAckConf("R1", "w1", 1, 3))
    assert (reports.deadline, reports.due(15_000)) == (None, None)


def test_a_confirmation_covers_earlier_reports_and_not_what_came_later() -> None:
    reports = _reports()
    _acknowledge(reports, 0, 1)
    _sent(reports, 0)
    _acknowledge(reports, 10, 2)
    second = _sent(reports, 10)
    _acknowledge(reports, 20, 3)
    _sent(reports, 20)
    assert reports.confirm(_conf(second))
    assert reports.deadline == 5_020
    again = _sent(reports, 5_020)
    assert again.intervals == (AckInterval(1, 3, reported=True),)
    reports.confirm(_conf(again))
    assert reports.deadline is None


@pytest.mark.parametrize(("epoch", "count"), [(2, 1), (0, 1), (1, 2), (1, 0)])
def test_a_confirmation_of_what_was_never_sent_is_refused(epoch: int, count: int) -> None:
    reports = _reports()
    _acknowledge(reports, 0, 1)
    _sent(reports, 0)
    assert not reports.confirm(AppAckConf("R1", "w1", epoch, count))
    assert reports.deadline == 5_000


def test_each_app_ack_repeats_what_was_reported_beside_what_is_new() -> None:
    reports = _reports()
    for sample in (1, 2, 3):
        _acknowledge(reports, sample, sample)
        last = _sent(reports, sample)
        reports.confirm(_conf(last))
    assert last.intervals == (AckInterval(1, 2, reported=True), AckInterval(3, 3))


def test_acknowledging_again_changes_nothing() -> None:
    reports = _reports()
    _acknowledge(reports, 0, 1)
    reports.confirm(_conf(_sent(reports, 0)))
    _acknowledge(reports, 10, 1)
    assert reports.due(10_000) is None


def test_intervals_with_different_responses_stay_apart() -> None:
    reports = _reports(samples_per_app_ack=4, max_response_length=8)
    reports.acknowledge(1, 2, 0, response=b"a")
    reports.acknowledge(3, 3, 0, response=b"b")
    reports.acknowledge(4, 4, 0, auto="filtered")
    assert _sent(reports, 0).intervals == (
        AckInterval(1, 2, b"a"),
        AckInterval(3, 3, b"b"),
        AckInterval(4, 4, auto="filtered"),
    )


@pytest.mark.parametrize(("keep", "response"), [(0, None), (4_999, None), (5_000, b"x"), (60_000, b"x")])
def test_a_response_is_repeated_as_long_as_it_is_kept(keep: int, response: bytes | None) -> None:
    reports = _reports(response_keep_ms=keep)
    reports.acknowledge(1, 1, 0, response=b"x")
    assert _sent(reports, 0).intervals == (AckInterval(1, 1, b"x"),)
    assert _sent(reports, 5_000).intervals == (AckInterval(1, 1, response, reported=True),)


def test_a_response_goes_out_once_however_long_its_batch_waits() -> None:
    reports = _reports(samples_per_app_ack=10)
    reports.acknowledge(1, 1, 0, response=b"x")
    assert _sent(reports, 5_000).intervals == (AckInterval(1, 1, b"x"),)


def test_a_response_that_is_too_long_is_an_error_and_nothing_is_acknowledged() -> None:
    reports = _reports(max_response_length=2)
    with pytest.raises(BadParameterError, match="has 3 bytes; max_response_length allows 2"):
        reports.acknowledge(1, 1, 0, response=b"abc")
    assert 1 not in reports.acknowledged
    assert reports.deadline is None


def test_a_new_epoch_repeats_what_earlier_ones_had_confirmed() -> None:
    qos = ReaderQos(kind="application-explicit")
    reports = AckReports(qos, "R1", "w1", epoch=2, acknowledged=Intervals([(5, 6)], start=5))
    reports.acknowledge(7, 7, 0)
    app_ack = _sent(reports, 0)
    assert (app_ack.epoch, app_ack.count, app_ack.start) == (2, 1, 5)
    assert app_ack.intervals == (AckInterval(5, 6, reported=True), AckInterval(7, 7))


def test_closing_sends_what_waits() -> None:
    reports = _reports(samples_per_app_ack=10)
    assert reports.flush(0) is None
    _acknowledge(reports, 0, 1)
    flushed = reports.flush(1)
    assert flushed is not None
    assert flushed.intervals == (AckInterval(1, 1),)


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 30)), max_size=40),
    st.integers(1, 5),
    st.sets(st.integers(1, 20)),
    st.sets(st.integers(1, 20)),
)
def test_whatever_is_lost_everything_acknowledged_arrives_and_reporting_ends(
    acknowledged: list[tuple[int, int]], batch: int, lost: set[int], lost_confs: set[int]
) -> None:
    reports = _reports(samples_per_app_ack=batch, app_ack_period_ms=100)
    arrived = Intervals()
    todo = sorted(acknowledged, reverse=True)
    now = 0
    for _ in range(10_000):
        while todo and todo[-1][0] <= now:
            _acknowledge(reports, now, todo.pop()[1])
        app_ack = reports.due(now)
        if app_ack is not None and app_ack.count not in lost:
            arrived.merge((interval.first, interval.last) for interval in app_ack.intervals)
            if app_ack.count not in lost_confs:
                reports.confirm(_conf(app_ack))
        times = [todo[-1][0]] if todo else []
        times += [] if reports.deadline is None else [reports.deadline]
        if not times:
            break
        now = max(now, min(times))
    assert arrived == Intervals((sample, sample) for _, sample in acknowledged)
    assert reports.deadline is None
