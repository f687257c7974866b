"""Field selectors."""

from __future__ import annotations

from typing import Any

import pytest

from ackstream.protocol.ditto.twin.field_selectors import select, select_of_thing
from ackstream.protocol.errors import DittoError
from tests.harness.effort import soon

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
    assert select(THING, selector) == expected


@pytest.mark.parametrize("selector", ["", "a(b", "a)b(", "a(b)c", "(" * 500 + ")" * 500, "a" * 10_001])
def test_other_texts_are_refused(selector: str) -> None:
    with pytest.raises(DittoError) as found:
        select(THING, selector)
    assert found.value.error in ("json.fieldselector.invalid", "json.pointer.invalid")


def test_a_selector_returns_other_values_than_objects_unchanged() -> None:
    assert select([1], "a") == [1]


@pytest.mark.parametrize("selector", ["_policy", "thingId,_metadata/attributes", "_policy(policyId)"])
def test_fields_that_things_do_not_have_here_are_refused(selector: str) -> None:
    with pytest.raises(DittoError) as found:
        select_of_thing(THING, selector)
    assert found.value.status == 501
    # an attribute may have any name
    assert select({"_policy": 1}, "_policy") == {"_policy": 1}


def test_many_fields_are_selected_from_many_at_once() -> None:
    large = {"attributes": {f"k{number}": number for number in range(10_000)}}
    with soon(0.1):
        found = select(large, f"attributes({','.join(f'k{number}' for number in range(1_600))})")
    assert len(found["attributes"]) == 1_600
