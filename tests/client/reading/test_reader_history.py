from __future__ import annotations

import dataclasses
import threading
from contextlib import nullcontext
from typing import Any

import pytest

from ackstream.client.errors import ReaderClosedError
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading.samples import Kind, ReaderQos, Sample
from ackstream.errors import BadParameterError, ClientError, PreconditionNotMetError
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AppAck, AppAckConf, KnownWriter, ProtocolAck, ReaderStart

ANY = 1_000


def _sample(seq: int, writer: str = "w1", key: bytes | None = None, offset: int | None = None) -> Sample:
    return Sample(writer, None, key, b"%d" % seq, {}, 0, seq, 0, seq if offset is None else offset)


def _reader(kind: Kind = "application-explicit", seen: list[Any] | None = None, **qos: Any) -> ReaderHistory:
    return ReaderHistory(
        ReaderQos(kind=kind, **qos),
        ReaderStart("R1", 1, "Logger"),
        wanted=lambda sample: sample.value != b"13",
        on_acknowledged=lambda sample, response, auto: (
            None if seen is None else seen.append((sample.seq, response, auto))
        ),
        clock=lambda: 0,
    )


def _receive(reader: ReaderHistory, *numbers: int, writer: str = "w1", key: bytes | None = None) -> ReaderHistory:
    for number in numbers:
        reader.add(_sample(number, writer, key))
    reader.mark_stored(StoredRange(writer, min(numbers), max(numbers), 0))
    return reader


def _numbers(samples: list[Sample]) -> list[int]:
    return [sample.seq for sample in samples]


def _app_acks(reader: ReaderHistory) -> list[AppAck]:
    return [report for report in reader.due() if isinstance(report, AppAck)]


def _reported(reader: ReaderHistory) -> list[list[tuple[int, int]]]:
    return [[(interval.first, interval.last) for interval in report.intervals] for report in _app_acks(reader)]


# -- samples -----------------------------------------------------------------------------------------------------------


def test_what_is_stored_goes_to_the_application_in_its_writers_order_whichever_arrives_first() -> None:
    reader = _reader()
    reader.add(_sample(7))
    reader.mark_stored(StoredRange("w1", 6, 8, 0, ((8, 8),)))
    assert (reader.take(ANY, 0), reader.missing()) == ([], {"w1": [(6, 6)]})
    reader.add(_sample(6))
    assert _numbers(reader.take(ANY, 0)) == [6, 7]
    assert (reader.missing(), reader.waiting) == ({}, 0)


def test_a_restart_wants_what_is_undelivered_and_nothing_else() -> None:
    reader = _reader()
    reader.begin(KnownWriter("w1", 1, 9, ((1, 2), (5, 5)), ((3, 3), (8, 8))))
    for number in range(1, 11):
        reader.add(_sample(number))
    reader.mark_stored(StoredRange("w1", 8, 10, 0))
    assert _numbers(reader.take(ANY, 0)) == [3, 8, 10]
    reader.acknowledge_sample(_sample(1), None)
    reader.acknowledge_all(None)
    (report,) = _app_acks(reader)
    assert [(interval.first, interval.last, interval.reported) for interval in report.intervals] == [
        (1, 2, True),
        (3, 3, False),
        (5, 5, True),
        (8, 8, False),
        (10, 10, False),
    ]


def test_a_missed_report_of_what_is_stored_is_made_up_for_with_its_sessions() -> None:
    reader = _reader()
    reader.begin(KnownWriter("w1", 1, 0))
    for session in ("a", "b"):
        reader.add(dataclasses.replace(_sample(1), session=session))
    reader.catch_up(KnownWriter("w1", 1, 1, (), ((1, 1),), ((1, 1, "b"),)))
    assert [sample.session for sample in reader.take(ANY, 0)] == ["b"]


def test_a_duplicate_never_reaches_the_application() -> None:
    reader = _receive(_reader(), 1)
    reader.take(ANY, 0)
    reader.add(_sample(1))
    reader.acknowledge_all(None)
    reader.add(_sample(1))
    assert (reader.take(ANY, 0), reader.counts["repeats"]) == ([], 2)


