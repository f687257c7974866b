"""Scenarios of application acknowledgements on the running system: persist, settle, publishers and readers.

What is on the wire, in the table and with the application is compared with all that is expected; times as in
``test_scenarios``.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.conformance.scenarios import Scenario
from tests.conformance.scenarios.observations import matches, plain
from tests.integration.scenarios import readers
from tests.integration.scenarios.patience import patient
from tests.integration.scenarios.rules import VECTORS
from tests.integration.settlement import Settlement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

NOT_HERE = {
    **dict.fromkeys(
        ["RTI-10", "RTI-11", "RTI-18"], "a broker that has taken a record does not lose it: nothing is said in vain"
    ),
    "RTI-19": "the settings are refused before anything is sent",
    "RTI-25": "a role that lacks readers is named, not how many of them it has",
    "RTI-28": "the table is the retained store: there is no service of its own to tell",
    "RTI-29": "a bridge is a program of its own: nothing here passes messages on to other writers",
    "RTI-30": "settle tells how things are at the end of a batch, not after each acknowledgement in it",
}
"""Why nothing of a scenario can be seen on the wire; the pure parts pass all of them."""

SCENARIOS = [
    scenario
    for scenario in msgspec.json.decode((VECTORS / "rti.json").read_bytes(), type=list[Scenario])
    if scenario.id not in NOT_HERE
]
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
