from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from ackstream.protocol import json
from ackstream.protocol.errors import DittoError
from tests.harness.effort import soon

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


@pytest.mark.parametrize("reader", [json.reader(dict[str, int], "numbers"), json.optional_reader(dict[str, int])])
def test_a_byte_order_mark_before_a_record_is_ignored(reader: Any) -> None:
    assert reader(json.BYTE_ORDER_MARK + b'{"a":1}') == reader(b'{"a":1}') == {"a": 1}


def test_removing_nothing_changes_nothing() -> None:
    assert json.remove({"a": {"b": 1}}, ("a", "c")) == {"a": {"b": 1}}
    assert json.remove({"a": [1]}, ("a", "0")) == {"a": [1]}


def test_what_is_no_object_becomes_one_on_the_way() -> None:
    assert json.put({"a": [1]}, ("a", "b"), 2) == {"a": {"b": 2}}


def test_the_keys_of_a_path_are_read_without_complaint() -> None:
    assert json.keys_of("/") == json.keys_of("") == ()
    assert json.keys_of("a//b~1c/~01/") == ("a", "b/c", "~1")


THING = {
    "thingId": "a:b",
    "attributes": {"model": "x", "place": {"city": "Bonn", "zip": "1"}},
    "features": {"f": {"properties": {"on": True}}, "g": {"definition": ["a:b:1"]}},
    "_revision": 3,
}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("thingId", {"thingId": "a:b"}),
        ("_revision,thingId", {"thingId": "a:b", "_revision": 3}),
        ("attributes(model,place/city)", {"attributes": {"model": "x", "place": {"city": "Bonn"}}}),
        ("attributes/place", {"attributes": {"place": {"city": "Bonn", "zip": "1"}}}),
        ("/attributes/model", {"attributes": {"model": "x"}}),
        ("attributes/none,none", {}),
        ("features/*", {"features": THING["features"]}),
        ("features/f(properties,*),features/*/definition", {"features": THING["features"]}),
        ("attributes/place/*", {}),
        ("features/*/properties", {"features": {"f": {"properties": {"on": True}}}}),
        ("attributes(place(zip))", {"attributes": {"place": {"zip": "1"}}}),
        ("attributes/model,attributes", {"attributes": THING["attributes"]}),
    ],
)
def test_a_selector_keeps_the_fields_it_names(selector: str, expected: Any) -> None:
    assert json.select(THING, selector) == expected


@pytest.mark.parametrize("selector", ["", "a(b", "a)b(", "a(b)c", "(" * 500 + ")" * 500, "a" * 10_001])
def test_other_texts_are_refused(selector: str) -> None:
    with pytest.raises(DittoError) as found:
        json.select(THING, selector)
    assert found.value.error in ("json.fieldselector.invalid", "json.pointer.invalid")


def test_a_selector_returns_other_values_than_objects_unchanged() -> None:
    assert json.select([1], "a") == [1]


def test_many_fields_are_selected_from_many_at_once() -> None:
    large = {"attributes": {f"k{number}": number for number in range(10_000)}}
    with soon(0.1):
        found = json.select(large, f"attributes({','.join(f'k{number}' for number in range(1_600))})")
    assert len(found["attributes"]) == 1_600
