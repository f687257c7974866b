from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.readers.qos import ReaderQos
from ackstream.client.readers.reports import AppAcks
from ackstream.errors import BadParameterError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AppAckConf


def _app_acks(**qos: int) -> AppAcks:
    return AppAcks(ReaderQos(kind="application-explicit", **qos), "R1", "w1")


def _conf(app_ack: AppAck) -> AppAckConf:
    return AppAckConf(app_ack.reader, app_ack.writer, app_ack.epoch, app_ack.count)


def _acknowledge(app_acks: AppAcks, now: int, *samples: int) -> None:
    for sample in samples:
        app_acks.acknowledge(sample, sample, now)


def _sent(app_acks: AppAcks, now: int) -> AppAck:
    app_ack = app_acks.due(now)
    assert app_ack is not None
    return app_ack


def test_enough_samples_go_at_once_as_few_intervals() -> None:
    app_acks = _app_acks(samples_per_app_ack=6)
    _acknowledge(app_acks, 10, 1, 2, 3, 5, 6)
    assert app_acks.due(10) is None
    _acknowledge(app_acks, 10, 9)
    assert _sent(app_acks, 10).intervals == (AckInterval(1, 3), AckInterval(5, 6), AckInterval(9, 9))


def test_fewer_go_when_the_period_is_over_for_the_oldest() -> None:
    app_acks = _app_acks(samples_per_app_ack=10, app_ack_period_ms=1_000)
    _acknowledge(app_acks, 100, 1)
    _acknowledge(app_acks, 700, 2)
    assert (app_acks.deadline, app_acks.due(1_099)) == (1_100, None)
    assert _sent(app_acks, 1_100).intervals == (AckInterval(1, 2),)


def test_it_is_sent_again_each_period_with_the_next_count_until_it_is_confirmed() -> None:
    app_acks = _app_acks()
    _acknowledge(app_acks, 0, 1)
    counts = [_sent(app_acks, at).count for at in (0, 5_000, 10_000)]
    assert counts == [1, 2, 3]
    assert app_acks.confirm(AppAckConf("R1", "w1", 1, 3))
    assert (app_acks.deadline, app_acks.due(15_000)) == (None, None)


def test_a_confirmation_covers_earlier_app_acks_and_not_what_came_later() -> None:
    app_acks = _app_acks()
    _acknowledge(app_acks, 0, 1)
    _sent(app_acks, 0)
    _acknowledge(app_acks, 10, 2)
    second = _sent(app_acks, 10)
    _acknowledge(app_acks, 20, 3)
    _sent(app_acks, 20)
    assert app_acks.confirm(_conf(second))
    assert app_acks.deadline == 5_020
    again = _sent(app_acks, 5_020)
    assert again.intervals == (AckInterval(1, 3, reported=True),)
    app_acks.confirm(_conf(again))
    assert app_acks.deadline is None


@pytest.mark.parametrize(("epoch", "count"), [(2, 1), (0, 1), (1, 2), (1, 0)])
def test_a_confirmation_of_what_was_never_sent_is_refused(epoch: int, count: int) -> None:
    app_acks = _app_acks()
    _acknowledge(app_acks, 0, 1)
    _sent(app_acks, 0)
    assert not app_acks.confirm(AppAckConf("R1", "w1", epoch, count))
    assert app_acks.deadline == 5_000


def test_each_app_ack_repeats_what_was_reported_beside_what_is_new() -> None:
    app_acks = _app_acks()
    for sample in (1, 2, 3):
        _acknowledge(app_acks, sample, sample)
        last = _sent(app_acks, sample)
        app_acks.confirm(_conf(last))
    assert last.intervals == (AckInterval(1, 2, reported=True), AckInterval(3, 3))


def test_acknowledging_again_changes_nothing() -> None:
    app_acks = _app_acks()
    _acknowledge(app_acks, 0, 1)
    app_acks.confirm(_conf(_sent(app_acks, 0)))
    _acknowledge(app_acks, 10, 1)
    assert app_acks.due(10_000) is None


