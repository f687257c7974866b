from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.labels import (
    BUILT_IN,
    LIVE_RESPONSE,
    SEARCH_PERSISTED,
    TWIN_PERSISTED,
    is_built_in,
    parse_label,
)
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:"


@given(st.text(LETTERS, min_size=3, max_size=165), st.sampled_from(["", "{{connection:id}}:", "{{ a:b\t}}:"]))
def test_three_to_165_characters_are_a_label_whatever_the_placeholder(text: str, prefix: str) -> None:
    assert parse_label(prefix + text) == prefix + text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab",
        "a" * 166,
        "abc\n",
        "äbc",
        "{{connection:id}}",
        "{{connection:id}}:ab",
        "{{connection:id}}:" + "a" * 166,
        "{{connection:id}}:{{connection:id}}:abc",
        "{{connection:id }}abc",
        "{{\u00a0connection:id}}:abc",
        "x" * 100_000,
        "{{" + " " * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    error = refusal(parse_label, text)
    assert (error.status, error.error) == (400, "acknowledgement:label.invalid")
    assert error.href is not None


def test_a_long_placeholder_does_not_count() -> None:
    text = "{{" + " " * 1_000 + "connection:id}}:abc"
    assert parse_label(text) == text


@given(st.text())
def test_any_text_is_a_label_or_refused(text: str) -> None:
    label = outcome(parse_label, text)
    if isinstance(label, DittoError):
        assert not re.fullmatch("[a-zA-Z0-9_:-]{3,165}", text)
    else:
        assert label == text


@each("labels", "builtin-order")
def test_prose_built_in_labels(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert list(BUILT_IN) == expect["labels"]


@each("labels", "builtin-contains-None")
def test_prose_built_in_or_not(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert is_built_in(given_["label"]) is expect["builtIn"]


@each("labels", "builtin-equals-plain-label")
def test_prose_a_built_in_label_equals_a_parsed_one(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert (parse_label("twin-persisted") == TWIN_PERSISTED) is expect["equal"]
    assert list(BUILT_IN)[1:] == [LIVE_RESPONSE, SEARCH_PERSISTED]


@each("labels", "compare-")
def test_prose_labels_compare_as_texts(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    left, right = map(parse_label, given_["compare"])
    assert (left > right) - (left < right) == expect["sign"]
