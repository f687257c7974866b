from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.publishing.filters import BadFilterError, parse_filter


def _path(*names: str) -> str:
    return "get_json_object(value, '$" + "".join(f"[\\'{name}\\']" for name in names) + "')"


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("/x == 'a'", f"({_path('x')} = 'a')"),
        ("x", _path("x")),
        ("/a/b > 10 AND /c != 2", f"(({_path('a', 'b')} > 10) AND ({_path('c')} <> 2))"),
        ("NOT /x IS NULL or /y is not null", f"((NOT ({_path('x')} IS NULL)) OR ({_path('y')} IS NOT NULL))"),
        ("/x NOT IN (1, 'b')", f"(NOT ({_path('x')} IN (1, 'b')))"),
        ("/x BETWEEN 1 AND 2 * 3", f"({_path('x')} BETWEEN 1 AND (2 * 3))"),
        ("/x LIKE '^a'", f"({_path('x')} RLIKE '^a')"),
        ("/x BEGINS WITH 'it''s'", f"startswith({_path('x')}, 'it\\'s')"),
        ("LENGTH(/x) >= -1", f"(length({_path('x')}) >= (- 1))"),
        ("/x <> TRUE", f"({_path('x')} <> TRUE)"),
    ],
)
def test_filters_in_spark_sql(text: str, sql: str) -> None:
    assert parse_filter(text) == sql


@pytest.mark.parametrize(
    "text",
    ["", "  ", "/x ==", "== 1", "/x = = 1", "(/x = 1", "/x = 1)", "/x 1", "AND", "/x AND", "NOT", "/x NOT 1", "/x IN 1",
     "/x BETWEEN 1", "'open", "/x = #", "drop(/x)", "/x IS 1", "/x; DROP TABLE t", "(" * 500 + "1" + ")" * 500],
)  # fmt: skip
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(BadFilterError, match="filter"):
        parse_filter(text)


WORDS = st.sampled_from(["/x", "=", "'a'", "(", ")", "AND", "NOT", "1", "-"])


@given(text=st.text(max_size=60) | st.lists(WORDS).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(BadFilterError):
        assert parse_filter(text)
