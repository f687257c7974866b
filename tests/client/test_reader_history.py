from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.reader_history import AckReports, ReaderHistory
from ackstream.client.samples import Kind, ReaderQos, Sample
from ackstream.errors import BadParameterError, PreconditionNotMetError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AckInterval, AppAck, AppAckConf, ProtocolAck


def sample(seq: int, writer: str = "w1", key: bytes | None = None) -> Sample:
    return Sample(writer, seq, None, key, None, {}, 0, 0, seq)


def _reader(kind: Kind = "application-explicit", **qos: Any) -> ReaderHistory:
    return ReaderHistory(ReaderQos(kind=kind, **qos), "R1", role="Logger")


def _receive(reader: ReaderHistory, *numbers: int, now: int = 0, writer: str = "w1", key: bytes | None = None) -> None:
    for number in numbers:
        reader.receive(sample(number, writer, key), now)


def _reported(reader: ReaderHistory, now: int) -> list[list[tuple[int, int]]]:
    return [
        [(interval.first, interval.last) for interval in report.intervals]
        for report in reader.due(now)
        if isinstance(report, AppAck)
    ]


def test_an_explicit_reader_acknowledges_when_the_application_does() -> None:
    reader = _reader()
    _receive(reader, 1, 2)
    assert [one.seq for one in reader.take(5)] == [1, 2]
    assert reader.due(5) == []
    reader.acknowledge_sample("w1", 2, 20)
    assert _reported(reader, 20) == [[(2, 2)]]


def test_acknowledge_all_covers_what_was_handed_out_but_not_what_is_available() -> None:
    reader = _reader()
    _receive(reader, 1, 2, 3, 4, 5)
    reader.take(5, reader.available[:3])
    reader.acknowledge_all(20)
    assert _reported(reader, 20) == [[(1, 3)]]
    assert [one.seq for one in reader.available] == [4, 5]


def test_acknowledge_all_covers_every_writer_with_the_response() -> None:
    reader = _reader()
    _receive(reader, 1, 2)
    _receive(reader, 7, writer="w2")
    reader.take(5)
    reader.acknowledge_all(20, b"\xfa")
    reports = [report for report in reader.due(20) if isinstance(report, AppAck)]
    assert [(report.writer, report.role) for report in reports] == [("w1", "Logger"), ("w2", "Logger")]
    assert [interval.response for report in reports for interval in report.intervals] == [b"\xfa", b"\xfa"]


@pytest.mark.parametrize("number", [2, 9])
def test_a_sample_that_was_not_handed_out_cannot_be_acknowledged(number: int) -> None:
    reader = _reader()
    _receive(reader, 1, 2)
    reader.take(5, reader.available[:1])
    with pytest.raises(PreconditionNotMetError, match=f"R1 cannot acknowledge sample {number} of w1"):
        reader.acknowledge_sample("w1", number, 10)
    assert reader.due(10_000) == []


def test_a_second_acknowledgement_changes_nothing() -> None:
    reader = _reader()
    _receive(reader, 1)
    reader.take(5)
    reader.acknowledge_sample("w1", 1, 10)
    reader.acknowledge_sample("w1", 1, 11)
    assert _reported(reader, 11) == [[(1, 1)]]


def test_a_response_that_is_too_long_leaves_the_sample_to_be_acknowledged() -> None:
    reader = _reader()
    _receive(reader, 1)
    reader.take(5)
    with pytest.raises(BadParameterError):
        reader.acknowledge_sample("w1", 1, 10, b"ab")
    reader.acknowledge_sample("w1", 1, 11, b"a")
    assert _reported(reader, 11) == [[(1, 1)]]


def test_an_automatic_reader_acknowledges_copies_when_they_are_taken() -> None:
    reader = _reader("application-auto")
    _receive(reader, 1, 2)
    reader.take(10, reader.available[:1])
    assert _reported(reader, 10) == [[(1, 1)]]


def test_an_automatic_reader_acknowledges_a_loan_when_it_comes_back() -> None:
    reader = _reader("application-auto")
    _receive(reader, 1)
    loan = reader.loan()
    assert reader.due(10) == []
    reader.return_loan(loan, 300)
    assert _reported(reader, 300) == [[(1, 1)]]
    with pytest.raises(PreconditionNotMetError, match="was returned before"):
        reader.return_loan(loan, 301)


@pytest.mark.parametrize("kind", ["protocol", "application-auto"])
def test_explicit_calls_have_no_effect_on_readers_of_other_kinds(kind: Kind) -> None:
    reader = _reader(kind)
    _receive(reader, 1)
    reader.loan()
    reader.due(1)
    reader.acknowledge_sample("w1", 1, 10)
    reader.acknowledge_all(10)
    assert reader.due(10) == []


def test_a_protocol_reader_reports_how_far_its_library_has_all_samples() -> None:
    reader = _reader("protocol")
    _receive(reader, 1, 2, 5)
    assert reader.due(0) == [ProtocolAck("R1", "w1", 1, 2, "Logger")]
    assert (reader.due(1), reader.deadline) == ([], None)
    _receive(reader, 3, 4)
    assert [report.up_to for report in reader.due(2) if isinstance(report, ProtocolAck)] == [5]


def test_a_best_effort_reader_reports_nothing() -> None:
    reader = ReaderHistory(ReaderQos(reliable=False), "R1")
    _receive(reader, 1)
    assert (reader.due(0), reader.deadline) == ([], None)


