from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.publishing.queries.positions import (
    BEGINNING,
    InvalidBookmarkError,
    Position,
    Span,
    bookmark,
    end,
    ends,
    parse,
    span,
)

A, B = Position(3, 1, 17), Position(5, 0, 2)
END = end(9)


def _mark(position: Position, topic: str = "orders") -> str:
    return bookmark(position, topic)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("EPOCH", Span(BEGINNING)),
        ("MOST_RECENT", Span(BEGINNING)),
        ("NOW", Span(END)),
        (_mark(A), Span(A)),
        (_mark(end(4)), Span(end(4))),
        (f"[{_mark(A)}:{_mark(B)}]", Span(Position(3, 1, 16), B)),
        (f"({_mark(A)}:{_mark(B)})", Span(A, Position(5, 0, 1))),
        (f" [ {_mark(A)} : ] ", Span(Position(3, 1, 16))),
        (f"(EPOCH:{_mark(end(2))}]", Span(BEGINNING, end(2))),
        (f"[{_mark(A)}:NOW]", Span(Position(3, 1, 16), END)),
    ],
)
def test_where_a_replay_begins_and_ends(text: str, wanted: Span) -> None:
    assert span(text, "orders", END) == wanted
    assert ends(text) == (wanted.stop is not None)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "17", "3|1|17", _mark(A, "trades"), _mark(Position(10, 0, 0)), _mark(end(10)), "3|1|17|zzzzzzzz",
     f"[{_mark(B)}:{_mark(A)}]", f"[{_mark(A)}:{_mark(B)}", "[:]", f"{_mark(A)}:{_mark(B)}", f"[{_mark(A, 'x')}:]"],
)  # fmt: skip
def test_what_is_no_bookmark_of_the_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidBookmarkError):
        span(text, "orders", END)


@given(
    position=st.builds(Position, st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**15))
    | st.integers(0, 10**12).map(end)
)
def test_a_bookmark_is_read_as_it_was_written(position: Position) -> None:
    assert parse(_mark(position)) == position
    assert span(_mark(position), "orders", end(10**12)) == Span(position)


def test_the_end_of_a_batch_lies_behind_all_its_messages_and_before_the_next_batch() -> None:
    assert Position(4, 10**6, 10**15) < end(4) < Position(5, 0, 0)
    assert end(-1) == BEGINNING < Position(0, 0, 0)


@given(text=st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = span(text, "orders", END)
    except InvalidBookmarkError:
        return
    assert found.after <= END
