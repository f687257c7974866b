"""All jobs and all clients on a Kafka that they log in to by SASL over TLS, with the settings that the manual shows."""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ackstream.client import (
    Ack,
    Command,
    Publisher,
    QueryClient,
    QueueConsumer,
    Requester,
    Responder,
    SampleReader,
    Subscriber,
)
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import close_producer, connect_admin, connect_producer
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.subscriptions import subscription
from ackstream.settings import Kafka, Lake, Settings
from ackstream.settings.security import KafkaSecurity
from tests.harness import programs
from tests.harness.cluster import SecuredBroker
from tests.harness.lake import rows
from tests.harness.ports import free_ports
from tests.harness.processes import Program, alive
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = [pytest.mark.integration, pytest.mark.long]

MANUAL = Path(__file__).parents[2] / "docs" / "operations.md"
THING = "org.acme:lamp"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # the user of the manual
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), "me", "secret")
    broker.make_certificate()
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def documented(broker: SecuredBroker) -> dict[str, Any]:
    """Return ``[kafka.security]`` of the manual, with the certificate of this broker."""
    (block,) = re.findall(r"```toml\n(\[kafka\.security\]\n.*?)```", MANUAL.read_text("utf-8"), re.DOTALL)
    found: dict[str, Any] = tomllib.loads(block.replace("ca.pem", str(broker.certificate)))["kafka"]["security"]
    return found


def test_nobody_gets_in_without_them(broker: SecuredBroker, documented: dict[str, Any]) -> None:
    for security in ({}, documented | {"password": "wrong"}):
        kafka = Kafka(bootstrap=broker.secured, security=KafkaSecurity(**security))
        with pytest.raises(UnreachableError), connect_admin(kafka) as admin:
            admin.list_topics()


def _environment(documented: dict[str, Any], tmp_path: Path, port: int) -> dict[str, str]:
    destination = {"name": "standby", "path": str(tmp_path / "standby"), "type": "sync"}
    source = {"addresses": ["inbound"], "qos": 1, "start": "earliest"}
    tables: dict[str, Any] = {
        "KAFKA_SECURITY": documented,
        "DESTINATIONS": [destination | {"ack_conflation_interval": "500ms"}],
        "SETTLE_REQUIRED": [{"role": "Processor"}],
        "QUEUES": [{"name": "orders", "topics": ["orders"]}],
        "CONNECTIONS": [{"id": "outside", "type": "kafka", "sources": [source]}],
    }
    texts = {
        "GATEWAY_PORT": str(port),
        "QUEUE_STARTING": "earliest",
        "SPARK_DRIVER_MEMORY": "2g",
        **{name: json.dumps(value) for name, value in tables.items()},
    }
    return {f"ACKSTREAM_{name}": text for name, text in texts.items()}


def test_every_job_and_every_client_works_with_the_settings_of_the_manual(
    broker: SecuredBroker, documented: dict[str, Any], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    kafka = Kafka(bootstrap=broker.secured, partitions=2, security=KafkaSecurity(**documented))
    settings = Settings(kafka=kafka, lake=Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")))
    ensure_topics(settings)
    with connect_admin(kafka) as admin:
        admin.create_topics({"inbound": {"num_partitions": 1, "replication_factor": 1}})
    environment = _environment(documented, tmp_path, port)
    with ExitStack() as stack:
        running = []
        for name, arguments in (("jobs", ["-c", programs.JOBS]), ("gateway", ["gateway"]), ("connector", ["connect"])):
            running.append(Program(name, arguments, settings, tmp_path, environment))
            stack.callback(running[-1].kill)

        def runs(look: Any) -> Any:
            return lambda: alive(running) and look()

        # gateway, correlate, twin, subscriber
        events = [subscription("events")]
        stack.enter_context(Subscriber(kafka, lambda _: Ack(204), events, labels=["app:seen"], start="earliest"))
        eventually(runs(lambda: _put(port)), "an answer of the gateway with both acknowledgements")
        # requester and responder
        stack.enter_context(Responder(kafka, lambda signal: Ack(payload=signal.value), labels=["meter"]))
        requester = stack.enter_context(Requester(kafka))
        command = Command.modify_attribute(THING, "n", 2)
        reply = requester.request(command, acks=["twin-persisted", "meter"], timeout=60)
        assert (reply.ok, sorted(reply.acks)) == (True, ["meter", "twin-persisted"])
        # persist, mirror, settle, publisher, reader
        reader = stack.enter_context(SampleReader(kafka, "P1", role="Processor", start_timeout=PATIENCE_SECONDS))
        publisher = stack.enter_context(Publisher(kafka, client="p1", logon_timeout=PATIENCE_SECONDS))
        publisher.publish_await_acknowledgement(b"1", PATIENCE_SECONDS, topic="orders")
        (sample,) = eventually(runs(lambda: reader.take(timeout=1.0)), "the sample")
        reader.acknowledge_sample(sample)
        # queues and query
        options = {"queue": "orders", "name": "A", "bind_timeout": PATIENCE_SECONDS}
        consumer = stack.enter_context(QueueConsumer(kafka, **options))
        message = eventually(runs(lambda: consumer.receive(1.0)), "the message of the queue")
        message.settle()
        query = stack.enter_context(QueryClient(kafka, client="q1", timeout=PATIENCE_SECONDS))
        stream = query.subscribe("orders", bookmark="EPOCH")
        found = eventually(runs(lambda: stream.receive(1.0)), "the message of the subscription")
        assert (sample.value, message.value, found.value) == (b"1", b"1", b"1")
        # connector and archive
        producer = connect_producer(kafka, "inbound")
        stack.callback(close_producer, producer)
        brought = System.command_json("in-1", requested_acks=["twin-persisted"])
        producer.send("inbound", json.dumps(brought).encode()).get(60)
        eventually(runs(lambda: "in-1" in _archived(settings.lake)), "the outcome of the command that was brought")
        eventually(runs(lambda: rows(settings.lake, "deliveries", "reader")), "the acknowledgement of the reader")


def _put(port: int) -> bool:
    with suppress(httpx.TransportError):
        url = f"http://127.0.0.1:{port}/api/2/things/{THING}"
        asked = {"requested-acks": "twin-persisted,app:seen", "timeout": "30s"}
        found = httpx.put(url, params=asked, json={"attributes": {"n": 1}}, timeout=60)
        return found.status_code == 200
    return False


def _archived(lake: Lake) -> set[str]:
    return {row["correlation_id"].partition("#")[0] for row in rows(lake, "outcomes", "correlation_id")}