def test_what_the_filter_excludes_is_acknowledged_with_that_reason() -> None:
    reader = _reader()
    assert not reader.receive(sample(1), 0, filtered=True)
    (report,) = reader.due(0)
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.auto) for interval in report.intervals] == [(1, "filtered")]
    assert reader.available == []


def test_what_keep_last_replaces_unread_is_acknowledged_with_that_reason() -> None:
    reader = _reader(history="keep-last", depth=2)
    _receive(reader, 1, 2, key=b"a")
    _receive(reader, 3, key=b"b")
    assert reader.due(0) == []
    _receive(reader, 4, key=b"a")
    (report,) = reader.due(0)
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.auto) for interval in report.intervals] == [(1, "replaced")]
    assert [one.seq for one in reader.available] == [2, 3, 4]


def test_what_was_read_before_it_was_replaced_is_left_to_the_application() -> None:
    reader = _reader(history="keep-last", depth=1)
    _receive(reader, 1)
    reader.take(0)
    _receive(reader, 2)
    assert reader.due(0) == []
    reader.acknowledge_all(1)
    assert _reported(reader, 1) == [[(1, 1)]]


def test_a_duplicate_never_reaches_the_application() -> None:
    reader = _reader()
    _receive(reader, 1)
    reader.take(0)
    assert not reader.receive(sample(1), 1)
    reader.acknowledge_all(2)
    assert not reader.receive(sample(1), 3)
    assert reader.take(4) == []


def test_a_reader_that_starts_again_is_not_handed_what_it_had_acknowledged() -> None:
    qos = ReaderQos(kind="application-explicit")
    reader = ReaderHistory(qos, "R1", epoch=2)
    reader.begin("w1", Intervals([(1, 1), (3, 3)]))
    _receive(reader, 1, 2, 3, 4)
    assert [one.seq for one in reader.take(0)] == [2, 4]
    reader.acknowledge_sample("w1", 1, 0)
    assert reader.due(0) == []


def test_confirmations_go_to_their_writer() -> None:
    reader = _reader()
    _receive(reader, 1)
    _receive(reader, 1, writer="w2")
    reader.take(0)
    reader.acknowledge_all(0)
    reader.due(0)
    assert reader.confirm(AppAckConf("R1", "w1", 1, 1))
    assert reader.deadline == 5_000
    assert not reader.confirm(AppAckConf("R2", "w2", 1, 1))
    assert not reader.confirm(AppAckConf("R1", "w3", 1, 1))
    assert reader.confirm(AppAckConf("R1", "w2", 1, 1))
    assert reader.deadline is None


def test_each_acknowledged_sample_is_passed_on_once_with_its_response_or_the_reason() -> None:
    acknowledged: list[tuple[int, bytes | None, str | None]] = []
    reader = ReaderHistory(
        ReaderQos(kind="application-explicit", history="keep-last", max_response_length=9),
        "R1",
        on_acknowledged=lambda one, response, auto: acknowledged.append((one.seq, response, auto)),
    )
    reader.receive(sample(1), 0, filtered=True)
    _receive(reader, 2, 3)
    reader.take(0)
    reader.acknowledge_sample("w1", 3, 1, b"ok")
    reader.acknowledge_sample("w1", 3, 1)
    reader.acknowledge_all(2)
    assert acknowledged == [(1, None, "filtered"), (2, None, "replaced"), (3, b"ok", None)]


def test_skipped_numbers_do_not_hold_up_a_protocol_reader() -> None:
    reader = _reader("protocol")
    reader.begin("w1", Intervals([(1, 3)], start=1))
    reader.skip("w1", 4, 5)
    _receive(reader, 6)
    assert [report.up_to for report in reader.due(0) if isinstance(report, ProtocolAck)] == [6]


def test_confirmed_and_skipped_numbers_are_not_needed_after_a_restart() -> None:
    reader = _reader()
    _receive(reader, 1, 2)
    reader.skip("w1", 3, 3)
    reader.take(0)
    reader.acknowledge_sample("w1", 1, 0)
    reader.due(0)
    assert [reader.settled("w1", seq) for seq in (1, 2, 3)] == [False, False, True]
    reader.confirm(AppAckConf("R1", "w1", 1, 1))
    assert [reader.settled("w1", seq) for seq in (1, 2, 3)] == [True, False, True]
    assert not reader.settled("w2", 1)


def test_closing_reports_everything_that_is_not_confirmed() -> None:
    reader = _reader(samples_per_app_ack=9)
    _receive(reader, 1, 2)
    reader.take(0)
    reader.acknowledge_all(0)
    assert reader.due(0) == []
    (report,) = reader.flush(1)
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.last) for interval in report.intervals] == [(1, 2)]


def test_samples_of_a_protocol_reader_are_not_kept_once_they_are_handed_out() -> None:
    reader = _reader("protocol")
    _receive(reader, 1, 2)
    assert [one.seq for one in reader.first(1)] == [1]
    reader.take(0)
    assert reader.available == []
    reader.acknowledge_sample("w1", 1, 0)


def _reports(**qos: int) -> AckReports:
    return AckReports(ReaderQos(kind="application-explicit", **qos), "R1", "w1")


def _conf(app_ack: AppAck) -> AppAckConf:
    return AppAckConf(app_ack.reader, app_ack.writer, app_ack.epoch, app_ack.count)


def _acknowledge(reports: AckReports, now: int, *samples: int) -> None:
    for sample in samples:
        reports.acknowledge(sample, now)


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
    reports = AckReports(qos, "R1", "w1", epoch=2, acknowledged=Intervals([(5, 6)], start=5))
    reports.acknowledge(7, 0)
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
