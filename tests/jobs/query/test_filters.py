from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.query import filters
from ackstream.jobs.query.filters import FilterSyntaxError, SqlFilter, fits_filter, read_filter


def _patterns(text: str) -> tuple[str, ...]:
    selection = read_filter(text)
    assert isinstance(selection, SqlFilter)
    return selection.patterns


def _path(*names: str) -> str:
    return "get_json_object(value, '$" + "".join(f"[\\'{name}\\']" for name in names) + "')"


def _number(name: str) -> str:
    return f"try_cast({_path(name)} AS DOUBLE)"


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("/x == 'a'", f"({_path('x')} = 'a')"),
        ("x", _path("x")),
        ("/a/b > 10 AND /c != 2", f"(({_path('a', 'b')} > 10D) AND ({_path('c')} <> 2D))"),
        ("NOT /x IS NULL or /y is not null", f"((NOT ({_path('x')} IS NULL)) OR ({_path('y')} IS NOT NULL))"),
        ("/x NOT IN (1, 'b')", f"(NOT (({_path('x')} = 1D) OR ({_path('x')} = 'b')))"),
        ("/x BETWEEN 1 AND 2 * 3", f"(({_path('x')} >= 1D) AND ({_path('x')} <= (2D * 3D)))"),
        ("/x LIKE '^a'", f"({_path('x')} RLIKE '^a')"),
        ("/x BEGINS WITH 'it''s'", f"startswith({_path('x')}, 'it\\'s')"),
        ("LENGTH(/x) >= -1", f"(length({_path('x')}) >= (- 1D))"),
        ("/x <> TRUE", f"({_path('x')} <> TRUE)"),
        ("1 OR 2 OR 3", "(1D OR 2D OR 3D)"),
        ("1 - 2 - 3 * 4", "(1D - 2D - (3D * 4D))"),
        ("/x < /y", f"coalesce({_number('x')} < {_number('y')}, {_path('x')} < {_path('y')})"),
    ],
)
def test_filters_in_spark_sql(text: str, sql: str) -> None:
    assert read_filter(text) == SqlFilter(sql, ("^a",) if "LIKE" in text else ())


@pytest.mark.parametrize(
    "text",
    ["", "  ", "/x ==", "== 1", "/x = = 1", "(/x = 1", "/x = 1)", "/x 1", "AND", "/x AND", "NOT", "/x NOT 1", "/x IN 1",
     "/x BETWEEN 1", "'open", "/x = #", "drop(/x)", "/x IS 1", "/x; DROP TABLE t", "/x LIKE /y",
     "(" * 500 + "1" + ")" * 500, "ABS(" * 500 + "1" + ")" * 500],
)  # fmt: skip
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match="filter"):
        read_filter(text)


@pytest.mark.parametrize("pattern", ["(a|b)*", "(ab)+c", "(a){3,}", "x(a)\n*", "(?x)(a) # b\n*", "(?ix)a", "((a)?)*"])
def test_a_regular_expression_that_could_end_the_program_is_refused(pattern: str) -> None:
    with pytest.raises(FilterSyntaxError, match="repeats a group"):
        read_filter(f"/x LIKE '{pattern}'")


@pytest.mark.parametrize("pattern", ["(a|b)?c", "[(a)*]", r"\(a\)*", "(?i)^ab.*", "a*(b|c)", "x{3}"])
def test_other_regular_expressions_are_taken(pattern: str) -> None:
    assert _patterns(f"/x LIKE '{pattern}'") == (pattern,)


def test_regular_expressions_are_given_out_to_be_checked() -> None:
    assert _patterns("/x LIKE '^a''b' OR NOT /y LIKE \"(c\"") == ("^a'b", "(c")


WORDS = st.sampled_from(["/x", "=", "'a'", "(", ")", "AND", "NOT", "1", "-"])


@given(text=st.text(max_size=60) | st.lists(WORDS).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(FilterSyntaxError):
        assert read_filter(text)


MESSAGE = '{"order": {"price": 12, "by": "ann"}, "state": "open", "tags": ["a", "b"]}'


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("gt(order/price,10)", True),
        ("gt(/order/price,12)", False),
        ('and(eq(state,"open"),not(exists(gone)))', True),
        ('or(in(tags,"b","c"),eq(state,"closed"))', True),
        ('like(order/by,"b*")', False),
    ],
)
def test_rql_over_the_fields_of_a_message(text: str, *, fitting: bool) -> None:
    tree = read_filter(text)
    assert not isinstance(tree, SqlFilter)
    assert fits_filter(tree, MESSAGE) is fitting


@pytest.mark.parametrize("text", ["/x > 1", "NOT (/x = 1)", "not(/x IN (1, 2))", "x"])
def test_a_filter_in_the_syntax_of_amps_is_not_read_as_rql(text: str) -> None:
    assert isinstance(read_filter(text), SqlFilter)


@pytest.mark.parametrize("text", ["", "gt(price)", "gt(price,10", "frobnicate(x,1)", "/x ==", "eq(a//b,1)"])
def test_a_filter_in_neither_syntax_is_refused(text: str) -> None:
    with pytest.raises(FilterSyntaxError):
        read_filter(text)


@pytest.mark.parametrize("text", [None, "", "no JSON", "[1]", "12", "[" * 100_000])
def test_a_value_that_is_not_an_object_matches_nothing(text: str | None) -> None:
    tree = read_filter("not(exists(x))")
    assert not isinstance(tree, SqlFilter)
    assert not fits_filter(tree, text)


def test_what_cannot_be_evaluated_matches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise KeyError("unforeseen")

    monkeypatch.setattr(filters, "matches", fail)
    tree = filters.read_filter('eq(state,"open")')
    assert not isinstance(tree, filters.SqlFilter)
    assert not filters.fits_filter(tree, '{"state": "open"}')
