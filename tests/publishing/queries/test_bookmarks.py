from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.publishing.queries.bookmarks import Progress, Replay


def _replayed(replay: Replay, *places: tuple[int, int]) -> list[object]:
    seen: list[object] = ["completed"] if replay.completes() else []
    for partition, position in places:
        if replay.take(partition, position) == "deliver":
            seen.append((partition, position))
        if replay.completes():
            seen.append("completed")
    return seen


def test_a_replay_is_complete_when_every_partition_has_reached_its_old_end() -> None:
    replay = Replay({0: 0, 1: 4}, {0: 2, 1: 5})
    places = [(0, 1), (0, 2), (0, 3), (1, 5), (1, 6)]
    assert _replayed(replay, *places) == [*places[:4], "completed", places[4]]
    assert not replay.over


def test_a_replay_from_now_is_complete_at_once() -> None:
    assert _replayed(Replay({0: 7}, {0: 7}), (0, 7), (0, 8)) == ["completed", (0, 8)]


def test_after_a_stop_point_nothing_comes() -> None:
    replay = Replay({0: 9}, {0: 100}, {0: 11})
    assert _replayed(replay, (0, 10), (0, 11), (0, 12)) == [(0, 10), (0, 11), "completed"]
    assert replay.over


@pytest.mark.parametrize(
    ("received", "discarded", "persisted", "after"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 4], None, 2),
        ([1, 2, 3], [1, 2, 3], None, 3),
        ([1, 2, 3], [2, 3], None, 0),
        ([10, 20], [10], 900, 10),
        ([10, 20], [10, 20], 900, 900),
        ([10, 20], [20, 10], None, 20),
        ([10, 20], [10, 20], 15, 20),
        ([], [], 900, 900),
        ([], [], None, 0),
    ],
)
def test_where_a_subscription_goes_on(
    received: list[int], discarded: list[int], persisted: int | None, after: int
) -> None:
    progress = Progress(0)
    for position in received:
        assert progress.received(position)
    for position in discarded:
        progress.discard(position)
    if persisted is not None:
        progress.persisted(persisted)
    assert progress.resume_after == after


def test_the_persisted_bookmark_does_not_go_back() -> None:
    progress = Progress(0)
    progress.persisted(9)
    progress.persisted(5)
    assert progress.resume_after == 9


@given(received=st.sets(st.integers(1, 30)), data=st.data())
def test_nothing_that_is_outstanding_is_ever_passed_over(received: set[int], data: st.DataObject) -> None:
    progress = Progress(0)
    for position in sorted(received):
        progress.received(position)
    discarded = data.draw(st.lists(st.sampled_from(sorted(received)))) if received else []
    for position in discarded:
        progress.discard(position)
    outstanding = received - set(discarded)
    assert all(position > progress.resume_after for position in outstanding)
    assert all(progress.received(position) == (position in outstanding) for position in sorted(received))


def test_what_was_done_with_before_a_restart_is_not_shown_again() -> None:
    progress = Progress(2, discarded=[4])
    assert [progress.received(place) for place in (2, 3, 4, 5)] == [False, True, False, True]
    progress.discard(3)
    assert progress.resume_after == 4
