"""The gateway with the twin itself and a subscriber behind it: all parts real, from HTTP to the tables and back."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from ackstream.client import Subscriber
from ackstream.jobs.twin import job as twin
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.subscriptions import subscription
from ackstream.settings import Gateway, Kafka
from tests.integration.system import System
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
    for label, status, silent in (("foo-ack", 200, False), ("nobody-ack", 424, True)):
        query = {"requested-acks": f"twin-persisted,{label}", "timeout": "10s"}
        body = running("PUT", f"{LAMP}-{status}", json={}, params=query).json()
        assert list(body) == ["twin-persisted", label]
        assert body["twin-persisted"]["status"] == 201
        assert body["twin-persisted"]["payload"]["thingId"] == f"org.acme:lamp-{status}"
        assert body[label]["status"] == (408 if silent else 200)
