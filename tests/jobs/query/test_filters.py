from __future__ import annotations

import pytest

from ackstream.jobs.query import filters
from ackstream.jobs.query.amps_filters import AmpsFilter, FilterSyntaxError
from ackstream.jobs.query.filters import MAX_LENGTH, fits_filter, read_filter

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
    assert not isinstance(tree, AmpsFilter)
    assert fits_filter(tree, MESSAGE) is fitting


@pytest.mark.parametrize("text", ["/x > 1", "NOT (/x = 1)", "not(/x IN (1, 2))", "x"])
def test_a_filter_in_the_syntax_of_amps_is_not_read_as_rql(text: str) -> None:
    assert isinstance(read_filter(text), AmpsFilter)


@pytest.mark.parametrize("text", ["", "gt(price)", "gt(price,10", "frobnicate(x,1)", "/x ==", "eq(a//b,1)"])
def test_a_filter_in_neither_syntax_is_refused(text: str) -> None:
    with pytest.raises(FilterSyntaxError):
        read_filter(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("'${env:HOME}' BEGINS WITH '/'", 2),
        ("/a == '${spark.hadoop.fs.s3a.secret.key}'", 8),
        ('eq(a,"${system:x}")', 7),
    ],
)
def test_a_filter_that_names_a_variable_is_refused_with_a_sentence(text: str, place: int) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        read_filter(text)
    assert str(caught.value) == f"The filter has ${{ from character {place} on: filters have no variables."


def test_a_filter_is_no_longer_than_any_client_needs() -> None:
    assert read_filter("/x = '" + "a" * (MAX_LENGTH - 7) + "'")
    with pytest.raises(FilterSyntaxError, match="longer than 10,000 characters"):
        read_filter("/x = '" + "a" * MAX_LENGTH + "'")


@pytest.mark.parametrize(
    "text", [f"or({','.join(['eq(a,1)'] * 101)})", f"in(a,{','.join(map(str, range(200)))})"], ids=["or", "in"]
)
def test_rql_has_as_few_parts(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match="more than 200"):
        read_filter(text)


@pytest.mark.parametrize("text", [None, "", "no JSON", "[1]", "12", "[" * 100_000])
def test_a_value_that_is_not_an_object_matches_nothing(text: str | None) -> None:
    tree = read_filter("not(exists(x))")
    assert not isinstance(tree, AmpsFilter)
    assert not fits_filter(tree, text)


def test_what_cannot_be_evaluated_matches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise KeyError("unforeseen")

    monkeypatch.setattr(filters, "matches", fail)
    tree = filters.read_filter('eq(state,"open")')
    assert not isinstance(tree, AmpsFilter)
    assert not filters.fits_filter(tree, '{"state": "open"}')
