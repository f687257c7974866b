"""Queries over many things."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.twin import search
from ackstream.jobs.twin.changes import Thing
from ackstream.jobs.twin.search import SearchPage, is_before, place, rank, read_options
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.errors import DittoError
from ackstream.settings import Correlate, Settings
from tests.harness.effort import soon
from tests.jobs.twin.commands import MANY, answer, body

THINGS = [
    body("create", value={"attributes": {"n": number, "city": city}}, thing=thing)
    for number, (thing, city) in enumerate(
        [("org.acme:d", "Bonn"), ("org.acme:b", "Ulm"), ("org.other:c", "Bonn"), ("org.acme:a", "Ulm")]
    )
]
GONE = [body("create", value={}, thing="org.acme:gone"), body("delete", thing="org.acme:gone")]
VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=3)
PAGE = read_options(["sort(+attributes/a,-attributes/b)"])


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
        ({"options": ["size(2)"], "after": "org.acme:b"}, "dc"),
        ({"options": ["sort(-thingId)"], "after": "org.acme:gone"}, "dba"),
        ({"options": ["sort(+thingId,-attributes/n)", "size(2)"], "after": "org.acme:a"}, "bd"),
        ({"options": ["size(1)"], "all": True}, "abdc"),
        ({"options": ["size(0)"]}, ""),
        ({"options": ["sort(+attributes/city)"], "after": "org.acme:a"}, "b"),
        ({"filter": 'eq(attributes/city,"Bonn")', "only": ["org.acme:*"]}, "d"),
        ({"options": ["limit(1,2)"]}, "bd"),
        ({"options": ["sort(-thingId)"]}, "cdba"),
        ({"options": ["sort(+attributes/city,-attributes/n)"]}, "cdab"),
        ({"options": ["sort(+attributes/none)"]}, "abdc"),
        ({"only": []}, ""),
        ({"only": ["org.acme:?", "org.acme:a"]}, "a"),
        ({"filter": "gt(_modified,time:now-1h)", "options": ["size(1)"]}, "a"),
    ],
)
def test_a_search_finds_a_page_of_things_in_order(wanted: Any, found: str) -> None:
    assert "".join(names(**wanted)) == found


def pages(wanted: Any, then: Any = None) -> list[str]:
    """Return the names on all pages; later ones are asked for by their cursor and what is given for them."""
    found, query = [], wanted
    while True:
        page = ask("/search/things", query)["value"]
        found.append("".join(thing["thingId"].partition(":")[2] for thing in page["items"]))
        if "cursor" not in page:
            return found
        query = {**(wanted if then is None else then)}
        query["options"] = [*query.get("options", []), f"cursor({page['cursor']})"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"options": ["size(3)"]}, ["abd", "c"]),
        ({"options": ["size(2)"]}, ["ab", "dc"]),
        ({"options": ["size(1)", "sort(-attributes/city,+attributes/n)"]}, ["b", "a", "d", "c"]),
        ({"options": ["size(2)", "sort(+attributes/none)"]}, ["ab", "dc"]),
        ({"options": ["size(3)", "sort(-thingId,+attributes/n)"]}, ["cdb", "a"]),
        ({"filter": "ge(attributes/n,1)", "options": ["size(1)"]}, ["a", "b", "c"]),
        ({"namespaces": ["org.acme"], "options": ["size(2)"]}, ["ab", "d"]),
        ({"only": ["org.acme:*"], "options": ["size(2)"]}, ["ab", "d"]),
    ],
)
def test_a_cursor_leads_to_the_next_page_of_the_same_search(wanted: Any, found: list[str]) -> None:
    assert pages(wanted) == found
    # the cursor knows filter, namespaces and order; what the requester may see is given anew
    shorter = {"options": [option for option in wanted["options"] if option.startswith("size")]}
    assert pages(wanted, shorter | {name: wanted[name] for name in ("only",) if name in wanted}) == found


class Watched(dict[str, Thing]):
    """Things, and how many of them were looked at."""

    looks = 0

    def __getitem__(self, thing_id: str) -> Thing:
        self.looks += 1
        return super().__getitem__(thing_id)


@pytest.mark.parametrize("order", ["", "sort(+thingId)", "sort(-thingId,+attributes/n)"])
def test_all_pages_in_the_order_of_ids_look_at_each_thing_once(order: str) -> None:
    names_ = [f"a:{number:03}" for number in range(100)]
    content = {name: msgspec.json.encode({"thingId": name}) for name in names_}
    things = Watched({name: Thing(1, 0, 0, content[name]) for name in names_})
    found: list[str] = []
    options, pages_ = ["size(10)", *([order] if order else [])], 0
    while options:
        query = {"topic": MANY, "path": "/search/things", "value": {"options": options}}
        page = search.answer(decode(msgspec.json.encode(query)), things, 0, 1_000_000)
        found += [msgspec.json.decode(item)["thingId"] for item in page["items"]]
        options, pages_ = ["size(10)", f"cursor({page['cursor']})"] if "cursor" in page else [], pages_ + 1
    assert found == sorted(names_, reverse="-thingId" in order)
    # and once more at the one behind a page, which says that there is another page
    assert things.looks == len(names_) + pages_ - 1


def test_a_cursor_does_not_widen_what_its_sender_may_see() -> None:
    cursor = ask("/search/things", {"options": ["size(1)"]})["value"]["cursor"]
    assert names(options=[f"cursor({cursor})"], only=["*:d", "*:c"]) == ["d", "c"]


CURSOR = ask("/search/things", {"filter": "exists(thingId)", "options": ["size(1)", "sort(-thingId)"]})["value"][
    "cursor"
]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"filter": "exists(attributes/n)"}, "The parameter 'filter' must not differ"),
        ({"namespaces": ["org.acme"]}, "The parameter 'namespaces' must not differ"),
        ({"options": ["sort(+thingId)"]}, "The option 'sort' must not differ"),
        ({"options": ["limit(0,5)"]}, "'cursor' and 'limit' must not be used together"),
        ({"options": [f"cursor({CURSOR})"]}, "There may not be more than 1 'cursor' option"),
    ],
)
def test_a_cursor_is_bound_to_its_search(wanted: Any, reason: str) -> None:
    options = [*wanted.get("options", []), f"cursor({CURSOR})"]
    told = ask("/search/things", {**wanted, "options": options})
    assert (told["status"], told["value"]["error"]) == (400, "thing-search:search.option.invalid")
    assert reason in told["value"]["description"]


@pytest.mark.parametrize("cursor", ["3", "x", "W10", "WyJhIl0", CURSOR[:-3], "ü"])
def test_other_texts_are_no_cursors(cursor: str) -> None:
    told = ask("/search/things", {"options": [f"cursor({cursor})"]})
    assert (told["status"], told["value"]["error"]) == (400, "thing-search:search.option.invalid")


def test_a_thing_that_is_gone_has_a_place_in_the_order_of_ids_alone() -> None:
    told = ask("/search/things", {"options": ["sort(+attributes/n)"], "after": "org.acme:gone"})
    assert (told["status"], told["value"]["error"]) == (400, "thing-search:search.option.invalid")


@pytest.mark.parametrize(
    ("after", "wanted"),
    [("org.other:c", {"only": ["org.acme:*"]}), ("org.acme:a", {"filter": 'eq(attributes/city,"Bonn")'})],
    ids=["hidden", "not-found"],
)
def test_a_search_does_not_tell_where_a_thing_would_be_that_it_does_not_find(
    after: str, wanted: dict[str, Any]
) -> None:
    options = {"options": ["sort(+attributes/n)"], **wanted}
    hidden, gone = (ask("/search/things", {**options, "after": name}) for name in (after, "org.acme:gone"))
    assert (hidden["status"], hidden["value"]["error"]) == (400, "thing-search:search.option.invalid")
    assert hidden["value"]["description"].replace(after, "org.acme:gone") == gone["value"]["description"]


def test_things_that_disappear_leave_no_gap_between_pages() -> None:
    cursor = ask("/search/things", {"options": ["size(2)"]})["value"]["cursor"]
    after = {"topic": MANY, "path": "/search/things", "value": {"options": [f"cursor({cursor})"]}}
    # with an offset, d would be skipped
    left = answer(*THINGS, body("delete", thing="org.acme:a"), after)["value"]["items"]
    assert [thing["thingId"] for thing in left] == ["org.acme:d", "org.other:c"]


def test_a_limit_has_the_offset_of_the_next_page() -> None:
    page = ask("/search/things", {"options": ["limit(1,2)"]})["value"]
    assert (page["nextPageOffset"], "cursor" in page) == (3, False)
    assert "nextPageOffset" not in ask("/search/things", {"options": ["limit(2,2)"]})["value"]


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
    lengths, value = [], {}
    while True:
        page = answer(*things, query | {"value": {**value, "all": True}}, settings=settings)["value"]
        lengths.append(len(page["items"]))
        if "cursor" not in page:
            break
        value = {"options": [f"cursor({page['cursor']})"]}
    assert lengths == [2, 2, 1]
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
        ("/search/things", {"only": 'like(thingId,"*")'}, "json.invalid"),
        ("/search/things", {"filter": f"or({','.join(['exists(thingId)'] * 200)})"}, "rql.expression.invalid"),
        ("/search/things", {"options": ["size(1)"] * 11}, "json.invalid"),
        ("/search/things", {"options": [f"sort({','.join(['+thingId'] * 11)})"]}, "thing-search:search.option.invalid"),
        ("/search/things", {"namespaces": ["a"] * 1_001}, "json.invalid"),
        ("/", {"thingIds": ["a:b"] * 5_001}, "json.invalid"),
    ],
)
def test_invalid_queries_are_rejected(path: str, value: Any, error: str) -> None:
    told = ask(path, value)
    assert (told["topic"], told["value"]["error"]) == ("_/_/things/twin/errors", error)
    assert told["status"] == 400


def test_a_search_takes_no_longer_than_reading_the_things_does_whatever_it_asks_for() -> None:
    things = {f"a:{number}": thing_with(list(range(100))) for number in range(500)}
    dear = f"or({','.join(f'gt(attributes/x,1000{number})' for number in range(199))})"
    query = {"topic": MANY, "path": "/search/things", "value": {"filter": dear}}
    with pytest.raises(DittoError) as refused, soon(0.5):
        search.answer(decode(msgspec.json.encode(query)), things, 0, 1_000_000)
    assert refused.value.error == "rql.expression.expensive"
    # one condition has values enough for all of them
    query["value"] = {"filter": "eq(attributes/x,99)", "options": ["size(200)"]}
    page = search.answer(decode(msgspec.json.encode(query)), things, 0, 1_000_000)
    assert len(page["items"]) == 200


def test_long_texts_are_too_dear_to_sort_by() -> None:
    things = {f"a:{number}": thing_with("x" * 10_000) for number in range(500)}
    query = {"topic": MANY, "path": "/search/things", "value": {"options": ["sort(+attributes/x)"]}}
    with pytest.raises(DittoError, match="more than 30000 steps"):
        search.answer(decode(msgspec.json.encode(query)), things, 0, 1_000_000)


def test_things_are_read_for_an_answer_up_to_ten_times_its_size() -> None:
    things = {f"a:{number}": thing_with("x" * 10_000) for number in range(200)}
    query = {"topic": MANY, "path": "/", "fields": "policyId", "value": {"thingIds": list(things)}}
    with pytest.raises(DittoError, match="The answer exceeds"):
        search.answer(decode(msgspec.json.encode(query)), things, 0, 100_000)


def thing_with(value: Any) -> Thing:
    return Thing(1, 0, 0, msgspec.json.encode({"thingId": "a:b", "attributes": {"x": value}}))


def test_values_of_all_kinds_have_an_order() -> None:
    ordered = [None, -1.5, 0, 2**53, 2.0**53 + 2, "", "1", "Z", "a", "\N{GRINNING FACE}", "\uffff", False, True]
    assert sorted([*ordered[6:], *ordered[:6]], key=rank) == ordered


@given(st.lists(st.tuples(VALUES, VALUES), max_size=8))
def test_each_page_begins_behind_the_last_thing_of_the_one_before(values: list[tuple[object, object]]) -> None:
    things = [
        {"thingId": f"a:{number}", "attributes": {"a": one, "b": other}} for number, (one, other) in enumerate(values)
    ]
    places = [place(thing, PAGE) for thing in things]
    for position in places:
        behind = [other for other in places if is_before(position, other, PAGE)]
        before = [other for other in places if is_before(other, position, PAGE)]
        # each other thing is on one side
        assert len(behind) + len(before) == len(places) - 1


def test_a_page_is_in_the_order_of_ids_unless_something_else_is_asked_for() -> None:
    assert SearchPage().by_id
    assert read_options(["sort(-thingId,+attributes/a)"]).by_id
    assert not PAGE.by_id
