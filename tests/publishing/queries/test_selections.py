from __future__ import annotations

import pytest

from ackstream.publishing.queries.filters import BadFilterError
from ackstream.publishing.queries.selections import fits, read

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
    tree = read(text)
    assert not isinstance(tree, str)
    assert fits(tree, MESSAGE) is fitting


@pytest.mark.parametrize("text", ["/x > 1", "NOT (/x = 1)", "not(/x IN (1, 2))", "x"])
def test_what_amps_understands_is_no_rql(text: str) -> None:
    assert isinstance(read(text), str)


@pytest.mark.parametrize("text", ["", "gt(price)", "gt(price,10", "frobnicate(x,1)", "/x ==", "eq(a//b,1)"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(BadFilterError):
        read(text)


@pytest.mark.parametrize("text", [None, "", "no JSON", "[1]", "12", "[" * 100_000])
def test_what_is_no_object_fits_nothing(text: str | None) -> None:
    tree = read("not(exists(x))")
    assert not isinstance(tree, str)
    assert not fits(tree, text)
