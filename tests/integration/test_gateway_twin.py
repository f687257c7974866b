"""The gateway with the twin itself and a subscriber behind it: all parts real, over HTTP and WebSockets."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from ackstream.protocol.ditto.labels import TWIN_PERSISTED
from tests.harness.gateway import LAMP, Client, Running, check_header_table, running_with_twin
from tests.prose import prose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def running(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_with_twin(broker, spark, tmp_path_factory.mktemp("twin"), ["http-ack", "bar-ack"], "bar") as made:
        yield made


def test_http_header_table_with_the_twin(running: Running) -> None:
    check_header_table(running)


def test_the_sample_bodies_come_from_the_twin_too(running: Running) -> None:
    def ask(label: str, timeout: str, attempt: int) -> tuple[str, Any]:
        path = f"{LAMP}-{label}-{attempt}"
        query = {"requested-acks": f"twin-persisted,{label}", "timeout": timeout}
        found = running("PUT", path, json={}, params=query, headers={"correlation-id": f"sample-{label}-{attempt}"})
        if found.status_code == 408:
            return path, {"twin-persisted": {"status": 408}}
        assert found.status_code == (424 if label == "nobody-ack" else 200)
        assert list(found.json()) == ["twin-persisted", label]
        return path, found.json()

    for label, timeout in (("http-ack", "55s"), ("nobody-ack", "6s")):
        attempts = (ask(label, timeout, attempt) for attempt in count())
        # a busy machine may need longer than the six seconds
        path, body = next((path, body) for path, body in attempts if body["twin-persisted"]["status"] != 408)
        persisted = body["twin-persisted"]
        thing = path.rpartition("/")[2]
        assert persisted["status"] == 201
        assert persisted["payload"].items() >= {"thingId": thing}.items()
        assert persisted["headers"]["location"] == running.url + path
        assert persisted["headers"]["correlation-id"].startswith(f"sample-{label}-")
        if label == "http-ack":
            assert body[label]["status"] == 200
            continue
        assert body[label]["status"] == 408
        assert body[label]["payload"] == {
            "status": 408,
            "error": "acknowledgement:request.timeout",
            "message": "The acknowledgement request reached the specified timeout of 6,000ms.",
            "description": (
                "Try increasing the timeout and make sure that the requested acknowledgement is sent back in time."
            ),
        }


COMMAND = "org.acme/lamp/things/twin/commands/modify"


@pytest.fixture
def address(running: Running) -> str:
    return f"{running.url.replace('http', 'ws')}/ws/2"


def test_websocket_header_table(address: str) -> None:
    rows = {name: case for name, case in prose("header_defaults").items() if name.startswith("doc-WebSocket-")}
    assert len(rows) == 8
    with connect(address, additional_headers={"declared-acks": "foo-ack"}) as first, connect(address) as second:
        party, requester = Client(first), Client(second)
        party.subscribe("START-SEND-EVENTS")
        for name, case in rows.items():
            given, outcome = case["given"], case["expect"]["outcome"]
            acks = ["foo-ack", "bar-ack"] if given["requested-acks"] == "non-empty" else []
            headers = {
                "correlation-id": name,
                "response-required": given["response-required"],
                "requested-acks": acks,
                "timeout": "0s" if given["timeout"] == "zero" else "55s",
            }
            requester.tell({"topic": COMMAND, "headers": headers, "path": "/attributes/x", "value": 1})
            if case["expect"]["clientError"]:
                error = requester.get()
                assert (error["status"], error["value"]["error"]) == (400, "header.invalid"), name
                continue
            event = party.get()
            assert event["headers"]["correlation-id"] == name
            if outcome == "no response":
                continue
            if acks:
                assert event["headers"]["requested-acks"] == ["foo-ack"]
                answer = {"correlation-id": name}
                topic = "org.acme/lamp/things/twin/acks/foo-ack"
                party.tell({"topic": topic, "headers": answer, "path": "/", "value": "done", "status": 200})
            # what no answer was promised for would come before this one
            reply = requester.get()
            assert reply["headers"]["correlation-id"] == name
            if acks:
                found = {label: entry["status"] for label, entry in reply["value"].items()}
                assert (reply["status"], found) == (200, {"foo-ack": 200, "bar-ack": 200}), name
            else:
                assert (reply["topic"], reply["status"]) == (COMMAND, 204), name


def test_weak_acks_complete_an_aggregate_and_undeclared_labels_run_into_the_timeout(address: str) -> None:
    with connect(f"{address}?declared-acks=foo-ack") as first, connect(address) as second:
        party, requester = Client(first), Client(second)
        party.subscribe("START-SEND-EVENTS?filter=gt(attributes/x,10)")

        def ask(attempt: int) -> dict[str, Any]:
            acks = [TWIN_PERSISTED, "foo-ack", "nobody"]
            headers = {"correlation-id": f"weak-{attempt}", "requested-acks": acks, "timeout": "8s"}
            requester.tell({"topic": COMMAND, "headers": headers, "path": "/attributes/x", "value": 1})
            reply = requester.get()
            if reply["status"] == 408:
                return {"foo-ack": {"status": 408}}
            assert (reply["status"], list(reply["value"])) == (424, acks)
            return reply["value"]

        # a busy machine may need longer than the eight seconds
        answers = (ask(attempt) for attempt in count())
        entries = next(found for found in answers if found["foo-ack"]["status"] != 408)
    assert (entries["foo-ack"]["status"], entries["foo-ack"]["headers"]["ditto-weak-ack"]) == (200, True)
    assert (entries[TWIN_PERSISTED]["status"], entries["nobody"]["status"]) == (204, 408)
