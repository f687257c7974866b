"""Where each scenario of the vectors runs: on the interpreters, on the running system, or nowhere, with the reason."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.conformance.scenarios.scenario import Scenario

VECTORS = Path(__file__).parent.parent.parent / "vectors" / "scenarios"

LOGGED = "every message is logged here: no topic has unmerged acks"
LOGIN = "Kafka's login identifies a client: a logon never asks for other credentials"
AT_COMMIT = "a commit acknowledges everything it stored: it neither waits for a second nor stops at a third of a window"
NUMBERED = "deliveries are numbered: a consumer's library need not report what it has received"
TOO_LONG = "a day, a thousand deliveries, two minutes of delays: too long"
KAFKA_KEEPS = "a broker that has taken a record does not lose it: nothing is sent twice"

NOT_RUN = {
    "AMPS-09": LOGGED,
    "AMPS-22": LOGIN,
    **dict.fromkeys(["SOL-02", "SOL-03", "SOL-04", "SOL-06"], AT_COMMIT),
    "SOL-12": "no queue stands between a publisher and the table that could be disabled",
    "SOL-14": "a message keeps its number: no flow can be lost, and nothing is stored twice",
    **dict.fromkeys(["SOL-15", "SOL-16", "SOL-17", "SOL-18"], NUMBERED),
    "SOL-19": "Kafka loses no delivery: nothing is sent a second time",
    "SOL-31": "no Spark job consumes a queue here",
    "RTI-28": "the table is the retained store: there is no persistence service of its own",
    "RTI-29": "a bridge is a program of its own: nothing here passes messages on to other writers",
}
"""Scenarios about behaviour that ackstream does not have."""

BY_HAND = {
    "test_mirror.py": ("AMPS-12", "AMPS-13", "AMPS-14", "AMPS-15"),
    "test_query.py": tuple(f"AMPS-{number}" for number in range(23, 31)),
    "test_queue.py": (
        *("AMPS-31", "AMPS-32", "AMPS-34", "AMPS-35", "AMPS-36", "AMPS-37"),
        *("SOL-20", "SOL-22", "SOL-23", "SOL-24", "SOL-25", "SOL-28", "SOL-29", "SOL-30"),
    ),
}
"""Scenarios that tests of these modules in tests/integration run; the ids of the tests name them."""

PURE_ONLY = {
    "AMPS-33": "consumers send records of their own: Kafka's producer sends several at once",
    "AMPS-38": "a message's consumer is chosen inside a batch, and a test cannot choose where batches begin",
    **dict.fromkeys(["SOL-21", "SOL-26", "SOL-27"], TOO_LONG),
    **dict.fromkeys(["RTI-10", "RTI-11", "RTI-18"], KAFKA_KEEPS),
    "RTI-19": "the settings are refused before anything is sent",
    "RTI-25": "a role that lacks readers is named, without their number",
    "RTI-30": "settle reports states at the end of a batch, not after each acknowledgement in it",
}
"""Scenarios that only the interpreters run, and why the running system cannot show them."""


def load(file: str) -> list[Scenario]:
    """Return the scenarios of a file."""
    return [msgspec.json.decode(line, type=Scenario) for line in (VECTORS / f"{file}.jsonl").read_bytes().splitlines()]


def is_interpreted(scenario: Scenario) -> bool:
    """Tell whether an interpreter must run a scenario: those of readers, and of consumers of queues."""
    protocol, number = scenario.id.split("-")
    first = {"AMPS": 31, "SOL": 20, "RTI": 1}[protocol]
    return int(number) >= first and scenario.id not in NOT_RUN


def is_on_system(scenario: Scenario) -> bool:
    """Tell whether test_scenarios.py or test_reader_scenarios.py in tests/integration must run a scenario."""
    by_hand = {identity for identities in BY_HAND.values() for identity in identities}
    return scenario.id not in NOT_RUN.keys() | PURE_ONLY.keys() | by_hand