def test_a_filter_that_fails_hides_nothing() -> None:
    reader = ReaderHistory(
        ReaderQos(kind="application-auto"),
        ReaderStart("r1", 1),
        wanted=lambda sample: sample.key[0] == 7,  # type: ignore[index]  # fails without a key
        on_acknowledged=lambda *_: None,
    )
    assert _numbers(_receive(reader, 1).take(ANY, 0)) == [1]


def test_what_cannot_be_recovered_is_skipped_and_not_acknowledged() -> None:
    reader = _reader()
    reader.add(_sample(3))
    reader.mark_stored(StoredRange("w1", 1, 3, 0))
    reader.skip("w1", [(1, 2)])
    assert _numbers(reader.take(ANY, 0)) == [3]
    reader.acknowledge_all(None)
    assert _reported(reader) == [[(3, 3)]]


def test_the_writer_with_most_waiting_makes_room_and_its_messages_are_read_again_from_their_first_offset() -> None:
    reader = _reader()
    reader.add(_sample(1))
    for number, offset in ((4, 14), (2, 12), (3, 13)):
        reader.add(_sample(number, "w2", offset=offset))
    assert (reader.waiting, reader.drop(), reader.waiting) == (4, 3, 1)
    assert (reader.restart_offset(0, 20), reader.restart_offset(1, 20)) == (1, 20)
    assert reader.dropped_offsets({"w1": 2, "w2": 1}) == {}, "neither was dropped: it is still to come"
    assert reader.dropped_offsets({"w1": 2, "w2": 2}) == {0: 12}
    assert reader.dropped_offsets({"w2": 2}) == {}


def test_what_others_lost_behind_the_offset_that_is_read_again_is_read_again_with_it() -> None:
    reader = _reader()
    for writer, offset in (("w1", 10), ("w2", 12), ("w3", 8)):
        reader.add(_sample(1, writer, offset=offset))
    assert [reader.drop() for _ in range(3)] == [1, 1, 1]
    assert reader.dropped_offsets({"w1": 1}) == {0: 10}
    assert reader.dropped_offsets({"w2": 1}) == {}
    assert reader.dropped_offsets({"w3": 1}) == {0: 8}


def test_a_restart_reads_what_was_dropped_until_it_was_handed_out() -> None:
    reader = _reader()
    reader.add(_sample(1, offset=7))
    reader.drop()
    assert reader.restart_offset(0, 20) == 7
    reader.mark_stored(StoredRange("w1", 1, 1, 0))
    reader.add(_sample(1, offset=9))
    assert (_numbers(reader.take(ANY, 0)), reader.restart_offset(0, 20)) == ([1], 9)


@pytest.mark.parametrize(("size", "count"), [(10, 3), (1_000, 2)])
def test_the_buffer_and_the_application_have_so_many_samples_or_bytes_at_most(size: int, count: int) -> None:
    reader = ReaderHistory(
        ReaderQos(kind="application-explicit"),
        ReaderStart("r1", 1),
        wanted=lambda _: True,
        on_acknowledged=lambda *_: None,
        max_samples=3,
        max_bytes=3_000,
    )
    for number in range(1, count + 1):
        assert not reader.crowded
        reader.add(Sample("w1", None, None, b"x" * size, {}, 0, number, 0, number))
    assert (reader.crowded, reader.full) == (True, False)
    reader.mark_stored(StoredRange("w1", 1, count, 0))
    assert (reader.crowded, reader.full, reader.stuck) == (False, True, False)
    samples = reader.loan(ANY, 0)
    assert (reader.full, reader.stuck) == (True, True)
    for sample in samples:
        reader.acknowledge_sample(sample, None)
    assert (reader.full, reader._cache.bytes) == (False, 0)


