"""Files of clients after a power failure: what was not on the disk yet is lost from its end, or torn."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.core.storage import KeptMessage, PublishStore
from ackstream.client.queries.bookmarks import Bookmarks
from ackstream.protocol.queries import Position, bookmark

if TYPE_CHECKING:
    from pathlib import Path

    State: TypeAlias = tuple[int, int, list[int]]

CHANGES, ON_DISK = 40, 20
"""So many changes are made; the first of them are in the database, the others in its write-ahead log alone."""

PAGE, LOG_HEADER, FRAME_HEADER = 4_096, 32, 24
TOPIC, SUB = "orders", "mine"


class Crashed:
    """The two files of a store as they were, and what had happened to it: megabytes that nobody wants to see."""

    def __init__(self, path: Path, history: list[Any]) -> None:
        self.database, self.log = path.read_bytes(), path.with_name(f"{path.name}-wal").read_bytes()
        self.history = history

    def write(self, path: Path, log: bytes, database: bytes | None = None) -> Path:
        path.write_bytes(self.database if database is None else database)
        path.with_name(f"{path.name}-wal").write_bytes(log)
        return path


def _state(messages: PublishStore) -> State:
    return messages.last, messages.discarded, messages.numbers()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    path = tmp_path_factory.mktemp("crashed") / "store"
    messages, states = PublishStore(path, "p1"), []
    for seq in range(1, CHANGES + 1):
        messages.add(seq, KeptMessage(b"%d" % seq * 200, []))
        if seq == ON_DISK:
            messages._file.read("PRAGMA wal_checkpoint(RESTART)")
        states.append(_state(messages))
        if seq % 3 == 0:
            messages.drop(seq - 2)
            states.append(_state(messages))
    found = Crashed(path, states)
    messages.close()
    return found


def _reopened(path: Path) -> State:
    messages = PublishStore(path, "p1")
    state = _state(messages)
    assert all(messages.get(seq) == KeptMessage(b"%d" % seq * 200, []) for seq in state[2])
    # it can be used
    messages.add(state[0] + 1, KeptMessage(b"next", []))
    messages.close()
    again = PublishStore(path, "p1")
    assert again.last == state[0] + 1
    again.close()
    return state


LOST = st.sampled_from(["cut off", "zeros", "ones", "other bytes"])


def _lose(log: bytes, at: int, how: str) -> bytes:
    rest = len(log) - at
    ends = {"cut off": b"", "zeros": bytes(rest), "ones": b"\xff" * rest, "other bytes": log[::-1][:rest]}
    return log[:at] + ends[how]


@given(share=st.floats(0, 1), how=LOST)
def test_a_store_that_lost_the_end_of_its_log_is_as_it_was_after_an_earlier_change(
    crashed: Crashed, tmp_path_factory: pytest.TempPathFactory, share: float, how: str
) -> None:
    path = tmp_path_factory.mktemp("lost") / "store"
    log = _lose(crashed.log, round(share * len(crashed.log)), how)
    assert _reopened(crashed.write(path, log)) in [state for state in crashed.history if state[0] >= ON_DISK]


@given(share=st.floats(0, 1), length=st.integers(1, 8_192))
def test_a_store_with_a_hole_in_its_log_is_as_it_was_before_the_hole(
    crashed: Crashed, tmp_path_factory: pytest.TempPathFactory, share: float, length: int
) -> None:
    path, at = tmp_path_factory.mktemp("hole") / "store", round(share * len(crashed.log))
    log = crashed.log[:at] + bytes(len(crashed.log[at : at + length])) + crashed.log[at + length :]
    assert _reopened(crashed.write(path, log)) in [state for state in crashed.history if state[0] >= ON_DISK]


@given(share=st.floats(0, 1), torn=st.integers(0, PAGE))
def test_a_database_that_was_torn_while_its_log_was_copied_into_it_has_lost_nothing(
    crashed: Crashed, tmp_path_factory: pytest.TempPathFactory, share: float, torn: int
) -> None:
    directory = tmp_path_factory.mktemp("torn")
    copied = crashed.write(directory / "copied", crashed.log)
    with sqlite3.connect(copied) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    after, database = copied.read_bytes(), crashed.database.ljust(copied.stat().st_size, b"\0")
    pages = _pages(crashed.log)
    count = round(share * (len(pages) - 1))
    for page in pages[: count + 1]:
        database = database[: page * PAGE] + after[page * PAGE : (page + 1) * PAGE] + database[(page + 1) * PAGE :]
    # the last one was being written
    at, end = pages[count] * PAGE + torn, (pages[count] + 1) * PAGE
    database = database[:at] + b"\xff" * (end - at) + database[end:]
    assert _reopened(crashed.write(directory / "store", crashed.log, database)) == crashed.history[-1]


def _pages(log: bytes) -> list[int]:
    """Return the pages that a log has, from 0: each frame begins with its page's number, from 1."""
    frames = range(LOG_HEADER, len(log), FRAME_HEADER + PAGE)
    return sorted({int.from_bytes(log[at : at + 4], "big") - 1 for at in frames})


@given(share=st.floats(0, 1), how=LOST)
def test_a_subscription_whose_file_lost_its_end_delivers_again_and_leaves_nothing_out(
    tmp_path_factory: pytest.TempPathFactory, bookmarked: Crashed, share: float, how: str
) -> None:
    path, order = tmp_path_factory.mktemp("bookmarks") / "store", bookmarked.history
    bookmarked.write(path, _lose(bookmarked.log, round(share * len(bookmarked.log)), how))
    store = Bookmarks("q1", path)
    store.open(SUB, TOPIC)
    again = [number for number in range(1, CHANGES + 1) if store.received(SUB, _mark(number))]
    # what is not delivered again was discarded first
    assert set(range(1, CHANGES + 1)) - set(again) == set(order[: CHANGES - len(again)])
    assert len(again) <= CHANGES - ON_DISK
    store.close()


def _mark(number: int) -> str:
    return bookmark(Position(1, 0, number), TOPIC)


@pytest.fixture(scope="module")
def bookmarked(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """The files of a subscription, and the order in which it discarded messages."""
    path = tmp_path_factory.mktemp("bookmarked") / "store"
    store = Bookmarks("q1", path)
    store.open(SUB, TOPIC)
    for number in range(1, CHANGES + 1):
        store.received(SUB, _mark(number))
    order = [number for pair in zip(range(2, CHANGES + 1, 2), range(1, CHANGES, 2), strict=True) for number in pair]
    for count, number in enumerate(order, 1):
        store.discard(SUB, _mark(number))
        if count == ON_DISK:
            assert store._file is not None
            store._file.read("PRAGMA wal_checkpoint(RESTART)")
    found = Crashed(path, order)
    store.close()
    return found
