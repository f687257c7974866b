"""Scenarios of publishers on the running system: the persist query, its tables, Kafka, real publishers.

What can be seen on the wire, in the tables and by the application is compared with all that is expected. Time is real:
what is to happen later does not happen earlier, what is to happen at a time or by then may take a batch longer
(brokers.md 6).
"""

from __future__ import annotations

import json
import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.conformance.scenarios import Scenario
from tests.conformance.scenarios.observations import matches, plain
from tests.integration.persistence import Persistence, Silence
from tests.integration.scenarios import stores, windows, wire
from tests.integration.scenarios.patience import patient
from tests.integration.scenarios.rules import REFUSING, RULES, SWALLOWING, VECTORS, is_silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

FILES = ("amps.json", "solace.json")
PLACES = {
    "test_mirror.py": ("AMPS-12", "AMPS-13", "AMPS-14", "AMPS-15"),
    "test_query.py": tuple(f"AMPS-{number}" for number in range(23, 31)),
    "test_queue.py": (
        *("AMPS-31", "AMPS-32", "AMPS-34", "AMPS-35", "AMPS-36", "AMPS-37"),
        *("SOL-20", "SOL-22", "SOL-23", "SOL-24", "SOL-25", "SOL-28", "SOL-29", "SOL-30"),
    ),
}
"""Scenarios that are about more than publishers and their store: where they run."""

NOT_VISIBLE = {
    "AMPS-09": "every message is logged here: there is no topic whose acks are not merged",
    "AMPS-22": "who a client is, is said by its login at Kafka: a logon is never asked for other credentials",
    "AMPS-33": "what consumers say are records of their own: Kafka's producer sends several at once",
    "AMPS-38": "to whom a message goes is decided inside a batch, and a test cannot choose where batches begin",
    **dict.fromkeys(
        ["SOL-02", "SOL-03", "SOL-04", "SOL-06"],
        "a commit acknowledges all that it has stored: it neither waits for a second nor stops at a third of a window",
    ),
    "SOL-12": "between a publisher and the table there is no queue that somebody could disable",
    "SOL-14": "a message keeps its number: no flow can be lost, and nothing need be stored twice",
    **dict.fromkeys(
        ["SOL-15", "SOL-16", "SOL-17", "SOL-18"],
        "deliveries are numbered: what a consumer's library has got need not be reported",
    ),
    "SOL-19": "Kafka loses no delivery: nothing is sent a second time",
    **dict.fromkeys(["SOL-21", "SOL-26", "SOL-27"], "a day, a thousand deliveries, two minutes of delays: too long"),
    "SOL-31": "no job of Spark is a consumer of a queue here",
}
"""Why nothing of a scenario can be seen on the wire; the pure parts pass all of them."""

NOT_HERE = NOT_VISIBLE.keys() | {identity for identities in PLACES.values() for identity in identities}

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


@pytest.mark.parametrize(("place", "identity"), [(place, one) for place, found in PLACES.items() for one in found])
def test_a_scenario_that_runs_elsewhere_is_named_there(place: str, identity: str) -> None:
    protocol, number = identity.split("-")
    named = re.compile(rf"{protocol}[-_](\d+_)*{number}(?!\d)", re.IGNORECASE)
    assert named.search(Path(__file__).with_name(place).read_text("utf-8"))
