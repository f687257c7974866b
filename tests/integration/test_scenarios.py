"""Scenarios of publishers on the running system: the persist query, its tables, Kafka, real publishers.

Everything visible on the wire, in the tables and to the application is compared with everything expected. Time is real:
what must happen later does not happen earlier, what must happen at a time or by then may take a batch longer
(brokers.md 6). ``tests.conformance.scenarios.coverage`` lists the scenarios that run elsewhere.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.scenarios.coverage import is_on_system, load
from tests.conformance.scenarios.observations import matches, plain
from tests.harness.persistence import Persistence, Silence
from tests.integration.scenarios import stores, windows, wire
from tests.integration.scenarios.patience import patient
from tests.integration.scenarios.rules import CLOSED, PASSING, REFUSING, RULES, SWALLOWING, is_silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.conformance.scenarios import Scenario

pytestmark = pytest.mark.integration

SCENARIOS = [scenario for file in ("amps", "solace") for scenario in load(file) if is_on_system(scenario)]


@pytest.fixture(scope="module")
def observed(
    spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Run all scenarios side by side, each with a client of its own; then those in which the service is silent."""
    found: dict[str, Persistence] = {}
    path = tmp_path_factory.mktemp("scenarios")
    with ExitStack() as stack, ThreadPoolExecutor(len(SCENARIOS)) as pool:
        for rules in (RULES, REFUSING, SWALLOWING, CLOSED, PASSING):
            own = rules.get("persist", rules)
            persistence = Persistence(spark, broker, path, queues=rules.get("queues", ()), **own)
            found[json.dumps(rules)] = persistence
            stack.callback(persistence.close)
        silent = [scenario for scenario in SCENARIOS if is_silent(scenario)]
        silence = Silence(found[json.dumps(RULES)], len(silent))

        def run(scenario: Scenario) -> dict[str, Any]:
            if "on_unknown_flow" in scenario.given:
                return stores.observe_unknown(found[json.dumps(RULES)], scenario, path / scenario.id)
            if "client" not in scenario.given:
                return windows.observe(lambda rules: found[json.dumps(rules)], scenario, silence)
            persistence = found[json.dumps(RULES)]
            if any(word.startswith("store_") for word in scenario.given):
                return stores.observe(persistence, scenario, silence, path / scenario.id)
            return wire.observe(persistence, scenario)

        futures = {scenario.id: pool.submit(run, scenario) for scenario in SCENARIOS if scenario not in silent}
        wait(futures.values())
        futures |= {scenario.id: pool.submit(run, scenario) for scenario in silent}
        wait(futures.values())
        yield futures


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in SCENARIOS])
def test_a_scenario_on_the_running_system(observed: dict[str, Future[dict[str, Any]]], scenario: Scenario) -> None:
    seen = observed[scenario.id].result()
    assert matches(patient(scenario.expect), seen), json.dumps(plain(seen))
