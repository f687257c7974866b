from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import scenarios
from tests.conformance.runner import Failure
from tests.conformance.scenarios import Interpreter, Scenario, Uncovered, check, coverage

ROOT = Path(__file__).parent.parent.parent
ALL = [scenario for file in ("amps", "solace", "rti") for scenario in coverage.load(file)]
INTERPRETED = [scenario for scenario in ALL if coverage.is_interpreted(scenario)]


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in INTERPRETED])
def test_scenario(scenario: Scenario) -> None:
    assert check(scenario) is None


def test_every_scenario_runs_or_is_listed_with_its_reason() -> None:
    assert {path.stem for path in coverage.VECTORS.glob("*.jsonl")} == {"amps", "solace", "rti"}
    known = {scenario.id for scenario in ALL}
    assert len(known) == len(ALL) == 99
    by_hand = [identity for identities in coverage.BY_HAND.values() for identity in identities]
    on_system = [scenario.id for scenario in ALL if coverage.is_on_system(scenario)]
    listed = [*coverage.NOT_RUN, *coverage.PURE_ONLY, *by_hand, *on_system]
    assert sorted(listed) == sorted(known), "each scenario has one place"
    assert coverage.PURE_ONLY.keys() <= {scenario.id for scenario in INTERPRETED}


def test_tests_that_run_scenarios_by_hand_name_them_in_their_ids() -> None:
    modules = [f"tests/integration/{module}" for module in coverage.BY_HAND]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *modules]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named: set[tuple[str, str]] = set()
    for line in collected.splitlines():
        module = line.partition("::")[0].rpartition("/")[2]
        protocol = ""
        for word in re.split(r"\W|_", line.partition("::")[2]):
            # test_amps_12_13_…: a protocol, then its numbers
            if word in ("amps", "sol", "rti"):
                protocol = word.upper()
            elif protocol and word.isdigit():
                named.add((module, f"{protocol}-{word}"))
            else:
                protocol = ""
    expected = {(module, identity) for module, identities in coverage.BY_HAND.items() for identity in identities}
    assert named == expected


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


def test_expected_observations_pass() -> None:
    assert check(_scenario()) is None


def test_other_observations_fail_with_both() -> None:
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
    assert isinstance(check(Scenario(id="MQTT-1", given={}, when=[], expect={})), Uncovered)


def test_an_exception_is_the_result_of_its_scenario() -> None:
    outcome = check(_scenario(when=[{"op": "add"}]))
    assert isinstance(outcome, Failure)
    assert outcome.actual == {"exception": "KeyError: 'n'"}
