from __future__ import annotations

import pytest

from ackstream.client.bookmarks import Bookmarks
from ackstream.client.errors import CommandTimeout, StreamClosedError
from ackstream.client.message_stream import Message, MessageStream
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.queries import Position, bookmark


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
