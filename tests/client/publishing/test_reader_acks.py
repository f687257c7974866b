from __future__ import annotations

import threading
import time
from copy import copy
from typing import Any

import pytest

from ackstream.client.errors import PublisherClosedError, ReaderTimeout, SettleTimeout
from ackstream.client.publishing import _acks as reader_acks
from ackstream.client.publishing._acks import Callback, WriterAcknowledgements
from ackstream.client.reading.samples import WriterQos
from ackstream.protocol.readers import ApplicationAcknowledged, SamplesDone, WriterState, WriterStateRequest


class World:
    """A publisher's view of its readers; settle answers queries with ``state``."""

    def __init__(
        self,
        state: WriterState | None,
        next_seq: int = 1,
        first: int = 1,
        holes: tuple[tuple[int, int], ...] = (),
        timeout: float = 5,
        **qos: Any,
    ) -> None:
        self.state = state
        self.asked: list[WriterStateRequest] = []
        self.told: list[Callback] = []
        self.failing = False
        self.known = WriterAcknowledgements(WriterQos(**qos), "w1", self._answer, self._tell)
        if state is not None:
            self.known.begin(first, next_seq, holes, timeout)

    def _answer(self, question: WriterStateRequest) -> None:
        self.asked.append(question)
        if self.state is not None:
            threading.Thread(target=self.known.receive, args=(copy(self.state),)).start()

    def _tell(self, callback: Callback) -> None:
        if self.failing:
            raise ValueError(callback)
        self.told.append(callback)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.known.write()

    def done(self, *runs: tuple[int, int], released: int) -> None:
        self.known.receive(SamplesDone("w1", runs, released))


NEW = WriterState("w1", 0, 0)
AUDITED = WriterState("w1", 0, 0, required={"Auditor": 2})


def test_a_writer_that_settle_does_not_know_begins_with_its_own_first_sample() -> None:
    world = World(NEW, next_seq=1_001, first=1_001)
    assert world.known.first_unacknowledged is None
    world.write(2)
    assert world.known.first_unacknowledged == 1_001


def test_each_question_names_the_roles_that_the_writer_requires() -> None:
    world = World(AUDITED, required={"Auditor": 2})
    world.known.fresh_state(5)
    assert world.asked == [WriterStateRequest("w1", {"Auditor": 2})] * len(world.asked)
    assert World(NEW, required={}).asked[0] == WriterStateRequest("w1", {}), "which ends those of an earlier run"


def test_a_writer_that_says_nothing_about_roles_leaves_those_of_earlier_runs_as_they_are() -> None:
    assert World(AUDITED).asked[0] == WriterStateRequest("w1", None)


def test_an_answer_with_other_roles_than_those_of_the_writer_is_none() -> None:
    with pytest.raises(SettleTimeout):
        World(NEW, required={"Auditor": 2}, timeout=0.05)


def test_a_publisher_that_has_nothing_to_ask_names_its_roles_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = World(AUDITED, required={"Auditor": 2}), World(NEW)
    before = [len(world.asked) for world in worlds]
    for world in worlds:
        world.known.keep_roles()
    monkeypatch.setattr(reader_acks, "ROLES_AGAIN_SECONDS", 0)
    for world in worlds:
        world.known.keep_roles()
    assert [len(world.asked) - count for world, count in zip(worlds, before, strict=True)] == [1, 0]


@pytest.mark.parametrize(("lease_ms", "asks"), [(1, 1), (60_000, 0), (None, 0)])
def test_roles_are_named_before_settle_forgets_them(lease_ms: int | None, asks: int) -> None:
    world = World(WriterState("w1", 0, 0, required={"Auditor": 2}, lease_ms=lease_ms), required={"Auditor": 2})
    before = len(world.asked)
    time.sleep(0.01)
    world.known.keep_roles()
    assert len(world.asked) - before == asks


def test_roles_are_named_again_soon_if_settle_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(AUDITED, required={"Auditor": 2})
    world.state = None
    with pytest.raises(SettleTimeout):
        world.known.fresh_state(0.001)
    before = len(world.asked)
    world.known.keep_roles()
    monkeypatch.setattr(reader_acks, "SETTLE_TIMEOUT", 0)
    world.known.keep_roles()
    assert len(world.asked) - before == 1


def test_numbers_that_a_session_passes_over_are_no_samples() -> None:
    # of the hole 10 to 10**18 settle knows 10, which is a sample of an earlier run
    world = World(WriterState("w1", 10, 8), next_seq=10**18 + 1, holes=((10, 10**18),), max_samples=3)
    assert world.known.retained == [(9, 10)]
    assert not world.known.full
    world.write(1)
    assert world.known.retained == [(9, 10), (10**18 + 1, 10**18 + 1)]


def test_samples_of_earlier_runs_are_waited_for_too() -> None:
    world = World(WriterState("w1", 9, 3, ((6, 7),), ("r1",)), next_seq=10)
    assert world.known.first_unacknowledged == 4
    assert [seq for seq in range(1, 10) if not world.known.is_complete(seq)] == [4, 5, 8, 9]


def test_a_state_in_several_records_counts_as_a_whole() -> None:
    world = World(WriterState("w1", 9, 3, ((5, 5),)), next_seq=10)
    world.known.receive(WriterState("w1", 9, 3, ((7, 9),)))
    assert [seq for seq in range(1, 10) if not world.known.is_complete(seq)] == [4, 6]


