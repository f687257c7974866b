from __future__ import annotations

from typing import Any

import pytest

from ackstream.client.readers.history import ReaderHistory
from ackstream.client.readers.qos import Kind, ReaderQos
from ackstream.client.readers.samples import Sample
from ackstream.errors import BadParameterError, PreconditionNotMetError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AppAck, AppAckConf, ProtocolAck


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
