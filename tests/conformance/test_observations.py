from __future__ import annotations

from typing import Any

import pytest

from ackstream.client.reading.samples import ReaderQos
from tests.conformance.scenarios.coverage import load
from tests.conformance.scenarios.observations import (
    Absent,
    AtMost,
    Counted,
    Cumulative,
    Lines,
    PerName,
    Runs,
    Series,
    matches,
    plain,
)
from tests.integration.scenarios.patience import INTERVAL_MS, patient

LATE = [{"up_to": 1, "at_ms": 4}, {"up_to": 4, "at_ms": 6}]


@pytest.mark.parametrize(
    ("expected", "observed", "same"),
    [
        (1, 1, True),
        (1, 2, False),
        (1, True, False),
        (0, False, False),
        (None, None, True),
        ([1, 2], (1, 2), True),
        ([1], [1, 2], False),
        ([2, 1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": None}, {"a": 1}, False),
        ({"1": 5}, {1: 5}, True),
        ({"a": 1}, 1, False),
        ({"a": 1, "or": {"b": 2}}, {"a": 1}, True),
        ({"a": 1, "or": {"b": 2}}, {"a": 0, "b": 2}, True),
        ({"a": 1, "or": {"b": 2}}, {"a": 0, "b": 0}, False),
        ({"at_ms": 5}, {"at_ms": 5}, True),
        ({"at_ms": 5}, {"at_ms": 6}, False),
        ({"by_ms": 5, "not_before_ms": 5}, {"at_ms": 5}, True),
        ({"by_ms": 4}, {"at_ms": 5}, False),
        ({"not_before_ms": 6}, {"at_ms": 5}, False),
        ({"by_ms": 4}, {}, False),
        ([5, 2, 0], Series([5, 2, 0]), True),
        ([5, 2, 0], Series([5, 2, 2, 0]), True),
        ([5, 2, 2, 0], Series([5, 2, 2, 0]), True),
        ([5, 5, 2, 0], Series([5, 2, 2, 0]), False),
        (0, Series([5, 0]), True),
        (5, Series([5, 0]), False),
        ([4, 5], Counted([4, 5]), True),
        (2, Counted([4, 5]), True),
        (True, Counted([4]), False),
        (["b"], Lines(["a b c"]), True),
        (["x"], Lines(["a b c"]), False),
        ("a", Lines(["a"]), False),
        (7, AtMost(0), True),
        (7, AtMost(8), False),
        ([5], Absent([6, 7]), True),
        ([5, 7], Absent([6, 7]), False),
        ([{"up_to": 3}], Cumulative([{"up_to": 3}]), True),
        ([{"up_to": 3}], Cumulative([{"up_to": 2}, {"up_to": 3}]), True),
        ([{"up_to": 3}], Cumulative([{"up_to": 3}, {"up_to": 3}, {"up_to": 3}]), False),
        ([{"up_to": 3}], Cumulative([{"up_to": 3}, {"up_to": 2}]), False),
        ([{"up_to": 2}, {"up_to": 4}], Cumulative([{"up_to": 2}, {"up_to": 3}, {"up_to": 4}]), True),
        ([{"up_to": 2}, {"up_to": 4}], Cumulative([{"up_to": 1}, {"up_to": 3}, {"up_to": 4}]), False),
        ([{"up_to": 2}, {"up_to": 4}], Cumulative([{"up_to": 4}]), False),
        ([{"up_to": 1, "by_ms": 3}, {"up_to": 4}], Cumulative(LATE), False),
        ([{"up_to": 1, "by_ms": 5}, {"up_to": 4}], Cumulative([*LATE[:1], {"up_to": 2, "at_ms": 5}, LATE[1]]), True),
        ([3], Runs([3]), True),
        ([3], Runs([2, 3]), True),
        ([3], Runs([1, 2, 3]), False),
        ([3], Runs([2]), False),
        ([{"up_to": 3}], Cumulative([{"up_to": up_to} for up_to in (1, 2, 3)]), False),
        ([{"up_to": 3}], Cumulative([]), False),
        (3, PerName([("a", 1), ("b", 2)]), True),
        ({"b": 2}, PerName([("a", 1), ("b", 2)]), True),
    ],
)
def test_comparison(expected: Any, observed: Any, same: bool) -> None:  # noqa: FBT001
    assert matches(expected, observed) is same


def test_observations_are_shown_as_json() -> None:
    observed = {"s": Series([1]), 3: (Lines(["x"]), Counted(["a", 1]), AtMost(2))}
    assert plain(observed) == {"s": [1], "3": [["x"], ["a", 1], 2]}


@pytest.mark.parametrize(
    ("identity", "acks"),
    [
        pytest.param("SOL-01", [{"up_to": 10, "at_ms": INTERVAL_MS}], id="no third, but the interval"),
        pytest.param("SOL-03", [{"up_to": 14, "at_ms": 1_500}], id="one ack for all"),
        pytest.param("SOL-04", [{"up_to": 3, "at_ms": 1_500}], id="one ack for all thirds"),
        pytest.param("SOL-06", [{"up_to": 1, "at_ms": INTERVAL_MS}], id="not at once, but after the interval"),
    ],
)
def test_a_scenario_of_thirds_or_of_an_ack_at_once_fails_without_them(identity: str, acks: list[Any]) -> None:
    (scenario,) = [one for one in load("solace") if one.id == identity]
    numbers = list(range(1, acks[-1]["up_to"] + 1))
    seen = {"broker_acks": Cumulative(acks), "app_notifications": numbers, "without_flag": {"at_ms": 1_000}}
    assert not matches(patient(scenario.expect), seen)


def test_a_scenario_of_a_period_fails_with_the_default_period_of_five_seconds() -> None:
    (scenario,) = [one for one in load("rti") if one.id == "RTI-13"]
    default = 100 + ReaderQos().app_ack_period_ms
    found = [
        matches(patient(scenario.expect), {"app_acks": [{"intervals": [[1, 3]], "at_ms": at}]})
        for at in (1_100, default)
    ]
    assert found == [True, False]


def test_a_scenario_of_an_interval_that_is_neither_kept_nor_reported_fails() -> None:
    (scenario,) = [one for one in load("amps") if one.id == "AMPS-08"]
    ack = {"ack_type": "persisted", "status": "success", "seq": 1, "at_ms": 1_000}
    found = [
        matches(patient(scenario.expect), {"acks_in_order": [ack], "effective_conflation_ms_reported": reported})
        for reported in (False, True)
    ]
    assert found == [False, True]
