""""""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.publish_window import (
    FailedWrite,
    GapError,
    PublishStore,
    PublishWindow,
    Republish,
    SequenceError,
    WindowError,
    notified,
)
from ackstream.client.storage import MemoryMessages
from ackstream.protocol.messages import CommandAck
from tests.conformance.models.cadence import Cadence


def _store(*numbers: int, **options: bool) -> PublishStore:
    store = PublishStore(MemoryMessages(), **options)
    for seq in numbers:
        store.add(seq, b"m%d" % seq)
    return store


def _ack(seq: int | None, reason: str | None = None, status: str | None = None) -> CommandAck:
    return CommandAck(
        ack_type="persisted", seq=seq, reason=reason, status=status or ("failure" if reason else "success")
    )  # type: ignore[arg-type]


def test_an_ack_drops_everything_up_to_its_number() -> None:
    store = _store(1, 2, 3)
    assert store.acknowledged(_ack(2)) is None
    assert store.unpersisted == [3]
    assert store.acknowledged(_ack(1)) is None
    assert store.unpersisted_count == 1


def test_a_refused_message_is_given_back_and_never_sent_again() -> None:
    store = _store(1, 2, 3)
    assert store.acknowledged(_ack(2, "not entitled")) == FailedWrite(2, "not entitled", b"m2")
    assert [seq for seq, _ in store.logged_on(0)] == [3]


@pytest.mark.parametrize("reason", ["duplicate", "not entitled"])
def test_two_reasons_are_told_whatever_the_status_says(reason: str) -> None:
    assert _store(1).acknowledged(_ack(1, reason, "success")) == FailedWrite(1, reason, b"m1")


def test_a_failure_of_a_message_that_is_not_kept_has_no_copy() -> None:
    assert _store(1).acknowledged(_ack(9, "bad topic")) == FailedWrite(9, "bad topic", None)


def test_an_ack_without_a_number_is_not_about_messages() -> None:
    store = _store(1)
    assert store.acknowledged(_ack(None)) is None
    assert store.unpersisted == [1]


def test_the_logon_tells_what_is_sent_again_in_order() -> None:
    store = _store(1, 2, 3, 4, 5)
    assert store.logged_on(3) == [(4, b"m4"), (5, b"m5")]
    assert store.unpersisted_count == 2


def test_a_server_that_lacks_what_was_dropped_is_refused_where_gaps_are_errors() -> None:
    store = _store(*range(1, 12), error_on_gap=True)
    store.acknowledged(_ack(10))
    with pytest.raises(GapError, match="8 to 10 are missing") as caught:
        store.logged_on(7)
    assert list(caught.value.missing) == [8, 9, 10]
    assert store.unpersisted == [11]


def test_a_gap_is_let_through_where_it_is_no_error() -> None:
    store = _store(*range(1, 12))
    store.acknowledged(_ack(10))
    assert list(store.missing_at(7)) == [8, 9, 10]
    assert store.logged_on(7) == [(11, b"m11")]


def test_a_number_that_goes_back_is_refused() -> None:
    store = _store(1, 2)
    with pytest.raises(SequenceError, match="from 3 on"):
        store.add(2, b"")
    store.acknowledged(_ack(2))
    with pytest.raises(SequenceError):
        store.add(2, b"")


def test_numbers_go_on_after_those_the_server_knows() -> None:
    store = _store()
    store.logged_on(41)
    assert store.next_seq == 42


@pytest.mark.parametrize(("size", "ack_time"), [(0, 2000), (-1, 2000), (10, 0)])
def test_a_window_in_which_nothing_can_be_sent_is_refused(size: int, ack_time: int) -> None:
    with pytest.raises(WindowError, match=r"1 (ms )?or more"):
        PublishWindow(size, ack_time)


