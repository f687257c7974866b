from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.errors import StoreError
from ackstream.client.queries.bookmarks import Bookmarks, SubscriptionProgress
from ackstream.protocol.queries import Position, bookmark, end
from tests.client.files import dump, write

TOPIC, SUB = "orders", "mine"


def _at(number: int) -> Position:
    return Position(1, 0, number)


def _mark(number: int) -> str:
    return bookmark(_at(number), TOPIC)


def _receive(store: Bookmarks, numbers: Iterable[int]) -> list[int]:
    store.open(SUB, TOPIC)
    return [number for number in numbers if store.received(SUB, _mark(number))]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Bookmarks:
    return Bookmarks("p1") if request.param == "memory" else Bookmarks("p1", tmp_path / "store")


def test_a_subscription_resumes_after_what_was_discarded_without_a_gap(store: Bookmarks) -> None:
    assert store.most_recent(SUB) == "EPOCH"
    assert _receive(store, range(1, 6)) == [1, 2, 3, 4, 5]
    assert store.most_recent(SUB) == "EPOCH"
    for number in (1, 2, 4):
        store.discard(SUB, _mark(number))
    assert store.most_recent(SUB) == _mark(2)
    assert _receive(store, range(1, 6)) == [3, 5]


def test_with_nothing_outstanding_a_subscription_resumes_where_the_log_was(store: Bookmarks) -> None:
    _receive(store, [1])
    far = bookmark(end(9), TOPIC)
    store.persisted(SUB, far)
    assert store.most_recent(SUB) == "EPOCH"
    store.discard(SUB, _mark(1))
    assert store.most_recent(SUB) == far


def test_a_subscription_resumes_no_earlier_than_where_it_began_although_its_first_message_is_outstanding(
    store: Bookmarks,
) -> None:
    store.open(SUB, TOPIC)
    began = bookmark(end(0), TOPIC)
    store.persisted(SUB, began)
    assert _receive(store, [1, 2]) == [1, 2]
    store.discard(SUB, _mark(2))
    assert store.most_recent(SUB) == began
    # a replay from before brings what is outstanding before that
    store.received(SUB, bookmark(Position(0, 0, 3), TOPIC))
    assert store.most_recent(SUB) == "EPOCH"


def test_of_a_subscription_without_bookmarks_nothing_is_kept(store: Bookmarks) -> None:
    store.discard("live", _mark(1))
    assert store.most_recent("live") == "EPOCH"


@given(received=st.integers(1, 12), data=st.data())
def test_a_file_remembers_what_memory_remembers(
    received: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bookmarks") / "store"
    memory, file = Bookmarks("p1"), Bookmarks("p1", path)
    for store in (memory, file):
        _receive(store, range(1, received + 1))
    for number in data.draw(st.lists(st.integers(1, received))):
        for store in (memory, file):
            store.discard(SUB, _mark(number))
    file.close()
    again = Bookmarks("p1", path)
    assert again.most_recent(SUB) == memory.most_recent(SUB)
    assert _receive(again, range(1, received + 1)) == _receive(memory, range(1, received + 1))
    again.close()


VERSION_1 = """
PRAGMA user_version = 1;
CREATE TABLE owner (client TEXT NOT NULL);
INSERT INTO owner VALUES ('p1');
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
INSERT INTO subscriptions VALUES ('mine', 'orders', '1|0|2|f85164bc');
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
INSERT INTO discarded VALUES ('mine', '1|0|4|f85164bc');
"""
"""A file of the present version: 1, 2 and 4 were discarded."""


def test_a_file_of_this_version_is_read_and_written_as_it_always_was(tmp_path: Path) -> None:
    write(tmp_path / "store", VERSION_1)
    old = Bookmarks("p1", tmp_path / "store")
    assert old.most_recent(SUB) == _mark(2)
    assert _receive(old, range(1, 6)) == [3, 5]
    old.close()
    new = Bookmarks("p1", tmp_path / "new")
    _receive(new, range(1, 6))
    for number in (1, 2, 4):
        new.discard(SUB, _mark(number))
    new.close()
    assert dump(tmp_path / "new") == dump(tmp_path / "store")


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    open_one = Bookmarks("p1", path)
    with pytest.raises(StoreError, match="another process has it open"):
        Bookmarks("p1", path)
    open_one.close()
    with pytest.raises(StoreError, match="belongs to the client p1, not to p2"):
        Bookmarks("p2", path)
    (tmp_path / "other").write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="damaged"):
        Bookmarks("p1", tmp_path / "other")


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
def test_where_a_subscription_resumes(
    received: list[int], discarded: list[int], persisted: int | None, after: int
) -> None:
    progress = SubscriptionProgress(TOPIC, _at(0))
    for position in received:
        assert progress.received(_at(position))
    for position in discarded:
        progress.discard(_at(position))
    if persisted is not None:
        progress.persisted(_at(persisted))
    assert progress.resume_after == _at(after)


def test_the_persisted_bookmark_does_not_go_back() -> None:
    progress = SubscriptionProgress(TOPIC, _at(0))
    progress.persisted(_at(9))
    progress.persisted(_at(5))
    assert progress.resume_after == _at(9)


@given(received=st.sets(st.integers(1, 30)), data=st.data())
def test_nothing_outstanding_is_ever_skipped(received: set[int], data: st.DataObject) -> None:
    progress = SubscriptionProgress(TOPIC, _at(0))
    for position in sorted(received):
        progress.received(_at(position))
    discarded = data.draw(st.lists(st.sampled_from(sorted(received)))) if received else []
    for position in discarded:
        progress.discard(_at(position))
    outstanding = received - set(discarded)
    assert all(_at(position) > progress.resume_after for position in outstanding)
    assert all(progress.received(_at(position)) == (position in outstanding) for position in sorted(received))


def test_what_was_discarded_before_a_restart_is_not_delivered_again() -> None:
    progress = SubscriptionProgress(TOPIC, _at(2), discarded=[_at(4)])
    assert [progress.received(_at(number)) for number in (2, 3, 4, 5)] == [False, True, False, True]
    progress.discard(_at(3))
    assert progress.resume_after == _at(4)


class Counted(int):
    """A position that counts how often one is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("backwards", [False, True])
def test_the_work_of_discarding_grows_with_the_number_of_messages_alone(*, backwards: bool) -> None:
    count, Counted.compared = 2_000, 0
    progress = SubscriptionProgress(TOPIC, Counted(0))  # type: ignore[arg-type]
    positions = [Counted(number) for number in range(1, count + 1)]
    for position in positions:
        progress.received(position)  # type: ignore[arg-type]
    for position in reversed(positions) if backwards else positions:
        progress.discard(position)  # type: ignore[arg-type]
    assert progress.resume_after == count
    assert Counted.compared < 100 * count


def test_a_file_keeps_only_the_discarded_positions_after_an_outstanding_one(tmp_path: Path) -> None:
    store = Bookmarks("p1", tmp_path / "store")
    _receive(store, range(1, 6))
    kept = []
    for number in (3, 2, 5, 1, 4):
        store.discard(SUB, _mark(number))
        assert store._file is not None
        kept.append(sorted(text for (text,) in store._file.read("SELECT bookmark FROM discarded")))
    assert kept == [
        [_mark(3)],
        [_mark(2), _mark(3)],
        [_mark(2), _mark(3), _mark(5)],
        [_mark(5)],
        [],
    ]
    store.close()
