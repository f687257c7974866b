"""Scenarios of application acknowledgements on the running system: persist, settle, publishers and readers.

Everything visible on the wire, in the table and to the application is compared with everything expected; times as in
``test_scenarios``.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.scenarios.coverage import is_on_system, load
from tests.conformance.scenarios.observations import matches, plain
from tests.harness.settlement import Settlement
from tests.integration.scenarios import readers
from tests.integration.scenarios.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.conformance.scenarios import Scenario

pytestmark = pytest.mark.integration

SCENARIOS = [scenario for scenario in load("rti") if is_on_system(scenario)]
AT_ONCE = 12


@pytest.fixture(scope="module")
def observed(
    spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Run all scenarios, several side by side, each with a writer and readers of its own."""
    required = [role for scenario in SCENARIOS for role in readers.required(scenario)]
    settlement = Settlement(spark, broker, tmp_path_factory.mktemp("settlement"), required)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = {scenario.id: pool.submit(readers.observe, settlement, scenario) for scenario in SCENARIOS}
            wait(futures.values())
            yield futures
    finally:
        settlement.close()


@pytest.mark.parametrize("scenario", [pytest.param(scenario, id=scenario.id) for scenario in SCENARIOS])
def test_a_scenario_on_the_running_system(observed: dict[str, Future[dict[str, Any]]], scenario: Scenario) -> None:
    seen = observed[scenario.id].result()
    assert matches(patient(scenario.expect), seen), json.dumps(plain(seen))
