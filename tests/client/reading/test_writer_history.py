from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.reading._writer_history import YOUNG_RUNS, AckReports, ReorderBuffer
from ackstream.client.reading.samples import ReaderQos
from ackstream.errors import BadParameterError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AppAckConf, ProtocolAck, ReaderStart


class _Sized(int):
    """A sample that is its number."""

    session: str | None = ""

    @property
    def seq(self) -> int:
        return int(self)

    @property
    def size(self) -> int:
        return 10 * self


def _reordered(*numbers: int) -> ReorderBuffer:
    buffer = ReorderBuffer()
    buffer.begin(0)
    for number in numbers:
        buffer.add(_Sized(number))
    return buffer


def test_nothing_is_released_before_it_is_stored() -> None:
    buffer = _reordered(1, 2, 3)
    assert list(buffer.release()) == []
    buffer.mark_stored(1, 2)
    assert list(buffer.release()) == [1, 2]
    assert len(buffer) == 1


def test_a_refused_sample_is_neither_released_nor_waited_for() -> None:
    buffer = _reordered(1, 2, 4)
    buffer.mark_stored(1, 4, [(2, 3)])
    assert list(buffer.release()) == [1, 4]
    assert not buffer.add(_Sized(3))


def test_a_writers_samples_keep_their_order_whatever_arrives_first() -> None:
    buffer = _reordered(3, 2)
    buffer.mark_stored(1, 3)
    assert (list(buffer.release()), buffer.missing()) == ([], [(1, 1)])
    buffer.add(_Sized(1))
    assert (list(buffer.release()), buffer.missing()) == ([1, 2, 3], [])


def test_a_duplicate_is_dropped_before_and_after_the_release_of_the_first() -> None:
    buffer = _reordered(1)
    assert not buffer.add(_Sized(1))
    buffer.mark_stored(1, 1)
    assert list(buffer.release()) == [1]
    assert not buffer.add(_Sized(1))


def test_a_reader_that_restarts_wants_exactly_the_undelivered_and_the_new_samples() -> None:
    buffer = ReorderBuffer()
    buffer.begin(8, [(3, 4), (7, 7)])
    assert [number for number in range(1, 11) if buffer.add(_Sized(number))] == [3, 4, 7, 9, 10]
    assert list(buffer.release()) == [3, 4, 7]
    buffer.mark_stored(9, 10)
    assert list(buffer.release()) == [9, 10]


def test_only_what_holds_up_others_is_missing() -> None:
    buffer = _reordered(1, 4)
    buffer.mark_stored(1, 6, [(5, 5)])
    assert buffer.missing() == []
    assert list(buffer.release()) == [1]
    assert buffer.missing() == [(2, 3), (6, 6)]
    buffer.skip(2, 3)
    assert list(buffer.release()) == [4]


def test_a_dropped_sample_is_missing_once_it_is_stored_and_can_be_added_again() -> None:
    buffer = _reordered(2, 3)
    assert buffer.drop() == [2, 3]
    buffer.mark_stored(1, 3)
    assert (buffer.missing(), buffer.has_passed(1)) == ([(1, 3)], False)
    for number in (1, 2, 3):
        buffer.add(_Sized(number))
    assert list(buffer.release()) == [1, 2, 3]
    assert (buffer.has_passed(3), buffer.has_passed(4)) == (True, False)


def test_what_waits_is_weighed() -> None:
    buffer = ReorderBuffer()
    buffer.begin(0)
    for number in (1, 2, 2, 3, 5):
        buffer.add(_Sized(number))
    assert buffer.bytes == 110
    buffer.mark_stored(1, 3, [(2, 2)])
    assert (buffer.bytes, list(buffer.release()), buffer.bytes) == (90, [1, 3], 50)
    buffer.drop()
    assert buffer.bytes == 0


def test_a_gap_in_what_is_known_to_be_stored_is_seen_and_filled() -> None:
    buffer = _reordered()
    buffer.mark_stored(1, 2)
    assert not buffer.has_gap
    buffer.mark_stored(5, 6)
    assert (buffer.has_gap, buffer.undecided(4), buffer.undecided(7)) == (True, [(3, 4)], [(3, 4), (7, 7)])
    buffer.mark_stored(3, 4)
    assert (buffer.has_gap, buffer.undecided(6)) == (False, [])


