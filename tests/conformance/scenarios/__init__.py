"""Scenarios of publishers and consumers: one JSON array of ``{"id", "source", "given", "when", "expect"}``.

The pure parts of ``publishing`` and ``delivery`` are driven through the steps on an ideal clock, and all that can be
observed is compared with all that is expected. A word that no interpreter of the protocol knows makes a scenario
uncovered, never passed.
"""

from __future__ import annotations

from ackstream.conformance.cases import Failure
from tests.conformance.scenarios import amps, connext, consumers, observations, queues, solace
from tests.conformance.scenarios.scenario import Interpreter, Scenario, Uncovered

__all__ = ["INTERPRETERS", "Interpreter", "Scenario", "Uncovered", "check"]

INTERPRETERS: tuple[Interpreter, ...] = (
    amps.INTERPRETER,
    queues.INTERPRETER,
    solace.INTERPRETER,
    consumers.INTERPRETER,
    connext.INTERPRETER,
)
"""The first of a protocol that knows all words of a scenario runs it."""


def check(scenario: Scenario) -> Failure | Uncovered | None:
    """Run a scenario; ``None``: it passed."""
    try:
        observed = dict(_interpreter(scenario).observe(scenario.given, scenario.when))
    except Uncovered as uncovered:
        return uncovered
    except Exception as error:  # noqa: BLE001 - whatever a scenario provokes is its result
        observed = {"exception": f"{type(error).__name__}: {error}"}
    if observations.matches(scenario.expect, observed):
        return None
    wanted = scenario.expect.keys() | scenario.expect.get(observations.OR, {}).keys()
    shown = {key: value for key, value in observed.items() if key in wanted or key in (observations.AT, "exception")}
    return Failure(scenario.id, scenario.expect, observations.plain(shown))


def _interpreter(scenario: Scenario) -> Interpreter:
    parts = scenario.id.split("-")
    candidates = [interpreter for interpreter in INTERPRETERS if interpreter.prefix in parts]
    if not candidates:
        raise Uncovered(f"the id {scenario.id} names no protocol that is known")
    unknown = [interpreter.unknown_words(scenario) for interpreter in candidates]
    for interpreter, words in zip(candidates, unknown, strict=True):
        if not words:
            return interpreter
    fewest: list[str] = min(unknown, key=len)
    raise Uncovered(f"not known: {', '.join(fewest)}")
