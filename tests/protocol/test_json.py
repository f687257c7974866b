from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from ackstream.protocol import json
from ackstream.protocol.errors import DittoError

keys = st.lists(st.text(min_size=1, max_size=4), max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/", ()), ("", ()), ("/attributes", ("attributes",)), ("attributes/x", ("attributes", "x")),
        ("/attributes/", ("attributes",)), ("/a~1b/c~0d", ("a/b", "c~d")), ("/~01", ("~1",)),
    ],
)  # fmt: skip
def test_a_pointer_has_its_keys(pointer: str, expected: tuple[str, ...]) -> None:
    assert json.parse_pointer(pointer) == expected


@pytest.mark.parametrize("pointer", ["/attributes//x", "//", "/x" * 201, "/x" * 100_000])
def test_an_empty_key_and_too_many_keys_are_refused(pointer: str) -> None:
    with pytest.raises(DittoError) as found:
        json.parse_pointer(pointer)
    assert found.value.error == "json.pointer.invalid"


@given(keys)
def test_a_written_pointer_reads_back(path: tuple[str, ...]) -> None:
    assert json.parse_pointer(json.write_pointer(path)) == path


@given(keys.filter(bool), st.dictionaries(st.text(max_size=2), st.integers()), st.integers())
def test_what_is_put_is_found_and_gone_once_it_is_removed(
    path: tuple[str, ...], start: dict[str, int], new: int
) -> None:
    before = dict(start)
    filled = json.put(start, path, new)
    assert json.find(filled, path) == new
    assert json.find(json.remove(filled, path), path) is UNSET
    assert start == before


def test_removing_nothing_changes_nothing() -> None:
    assert json.remove({"a": {"b": 1}}, ("a", "c")) == {"a": {"b": 1}}
    assert json.remove({"a": [1]}, ("a", "0")) == {"a": [1]}


def test_what_is_no_object_becomes_one_on_the_way() -> None:
    assert json.put({"a": [1]}, ("a", "b"), 2) == {"a": {"b": 2}}


def test_the_keys_of_a_path_are_read_without_complaint() -> None:
    assert json.keys_of("/") == json.keys_of("") == ()
    assert json.keys_of("a//b~1c/~01/") == ("a", "b/c", "~1")
