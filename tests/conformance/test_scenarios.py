from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ackstream.conformance import Failure
from tests.conformance import scenarios
from tests.conformance.scenarios import Interpreter, Scenario, Uncovered, check

FILES = Path(__file__).parent.parent / "vectors" / "scenarios"


def _all() -> list[Any]:
    return [
        pytest.param(Scenario(**entry), id=entry["id"])
        for file in sorted(FILES.glob("*.json"))
        for entry in json.loads(file.read_text("utf-8"))
    ]


def _uncovered(scenario: Scenario) -> bool:
    return isinstance(check(scenario), Uncovered)


@pytest.mark.parametrize("scenario", [param for param in _all() if not _uncovered(param.values[0])])
def test_scenario(scenario: Scenario) -> None:
    assert check(scenario) is None


COUNTING = Interpreter(
    prefix="TEST",
    given=frozenset({"start"}),
    steps={"add": frozenset({"n"})},
    expect=frozenset({"sum"}),
    observe=lambda given, when: {"sum": given.get("start", 0) + sum(step["n"] for step in when)},
)


@pytest.fixture(autouse=True)
def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "INTERPRETERS", (*scenarios.INTERPRETERS, COUNTING))


def _scenario(**changes: Any) -> Scenario:
    parts = {"given": {"start": 1}, "when": [{"op": "add", "n": 2, "t_ms": 5}], "expect": {"sum": 3}}
    return Scenario(id="TEST-1", **(parts | changes))


def test_what_is_observed_as_expected_passes() -> None:
    assert check(_scenario()) is None


def test_what_is_observed_otherwise_fails_with_both() -> None:
    assert check(_scenario(expect={"sum": 4})) == Failure("TEST-1", {"sum": 4}, {"sum": 3})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"given": {"begin": 1}}, "given begin"),
        ({"when": [{"op": "multiply"}]}, "op multiply"),
        ({"when": [{"op": "add", "m": 2}]}, "add m"),
        ({"when": [{"n": 2}]}, "op None"),
        ({"expect": {"product": 3}}, "expect product"),
    ],
)
def test_a_word_that_is_not_known_makes_a_scenario_uncovered(changes: dict[str, Any], word: str) -> None:
    outcome = check(_scenario(**changes))
    assert isinstance(outcome, Uncovered)
    assert str(outcome) == f"not known: {word}"


def test_a_scenario_of_no_known_protocol_is_uncovered() -> None:
    assert _uncovered(Scenario(id="MQTT-1", given={}, when=[], expect={}))


def test_an_exception_is_the_result_of_its_scenario() -> None:
    outcome = check(_scenario(when=[{"op": "add"}]))
    assert isinstance(outcome, Failure)
    assert outcome.actual == {"exception": "KeyError: 'n'"}
