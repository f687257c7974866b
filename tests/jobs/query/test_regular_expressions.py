from __future__ import annotations

import random

import pytest

from ackstream.jobs.query.regular_expressions import (
    MAX_INSTRUCTIONS,
    MAX_STEPS,
    RegularExpressionError,
    found,
    instructions,
)
from tests.harness.effort import soon

LETTERS = bytes(random.Random(1).choices(b"ab", k=1_000_000))


@pytest.mark.parametrize(
    "pattern",
    ["a*a*a*a*b", "(a*)*c", "(a|aa)+$",
     "(x+x+)+y", "a[ab]{20}c", "a[ab]{500}c", "(a?){400}a{400}c", "(a|b)*a(a|b){900}c",
     "(?:a[ab]{30}){30}c", "a[ab]{12}c", ".*.*.*.*=.*", "(?i)(a|b)*a(a|b){100}c"],
)  # fmt: skip
def test_no_expression_takes_long_on_any_text(pattern: str) -> None:
    text = LETTERS[: MAX_STEPS // instructions(pattern)]
    with soon(0.1):
        for letters in (text, b"a" * len(text)):
            found(pattern, letters, len(text))


def test_an_expression_is_found_in_a_part_of_a_text() -> None:
    assert found("b.d", b"abcde", 5)
    assert found("^b", b"abc", 5) is False
    assert found("(?i)\u00c9t\u00e9$", "un \u00e9t\u00e9".encode(), 99)


def test_a_text_that_would_take_too_long_is_neither_found_nor_not_found() -> None:
    assert found("a", b"aaa", 2) is None
    assert found("a", None, 2) is None


@pytest.mark.parametrize("pattern", ["(", "a**{", r"(a)\1", "(?<=a)b", "[z-a]", "\\"])
def test_what_is_no_expression_is_a_sentence(pattern: str) -> None:
    with pytest.raises(RegularExpressionError, match="RE2 does not accept it: "):
        instructions(pattern)


def test_an_expression_has_a_limited_size() -> None:
    assert instructions("^(open|closed)$") < 50
    with pytest.raises(RegularExpressionError, match=f"{MAX_INSTRUCTIONS:,} are allowed"):
        instructions("[ab]{999}[ab]{999}[ab]{999}")
