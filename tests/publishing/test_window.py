from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.publishing.persist.cadence import Cadence
from ackstream.publishing.window import PublishWindow, Republish, WindowError, notified


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
