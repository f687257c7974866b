from __future__ import annotations

from typing import Any

import pytest

from ackstream.protocol.errors import DittoError
from ackstream.twin.selectors import select

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
        ("features/*/properties", {"features": {"f": {"properties": {"on": True}}}}),
        ("attributes(place(zip))", {"attributes": {"place": {"zip": "1"}}}),
        ("attributes/model,attributes", {"attributes": THING["attributes"]}),
    ],
)
def test_a_selector_leaves_what_it_names(selector: str, expected: Any) -> None:
    assert select(THING, selector) == expected


@pytest.mark.parametrize("selector", ["", "a(b", "a)b(", "a(b)c", "(" * 500 + ")" * 500])
def test_other_texts_are_refused(selector: str) -> None:
    with pytest.raises(DittoError) as found:
        select(THING, selector)
    assert found.value.error in ("json.fieldselector.invalid", "json.pointer.invalid")


def test_what_is_no_object_stays_as_it_is() -> None:
    assert select([1], "a") == [1]