@given(
    st.permutations(range(1, 13)),
    st.lists(st.integers(1, 12), max_size=4),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
def test_whatever_the_order_each_stored_sample_is_released_once_in_the_writers_order(
    order: list[int], refused: list[int], cuts: list[int]
) -> None:
    buffer = ReorderBuffer()
    buffer.begin(0)
    handed: list[int] = []
    ends = [*sorted(set(cuts) - {12}), 12]
    first = 1
    for step, number in enumerate(order):
        buffer.add(_Sized(number))
        buffer.add(_Sized(number))
        if step < len(ends):
            last = ends[step]
            buffer.mark_stored(first, last, [(seq, seq) for seq in set(refused) if first <= seq <= last])
            first = last + 1
        handed += buffer.release()
    assert handed == [number for number in range(1, 13) if number not in refused]


def _of(session: str | None, number: int) -> Any:
    sample = _Sized(number)
    sample.session = session
    return sample


def _released(buffer: ReorderBuffer) -> list[tuple[int, str | None]]:
    return [(sample.seq, sample.session) for sample in buffer.release()]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_messages_with_a_number_the_one_of_the_stored_session_is_handed_out(order: tuple[str, str]) -> None:
    buffer = _reordered()
    for number in (1, 2):
        assert [buffer.add(_of(session, number)) for session in (*order, order[0])] == [True, True, False]
    assert (len(buffer), buffer.bytes) == (4, 60)
    buffer.mark_stored(1, 1, session="a")
    buffer.mark_stored(2, 2, session="b")
    assert (len(buffer), buffer.bytes, _released(buffer)) == (2, 30, [(1, "a"), (2, "b")])
    assert (len(buffer), buffer.bytes) == (0, 0)


def test_a_message_of_another_session_than_the_stored_one_does_not_count_as_arrived() -> None:
    buffer = _reordered()
    buffer.mark_stored(1, 1, session="b")
    assert (buffer.add(_of("a", 1)), _released(buffer), buffer.missing()) == (False, [], [(1, 1)])
    # the table has only stored messages
    assert (buffer.add(_of(None, 1)), _released(buffer)) == (True, [(1, None)])


def test_a_reader_that_restarts_takes_only_the_sessions_that_settle_names() -> None:
    buffer = ReorderBuffer()
    buffer.begin(3, [(2, 3)], [(2, 2, "a"), (3, 3, "b")])
    assert [buffer.add(_of("a", number)) for number in (1, 2, 3)] == [False, True, False]
    buffer.add(_of("b", 3))
    assert _released(buffer) == [(2, "a"), (3, "b")]


def test_a_report_of_an_earlier_release_names_no_session_and_the_first_message_counts() -> None:
    buffer = _reordered()
    for session in ("a", "b"):
        buffer.add(_of(session, 1))
    buffer.mark_stored(1, 1)
    assert (_released(buffer), len(buffer)) == ([(1, "a")], 0)


def _reports(**qos: int) -> AckReports:
    return AckReports(ReaderQos(kind="application-explicit", **qos), ReaderStart("R1", 1), "w1", Intervals())


def _conf(app_ack: AppAck) -> AppAckConf:
    return AppAckConf(app_ack.reader, app_ack.writer, app_ack.epoch, app_ack.count)


def _acknowledge(reports: AckReports, now: int, *samples: int) -> None:
    for sample in samples:
        reports.acknowledge(sample, now)


def _sent(reports: AckReports, now: int) -> AppAck:
    app_ack = reports.due(now)
    assert isinstance(app_ack, AppAck)
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
    reports.confirm(AppAckConf("R1", "w1", 1, 3))
    assert (reports.deadline, reports.due(15_000)) == (None, None)


def test_a_confirmation_covers_earlier_reports_and_not_what_came_later() -> None:
    reports = _reports()
    _acknowledge(reports, 0, 1)
    _sent(reports, 0)
    _acknowledge(reports, 10, 2)
    second = _sent(reports, 10)
    _acknowledge(reports, 20, 3)
    _sent(reports, 20)
    reports.confirm(_conf(second))
    assert reports.deadline == 5_020
    again = _sent(reports, 5_020)
    assert again.intervals == (AckInterval(1, 3, reported=True),)
    reports.confirm(_conf(again))
    assert reports.deadline is None


@pytest.mark.parametrize(("epoch", "count"), [(2, 1), (0, 1), (1, 2), (1, 0)])
def test_a_confirmation_of_what_was_never_sent_is_ignored(epoch: int, count: int) -> None:
    reports = _reports()
    _acknowledge(reports, 0, 1)
    _sent(reports, 0)
    reports.confirm(AppAckConf("R1", "w1", epoch, count))
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
    reports.acknowledge(1, 0, response=b"a")
    reports.acknowledge(2, 0, response=b"a")
    reports.acknowledge(3, 0, response=b"b")
    reports.acknowledge(4, 0, auto="filtered")
    assert _sent(reports, 0).intervals == (
        AckInterval(1, 2, b"a"),
        AckInterval(3, 3, b"b"),
        AckInterval(4, 4, auto="filtered"),
    )


@pytest.mark.parametrize(("keep", "response"), [(0, None), (4_999, None), (5_000, b"x"), (60_000, b"x")])
def test_a_response_is_repeated_as_long_as_it_is_kept(keep: int, response: bytes | None) -> None:
    reports = _reports(response_keep_ms=keep)
    reports.acknowledge(1, 0, response=b"x")
    assert _sent(reports, 0).intervals == (AckInterval(1, 1, b"x"),)
    assert _sent(reports, 5_000).intervals == (AckInterval(1, 1, response, reported=True),)


def test_a_response_goes_out_once_however_long_its_batch_waits() -> None:
    reports = _reports(samples_per_app_ack=10)
    reports.acknowledge(1, 0, response=b"x")
    assert _sent(reports, 5_000).intervals == (AckInterval(1, 1, b"x"),)


def test_a_response_that_is_too_long_is_an_error_and_nothing_is_acknowledged() -> None:
    reports = _reports(max_response_length=2)
    with pytest.raises(BadParameterError, match="has 3 bytes; max_response_length allows 2"):
        reports.acknowledge(1, 0, response=b"abc")
    assert 1 not in reports.acknowledged
    assert reports.deadline is None


def test_a_new_epoch_repeats_what_earlier_ones_had_confirmed() -> None:
    qos = ReaderQos(kind="application-explicit")
    reports = AckReports(qos, ReaderStart("R1", 2), "w1", Intervals([(5, 6)], start=5))
    reports.acknowledge(7, 0)
    app_ack = _sent(reports, 0)
    assert (app_ack.epoch, app_ack.count, app_ack.start) == (2, 1, 5)
    assert app_ack.intervals == (AckInterval(5, 6, reported=True), AckInterval(7, 7))


def test_closing_sends_what_waits() -> None:
    reports = _reports(samples_per_app_ack=10)
    assert reports.flush(0) is None
    _acknowledge(reports, 0, 1)
    flushed = reports.flush(1)
    assert isinstance(flushed, AppAck)
    assert flushed.intervals == (AckInterval(1, 1),)


def test_what_a_report_costs_does_not_grow_while_nothing_is_confirmed() -> None:
    reports = _reports()
    for seq in range(1, 20_001):
        _acknowledge(reports, seq, seq)
        last = _sent(reports, seq)
    assert last.intervals == (AckInterval(1, 19_999, reported=True), AckInterval(20_000, 20_000))
    assert len(reports._old) + len(reports._sent) < 2 * YOUNG_RUNS


def test_what_a_report_costs_does_not_grow_with_the_samples_that_were_refused() -> None:
    reports = _reports(samples_per_app_ack=1)
    for number in range(1, 1_000, 2):
        _acknowledge(reports, number, number)
        reports.refuse(number + 1, number + 1)
        sent = _sent(reports, number)
        reports.confirm(_conf(sent))
    assert len(sent.intervals) <= 2
    assert reports.settled(1_000)
    for number in range(2_000, 3_000):
        reports.refuse(number, number)
    assert len(reports._refused) <= 2


def test_what_was_merged_while_nothing_was_confirmed_is_confirmed_by_the_report_that_had_its_last_sample() -> None:
    reports = _reports()
    for seq in range(1, YOUNG_RUNS + 2):
        _acknowledge(reports, 0, seq)
        last = _sent(reports, 0)
    reports.confirm(AppAckConf("R1", "w1", 1, last.count - 1))
    assert not reports.settled(1)
    reports.confirm(_conf(last))
    assert (reports.settled(YOUNG_RUNS + 1), reports.deadline) == (True, None)


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
        if isinstance(app_ack, AppAck) and app_ack.count not in lost:
            arrived.merge((interval.first, interval.last) for interval in app_ack.intervals)
            if app_ack.count not in lost_confs:
                reports.confirm(_conf(app_ack))
        times = [todo[-1][0]] if todo else []
        times += [] if reports.deadline is None else [reports.deadline]
        if not times:
            break
        now = max(now, min(times))
    assert list(arrived) == list(Intervals((sample, sample) for _, sample in acknowledged))
    assert reports.deadline is None


def test_a_protocol_reader_reports_once_how_far_its_library_has_all_samples() -> None:
    reports = AckReports(ReaderQos(kind="protocol"), ReaderStart("R1", 1, "Logger"), "w1", Intervals([(1, 3)]))
    assert reports.due(0) is None
    reports.acknowledged.merge([(5, 5), (8, 8)])
    assert reports.due(0) is None
    reports.skip(4, 4)
    assert reports.due(0) == ProtocolAck("R1", "w1", 1, 5, "Logger")
    assert (reports.due(0), reports.flush(0), reports.deadline) == (None, None, None)
    assert [seq for seq in range(1, 9) if not reports.settled(seq)] == [6, 7, 8]


def test_confirmed_and_skipped_numbers_are_not_needed_after_a_restart() -> None:
    reports = _reports()
    reports.skip(3, 3)
    _acknowledge(reports, 0, 1)
    app_ack = _sent(reports, 0)
    assert [reports.settled(seq) for seq in (1, 2, 3)] == [False, False, True]
    reports.confirm(_conf(app_ack))
    assert [reports.settled(seq) for seq in (1, 2, 3)] == [True, False, True]
