from __future__ import annotations

from typing import Any

from ackstream.delivery.readers.publications import Publications
from ackstream.delivery.readers.qos import WriterQos
from ackstream.protocol.app_acks import ApplicationAcknowledged


def _publications(written: int = 0, **qos: Any) -> Publications:
    publications = Publications(WriterQos(**qos))
    for _ in range(written):
        publications.write()
    return publications


def test_samples_are_numbered_from_the_start() -> None:
    publications = Publications(WriterQos(), start=100)
    assert [publications.write(), publications.write()] == [100, 101]
    assert publications.retained == [(100, 101)]


def test_a_full_writer_waits_for_room_so_long_and_drops_nothing() -> None:
    publications = _publications(3, max_samples=3, max_blocking_ms=250)
    assert (publications.write(), publications.blocked_until(10)) == (None, 260)
    publications.acknowledge([(2, 2)])
    assert publications.write() == 4
    assert publications.retained == [(1, 1), (3, 4)]


def test_with_keep_last_the_oldest_makes_room() -> None:
    publications = _publications(3, max_samples=2, history="keep-last")
    assert publications.retained == [(2, 3)]


def test_waiting_ends_when_all_is_acknowledged_including_what_came_meanwhile() -> None:
    publications = _publications(1)
    wait = publications.wait(0, 5_000)
    publications.write()
    publications.acknowledge([(1, 1)])
    assert wait.result(100) is None
    publications.acknowledge([(2, 2)])
    assert wait.result(400) == "OK"


def test_waiting_times_out_at_its_end_not_before() -> None:
    wait = _publications(1).wait(100, 2_000)
    assert (wait.deadline, wait.result(2_099), wait.result(2_100)) == (2_100, None, "TIMEOUT")


def test_an_acknowledgement_at_the_last_moment_is_in_time() -> None:
    publications = _publications(1)
    wait = publications.wait(0, 2_000)
    publications.acknowledge([(1, 1)])
    assert wait.result(2_000) == "OK"


def test_nobody_waits_for_a_best_effort_writer() -> None:
    publications = _publications(1, reliable=False)
    assert publications.wait(0, 5_000).result(0) == "OK"
    assert publications.retained == []


def test_single_samples_are_acknowledged_in_any_order() -> None:
    publications = _publications(2)
    publications.acknowledge([(2, 9)])
    assert [publications.is_sample_app_acknowledged(seq) for seq in (1, 2, 3)] == [False, True, False]
    assert publications.first_unacknowledged == 1
    publications.acknowledge([(1, 1)])
    assert publications.first_unacknowledged is None


def test_each_reader_and_sample_is_told_once_however_often_the_event_comes() -> None:
    publications = _publications(3)
    first = ApplicationAcknowledged("w1", "A", 1, 2, "Logger", b"x")
    told = [
        (call.reader, call.role, call.seq, call.response, call.valid_response) for call in publications.notify(first)
    ]
    assert told == [("A", "Logger", 1, b"x", True), ("A", "Logger", 2, b"x", True)]
    assert publications.notify(first) == []
    assert [call.seq for call in publications.notify(ApplicationAcknowledged("w1", "A", 1, 3))] == [3]
    assert [call.reader for call in publications.notify(ApplicationAcknowledged("w1", "B", 1, 1))] == ["B"]


def test_events_of_samples_that_were_never_written_call_nobody() -> None:
    publications = _publications(1)
    assert publications.notify(ApplicationAcknowledged("w1", "A", 2, 1_000_000_000_000)) == []
    assert [call.seq for call in publications.notify(ApplicationAcknowledged("w1", "A", 1, 1_000_000_000_000))] == [1]


def test_acknowledgements_without_response_may_be_kept_from_the_callback() -> None:
    publications = _publications(2, propagate_no_response=False)
    assert publications.notify(ApplicationAcknowledged("w1", "A", 1, 1)) == []
    assert [call.seq for call in publications.notify(ApplicationAcknowledged("w1", "A", 1, 2, None, b"x"))] == [2]