def test_nothing_weighs_once_it_is_taken_replaced_or_filtered() -> None:
    for reader in (_reader("protocol"), _reader("application-auto", history="keep-last")):
        _receive(reader, 11, 12, 13, 14)
        reader.take(ANY, 0)
        assert (reader._cache.bytes, reader.held) == (0, 0)


def test_a_record_of_stored_that_was_missed_is_made_up_for_by_a_later_state() -> None:
    reader = _receive(_reader(), 1)
    for number in (2, 3, 4, 5):
        reader.add(_sample(number))
    reader.mark_stored(StoredRange("w1", 5, 5, 0))
    assert (_numbers(reader.take(ANY, 0)), reader.gaps) == ([1], {"w1"})
    reader.catch_up(KnownWriter("w1", 1, 5, (), ((2, 2), (4, 5))))
    reader.catch_up(KnownWriter("w2", 1, 1, (), ((1, 1),)))
    reader.add(_sample(1, "w2"))
    assert ([sample.seq for sample in reader.take(ANY, 0)], reader.gaps) == ([2, 4, 5, 1], set())


def test_only_writers_with_something_to_report_are_looked_at() -> None:
    reader = _receive(_receive(_reader("application-auto"), 1), 1, writer="w2")
    reader.take(1, 0)
    assert [report.writer for report in reader.due()] == ["w1"]
    assert reader._reporting == {"w1"}
    reader.confirm(AppAckConf("R1", "w1", 1, 1))
    assert (reader.due(), reader._reporting) == ([], set())


def test_a_waiting_application_gets_what_arrives_and_then_the_error_of_the_end() -> None:
    reader = _reader()
    found: list[Any] = []

    def wait() -> None:
        found.extend(reader.take(ANY, None))
        with pytest.raises(ReaderClosedError):
            reader.take(ANY, None)
        found.append("end")

    waiting = threading.Thread(target=wait)
    waiting.start()
    _receive(reader, 1)
    while not found:
        waiting.join(0.01)
    reader.end(ReaderClosedError("closed"))
    waiting.join(10)
    assert found[1:] == ["end"]


# -- acknowledgements --------------------------------------------------------------------------------------------------


def test_an_explicit_reader_acknowledges_when_the_application_does() -> None:
    reader = _receive(_reader(), 1, 2)
    assert _numbers(reader.take(ANY, 0)) == [1, 2]
    assert reader.due() == []
    reader.acknowledge_sample(_sample(2), None)
    assert _reported(reader) == [[(2, 2)]]


def test_acknowledge_all_covers_what_was_handed_out_but_not_what_is_available() -> None:
    reader = _receive(_reader(), 1, 2, 3, 4, 5)
    reader.take(3, 0)
    reader.acknowledge_all(None)
    assert _reported(reader) == [[(1, 3)]]
    assert _numbers(reader.take(ANY, 0)) == [4, 5]


def test_acknowledge_all_covers_every_writer_with_the_response() -> None:
    reader = _receive(_receive(_reader(), 1, 2), 7, writer="w2")
    reader.take(ANY, 0)
    reader.acknowledge_all(b"\xfa")
    reports = _app_acks(reader)
    assert [(report.writer, report.role) for report in reports] == [("w1", "Logger"), ("w2", "Logger")]
    assert [interval.response for report in reports for interval in report.intervals] == [b"\xfa", b"\xfa"]


@pytest.mark.parametrize("writer", ["w1", "unknown"])
def test_a_sample_that_was_not_handed_out_cannot_be_acknowledged(writer: str) -> None:
    reader = _receive(_reader(), 1, 2)
    reader.take(1, 0)
    with pytest.raises(PreconditionNotMetError, match=f"R1 cannot acknowledge sample 2 of {writer}"):
        reader.acknowledge_sample(_sample(2, writer), None)
    assert reader.due(closing=True) == []


def test_a_second_acknowledgement_changes_nothing() -> None:
    reader = _receive(_reader(), 1)
    reader.take(ANY, 0)
    reader.acknowledge_sample(_sample(1), None)
    reader.acknowledge_sample(_sample(1), None)
    assert _reported(reader) == [[(1, 1)]]


