""""""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.bookmarks import MemoryBookmarks, Replay, SqliteBookmarks, SubscriptionProgress
from ackstream.client.errors import StoreError
from ackstream.protocol.queries import Position, bookmark, end

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


TOPIC, SUB = "orders", "mine"


def _mark(number: int) -> str:
    return bookmark(Position(1, 0, number), TOPIC)


def _receive(store: MemoryBookmarks, numbers: Iterable[int]) -> list[int]:
    store.open(SUB, TOPIC)
    return [number for number in numbers if store.received(SUB, _mark(number))]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryBookmarks:
    return MemoryBookmarks() if request.param == "memory" else SqliteBookmarks(tmp_path / "store", "p1")


def test_a_subscription_goes_on_behind_what_was_discarded_without_a_gap(store: MemoryBookmarks) -> None:
    assert store.most_recent(SUB) == "EPOCH"
    assert _receive(store, range(1, 6)) == [1, 2, 3, 4, 5]
    assert store.most_recent(SUB) == "EPOCH"
    for number in (1, 2, 4):
        store.discard(SUB, _mark(number))
    assert store.most_recent(SUB) == _mark(2)
    assert _receive(store, range(1, 6)) == [3, 5]


def test_with_nothing_open_it_goes_on_where_the_log_was(store: MemoryBookmarks) -> None:
    _receive(store, [1])
    far = bookmark(end(9), TOPIC)
    store.persisted(SUB, far)
    assert store.most_recent(SUB) == "EPOCH"
    store.discard(SUB, _mark(1))
    assert store.most_recent(SUB) == far


def test_of_a_subscription_without_bookmarks_nothing_is_kept(store: MemoryBookmarks) -> None:
    store.discard("live", _mark(1))
    assert store.most_recent("live") == "EPOCH"


@given(received=st.integers(1, 12), data=st.data())
def test_a_file_remembers_what_memory_remembers(
    received: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bookmarks") / "store"
    memory, file = MemoryBookmarks(), SqliteBookmarks(path, "p1")
    for store in (memory, file):
        _receive(store, range(1, received + 1))
    for number in data.draw(st.lists(st.integers(1, received))):
        for store in (memory, file):
            store.discard(SUB, _mark(number))
    file.close()
    again = SqliteBookmarks(path, "p1")
    assert again.most_recent(SUB) == memory.most_recent(SUB)
    assert _receive(again, range(1, received + 1)) == _receive(memory, range(1, received + 1))
    again.close()


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    open_one = SqliteBookmarks(path, "p1")
    with pytest.raises(StoreError, match="another process has it open"):
        SqliteBookmarks(path, "p1")
    open_one.close()
    with pytest.raises(StoreError, match="belongs to the client p1, not to p2"):
        SqliteBookmarks(path, "p2")
    (tmp_path / "other").write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="damaged"):
        SqliteBookmarks(tmp_path / "other", "p1")


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
    progress = SubscriptionProgress(0)
    for position in received:
        assert progress.received(position)
    for position in discarded:
        progress.discard(position)
    if persisted is not None:
        progress.persisted(persisted)
    assert progress.resume_after == after


def test_the_persisted_bookmark_does_not_go_back() -> None:
    progress = SubscriptionProgress(0)
    progress.persisted(9)
    progress.persisted(5)
    assert progress.resume_after == 9


@given(received=st.sets(st.integers(1, 30)), data=st.data())
def test_nothing_that_is_outstanding_is_ever_passed_over(received: set[int], data: st.DataObject) -> None:
    progress = SubscriptionProgress(0)
    for position in sorted(received):
        progress.received(position)
    discarded = data.draw(st.lists(st.sampled_from(sorted(received)))) if received else []
    for position in discarded:
        progress.discard(position)
    outstanding = received - set(discarded)
    assert all(position > progress.resume_after for position in outstanding)
    assert all(progress.received(position) == (position in outstanding) for position in sorted(received))


def test_what_was_done_with_before_a_restart_is_not_shown_again() -> None:
    progress = SubscriptionProgress(2, discarded=[4])
    assert [progress.received(place) for place in (2, 3, 4, 5)] == [False, True, False, True]
    progress.discard(3)
    assert progress.resume_after == 4