def test_intervals_with_different_responses_stay_apart() -> None:
    app_acks = _app_acks(samples_per_app_ack=4, max_response_length=8)
    app_acks.acknowledge(1, 2, 0, response=b"a")
    app_acks.acknowledge(3, 3, 0, response=b"b")
    app_acks.acknowledge(4, 4, 0, auto="filtered")
    assert _sent(app_acks, 0).intervals == (
        AckInterval(1, 2, b"a"),
        AckInterval(3, 3, b"b"),
        AckInterval(4, 4, auto="filtered"),
    )


@pytest.mark.parametrize(("keep", "response"), [(0, None), (4_999, None), (5_000, b"x"), (60_000, b"x")])
def test_a_response_is_repeated_as_long_as_it_is_kept(keep: int, response: bytes | None) -> None:
    app_acks = _app_acks(response_keep_ms=keep)
    app_acks.acknowledge(1, 1, 0, response=b"x")
    assert _sent(app_acks, 0).intervals == (AckInterval(1, 1, b"x"),)
    assert _sent(app_acks, 5_000).intervals == (AckInterval(1, 1, response, reported=True),)


def test_a_response_goes_out_once_however_long_its_batch_waits() -> None:
    app_acks = _app_acks(samples_per_app_ack=10)
    app_acks.acknowledge(1, 1, 0, response=b"x")
    assert _sent(app_acks, 5_000).intervals == (AckInterval(1, 1, b"x"),)


def test_a_response_that_is_too_long_is_an_error_and_nothing_is_acknowledged() -> None:
    app_acks = _app_acks(max_response_length=2)
    with pytest.raises(BadParameterError, match="has 3 bytes; max_response_length allows 2"):
        app_acks.acknowledge(1, 1, 0, response=b"abc")
    assert 1 not in app_acks.acknowledged
    assert app_acks.deadline is None


def test_a_new_epoch_repeats_what_earlier_ones_had_confirmed() -> None:
    qos = ReaderQos(kind="application-explicit")
    app_acks = AppAcks(qos, "R1", "w1", epoch=2, acknowledged=Intervals([(5, 6)], start=5))
    app_acks.acknowledge(7, 7, 0)
    app_ack = _sent(app_acks, 0)
    assert (app_ack.epoch, app_ack.count, app_ack.start) == (2, 1, 5)
    assert app_ack.intervals == (AckInterval(5, 6, reported=True), AckInterval(7, 7))


def test_closing_sends_what_waits() -> None:
    app_acks = _app_acks(samples_per_app_ack=10)
    assert app_acks.flush(0) is None
    _acknowledge(app_acks, 0, 1)
    flushed = app_acks.flush(1)
    assert flushed is not None
    assert flushed.intervals == (AckInterval(1, 1),)


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 30)), max_size=40),
    st.integers(1, 5),
    st.sets(st.integers(1, 20)),
    st.sets(st.integers(1, 20)),
)
def test_whatever_is_lost_everything_acknowledged_arrives_and_the_talking_ends(
    acknowledged: list[tuple[int, int]], batch: int, lost: set[int], lost_confs: set[int]
) -> None:
    app_acks = _app_acks(samples_per_app_ack=batch, app_ack_period_ms=100)
    arrived = Intervals()
    todo = sorted(acknowledged, reverse=True)
    now = 0
    for _ in range(10_000):
        while todo and todo[-1][0] <= now:
            _acknowledge(app_acks, now, todo.pop()[1])
        app_ack = app_acks.due(now)
        if app_ack is not None and app_ack.count not in lost:
            arrived.merge((interval.first, interval.last) for interval in app_ack.intervals)
            if app_ack.count not in lost_confs:
                app_acks.confirm(_conf(app_ack))
        times = [todo[-1][0]] if todo else []
        times += [] if app_acks.deadline is None else [app_acks.deadline]
        if not times:
            break
        now = max(now, min(times))
    assert arrived == Intervals((sample, sample) for _, sample in acknowledged)
    assert app_acks.deadline is None