def test_a_response_that_is_too_long_leaves_the_sample_to_be_acknowledged() -> None:
    reader = _receive(_reader(), 1)
    reader.take(ANY, 0)
    with pytest.raises(BadParameterError):
        reader.acknowledge_sample(_sample(1), b"ab")
    reader.acknowledge_sample(_sample(1), b"a")
    assert _reported(reader) == [[(1, 1)]]


def test_copies_are_acknowledged_at_once_and_loans_when_they_are_returned() -> None:
    reader = _receive(_reader("application-auto"), 1, 2, 3)
    reader.take(1, 0)
    assert _reported(reader) == [[(1, 1)]]
    loan = reader.loan(1, 0)
    assert (_numbers(loan), reader.counts["acknowledged"]) == ([2], 1)
    reader.return_loan(loan)
    assert _reported(reader) == [[(1, 1), (2, 2)]]
    assert (reader.counts["acknowledged"], reader.held) == (2, 1)


def test_what_is_read_is_acknowledged_once_and_stays_until_it_is_taken() -> None:
    seen: list[Any] = []
    reader = _receive(_reader("application-auto", seen), 1, 2, 3)
    assert _numbers(reader.read(2, 0, unread=False)) == [1, 2]
    assert _reported(reader) == [[(1, 2)]]
    assert _numbers(reader.read(ANY, 0, unread=True)) == [3]
    assert _numbers(reader.read(ANY, 0, unread=False)) == [1, 2, 3]
    assert (reader.read(ANY, 0, unread=True), reader.held) == ([], 3)
    assert _numbers(reader.take(ANY, 0)) == [1, 2, 3]
    assert (reader.held, [number for number, _, _ in seen]) == (0, [1, 2, 3])
    assert (reader.counts["acknowledged"], reader.counts["handed_out"]) == (3, 3)
    reader.due()
    reader.confirm(AppAckConf("R1", "w1", 1, 2))
    assert reader.due(closing=True) == []


def test_acknowledge_all_covers_what_was_read_and_what_was_taken() -> None:
    reader = _receive(_reader(), 1, 2, 3, 4)
    reader.take(1, 0)
    reader.read(2, 0, unread=True)
    reader.acknowledge_all(None)
    assert _reported(reader) == [[(1, 3)]]
    assert _numbers(reader.take(ANY, 0)) == [2, 3, 4]
    reader.acknowledge_sample(_sample(2), None)
    assert reader.held == 1


def test_an_application_that_waits_for_unread_samples_gets_what_arrives_behind_those_it_has_read() -> None:
    reader = _receive(_reader(), 1)
    reader.read(ANY, 0, unread=False)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(reader.read(ANY, None, unread=True)))
    waiting.start()
    _receive(reader, 2)
    waiting.join(10)
    assert _numbers(found) == [2]


def test_samples_of_an_instance_that_come_too_close_together_are_acknowledged_as_filtered() -> None:
    seen: list[Any] = []
    reader = _reader("application-explicit", seen, minimum_separation_ms=1_000)
    times = {1: 0, 2: 999, 13: 1_000, 14: 1_000, 15: 1_500, 16: 2_000}
    for number, time in times.items():
        reader.add(Sample("w1", None, b"k", b"%d" % number, {}, time, number, 0, number))
    reader.mark_stored(StoredRange("w1", 1, 16, 0, ((3, 12),)))
    assert _numbers(reader.take(ANY, 0)) == [1, 14, 16]
    assert [(number, auto) for number, _, auto in seen] == [(2, "filtered"), (13, "filtered"), (15, "filtered")]
    assert reader.counts["filtered"] == 3


