from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.observe.trends import Latest, Trend, sparkline


def test_counts_are_those_of_the_last_spans_the_oldest_first() -> None:
    trend = Trend(10, 3)
    for at in (5, 10, 19, 25):
        trend.add(at)
    trend.add(29, 4)
    assert trend.counts(29) == [1, 2, 5]
    assert trend.counts(30) == [2, 5, 0]
    assert trend.total(60) == 0


def test_what_comes_late_still_counts_in_its_span_unless_that_is_gone() -> None:
    trend = Trend(10, 3)
    trend.add(25)
    trend.add(5)
    trend.add(-5)
    assert trend.counts(25) == [1, 0, 1]


@given(st.lists(st.integers(0, 200)), st.integers(1, 30), st.integers(1, 10))
def test_a_trend_counts_everything_once_and_keeps_no_more_than_its_spans(
    times: list[int], span: int, length: int
) -> None:
    trend = Trend(span, length)
    for at in sorted(times):
        trend.add(at)
    now = max(times, default=0)
    first = (now // span - length + 1) * span
    assert trend.total(now) == sum(at >= first for at in times)
    assert len(trend._counts) <= length


def test_the_value_that_was_not_touched_for_longest_is_forgotten() -> None:
    latest: Latest[str, list[str]] = Latest(lambda key: [key], 2)
    latest.touch("a").append("more")
    latest.touch("b")
    latest.touch("a")
    latest.touch("c")
    assert list(latest) == [["c"], ["a", "more"]]
    assert (latest.get("b"), len(latest)) == (None, 2)
    latest.drop("a")
    latest.drop("a")
    assert list(latest) == [["c"]]


@pytest.mark.parametrize(
    ("counts", "line"), [([], ""), ([0, 0], "  "), ([1, 0, 8], "▁ █"), ([5], "█"), (list(range(1, 9)), "▁▂▃▄▅▆▇█")]
)
def test_a_sparkline_is_relative_to_its_highest_count(counts: list[int], line: str) -> None:
    assert sparkline(counts) == line


@given(st.lists(st.integers(0, 10**9)))
def test_a_sparkline_has_a_bar_for_every_count_but_zero(counts: list[int]) -> None:
    assert [bar == " " for bar in sparkline(counts)] == [not count for count in counts]
