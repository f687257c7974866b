from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.errors import CommandTimeout, StoreError, StreamClosedError
from ackstream.client.message_stream import Bookmarks, Message, MessageStream, SubscriptionProgress
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.queries import Position, bookmark, end

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def _stream(awaited: str = "completed", *, live: bool = False, bookmarks: Bookmarks | None = None) -> MessageStream:
    return MessageStream("c1", "s", set(awaited.split()), live=live, bookmarks=bookmarks, handler=None)


def _message(number: int, command: str = "publish", bookmarks: Bookmarks | None = None) -> Message:
    mark = bookmark(Position(1, 0, number), "orders")
    return Message(command, "orders", None, b"%d" % number, mark, "s", "p1", 0, (), bookmarks)


def _add(stream: MessageStream, *messages: Message) -> None:
    for message in messages:
        stream.add_message(f"0-1/{message.bookmark}", message)


def test_a_query_ends_with_its_last_acknowledgement() -> None:
    stream = _stream("completed stats")
    _add(stream, _message(2, "sow"), _message(1, "sow"))
    stream.add_ack("1", CommandAck(ack_type="completed", cid="c1"))
    assert not stream.over
    stream.add_ack("2", CommandAck(ack_type="stats", cid="c1", matches=2))
    assert [message.value for message in stream] == [b"2", b"1"]
    assert stream.stats.matches == 2
    assert stream.over


def test_duplicates_from_a_replayed_batch_are_dropped() -> None:
    query, live = _stream(), _stream(live=True)
    for _ in range(2):
        _add(query, _message(2, "sow"), _message(1, "sow"))
        _add(live, _message(1), _message(3))
    _add(live, _message(4))
    query.add_ack("1", CommandAck(ack_type="completed", cid="c1"))
    live.end()
    assert [message.value for message in query] == [b"2", b"1"]
    assert [message.value for message in live] == [b"1", b"3", b"4"]


def test_a_discarded_message_is_not_delivered_again() -> None:
    store = Bookmarks("p1")
    store.open("s", "orders")
    stream = _stream(live=True, bookmarks=store)
    _add(stream, *[_message(number, bookmarks=store) for number in (1, 2)])
    first = stream.receive(0)
    assert first is not None
    first.discard()
    again = _stream(live=True, bookmarks=store)
    _add(again, *[_message(number, bookmarks=store) for number in (1, 2)])
    again.end()
    assert [message.value for message in again] == [b"2"]
    assert store.most_recent("s") == first.bookmark


def test_only_the_last_bookmark_is_kept() -> None:
    store = Bookmarks("p1")
    store.open("s", "orders")
    stream = _stream(live=True, bookmarks=store)
    for number in (7, 9):
        mark = bookmark(Position(number, 0, 0), "orders")
        stream.add_ack("1", CommandAck(ack_type="persisted", sub_id="s", bookmark=mark))
    assert stream.wait("persisted", 0).bookmark == mark == store.most_recent("s")
    assert len(stream.acks) == 1


def test_a_wait_ends_after_its_timeout_or_with_the_stream() -> None:
    stream = _stream("processed completed")
    with pytest.raises(CommandTimeout, match="No acknowledgement completed"):
        stream.wait("completed", 0)
    assert stream.receive(0) is None
    stream.end(StreamClosedError("The client was closed."))
    with pytest.raises(StreamClosedError, match="closed"):
        stream.wait("completed")
    with pytest.raises(StreamClosedError, match="closed"):
        next(stream)


def test_a_handler_gets_the_messages_instead() -> None:
    seen: list[bytes | None] = []
    stream = MessageStream(
        "c1", "s", set(), live=True, bookmarks=None, handler=lambda message: seen.append(message.value)
    )
    _add(stream, _message(1), _message(1), _message(2))
    assert seen == [b"1", b"2"]
    assert stream.receive(0) is None


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