@pytest.mark.parametrize(
    ("error", "reported", "raised"),
    [
        (ReaderClosedError("closed"), False, False),
        (ReaderClosedError("closed"), True, True),
        (ClientError(), False, True),
    ],
    ids=["closing", "closed", "failed"],
)
def test_what_is_not_reported_any_more_cannot_be_acknowledged(error: ClientError, reported: Any, raised: Any) -> None:
    seen: list[Any] = []
    reader = _receive(_reader(seen=seen), 1, 2)
    one, _two = reader.take(ANY, 0)
    reader.end(error)
    if reported:
        reader.due(closing=True)
    calls = [lambda: reader.acknowledge_sample(one, None), lambda: reader.acknowledge_all(None)]
    for call in calls:
        with pytest.raises(type(error)) if raised else nullcontext():
            call()
    assert [seq for seq, *_ in seen] == ([] if raised else [1, 2])


def test_a_loan_that_comes_back_after_the_last_report_is_not_acknowledged() -> None:
    seen: list[Any] = []
    reader = _receive(_reader("application-auto", seen=seen), 1)
    samples = reader.loan(ANY, 0)
    reader.end(ReaderClosedError("closed"))
    reader.due(closing=True)
    with pytest.raises(ReaderClosedError):
        reader.return_loan(samples)
    assert (seen, reader.counts["acknowledged"]) == ([], 0)


@pytest.mark.parametrize("kind", ["protocol", "application-auto"])
def test_explicit_calls_have_no_effect_on_readers_of_other_kinds(kind: Kind) -> None:
    reader = _receive(_reader(kind), 1)
    reader.loan(ANY, 0)
    reader.due()
    reader.acknowledge_sample(_sample(1), None)
    reader.acknowledge_all(None)
    assert reader.due(closing=True) == []


def test_what_keep_last_replaces_unread_is_acknowledged_with_that_reason() -> None:
    reader = _receive(_reader(history="keep-last", depth=2), 1, 2, key=b"a")
    _receive(reader, 3, key=b"b")
    assert reader.due() == []
    _receive(reader, 4, key=b"a")
    (report,) = _app_acks(reader)
    assert [(interval.first, interval.auto) for interval in report.intervals] == [(1, "replaced")]
    assert _numbers(reader.take(ANY, 0)) == [2, 3, 4]


def test_what_was_read_before_it_was_replaced_is_left_to_the_application() -> None:
    reader = _receive(_reader(history="keep-last", depth=1), 1)
    reader.take(ANY, 0)
    _receive(reader, 2)
    assert reader.due() == []
    reader.acknowledge_all(None)
    assert _reported(reader) == [[(1, 1)]]


def test_what_was_read_and_not_taken_is_replaced_without_being_acknowledged() -> None:
    reader = _receive(_reader(history="keep-last", depth=1), 1)
    reader.read(ANY, 0, unread=False)
    _receive(reader, 2)
    assert reader.due() == []
    assert _numbers(reader.read(ANY, 0, unread=False)) == [2]
    reader.acknowledge_all(None)
    assert _reported(reader) == [[(1, 2)]]


def test_each_acknowledged_sample_is_passed_on_once_with_its_response_or_the_reason() -> None:
    seen: list[Any] = []
    reader = _receive(_reader(seen=seen, history="keep-last", max_response_length=9), 13, 14, 15)
    reader.take(ANY, 0)
    reader.acknowledge_sample(_sample(15), b"ok")
    reader.acknowledge_sample(_sample(15), None)
    reader.acknowledge_all(None)
    assert seen == [(13, None, "filtered"), (14, None, "replaced"), (15, b"ok", None)]
    assert [reader.counts[name] for name in ("filtered", "replaced", "acknowledged")] == [1, 1, 1]
    assert reader.held == 0


# -- reports -----------------------------------------------------------------------------------------------------------


def test_confirmations_go_to_their_writer() -> None:
    reader = _receive(_receive(_reader(), 1), 1, writer="w2")
    reader.take(ANY, 0)
    reader.acknowledge_all(None)
    reader.due()
    for conf in (AppAckConf("R1", "w1", 1, 1), AppAckConf("R1", "w3", 1, 1)):
        reader.confirm(conf)
    assert [reports.deadline for reports in reader.reports.values()] == [None, 5_000]


