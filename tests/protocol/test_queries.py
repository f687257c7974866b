from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.messages import ClientCommand
from ackstream.protocol.queries import (
    BEGINNING,
    BookmarkSyntaxError,
    LogSpan,
    Position,
    bookmark,
    end,
    ends,
    parse_bookmark,
    span,
    statistics,
)

A, B = Position(3, 1, 17), Position(5, 0, 2)
END = end(9)


def _mark(position: Position, topic: str = "orders") -> str:
    return bookmark(position, topic)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("EPOCH", LogSpan(BEGINNING)),
        ("MOST_RECENT", LogSpan(BEGINNING)),
        ("NOW", LogSpan(END)),
        (_mark(A), LogSpan(A)),
        (_mark(end(4)), LogSpan(end(4))),
        (f"[{_mark(A)}:{_mark(B)}]", LogSpan(Position(3, 1, 16), B)),
        (f"({_mark(A)}:{_mark(B)})", LogSpan(A, Position(5, 0, 1))),
        (f" [ {_mark(A)} : ] ", LogSpan(Position(3, 1, 16))),
        (f"(EPOCH:{_mark(end(2))}]", LogSpan(BEGINNING, end(2))),
        (f"[{_mark(A)}:NOW]", LogSpan(Position(3, 1, 16), END)),
    ],
)
def test_where_a_replay_begins_and_ends(text: str, wanted: LogSpan) -> None:
    assert span(text, "orders", END) == wanted
    assert ends(text) == (wanted.stop is not None)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "17", "3|1|17", _mark(A, "trades"), _mark(Position(10, 0, 0)), _mark(end(10)), "3|1|17|zzzzzzzz",
     f"[{_mark(B)}:{_mark(A)}]", f"[{_mark(A)}:{_mark(B)}", "[:]", f"{_mark(A)}:{_mark(B)}", f"[{_mark(A, 'x')}:]"],
)  # fmt: skip
def test_what_is_no_bookmark_of_the_topic_is_refused(text: str) -> None:
    with pytest.raises(BookmarkSyntaxError):
        span(text, "orders", END)


@given(
    position=st.builds(Position, st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**15))
    | st.integers(0, 10**12).map(end)
)
def test_a_bookmark_is_read_as_it_was_written(position: Position) -> None:
    assert parse_bookmark(_mark(position)) == position
    assert span(_mark(position), "orders", end(10**12)) == LogSpan(position)


def test_the_end_of_a_batch_lies_behind_all_its_messages_and_before_the_next_batch() -> None:
    assert Position(4, 10**6, 10**15) < end(4) < Position(5, 0, 0)
    assert end(-1) == BEGINNING < Position(0, 0, 0)


@given(text=st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = span(text, "orders", END)
    except BookmarkSyntaxError:
        return
    assert found.after <= END


def _command(name: str = "sow", top_n: int | None = None) -> ClientCommand:
    return ClientCommand(name, "c", top_n=top_n)


@pytest.mark.parametrize(("top_n", "returned"), [(None, 120), (50, 50), (0, 0), (500, 120)])
def test_a_query_counts_what_it_returns(top_n: int | None, returned: int) -> None:
    ack = statistics(_command(top_n=top_n), 1000, 120)
    assert (ack.topic_matches, ack.matches, ack.records_returned, ack.records_deleted) == (1000, 120, returned, None)


def test_a_delete_counts_what_it_deletes() -> None:
    ack = statistics(_command("sow_delete"), 1000, 30)
    assert (ack.topic_matches, ack.matches, ack.records_returned, ack.records_deleted) == (1000, 30, None, 30)
