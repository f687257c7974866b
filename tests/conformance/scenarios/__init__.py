"""Scenarios of publishers and consumers: one JSON object of ``{"id", "source", "given", "when", "expect"}`` per line.

The interpreters drive classes of the product through the steps on an ideal clock, and compare everything observable
with everything expected. A word that no interpreter of the protocol knows makes a scenario uncovered, never passed.
:mod:`.coverage` lists where each scenario of the vectors runs.
"""

from __future__ import annotations

from tests.conformance.runner import Failure
from tests.conformance.scenarios import connext, observations, queues, solace
from tests.conformance.scenarios.scenario import Interpreter, Scenario, Uncovered

__all__ = ["INTERPRETERS", "Interpreter", "Scenario", "Uncovered", "check"]

INTERPRETERS: tuple[Interpreter, ...] = (queues.INTERPRETER, solace.INTERPRETER, connext.INTERPRETER)


def check(scenario: Scenario) -> Failure | Uncovered | None:
    """Run a scenario; return ``None`` if it passed."""
    try:
        observed = dict(_interpreter(scenario).observe(scenario.given, scenario.when))
    except Uncovered as uncovered:
        return uncovered
    except Exception as error:  # noqa: BLE001 - any exception is the result of its scenario
        observed = {"exception": f"{type(error).__name__}: {error}"}
    if observations.matches(scenario.expect, observed):
        return None
    wanted = scenario.expect.keys() | scenario.expect.get(observations.OR, {}).keys()
    shown = {key: value for key, value in observed.items() if key in wanted or key in (observations.AT, "exception")}
    return Failure(scenario.id, scenario.expect, observations.plain(shown))


def _interpreter(scenario: Scenario) -> Interpreter:
    found = next((one for one in INTERPRETERS if one.prefix in scenario.id.split("-")), None)
    if found is None:
        raise Uncovered(f"no interpreter for the protocol of {scenario.id}")
    if words := found.unknown_words(scenario):
        raise Uncovered(f"not known: {', '.join(words)}")
    return found
