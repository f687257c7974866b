from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.rql.patterns import expression, matches, matches_any


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("plant", "plant", True),
        ("plant", "plants", False),
        ("*", "", True),
        ("plant-*", "plant-7", True),
        ("*-7", "plant-7", True),
        ("a*a", "a", False),
        ("a*b*c", "axbxc", True),
        ("[a]?", "[a]?", True),
        ("[a]?", "ab", False),
    ],
)
def test_a_star_is_any_run_and_nothing_else_is_special(pattern: str, name: str, *, fits: bool) -> None:
    assert matches(pattern, name) is fits


def test_one_of_several_is_enough() -> None:
    assert matches_any(("x", "p*"), "plant")
    assert not matches_any((), "plant")


@given(st.lists(st.text("ab*.[\n", max_size=8), max_size=3), st.text("ab.[\n", max_size=10))
def test_the_regular_expression_finds_what_the_patterns_match(patterns: list[str], name: str) -> None:
    assert matches_any(patterns, name) == bool(re.search(expression(patterns), name))


def test_no_pattern_takes_long() -> None:
    assert not matches("*a" * 100 + "b", "a" * 255)
