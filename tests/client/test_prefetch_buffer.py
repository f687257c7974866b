from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.errors import ReaderClosedError
from ackstream.client.prefetch_buffer import PrefetchBuffer, ReorderBuffer
from ackstream.client.samples import ReaderQos, Sample
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AppAck, AppAckConf, KnownWriter, ProtocolAck, ReaderStart

ANY = 1_000


def _sample(seq: int, writer: str = "w1", key: bytes | None = None, offset: int | None = None) -> Sample:
    return Sample(writer, seq, None, key, b"%d" % seq, {}, 0, 0, seq if offset is None else offset)


def _buffer(kind: Any = "application-explicit", seen: list[Any] | None = None, **qos: Any) -> PrefetchBuffer:
    return PrefetchBuffer(
        ReaderQos(kind=kind, **qos),
        ReaderStart("r1", 1),
        wanted=lambda sample: sample.value != b"13",
        on_acknowledged=lambda sample, response, auto: (
            None if seen is None else seen.append((sample.seq, response, auto))
        ),
    )


def _fed(*numbers: int, **options: Any) -> PrefetchBuffer:
    buffer = _buffer(**options)
    for number in numbers:
        buffer.add(_sample(number))
    buffer.mark_stored(StoredRange("w1", min(numbers), max(numbers), 0))
    return buffer


def _numbers(samples: list[Sample]) -> list[int]:
    return [sample.seq for sample in samples]


def test_what_is_stored_goes_to_the_application_in_its_writers_order_whichever_arrives_first() -> None:
    buffer = _buffer()
    buffer.add(_sample(7))
    buffer.mark_stored(StoredRange("w1", 6, 8, 0, ((8, 8),)))
    assert (buffer.take(ANY, 0), buffer.missing()) == ([], {"w1": [(6, 6)]})
    buffer.add(_sample(6))
    assert _numbers(buffer.take(ANY, 0)) == [6, 7]
    assert (buffer.missing(), buffer.waiting) == ({}, 0)


def test_a_restart_wants_what_is_undelivered_and_nothing_else() -> None:
    buffer = _buffer()
    buffer.begin(KnownWriter("w1", 1, 9, ((1, 2), (5, 5)), ((3, 3), (8, 8))))
    for number in range(1, 11):
        buffer.add(_sample(number))
    buffer.mark_stored(StoredRange("w1", 8, 10, 0))
    assert _numbers(buffer.take(ANY, 0)) == [3, 8, 10]
    buffer.acknowledge_all(None)
    (report,) = buffer.due()
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.last, interval.reported) for interval in report.intervals] == [
        (1, 2, True),
        (3, 3, False),
        (5, 5, True),
        (8, 8, False),
        (10, 10, False),
    ]


def test_a_filter_that_fails_hides_nothing() -> None:
    buffer = PrefetchBuffer(
        ReaderQos(kind="application-auto"),
        ReaderStart("r1", 1),
        wanted=lambda sample: sample.key[0] == 7,  # type: ignore[index]  # fails without a key
        on_acknowledged=lambda *_: None,
    )
    buffer.add(_sample(1))
    buffer.mark_stored(StoredRange("w1", 1, 1, 0))
    assert _numbers(buffer.take(ANY, 0)) == [1]


def test_each_acknowledgement_is_passed_on_with_its_message() -> None:
    seen: list[Any] = []
    buffer = _fed(12, 13, 14, seen=seen, max_response_length=9)
    buffer.take(ANY, 0)
    buffer.acknowledge("w1", 14, b"ok")
    buffer.acknowledge_all(None)
    assert seen == [(13, None, "filtered"), (14, b"ok", None), (12, None, None)]
    assert (buffer.counts["filtered"], buffer.counts["acknowledged"], buffer.unacknowledged) == (1, 2, 0)


def test_copies_are_acknowledged_at_once_and_loans_when_they_are_returned() -> None:
    buffer = _fed(1, 2, 3, kind="application-auto")
    buffer.take(1, 0)
    assert buffer.counts["acknowledged"] == 1
    loan = buffer.loan(1, 0)
    assert (_numbers(loan.samples), buffer.counts["acknowledged"]) == ([2], 1)
    buffer.return_loan(loan)
    assert (buffer.counts["acknowledged"], buffer.unacknowledged) == (2, 1)


def test_a_protocol_reader_keeps_nothing_that_was_handed_out() -> None:
    buffer = _fed(1, 2, kind="protocol")
    assert [report.up_to for report in buffer.due() if isinstance(report, ProtocolAck)] == [2]
    assert _numbers(buffer.take(ANY, 0)) == [1, 2]
    assert buffer.unacknowledged == 0


