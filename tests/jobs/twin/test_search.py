"""Queries over many things, and field selectors."""

from __future__ import annotations

from typing import Any

import pytest

from ackstream.jobs.twin.search import select
from ackstream.protocol.errors import DittoError
from ackstream.settings import Correlate, Settings
from tests.jobs.twin.commands import MANY, answer, body

THINGS = [
    body("create", value={"attributes": {"n": number, "city": city}}, thing=thing)
    for number, (thing, city) in enumerate(
        [("org.acme:d", "Bonn"), ("org.acme:b", "Ulm"), ("org.other:c", "Bonn"), ("org.acme:a", "Ulm")]
    )
]
GONE = [body("create", value={}, thing="org.acme:gone"), body("delete", thing="org.acme:gone")]


def ask(path: str, value: Any = None, **fields: Any) -> Any:
    query = {"topic": MANY, "path": path, **fields}
    return answer(*THINGS, *GONE, query if value is None else query | {"value": value})


def names(**wanted: Any) -> list[str]:
    return [thing["thingId"].partition(":")[2] for thing in ask("/search/things", wanted)["value"]["items"]]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abdc"),
        ({"filter": 'eq(attributes/city,"Bonn")'}, "dc"),
        ({"namespaces": ["org.other"]}, "c"),
        ({"options": ["size(2)"]}, "ab"),
        ({"options": ["size(2)", "cursor(2)"]}, "dc"),
        ({"options": ["limit(1,2)"]}, "bd"),
        ({"options": ["sort(-thingId)"]}, "cdba"),
        ({"options": ["sort(+attributes/city,-attributes/n)"]}, "cdab"),
        ({"options": ["sort(+attributes/none)"]}, "abdc"),
        ({"filter": "gt(_modified,time:now-1h)", "options": ["size(1)"]}, "a"),
    ],
)
def test_a_search_finds_a_page_of_things_in_order(wanted: Any, found: str) -> None:
    assert "".join(names(**wanted)) == found


def test_a_page_with_more_behind_it_has_the_cursor_of_the_next() -> None:
    first = ask("/search/things", {"options": ["size(3)"]})["value"]
    assert first["cursor"] == "3"
    assert "cursor" not in ask("/search/things", {"options": ["size(3)", "cursor(3)"]})["value"]


def test_a_search_returns_the_selected_fields() -> None:
    shown = ask("/search/things", {"fields": "attributes/n,_revision", "options": ["size(1)"]})["value"]["items"]
    assert shown == [{"attributes": {"n": 3}, "_revision": 1}]
    assert list(ask("/search/things")["value"]["items"][0]) == ["thingId", "policyId", "attributes"]


def test_things_are_counted() -> None:
    assert ask("/search/things/count")["value"] == 4
    assert ask("/search/things/count", {"filter": "ge(attributes/n,2)"})["value"] == 2


def test_several_things_are_retrieved_by_their_ids_in_that_order() -> None:
    wanted = {"thingIds": ["org.acme:d", "org.acme:gone", "org.acme:a", "org.acme:none", "org.acme:d"]}
    assert [thing["thingId"] for thing in ask("/", wanted)["value"]] == ["org.acme:d", "org.acme:a"]
    assert ask("/", wanted, fields="attributes/n")["value"] == [{"attributes": {"n": 0}}, {"attributes": {"n": 3}}]


def test_an_answer_always_fits_into_a_message() -> None:
    settings = Settings(correlate=Correlate(max_value_bytes=1_200))
    things = [body("create", value={"attributes": {"x": "x" * 200}}, thing=f"a:{number}") for number in range(5)]
    query = {"topic": MANY, "path": "/search/things"}
    page = answer(*things, query, settings=settings)["value"]
    assert (len(page["items"]), page["cursor"]) == (2, "2")
    rest = answer(*things, query | {"value": {"options": ["cursor(4)"]}}, settings=settings)["value"]
    assert (len(rest["items"]), "cursor" in rest) == (1, False)
    many = {"topic": MANY, "path": "/", "value": {"thingIds": [f"a:{number}" for number in range(5)]}}
    assert answer(*things, many, settings=settings)["status"] == 413


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("/nowhere", {}, "protocoladapter:unknown.path"),
        ("/", {}, "json.field.missing"),
        ("/", {"thingIds": [1]}, "json.invalid"),
        ("/search/things", [1], "json.invalid"),
        ("/search/things", {"filter": "nonsense"}, "rql.expression.invalid"),
        ("/search/things", {"filter": "eq(nonsense,1)"}, "rql.expression.invalid"),
        ("/search/things", {"options": ["size(201)"]}, "thing-search:search.option.invalid"),
        ("/search/things", {"options": ["size(x)"]}, "thing-search:search.option.invalid"),
        ("/search/things", {"options": ["limit(1)"]}, "thing-search:search.option.invalid"),
        ("/search/things", {"options": ["sort(thingId)"]}, "thing-search:search.option.invalid"),
        ("/search/things", {"options": ["order(1)"]}, "thing-search:search.option.invalid"),
        ("/search/things", {"fields": "a("}, "json.fieldselector.invalid"),
    ],
)
def test_invalid_queries_are_rejected(path: str, value: Any, error: str) -> None:
    told = ask(path, value)
    assert (told["topic"], told["value"]["error"]) == ("_/_/things/twin/errors", error)
    assert told["status"] == 400


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
def test_a_selector_keeps_the_fields_it_names(selector: str, expected: Any) -> None:
    assert select(THING, selector) == expected


@pytest.mark.parametrize("selector", ["", "a(b", "a)b(", "a(b)c", "(" * 500 + ")" * 500])
def test_other_texts_are_refused(selector: str) -> None:
    with pytest.raises(DittoError) as found:
        select(THING, selector)
    assert found.value.error in ("json.fieldselector.invalid", "json.pointer.invalid")


def test_a_selector_returns_other_values_than_objects_unchanged() -> None:
    assert select([1], "a") == [1]
