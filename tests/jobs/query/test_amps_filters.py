from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.query.amps_filters import (
    FIELD_NODES,
    MAX_INSTRUCTIONS,
    MAX_NODES,
    MAX_STEPS,
    AmpsFilter,
    Calculation,
    Constant,
    Expression,
    FieldPath,
    FilterSyntaxError,
    PatternSearch,
    found,
    instructions,
    parse_filter,
)
from tests.harness.effort import soon


def _shown(part: Expression) -> str:
    """Write a tree in one line: the operation first, fields as paths."""
    if isinstance(part, FieldPath):
        return "/" + "/".join(part.names)
    if isinstance(part, Constant):
        return repr(part.value)
    if isinstance(part, PatternSearch):
        return f"(LIKE {_shown(part.text)} {part.pattern!r})"
    return f"({part.name} {' '.join(map(_shown, part.arguments))})"


def _tree(text: str) -> str:
    return _shown(parse_filter(text).condition)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("/x == 'a'", "(= /x 'a')"),
        ("x", "/x"),
        ("/a/b > 10 AND /c != 2", "(AND (> /a/b 10.0) (<> /c 2.0))"),
        ("NOT /x IS NULL or /y is not null", "(OR (NOT (IS NULL /x)) (IS NOT NULL /y))"),
        ("/x NOT IN (1, 'b')", "(NOT (OR (= /x 1.0) (= /x 'b')))"),
        ("/x IN (1, 'b', 2, 'c', TRUE)", "(OR (IN /x 'b' 'c') (IN (NUMBER /x) 1.0 2.0) (= /x True))"),
        ("LENGTH(/x) IN (1, 2)", "(OR (= (LENGTH /x) 1.0) (= (LENGTH /x) 2.0))"),
        ("/x BETWEEN 1 AND 2 * 3", "(AND (>= /x 1.0) (<= /x (* 2.0 3.0)))"),
        ("/x LIKE '^a'", "(LIKE /x '^a')"),
        ("/x BEGINS WITH 'it''s'", '(BEGINS WITH /x "it\'s")'),
        ("LENGTH(/x) >= -1", "(>= (LENGTH /x) (NEGATIVE 1.0))"),
        ("/x <> TRUE", "(<> /x True)"),
        ("1 OR 2 OR 3", "(OR 1.0 2.0 3.0)"),
        ("1 - 2 - 3 * 4", "(- (- 1.0 2.0) (* 3.0 4.0))"),
        ("/a || '-' || /b = 'x'", "(= (|| (|| /a '-') /b) 'x')"),
        ("/x < /y", "(COALESCE (< (NUMBER /x) (NUMBER /y)) (< /x /y))"),
        ("/@x = 'a'' OR 1=1 --\\'", '(= /x "a\' OR 1=1 --\\\\")'),
    ],
)
def test_filters_as_trees(text: str, tree: str) -> None:
    assert _tree(text) == tree


@pytest.mark.parametrize(
    "text",
    ["", "  ", "/x ==", "== 1", "/x = = 1", "(/x = 1", "/x = 1)", "/x 1", "AND", "/x AND", "NOT", "/x NOT 1", "/x IN 1",
     "/x BETWEEN 1", "'open", "/x = #", "drop(/x)", "/x IS 1", "/x; DROP TABLE t", "/x LIKE /y", "/x = 1e999",
     "(" * 500 + "1" + ")" * 500, "ABS(" * 500 + "1" + ")" * 500],
)  # fmt: skip
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match="filter"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("(a", "missing"), ("(a)\\1", "invalid escape"), ("(?=a)b", "invalid perl operator"), ("a{2000}", "repetition"),
     (".{999}.{999}", "instructions"), ("\\pL{300}", "instructions|too large")],
)  # fmt: skip
def test_a_regular_expression_that_is_none_of_re2_or_too_large_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(FilterSyntaxError, match=why):
        parse_filter(f"/x LIKE '{pattern}'")


@pytest.mark.parametrize(
    "pattern",
    ["(a|b)?c", "[(a)*]", r"\(a\)*", "(?i)^ab.*", "a*(b|c)", "x{3}", "(a|b)*", "((a)?)*", "^a''b", "a*a*a*a*b"],
)
def test_other_regular_expressions_are_taken(pattern: str) -> None:
    assert _tree(f"/x LIKE '{pattern}'") == f"(LIKE /x {pattern.replace(chr(39) * 2, chr(39))!r})"


def test_the_regular_expressions_of_a_filter_are_limited_together() -> None:
    one = "/x LIKE '[a-z]{900}'"
    assert parse_filter(f"{one} OR {one}").instructions <= MAX_INSTRUCTIONS
    with pytest.raises(FilterSyntaxError, match="together"):
        parse_filter(" OR ".join([one] * 3))


def test_a_filter_with_more_parts_than_any_client_needs_is_refused() -> None:
    comparison = "/x = 1"
    fits = MAX_NODES // (FIELD_NODES + 2)
    assert parse_filter(" OR ".join([comparison] * fits)).condition.nodes <= MAX_NODES
    with pytest.raises(FilterSyntaxError, match=f"more than {MAX_NODES}"):
        parse_filter(" OR ".join([comparison] * (fits + 1)))
    assert parse_filter(f"/x IN ({','.join(map(str, range(MAX_NODES - FIELD_NODES - 2)))})")


@pytest.mark.parametrize(
    ("opening", "closing"), [("(", " BETWEEN 1 AND 2)"), ("(", " IN (1, 2, 3))"), ("(", " NOT IN ('a', /b))")]
)
def test_what_is_evaluated_twice_does_not_double_with_each_level(opening: str, closing: str) -> None:
    # as SQL text, 60 levels would have 10 to the 18 characters
    with soon(0.1), pytest.raises(FilterSyntaxError, match="more than"):
        parse_filter(opening * 60 + "/x" + closing * 60)


def test_a_sentence_repeats_only_the_beginning_of_a_filter() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        parse_filter("/x = " + "'y" * 2_000)
    assert len(str(caught.value)) < 200


WORDS = st.sampled_from(
    ["/x", "=", "'a'", "(", ")", "AND", "NOT", "1", "-", "IN", ",", "LIKE", "BETWEEN", "||", "LOWER"]
)


@given(text=st.text(max_size=60) | st.lists(WORDS).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(FilterSyntaxError):
        found = parse_filter(text)
        assert isinstance(found, AmpsFilter)
        assert found.condition.nodes == _nodes(found.condition)


def _nodes(part: Expression) -> int:
    if isinstance(part, Calculation):
        return 1 + sum(map(_nodes, part.arguments))
    return 1 + _nodes(part.text) if isinstance(part, PatternSearch) else part.nodes


# -- regular expressions -----------------------------------------------------------------------------------------------


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
    with pytest.raises(FilterSyntaxError, match="RE2 does not accept it: "):
        instructions(pattern)


def test_an_expression_has_a_limited_size() -> None:
    assert instructions("^(open|closed)$") < 50
    with pytest.raises(FilterSyntaxError, match=f"{MAX_INSTRUCTIONS:,} are allowed"):
        instructions("[ab]{999}[ab]{999}[ab]{999}")