def test_a_full_window_holds_messages_until_there_is_room() -> None:
    window = PublishWindow(2)
    assert [window.offer(message, 0) for message in (1, 2, 3, 4)] == [True, True, False, False]
    assert window.acknowledged(1) == [1]
    assert not window.offer(5, 0)
    assert window.admit(0) == [3]
    assert (window.in_flight, window.blocked, window.closures) == ([2, 3], [4, 5], 1)
    window.withdraw(4)
    assert window.refused(2)
    assert not window.refused(2)
    assert window.admit(0) == [5]


def test_what_is_not_answered_is_sent_again_and_again() -> None:
    window = PublishWindow(5, 2000)
    window.offer(1, 0)
    window.offer(2, 10)
    assert window.deadline == 2000
    assert window.overdue(1999) == []
    assert window.overdue(2000) == [1]
    assert window.overdue(2010) == [2]
    assert window.deadline == 4000
    window.acknowledged(2)
    assert window.deadline is None


@pytest.mark.parametrize(
    ("action", "outcome", "in_flight", "duplicates"),
    [("AUTO_RETRY", Republish([1, 2], []), [1, 2], 2), ("DISCONNECT", Republish([], [1, 2]), [], 0)],
)
def test_a_lost_flow_is_published_again_or_given_back(
    action: str, outcome: Republish, in_flight: list[int], duplicates: int
) -> None:
    window = PublishWindow(5)
    window.offer(1, 0)
    window.offer(2, 0)
    assert window.flow_lost(action, 5) == outcome  # type: ignore[arg-type]
    assert (window.in_flight, outcome.duplicates_max) == (in_flight, duplicates)


def test_notifications_are_for_each_message_or_for_the_last_one() -> None:
    assert notified([4, 5, 6], "PER_MESSAGE") == [4, 5, 6]
    assert notified([4, 5, 6], "WINDOWED") == [6]
    assert notified([], "WINDOWED") == []


@given(size=st.integers(1, 10), acks=st.lists(st.integers(0, 30), max_size=30))
def test_every_message_is_sent_once_in_order_and_never_more_than_the_window(size: int, acks: list[int]) -> None:
    window = PublishWindow(size)
    sent = [message for message in range(1, 31) if window.offer(message, 0)]
    for ack in [*acks, *range(1, 31)]:
        window.acknowledged(min(ack, sent[-1]))
        sent += window.admit(0)
        assert len(window.in_flight) <= size
    assert sent == list(range(1, 31))


@pytest.mark.parametrize(("window", "share"), [(1, 1), (3, 1), (5, 1), (6, 2), (30, 10), (50, 16), (255, 85)])
def test_a_third_of_the_window_is_acknowledged_at_once(window: int, share: int) -> None:
    cadence = Cadence(window)
    assert [cadence.arrived(0) for _ in range(share)] == [False] * (share - 1) + [True]
    assert cadence.deadline is None


def test_the_oldest_message_waits_a_second() -> None:
    cadence = Cadence(30)
    cadence.arrived(100)
    cadence.arrived(900)
    assert not cadence.expired(1099)
    assert cadence.expired(1100)
    assert not cadence.expired(1200)
    assert not cadence.flush()


def test_a_message_that_wants_it_and_one_that_comes_again_are_acknowledged_at_once() -> None:
    cadence = Cadence(255)
    cadence.arrived(0)
    assert cadence.arrived(5, immediately=True)
    assert cadence.deadline is None
    cadence.arrived(10)
    assert cadence.repeated()
    assert cadence.deadline is None


@given(window=st.integers(1, 255), gaps=st.lists(st.integers(0, 1500), min_size=1, max_size=60))
def test_no_message_waits_longer_than_a_second_or_a_third_of_the_window(window: int, gaps: list[int]) -> None:
    cadence, now, waiting = Cadence(window), 0, []
    for gap in gaps:
        until = now + gap
        if cadence.deadline is not None and cadence.deadline <= until:
            now = cadence.deadline
            assert cadence.expired(now)
            assert all(now - at <= 1000 for at in waiting)
            waiting = []
        now = until
        waiting.append(now)
        if cadence.arrived(now):
            waiting = []
        assert len(waiting) < max(1, window // 3)
