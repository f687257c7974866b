"""Where each scenario of the vectors runs: on the interpreters, on the running system, or nowhere, with the reason."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.conformance.scenarios.scenario import Scenario

VECTORS = Path(__file__).parent.parent.parent / "vectors" / "scenarios"

LOGIN = "Kafka's login identifies a client: a logon never asks for other credentials, and no record carries a password"
TOO_LONG = "it takes a day, or a thousand batches: the interpreter shows it"

NOT_RUN = {
    "AMPS-22": LOGIN,
    "SOL-19": "a delivery takes a batch: one that did not arrive is repeated once a later number shows that",
    "SOL-31": "a Spark query reads the table of messages with a checkpoint of its own: it acknowledges nothing",
}
"""Scenarios about behaviour that ackstream does not have."""

BY_HAND = {
    "test_mirror.py": ("AMPS-12", "AMPS-13", "AMPS-14", "AMPS-15"),
    "test_query.py": tuple(f"AMPS-{number}" for number in range(23, 31)),
    "test_queue.py": (
        *(f"AMPS-{number}" for number in range(31, 39)),
        *("SOL-15", "SOL-16", "SOL-17", "SOL-18", "SOL-20", "SOL-22", "SOL-23", "SOL-24", "SOL-25", "SOL-27", "SOL-28"),
        *("SOL-29", "SOL-30"),
    ),
    "test_routes.py": ("RTI-29",),
}
"""Scenarios that tests of these modules in tests/integration run; the ids of the tests name them."""

PURE_ONLY = dict.fromkeys(["SOL-21", "SOL-26"], TOO_LONG)
"""Scenarios that only the interpreters run, and why the running system cannot show them."""

SYSTEM_ONLY = {"RTI-28", "RTI-29"}
"""Scenarios of readers that no interpreter runs: about a part of the system beside readers and writers."""


def load(file: str) -> list[Scenario]:
    """Return the scenarios of a file."""
    return [msgspec.json.decode(line, type=Scenario) for line in (VECTORS / f"{file}.jsonl").read_bytes().splitlines()]


def is_interpreted(scenario: Scenario) -> bool:
    """Tell whether an interpreter must run a scenario: those of readers, and of consumers of queues.

    A route is a publisher and a reader of two systems: no rule of its own is left to interpret.
    """
    protocol, number = scenario.id.split("-")
    first = {"AMPS": 31, "SOL": 20, "RTI": 1}[protocol]
    return int(number) >= first and scenario.id not in NOT_RUN.keys() | SYSTEM_ONLY


def is_on_system(scenario: Scenario) -> bool:
    """Tell whether test_scenarios.py or test_reader_scenarios.py in tests/integration must run a scenario."""
    by_hand = {identity for identities in BY_HAND.values() for identity in identities}
    return scenario.id not in NOT_RUN.keys() | PURE_ONLY.keys() | by_hand
