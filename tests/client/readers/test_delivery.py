from __future__ import annotations

from typing import Any

import pytest

from ackstream.client.readers.delivery import SampleDelivery, SampleId
from ackstream.client.readers.qos import Kind, ReaderQos
from ackstream.errors import BadParameterError, PreconditionNotMetError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.readers import AppAck, AppAckConf, ProtocolAck


def _reader(kind: Kind = "application-explicit", **qos: Any) -> SampleDelivery:
    return SampleDelivery(ReaderQos(kind=kind, **qos), "R1", role="Logger")


def _receive(reader: SampleDelivery, *numbers: int, now: int = 0, writer: str = "w1", key: str | None = None) -> None:
    for number in numbers:
        reader.receive(SampleId(writer, number, key), now)


def _told(reader: SampleDelivery, now: int) -> list[list[tuple[int, int]]]:
    return [
        [(interval.first, interval.last) for interval in report.intervals]
        for report in reader.due(now)
        if isinstance(report, AppAck)
    ]


def test_an_explicit_reader_acknowledges_when_the_application_says_so() -> None:
    reader = _reader()
    _receive(reader, 1, 2)
    assert [sample.seq for sample in reader.take(5)] == [1, 2]
    assert reader.due(5) == []
    reader.acknowledge_sample("w1", 2, 20)
    assert _told(reader, 20) == [[(2, 2)]]


def test_acknowledge_all_is_for_what_was_handed_out_not_for_what_waits() -> None:
    reader = _reader()
    _receive(reader, 1, 2, 3, 4, 5)
    reader.take(5, reader.available[:3])
    reader.acknowledge_all(20)
    assert _told(reader, 20) == [[(1, 3)]]
    assert [sample.seq for sample in reader.available] == [4, 5]


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
    assert _told(reader, 11) == [[(1, 1)]]


def test_a_response_that_is_too_long_leaves_the_sample_to_be_acknowledged() -> None:
    reader = _reader()
    _receive(reader, 1)
    reader.take(5)
    with pytest.raises(BadParameterError):
        reader.acknowledge_sample("w1", 1, 10, b"ab")
    reader.acknowledge_sample("w1", 1, 11, b"a")
    assert _told(reader, 11) == [[(1, 1)]]


def test_an_automatic_reader_acknowledges_copies_when_they_are_taken() -> None:
    reader = _reader("application-auto")
    _receive(reader, 1, 2)
    reader.take(10, reader.available[:1])
    assert _told(reader, 10) == [[(1, 1)]]


def test_an_automatic_reader_acknowledges_a_loan_when_it_comes_back() -> None:
    reader = _reader("application-auto")
    _receive(reader, 1)
    loan = reader.loan()
    assert reader.due(10) == []
    reader.return_loan(loan, 300)
    assert _told(reader, 300) == [[(1, 1)]]
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
    reader = SampleDelivery(ReaderQos(reliable=False), "R1")
    _receive(reader, 1)
    assert (reader.due(0), reader.deadline) == ([], None)


def test_what_the_filter_excludes_is_acknowledged_with_that_reason() -> None:
    reader = _reader()
    assert not reader.receive(SampleId("w1", 1), 0, filtered=True)
    (report,) = reader.due(0)
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.auto) for interval in report.intervals] == [(1, "filtered")]
    assert reader.available == []


def test_what_keep_last_replaces_unread_is_acknowledged_with_that_reason() -> None:
    reader = _reader(history="keep-last", depth=2)
    _receive(reader, 1, 2, key="a")
    _receive(reader, 3, key="b")
    assert reader.due(0) == []
    _receive(reader, 4, key="a")
    (report,) = reader.due(0)
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.auto) for interval in report.intervals] == [(1, "replaced")]
    assert [sample.seq for sample in reader.available] == [2, 3, 4]


def test_what_was_read_before_it_was_replaced_is_left_to_the_application() -> None:
    reader = _reader(history="keep-last", depth=1)
    _receive(reader, 1)
    reader.take(0)
    _receive(reader, 2)
    assert reader.due(0) == []
    reader.acknowledge_all(1)
    assert _told(reader, 1) == [[(1, 1)]]


def test_a_copy_never_reaches_the_application_again() -> None:
    reader = _reader()
    _receive(reader, 1)
    reader.take(0)
    assert not reader.receive(SampleId("w1", 1), 1)
    reader.acknowledge_all(2)
    assert not reader.receive(SampleId("w1", 1), 3)
    assert reader.take(4) == []


def test_a_reader_that_starts_again_is_not_handed_what_it_had_acknowledged() -> None:
    qos = ReaderQos(kind="application-explicit")
    reader = SampleDelivery(qos, "R1", epoch=2, acknowledged={"w1": Intervals([(1, 1), (3, 3)])})
    _receive(reader, 1, 2, 3, 4)
    assert [sample.seq for sample in reader.take(0)] == [2, 4]
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


def test_each_acknowledged_sample_is_told_once_with_its_response_or_the_reason() -> None:
    told: list[tuple[int, bytes | None, str | None]] = []
    reader = SampleDelivery(
        ReaderQos(kind="application-explicit", history="keep-last", max_response_length=9),
        "R1",
        told=lambda sample, response, auto: told.append((sample.seq, response, auto)),
    )
    reader.receive(SampleId("w1", 1), 0, filtered=True)
    _receive(reader, 2, 3)
    reader.take(0)
    reader.acknowledge_sample("w1", 3, 1, b"ok")
    reader.acknowledge_sample("w1", 3, 1)
    reader.acknowledge_all(2)
    assert told == [(1, None, "filtered"), (2, None, "replaced"), (3, b"ok", None)]


def test_numbers_that_are_no_samples_do_not_hold_up_a_protocol_reader() -> None:
    reader = _reader("protocol")
    reader.begin("w1", Intervals([(1, 3)], start=1))
    reader.skip("w1", 4, 5)
    _receive(reader, 6)
    assert [report.up_to for report in reader.due(0) if isinstance(report, ProtocolAck)] == [6]


def test_what_is_confirmed_or_no_sample_is_not_needed_after_a_restart() -> None:
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


def test_at_the_end_all_that_is_not_confirmed_is_said_again() -> None:
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
    assert [sample.seq for sample in reader.first(1)] == [1]
    reader.take(0)
    assert reader.available == []
    reader.acknowledge_sample("w1", 1, 0)