def test_waiting_ends_when_everything_is_done() -> None:
    world = World(NEW)
    world.write(3)
    waiting = threading.Thread(target=world.known.wait, args=(None,))
    waiting.start()
    world.done((2, 3), released=0)
    assert waiting.is_alive()
    world.done((1, 1), released=3)
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_timed_out_wait_names_who_has_not_acknowledged() -> None:
    world = World(NEW)
    world.write(1)
    world.state = WriterState("w1", 1, 0, (), ("r1", "Logger"))
    with pytest.raises(ReaderTimeout, match=r"Message 1 .* within 0.5 s; the oldest waits for r1, Logger"):
        world.known.wait(0.5)
    assert world.known.fresh_state(5).waiting_for == ("r1", "Logger")


def test_a_writer_without_samples_does_not_wait() -> None:
    world = World(NEW)
    world.known.wait(0)
    assert len(world.asked) == 1


def test_without_room_a_writer_waits_and_gives_up_or_goes_on() -> None:
    world = World(NEW, max_samples=2, max_blocking_ms=50)
    world.write(2)
    assert world.known.full
    with pytest.raises(ReaderTimeout, match=r"2 messages wait for readers, .* the oldest is 1"):
        world.known.wait_for_room()
    world.done((2, 2), released=0)
    world.known.wait_for_room()
    assert not world.known.full


def test_a_failing_handler_does_no_harm() -> None:
    world = World(NEW)
    world.write(1)
    world.failing = True
    world.known.receive(ApplicationAcknowledged("w1", "r1", 1, 1))
    world.done((1, 1), released=1)
    world.known.wait(0)


def test_a_silent_settle_job_is_a_timeout() -> None:
    world = World(None)
    with pytest.raises(SettleTimeout, match="ackstream submit settle"):
        world.known.begin(1, 1, (), 0.05)


def test_a_wait_ends_with_the_publisher() -> None:
    world = World(NEW)
    world.write(1)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            world.known.wait(None)
        except PublisherClosedError as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    world.known.end(PublisherClosedError("closed"))
    waiting.join(10)
    assert len(found) == 1
    with pytest.raises(PublisherClosedError):
        world.known.fresh_state(5)


def test_samples_are_numbered_from_the_start() -> None:
    world = World(NEW, next_seq=100, first=100)
    world.write(2)
    assert (world.known.written, world.known.retained) == (101, [(100, 101)])


def test_a_full_writer_drops_nothing() -> None:
    world = World(NEW, max_samples=3)
    world.write(3)
    assert world.known.full
    world.done((2, 2), released=0)
    assert not world.known.full
    world.write(1)
    assert world.known.retained == [(1, 1), (3, 4)]


def test_with_keep_last_the_oldest_makes_room() -> None:
    world = World(NEW, max_samples=2, history="keep-last")
    world.write(3)
    assert (world.known.full, world.known.retained) == (False, [(2, 3)])


def test_a_sample_that_made_room_unacknowledged_is_not_complete_until_readers_have_acknowledged_it() -> None:
    world = World(NEW, max_samples=1, history="keep-last")
    world.write(2)
    assert [world.known.is_complete(seq) for seq in (1, 2)] == [False, False]
    world.done((2, 2), released=0)
    assert ([world.known.is_complete(seq) for seq in (1, 2)], world.known.retained) == ([False, True], [])
    world.done((1, 1), released=2)
    assert world.known.is_complete(1)


def test_a_best_effort_writer_keeps_nothing() -> None:
    world = World(NEW, reliable=False)
    world.write(1)
    assert world.known.retained == []


def test_single_samples_are_acknowledged_in_any_order() -> None:
    world = World(NEW)
    world.write(2)
    world.done((2, 9), released=0)
    assert [world.known.is_complete(seq) for seq in (1, 2, 3)] == [False, True, False]
    assert world.known.first_unacknowledged == 1
    world.done((1, 1), released=0)
    assert world.known.first_unacknowledged is None


def _events(world: World, *events: ApplicationAcknowledged) -> list[tuple[str, int]]:
    before = len(world.told)
    for event in events:
        world.known.receive(event)
    return [(callback.reader, callback.seq) for callback in world.told[before:]]


def test_each_reader_and_sample_is_called_back_once_however_often_it_is_reported() -> None:
    world = World(NEW)
    world.write(3)
    first = ApplicationAcknowledged("w1", "A", 1, 2, "Logger", b"x")
    assert _events(world, first, first) == [("A", 1), ("A", 2)]
    assert [(callback.role, callback.response, callback.valid_response) for callback in world.told] == [
        ("Logger", b"x", True)
    ] * 2
    assert _events(world, ApplicationAcknowledged("w1", "A", 1, 3)) == [("A", 3)]
    assert _events(world, ApplicationAcknowledged("w1", "B", 1, 1)) == [("B", 1)]


def test_events_of_unwritten_samples_are_not_called_back() -> None:
    world = World(NEW)
    world.write(1)
    assert _events(world, ApplicationAcknowledged("w1", "A", 2, 1_000_000_000_000)) == []
    assert _events(world, ApplicationAcknowledged("w1", "A", 1, 1_000_000_000_000)) == [("A", 1)]


def test_events_of_samples_that_were_complete_at_the_start_are_not_called_back() -> None:
    world = World(WriterState("w1", 9, 3), next_seq=10)
    assert _events(world, ApplicationAcknowledged("w1", "A", 1, 4)) == [("A", 4)]


def test_acknowledgements_without_response_may_be_kept_from_the_callback() -> None:
    world = World(NEW, propagate_no_response=False)
    world.write(2)
    assert _events(world, ApplicationAcknowledged("w1", "A", 1, 1)) == []
    assert _events(world, ApplicationAcknowledged("w1", "A", 1, 2, None, b"x")) == [("A", 2)]
