"""Scenarios of publishers on the running system: the persist query, its tables, Kafka, real publishers.

What can be seen on the wire, in the tables and by the application is compared with all that is expected. Time is real:
what is to happen later does not happen earlier, what is to happen at a time or by then may take a batch longer
(brokers.md 6).
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ackstream.conformance.scenarios import Scenario
from ackstream.conformance.scenarios.observations import matches, plain
from tests.integration.persistence import Persistence, Silence
from tests.integration.scenarios import stores, windows, wire
from tests.integration.scenarios.patience import patient
from tests.integration.scenarios.rules import REFUSING, RULES, SWALLOWING, VECTORS, is_silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

FILES = ("amps.json", "solace.json")
MIRROR, QUERY, QUEUE = (f"tests/integration/test_{name}.py" for name in ("mirror", "query", "queue"))

NOT_HERE = {
    **dict.fromkeys(["AMPS-12", "AMPS-13", "AMPS-14", "AMPS-15"], MIRROR),
    **dict.fromkeys([f"AMPS-{number}" for number in range(23, 31)], QUERY),
    **dict.fromkeys([f"AMPS-{number}" for number in range(31, 39)], QUEUE),
    **dict.fromkeys([f"SOL-{number}" for number in range(15, 32)], QUEUE),
    "AMPS-09": "every message is logged here: there is no topic whose acks are not merged",
    "AMPS-22": "who a client is, is said by its login at Kafka: a logon is never asked for other credentials",
    **dict.fromkeys(
        ["SOL-02", "SOL-03", "SOL-04", "SOL-06"],
        "a commit acknowledges all that it has stored: it neither waits for a second nor stops at a third of a window",
    ),
    "SOL-12": "between a publisher and the table there is no queue that somebody could disable",
    "SOL-14": "a message keeps its number: no flow can be lost, and nothing need be stored twice",
}
"""Where a scenario runs instead, or why nothing of it can be seen on the wire; the pure parts pass all of them."""

SCENARIOS = [
    scenario
    for file in FILES
    for scenario in msgspec.json.decode((VECTORS / file).read_bytes(), type=list[Scenario])
    if scenario.id not in NOT_HERE
]


@pytest.fixture(scope="module")
def observed(
    spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Run all scenarios side by side, each as a client of its own; then those for which nobody may answer."""
    found: dict[str, Persistence] = {}
    path = tmp_path_factory.mktemp("scenarios")
    with ExitStack() as stack, ThreadPoolExecutor(len(SCENARIOS)) as pool:
        for rules in (RULES, REFUSING, SWALLOWING):
            found[json.dumps(rules)] = persistence = Persistence(spark, broker, path, **rules)
            stack.callback(persistence.close)
        silent = [scenario for scenario in SCENARIOS if is_silent(scenario)]
        silence = Silence(found[json.dumps(RULES)], len(silent))

        def run(scenario: Scenario) -> dict[str, Any]:
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