def test_a_protocol_reader_reports_what_its_library_has_and_keeps_nothing_that_was_handed_out() -> None:
    reader = _receive(_reader("protocol"), 1, 2)
    assert reader.due() == [ProtocolAck("R1", "w1", 1, 2, "Logger")]
    assert reader.due() == []
    reader.mark_stored(StoredRange("w1", 3, 5, 0, ((3, 4),)))
    reader.add(_sample(5))
    assert reader.due() == [ProtocolAck("R1", "w1", 1, 5, "Logger")]
    assert _numbers(reader.take(ANY, 0)) == [1, 2, 5]
    assert reader.held == 0


def test_what_a_protocol_reader_need_not_read_again_does_not_hold_it_up() -> None:
    reader = _reader("protocol")
    reader.begin(KnownWriter("w1", 1, 5, acknowledged=((1, 3),)))
    _receive(reader, 6)
    assert reader.due() == [ProtocolAck("R1", "w1", 1, 6, "Logger")]


def test_a_sample_that_is_lost_ends_the_reports_of_a_protocol_reader() -> None:
    reader = _reader("protocol")
    reader.mark_stored(StoredRange("w1", 1, 2, 0))
    reader.skip("w1", [(1, 1)])
    reader.add(_sample(2))
    assert (_numbers(reader.take(ANY, 0)), reader.due()) == ([2], [])


def test_closing_reports_everything_that_is_not_confirmed() -> None:
    reader = _receive(_reader(samples_per_app_ack=9), 1, 2)
    reader.take(ANY, 0)
    reader.acknowledge_all(None)
    assert reader.due() == []
    (report,) = reader.due(closing=True)
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.last) for interval in report.intervals] == [(1, 2)]


def test_a_restart_reads_from_the_first_message_whose_acknowledgement_is_not_confirmed() -> None:
    reader = _receive(_reader(), 1, 2, 3)
    reader.add(_sample(4, "unknown", offset=4))
    assert (reader.restart_offset(0, 5), reader.restart_offset(1, 9)) == (1, 9)
    reader.take(ANY, 0)
    reader.acknowledge_sample(_sample(1), None)
    reader.acknowledge_sample(_sample(3), None)
    reader.due()
    assert reader.restart_offset(0, 5) == 1
    reader.confirm(AppAckConf("R1", "w1", 1, 1))
    assert reader.restart_offset(0, 5) == 2
    reader.acknowledge_sample(_sample(2), None)
    reader.due()
    reader.confirm(AppAckConf("R1", "w1", 1, 2))
    assert reader.restart_offset(0, 5) == 4


def test_refused_messages_hold_back_no_offset_and_those_from_the_table_have_none() -> None:
    reader = _reader()
    reader.add(_sample(1))
    reader.add(_sample(2, offset=0), in_kafka=False)
    reader.mark_stored(StoredRange("w1", 1, 2, 0, ((1, 1),)))
    assert reader.restart_offset(0, 4) == 4


def test_reports_that_nothing_confirms_show_that_settle_is_away() -> None:
    now = [0]
    reader = ReaderHistory(
        ReaderQos(kind="application-explicit"),
        ReaderStart("R1", 1),
        wanted=lambda _: True,
        on_acknowledged=lambda *_: None,
        clock=lambda: now[0],
    )
    _receive(reader, 1, 2)
    reader.take(ANY, 0)
    now[0] = 100_000
    reader.acknowledge_all(None)
    found: list[bool] = []
    reports: list[Any] = []
    for seconds in range(0, 22, 2):
        now[0] = 100_000 + 1_000 * seconds
        reports += reader.due()
        found.append(reader.unanswered)
    assert found == [False] * 8 + [True] * 3
    report = reports[-1]
    assert isinstance(report, AppAck)
    reader.confirm(AppAckConf("R1", "w1", 1, report.count))
    assert not reader.unanswered
