from __future__ import annotations

from itertools import count

import pytest

from ackstream.client.errors import CommandTimeout, StreamClosedError
from ackstream.client.queries import message_stream
from ackstream.client.queries.bookmarks import Bookmarks, LogMessage
from ackstream.client.queries.message_stream import MessageStream
from ackstream.errors import BadParameterError
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.queries import Position, bookmark


def _stream(awaited: str = "completed", *, live: bool = False, bookmarks: Bookmarks | None = None) -> MessageStream:
    return MessageStream("c1", "s", set(awaited.split()), live=live, bookmarks=bookmarks, handler=None)


def _message(number: int, command: str = "publish", bookmarks: Bookmarks | None = None) -> LogMessage:
    mark = bookmark(Position(1, 0, number), "orders")
    return LogMessage("p1", "orders", None, b"%d" % number, {}, 0, command, mark, "s", bookmarks)


_OFFSETS = count()


def _add(stream: MessageStream, *messages: LogMessage) -> None:
    """Add messages as new records of partition 0; those of a query begin a group."""
    if messages[0].command == "sow":
        stream.begin_group((0, next(_OFFSETS)))
    for message in messages:
        stream.add_message((0, next(_OFFSETS)), message)


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


async def _awaited(_message: object) -> None: ...


def test_a_handler_that_would_not_run_is_refused_before_the_stream_moves_on() -> None:
    with pytest.raises(BadParameterError, match=r"handler is .* has to be awaited: use the client in ackstream\.aio"):
        MessageStream("c1", "s", set(), live=True, bookmarks=None, handler=_awaited)  # type: ignore[arg-type]


def test_a_handler_gets_the_messages_instead() -> None:
    seen: list[bytes | None] = []
    stream = MessageStream(
        "c1", "s", set(), live=True, bookmarks=None, handler=lambda message: seen.append(message.value)
    )
    _add(stream, _message(1), _message(1), _message(2))
    assert seen == [b"1", b"2"]
    assert stream.receive(0) is None


def test_a_stream_takes_no_more_than_fits_and_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 1_300)
    stream = _stream(live=True)
    log = [((0, 10 + number), _message(number)) for number in range(8)]
    for record in log[:6]:
        stream.add_message(*record)
    assert stream.behind == (0, 13)
    assert not stream.has_room
    assert [(stream.receive(0) or _message(9)).value for _ in range(3)] == [b"0", b"1", b"2"]
    assert stream.has_room
    # nothing is taken before the first one that was missed
    stream.add_message(*log[6])
    assert stream.receive(0) is None
    for record in log[1:]:
        stream.add_message(*record)
    assert [(stream.receive(0) or _message(9)).value for _ in range(3)] == [b"3", b"4", b"5"]
    assert stream.behind == (0, 16)


def test_a_stream_is_not_over_before_everything_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 500)
    stream = _stream("completed")
    records = [((0, number), _message(number, "sow")) for number in (1, 2)]
    stream.begin_group((0, 0))
    for record in records:
        stream.add_message(*record)
    stream.add_ack("1", CommandAck(ack_type="completed", cid="c1"))
    assert stream.wait("completed", 0).cid == "c1"
    assert (next(stream).value, stream.over) == (b"1", False)
    assert stream.receive(0) is None
    for record in records:
        stream.add_message(*record)
    assert (next(stream).value, stream.over) == (b"2", True)
    assert list(stream) == []


def test_a_bookmark_ahead_of_messages_that_were_not_taken_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 500)
    store = Bookmarks("p1")
    store.open("s", "orders")
    stream = _stream(live=True, bookmarks=store)
    records = [((0, number), _message(number, bookmarks=store)) for number in (1, 2)]
    for record in records:
        stream.add_message(*record)
    ack = CommandAck(ack_type="persisted", sub_id="s", bookmark=bookmark(Position(9, 0, 0), "orders"))
    stream.add_ack("1", ack)
    next(stream).discard()
    assert store.most_recent("s") == bookmark(Position(1, 0, 1), "orders")
    # the client has read it again
    stream.add_message(*records[1])
    stream.add_ack("1", ack)
    next(stream).discard()
    assert store.most_recent("s") == ack.bookmark


def test_a_handler_that_raises_does_not_harm_the_stream() -> None:
    seen: list[bytes | None] = []

    def handle(message: LogMessage) -> None:
        seen.append(message.value)
        raise ValueError("a bug of the application")

    stream = MessageStream("c1", "s", set(), live=True, bookmarks=None, handler=handle)
    _add(stream, _message(1), _message(2))
    assert seen == [b"1", b"2"]