def test_a_restart_reads_from_the_first_message_whose_acknowledgement_is_not_confirmed() -> None:
    buffer = _fed(1, 2, 3)
    assert buffer.restart_offsets({0: 4, 1: 9}) == {0: 1, 1: 9}
    buffer.take(ANY, 0)
    buffer.acknowledge("w1", 1, None)
    buffer.acknowledge("w1", 3, None)
    buffer.due()
    assert buffer.restart_offsets({0: 4}) == {0: 1}
    buffer.confirm(AppAckConf("r1", "w1", 1, 1))
    assert buffer.restart_offsets({0: 4}) == {0: 2}
    buffer.acknowledge("w1", 2, None)
    buffer.due()
    buffer.confirm(AppAckConf("r1", "w1", 1, 2))
    assert buffer.restart_offsets({0: 4}) == {0: 4}


def test_refused_messages_hold_back_no_offset_and_those_from_the_table_have_none() -> None:
    buffer = _buffer()
    buffer.add(_sample(1))
    buffer.add(_sample(2, offset=0), in_kafka=False)
    buffer.mark_stored(StoredRange("w1", 1, 2, 0, ((1, 1),)))
    assert buffer.restart_offsets({0: 4}) == {0: 4}


def test_what_cannot_be_recovered_is_skipped_and_not_acknowledged() -> None:
    buffer = _buffer()
    buffer.add(_sample(3))
    buffer.mark_stored(StoredRange("w1", 1, 3, 0))
    buffer.skip("w1", [(1, 2)])
    assert _numbers(buffer.take(ANY, 0)) == [3]
    buffer.acknowledge_all(None)
    (report,) = buffer.due()
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.last) for interval in report.intervals] == [(3, 3)]


def test_the_writer_with_most_unstored_samples_loses_them() -> None:
    buffer = _buffer()
    buffer.add(_sample(1))
    for number in (2, 3, 4):
        buffer.add(_sample(number, "w2"))
    assert (buffer.waiting, buffer.drop_unstored(), buffer.waiting) == (4, 3, 1)


def test_a_waiting_application_gets_what_arrives_and_then_the_error_of_the_end() -> None:
    buffer = _buffer()
    found: list[Any] = []

    def wait() -> None:
        found.extend(buffer.take(ANY, None))
        with pytest.raises(ReaderClosedError):
            buffer.take(ANY, None)
        found.append("end")

    waiting = threading.Thread(target=wait)
    waiting.start()
    buffer.add(_sample(1))
    buffer.mark_stored(StoredRange("w1", 1, 1, 0))
    while not found:
        waiting.join(0.01)
    buffer.end(ReaderClosedError("closed"))
    waiting.join(10)
    assert found[1:] == ["end"]


def _reordered(*numbers: int) -> ReorderBuffer[int]:
    buffer: ReorderBuffer[int] = ReorderBuffer()
    buffer.begin(0)
    for number in numbers:
        buffer.add(number, number)
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
    assert not buffer.add(3, 3)


def test_a_writers_samples_keep_their_order_whatever_arrives_first() -> None:
    buffer = _reordered(3, 2)
    buffer.mark_stored(1, 3)
    assert (list(buffer.release()), buffer.missing()) == ([], [(1, 1)])
    buffer.add(1, 1)
    assert (list(buffer.release()), buffer.missing()) == ([1, 2, 3], [])


def test_a_duplicate_is_dropped_before_and_after_the_release_of_the_first() -> None:
    buffer = _reordered(1)
    assert not buffer.add(1, 1)
    buffer.mark_stored(1, 1)
    assert list(buffer.release()) == [1]
    assert not buffer.add(1, 1)


def test_a_reader_that_restarts_wants_exactly_the_undelivered_and_the_new_samples() -> None:
    buffer: ReorderBuffer[int] = ReorderBuffer()
    buffer.begin(8, [(3, 4), (7, 7)])
    assert [number for number in range(1, 11) if buffer.add(number, number)] == [3, 4, 7, 9, 10]
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


def test_a_dropped_sample_is_missing_once_it_is_stored() -> None:
    buffer = _reordered(1, 2, 3)
    buffer.mark_stored(1, 1)
    assert buffer.drop_unstored() == 2
    assert list(buffer.release()) == [1]
    buffer.mark_stored(2, 3)
    assert buffer.missing() == [(2, 3)]


@given(
    st.permutations(range(1, 13)),
    st.lists(st.integers(1, 12), max_size=4),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
def test_whatever_the_order_each_stored_sample_is_released_once_in_the_writers_order(
    order: list[int], refused: list[int], cuts: list[int]
) -> None:
    buffer: ReorderBuffer[int] = ReorderBuffer()
    buffer.begin(0)
    handed: list[int] = []
    ends = [*sorted(set(cuts) - {12}), 12]
    first = 1
    for step, number in enumerate(order):
        buffer.add(number, number)
        buffer.add(number, number)
        if step < len(ends):
            last = ends[step]
            buffer.mark_stored(first, last, [(seq, seq) for seq in set(refused) if first <= seq <= last])
            first = last + 1
        handed += buffer.release()
    assert handed == [number for number in range(1, 13) if number not in refused]
