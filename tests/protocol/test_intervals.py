from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.intervals import Interval, Intervals, TooManyHolesError, covered

starts = st.integers(-5, 20)
intervals = st.tuples(st.integers(-5, 60), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def _numbers(runs: list[Interval]) -> list[int]:
    return [number for first, last in runs for number in range(first, last + 1)]


@given(starts, st.lists(intervals))
def test_it_is_a_set_of_numbers_whatever_the_order_and_overlap(start: int, added: list[Interval]) -> None:
    model: set[int] = set()
    held = Intervals(start=start)
    for first, last in added:
        expected = {number for number in range(first, last + 1) if number >= start} - model
        assert _numbers(held.add(first, last)) == sorted(expected)
        model |= expected
    assert _numbers(list(held)) == sorted(model)
    assert all(number in held for number in model)
    assert [number in held for number in range(start, 80)] == [number in model for number in range(start, 80)]
    assert start - 1 in held
    assert list(held) == list(Intervals(reversed(added), start=start))


@given(starts, st.lists(intervals))
def test_runs_are_ascending_and_never_touch(start: int, added: list[Interval]) -> None:
    runs = list(Intervals(added, start=start))
    assert all(first <= last for first, last in runs)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(runs))
    assert len(Intervals(added, start=start)) == len(runs)


@given(starts, st.lists(intervals))
def test_the_watermark_is_the_number_before_the_first_hole_and_never_falls(start: int, added: list[Interval]) -> None:
    held = Intervals(start=start)
    model = set(range(start - 100, start))
    for first, last in added:
        before = held.watermark
        held.add(first, last)
        model |= set(range(first, last + 1))
        hole = next(number for number in range(start, 200) if number not in model)
        assert (held.first_hole, held.watermark) == (hole, hole - 1)
        assert held.watermark >= before


@given(starts, st.lists(intervals), intervals)
def test_what_is_missing_is_what_would_be_new(start: int, added: list[Interval], asked: Interval) -> None:
    held = Intervals(added, start=start)
    missing = held.missing(*asked)
    assert held.add(*asked) == missing
    assert held.missing(*asked) == []


@given(starts, st.lists(intervals))
def test_holes_are_the_missing_runs_below_the_highest_number(start: int, added: list[Interval]) -> None:
    held = Intervals(added, start=start)
    assert held.holes == (len(held.missing(start, held.highest)) if held.highest >= start else 0)


@given(starts, st.lists(intervals), st.integers(0, 3))
def test_the_cap_refuses_what_opens_one_hole_too_many_and_changes_nothing(
    start: int, added: list[Interval], cap: int
) -> None:
    held = Intervals(start=start, max_holes=cap)
    free = Intervals(start=start)
    for interval in added:
        before = list(held)
        free = Intervals(before, start=start)
        free.add(*interval)
        if free.holes <= cap:
            held.add(*interval)
            assert list(held) == list(free)
        else:
            with pytest.raises(TooManyHolesError):
                held.add(*interval)
            assert list(held) == before
    assert held.holes <= cap


def test_a_full_set_still_takes_what_fills_its_holes() -> None:
    held = Intervals([(1, 2), (5, 5), (8, 9)], max_holes=2)
    with pytest.raises(TooManyHolesError, match="11 to 12 would be behind hole 3; 2 are allowed"):
        held.add(11, 12)
    assert held.add(10) == [(10, 10)]
    assert held.add(3, 4) == [(3, 4)]
    assert held.add(12) == [(12, 12)]
    assert list(held) == [(1, 5), (8, 10), (12, 12)]


def test_an_interval_inside_a_hole_divides_it() -> None:
    held = Intervals([(10, 10)], max_holes=1)
    with pytest.raises(TooManyHolesError):
        held.add(5)
    assert held.add(1, 5) == [(1, 5)]
    with pytest.raises(TooManyHolesError):
        held.add(7)


@pytest.mark.parametrize("number", [1, 7])
def test_a_reversed_interval_is_refused(number: int) -> None:
    held = Intervals([(1, 3)])
    with pytest.raises(ValueError, match="must not end before it begins"):
        held.add(number, number - 1)
    assert list(held) == [(1, 3)]


def test_merging_another_set_returns_only_what_is_new() -> None:
    held = Intervals([(1, 3), (7, 8)])
    assert held.merge(Intervals([(2, 5), (8, 10)])) == [(4, 5), (9, 10)]
    assert repr(held) == "Intervals([(1, 5), (7, 10)], start=1)"


def test_rti_30_a_watermark_stops_at_the_first_hole() -> None:
    held = Intervals([(1, 1), (2, 2), (5, 5)])
    assert (held.watermark, held.highest) == (2, 5)
    held.add(3, 4)
    assert held.watermark == 5


def test_ten_thousand_holes_are_filled_from_the_top_and_from_the_bottom() -> None:
    odd = [(number, number) for number in range(1, 20_001, 2)]
    held = Intervals(odd)
    assert held.holes == 9_999
    held.merge((number, number) for number in range(19_998, 10_000, -2))
    held.merge((number, number) for number in range(2, 10_001, 2))
    assert list(held) == [(1, 19_999)]


@given(starts, st.lists(intervals))
def test_it_is_rebuilt_from_its_dump(start: int, added: list[Interval]) -> None:
    held = Intervals(added, start=start, max_holes=99)
    again = Intervals.load(held.dump(), start=start, max_holes=99)
    assert (again.start, list(again)) == (held.start, list(held))
    assert again.max_holes == 99
    assert all(step >= 0 for step in held.dump())


@given(st.lists(st.lists(intervals, max_size=6), max_size=5), st.integers(1, 4), st.integers(1, 40), st.integers(0, 25))
def test_covered_counts_sets_at_each_number(sets: list[list[Interval]], quorum: int, first: int, length: int) -> None:
    held = [Intervals(entry) for entry in sets]
    found = covered(held, quorum, first, first + length)
    expected = [
        number for number in range(first, first + length + 1) if sum(number in entry for entry in held) >= quorum
    ]
    assert _numbers(found) == expected
