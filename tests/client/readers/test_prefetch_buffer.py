from __future__ import annotations

import threading
from typing import Any

import pytest

from ackstream.client.errors import ReaderClosedError
from ackstream.client.readers.prefetch_buffer import PrefetchBuffer
from ackstream.client.readers.qos import ReaderQos
from ackstream.client.readers.samples import Sample
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AppAck, AppAckConf, KnownWriter, ProtocolAck

ANY = 1_000


def _sample(seq: int, writer: str = "w1", key: bytes | None = None, offset: int | None = None) -> Sample:
    return Sample(writer, seq, None, key, b"%d" % seq, {}, 0, 0, seq if offset is None else offset)


def _inbox(kind: Any = "application-explicit", told: list[Any] | None = None, **qos: Any) -> PrefetchBuffer:
    return PrefetchBuffer(
        ReaderQos(kind=kind, **qos),
        "r1",
        epoch=1,
        role=None,
        wanted=lambda sample: sample.value != b"13",
        told=lambda sample, response, auto: None if told is None else told.append((sample.seq, response, auto)),
    )


def _fed(*numbers: int, **options: Any) -> PrefetchBuffer:
    inbox = _inbox(**options)
    for number in numbers:
        inbox.arrive(_sample(number))
    inbox.decide(StoredRange("w1", min(numbers), max(numbers), 0))
    return inbox


def _numbers(samples: list[Sample]) -> list[int]:
    return [sample.seq for sample in samples]


def test_what_is_stored_goes_to_the_application_in_its_writers_order_whichever_news_comes_first() -> None:
    inbox = _inbox()
    inbox.arrive(_sample(7))
    inbox.decide(StoredRange("w1", 6, 8, 0, ((8, 8),)))
    assert (inbox.take(ANY, 0), inbox.missing()) == ([], {"w1": [(6, 6)]})
    inbox.arrive(_sample(6))
    assert _numbers(inbox.take(ANY, 0)) == [6, 7]
    assert (inbox.missing(), inbox.held) == ({}, 0)


def test_a_restart_wants_what_is_undelivered_and_nothing_else() -> None:
    inbox = _inbox()
    inbox.begin(KnownWriter("w1", 1, 9, ((1, 2), (5, 5)), ((3, 3), (8, 8))))
    for number in range(1, 11):
        inbox.arrive(_sample(number))
    inbox.decide(StoredRange("w1", 8, 10, 0))
    assert _numbers(inbox.take(ANY, 0)) == [3, 8, 10]
    inbox.acknowledge_all(None)
    (report,) = inbox.due()
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.last, interval.reported) for interval in report.intervals] == [
        (1, 2, True),
        (3, 3, False),
        (5, 5, True),
        (8, 8, False),
        (10, 10, False),
    ]


def test_a_filter_that_fails_hides_nothing() -> None:
    inbox = PrefetchBuffer(
        ReaderQos(kind="application-auto"),
        "r1",
        epoch=1,
        role=None,
        wanted=lambda sample: sample.key[0] == 7,  # type: ignore[index]  # fails without a key
        told=lambda *_: None,
    )
    inbox.arrive(_sample(1))
    inbox.decide(StoredRange("w1", 1, 1, 0))
    assert _numbers(inbox.take(ANY, 0)) == [1]


def test_each_acknowledgement_is_told_with_its_message() -> None:
    told: list[Any] = []
    inbox = _fed(12, 13, 14, told=told, max_response_length=9)
    inbox.take(ANY, 0)
    inbox.acknowledge("w1", 14, b"ok")
    inbox.acknowledge_all(None)
    assert told == [(13, None, "filtered"), (14, b"ok", None), (12, None, None)]
    assert (inbox.counts["filtered"], inbox.counts["acknowledged"], inbox.unacknowledged) == (1, 2, 0)


def test_copies_that_are_taken_are_acknowledged_at_once_and_loans_when_they_come_back() -> None:
    inbox = _fed(1, 2, 3, kind="application-auto")
    inbox.take(1, 0)
    assert inbox.counts["acknowledged"] == 1
    lent = inbox.lend(1, 0)
    assert (_numbers(lent.samples), inbox.counts["acknowledged"]) == ([2], 1)
    inbox.give_back(lent)
    assert (inbox.counts["acknowledged"], inbox.unacknowledged) == (2, 1)


def test_a_protocol_reader_keeps_nothing_that_was_handed_out() -> None:
    inbox = _fed(1, 2, kind="protocol")
    assert [report.up_to for report in inbox.due() if isinstance(report, ProtocolAck)] == [2]
    assert _numbers(inbox.take(ANY, 0)) == [1, 2]
    assert inbox.unacknowledged == 0


def test_a_restart_reads_from_the_first_message_whose_acknowledgement_is_not_confirmed() -> None:
    inbox = _fed(1, 2, 3)
    assert inbox.positions({0: 4, 1: 9}) == {0: 1, 1: 9}
    inbox.take(ANY, 0)
    inbox.acknowledge("w1", 1, None)
    inbox.acknowledge("w1", 3, None)
    inbox.due()
    assert inbox.positions({0: 4}) == {0: 1}
    inbox.confirm(AppAckConf("r1", "w1", 1, 1))
    assert inbox.positions({0: 4}) == {0: 2}
    inbox.acknowledge("w1", 2, None)
    inbox.due()
    inbox.confirm(AppAckConf("r1", "w1", 1, 2))
    assert inbox.positions({0: 4}) == {0: 4}


def test_refused_messages_hold_back_no_offset_and_those_from_the_table_have_none() -> None:
    inbox = _inbox()
    inbox.arrive(_sample(1))
    inbox.arrive(_sample(2, offset=0), readable=False)
    inbox.decide(StoredRange("w1", 1, 2, 0, ((1, 1),)))
    assert inbox.positions({0: 4}) == {0: 4}


def test_what_cannot_be_had_is_passed_over_and_not_acknowledged() -> None:
    inbox = _inbox()
    inbox.arrive(_sample(3))
    inbox.decide(StoredRange("w1", 1, 3, 0))
    inbox.pass_over("w1", [(1, 2)])
    assert _numbers(inbox.take(ANY, 0)) == [3]
    inbox.acknowledge_all(None)
    (report,) = inbox.due()
    assert isinstance(report, AppAck)
    assert [(interval.first, interval.last) for interval in report.intervals] == [(3, 3)]


def test_relief_lets_go_of_what_is_not_known_to_be_stored() -> None:
    inbox = _inbox()
    inbox.arrive(_sample(1))
    for number in (2, 3, 4):
        inbox.arrive(_sample(number, "w2"))
    assert (inbox.held, inbox.relieve(), inbox.held) == (4, 3, 1)


def test_who_waits_gets_what_comes_and_learns_of_the_end() -> None:
    inbox = _inbox()
    found: list[Any] = []

    def wait() -> None:
        found.extend(inbox.take(ANY, None))
        with pytest.raises(ReaderClosedError):
            inbox.take(ANY, None)
        found.append("end")

    waiting = threading.Thread(target=wait)
    waiting.start()
    inbox.arrive(_sample(1))
    inbox.decide(StoredRange("w1", 1, 1, 0))
    while not found:
        waiting.join(0.01)
    inbox.end(ReaderClosedError("closed"))
    waiting.join(10)
    assert found[1:] == ["end"]
