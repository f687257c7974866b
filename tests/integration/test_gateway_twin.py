"""The gateway with the twin itself and a subscriber behind it: all parts real, from HTTP to the tables and back."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import Subscriber
from ackstream.jobs.twin import job as twin
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.subscriptions import subscription
from ackstream.settings import Gateway, Kafka
from tests.harness.system import System
from tests.integration.test_gateway import LAMP, Running, check_header_table, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@contextmanager
def running_with_twin(
    broker: str, spark: SparkSession, directory: Path, labels: list[str], group: str | None = None
) -> Iterator[Running]:
    """Run correlate, the twin itself with one thing, a gateway, and a subscriber to events that has the labels."""
    kafka = Kafka(bootstrap=broker, topic_prefix=f"{directory.name}-{time.time_ns()}-", partitions=2)
    with ExitStack() as stack:
        system = stack.enter_context(closing(System(kafka, directory, clock=True)))
        system.settings = system.settings.model_copy(update={"gateway": Gateway(port=0)})
        ensure_topics(system.settings)
        stack.enter_context(system.correlate(spark))
        stack.enter_context(twin.running(spark, system.settings))
        url, _ = stack.enter_context(serving(system.settings))
        made = Running(system, url)
        assert made("PUT", LAMP, json={"attributes": {"x": 0}}).status_code == 201
        stack.enter_context(Subscriber(kafka, lambda _: None, [subscription("events")], labels=labels, group=group))
        yield made


@pytest.fixture(scope="module")
def running(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_with_twin(broker, spark, tmp_path_factory.mktemp("twin"), ["foo-ack", "bar-ack"]) as made:
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

    for label, timeout in (("foo-ack", "55s"), ("nobody-ack", "6s")):
        attempts = (ask(label, timeout, attempt) for attempt in count())
        # a busy machine may need longer than the six seconds
        path, body = next((path, body) for path, body in attempts if body["twin-persisted"]["status"] != 408)
        persisted = body["twin-persisted"]
        thing = path.rpartition("/")[2]
        assert persisted["status"] == 201
        assert persisted["payload"].items() >= {"thingId": thing}.items()
        assert persisted["headers"]["location"] == running.url + path
        assert persisted["headers"]["correlation-id"].startswith(f"sample-{label}-")
        if label == "foo-ack":
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
