"""The table of headers for connections, against the running system: real broker, real correlate job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.envelopes import decode
from ackstream.settings import Kafka, Settings
from tests.harness.connections import Elsewhere, connected
from tests.harness.system import System
from tests.harness.waiting import eventually
from tests.prose import each, prose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

ROWS = [name for name in prose("header_defaults") if name.startswith("doc-Connectivity-")]
REQUESTED = ["twin-persisted", "my-ack"]
OUTCOMES = {
    "nothing published; settled immediately": (None, "immediately"),
    "nothing published; settled after acks": (None, "after acks"),
    "error published; settled negatively": ("error", "immediately"),
    "response published; settled immediately": ("response", "immediately"),
    "aggregate published; settled after acks": ("acks", "after acks"),
}


def headers(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "response_required": row["response-required"],
        "requested_acks": [] if row["requested-acks"] == "empty" else REQUESTED,
        "timeout": "0" if row["timeout"] == "zero" else "60s",
    }


@pytest.fixture(scope="module")
def table(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Send a record for each row; the value tells what was published for each, and when it was settled."""
    kafka = Kafka(bootstrap=broker, topic_prefix=f"table{os.getpid()}-", partitions=2)
    system = System(kafka, tmp_path_factory.mktemp("table"), clock=True)
    elsewhere = Elsewhere(broker)
    # a partition for each row, whose commits then show its settlement
    incoming, answers = elsewhere.topic("in", len(ROWS)), elsewhere.topic("answers")
    source = {
        "addresses": [incoming],
        "qos": 1,
        "start": "earliest",
        "reply_target": {"address": answers, "expected": ["response", "error", "nack"]},
    }
    settings = Settings(kafka=kafka, connections=({"id": elsewhere.id, "type": "kafka", "sources": [source]},))
    ensure_topics(settings)
    given_ = {name: prose("header_defaults")[name]["given"] for name in ROWS}
    for number, (name, row) in enumerate(given_.items()):
        elsewhere.send(incoming, system.command_json(name, **headers(row)), partition=number)

    def settled() -> set[str]:
        return {name for number, name in enumerate(ROWS) if elsewhere.committed(incoming, number)}

    waiting = {name for name, row in given_.items() if row["requested-acks"] != "empty" and row["timeout"] != "zero"}
    with system.correlate(spark), connected(settings):
        eventually(lambda: settled() == set(ROWS) - waiting, "all that awaits nothing is settled")
        for name, row in given_.items():
            if row["response-required"] and row["timeout"] != "zero":
                topic = "org.acme/lamp/things/twin/commands/modify"
                named = {"correlation-id": name}
                system.send("acks", {"topic": topic, "headers": named, "path": "/attributes/x", "status": 204})
            elif name in waiting:
                aggregate = system.ack_json(name, "") | {"value": {"twin-persisted": {"status": 204}}}
                system.send("acks", aggregate)
        assert settled() == set(ROWS) - waiting
        for name in waiting:
            system.ack(name, "my-ack")
        eventually(lambda: settled() == set(ROWS), "everything is settled")
        eventually(lambda: len(elsewhere.read(answers)) == 5, "all answers")
    published = [decode(record.value) for record in elsewhere.read(answers)]
    system.close()
    elsewhere.close()
    kinds = {"errors": "error", "commands": "response", "acks": "acks"}
    answered = {answer.headers["correlation-id"]: kinds[answer.topic.criterion] for answer in published}
    assert len(answered) == len(published)
    return {name: (answered.get(name), "after acks" if name in waiting else "immediately") for name in ROWS}


@each("header_defaults", "doc-Connectivity-")
def test_prose_row(
    given_: dict[str, Any], expect: dict[str, Any], table: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    assert given_["api"] == "Connectivity"
    name = request.node.callspec.id
    assert table[name] == OUTCOMES[expect["outcome"]]
    assert (table[name][0] == "error") is expect["clientError"]
