"""The order of things in a search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.twin.search_page import SearchPage, is_before, place, rank, read_options

VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=3)
PAGE = read_options(["sort(+attributes/a,-attributes/b)"])


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
