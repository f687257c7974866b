"""MQTT connections with a real MQTT broker and a real Kafka; the correlate job is played by ``counterpart``."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from ackstream.connectivity.connector import Connector
from ackstream.kafka.topics import ensure_topics
from ackstream.observe.metrics import CONNECTION_FAILURES, FIGURES
from ackstream.protocol.ditto.envelopes import decode
from ackstream.settings import Kafka, Settings
from tests.harness.brokers import IN_FLIGHT, MQTT_BROKERS, mosquitto
from tests.harness.connections import TOPICS, Answers, Signals, acks_of, connected, ids, plain
from tests.harness.counterpart import Counterpart, aggregate
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.programs import PROXY
from tests.harness.waiting import eventually

pytestmark = pytest.mark.integration

TEMPLATE = {"topic": "org.acme/{{ header:mqtt.topic | fn:substring-after('/') }}/things/twin/commands/modify"}


@pytest.fixture
def topics(kafka: Kafka) -> Kafka:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    return kafka


@pytest.fixture(scope="module", params=MQTT_BROKERS, ids=lambda broker: broker.__name__)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with request.param(tmp_path_factory.mktemp("mqtt")) as found:
        # where it sends a few messages only that are not acknowledged
        yield found.few


class Device:
    """A program that publishes with QoS 1, and keeps what comes to the topics it subscribed to."""

    def __init__(self, port: int, *topics: str) -> None:
        self.received: list[Any] = []
        subscribed: list[Any] = []
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv311)
        self._client.on_message = lambda _client, _data, message: self.received.append(message)
        self._client.on_subscribe = lambda *_arguments: subscribed.append(True)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for topic in topics:
            self._client.subscribe(topic, 1)
        eventually(lambda: len(subscribed) == len(topics), "the subscriptions")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes | str, qos: int = 1) -> None:
        """Publish, and wait until the broker has it."""
        sent = self._client.publish(topic, payload, qos)
        sent.wait_for_publish(30)
        assert sent.is_published()


@pytest.fixture
def name(topics: Kafka) -> str:
    """Return the connection's id: the broker keeps what comes for it."""
    return topics.topic_prefix.rstrip("-")


def settings(kafka: Kafka, port: int, name: str, **parts: Any) -> Settings:
    return Settings(kafka=kafka, connections=({"id": name, "type": "mqtt", "port": port, **parts},))


def source(name: str, **parts: Any) -> dict[str, Any]:
    return {
        "addresses": [f"{name}/+"],
        "qos": 1,
        "payload_mapping": [TEMPLATE],
        "header_mapping": {"correlation-id": "{{ header:mqtt.topic | fn:substring-after('/') }}"},
        "acknowledgement_requests": {"includes": ["my-ack"]},
        **parts,
    }


def test_a_message_is_acknowledged_when_it_is_settled(topics: Kafka, port: int, name: str) -> None:
    held: list[Any] = []

    def hold(record: Any) -> list[Any]:
        held.append(record)
        return []

    configured = settings(topics, port, name, sources=[source(name)])
    with closing(Device(port)) as device, Counterpart(topics, hold) as job, connected(configured):
        for number in range(IN_FLIGHT + 2):
            device.publish(f"{name}/lamp-{number}", str(number))
        eventually(lambda: len(held) == IN_FLIGHT, "as many as the broker sends unacknowledged")
        job.write(*aggregate(held[1]))
        # the second one is settled, but acknowledged only after the first one
        job.write(*aggregate(held[0]))
        eventually(lambda: len(held) == IN_FLIGHT + 2, "the others")
        for record in held[IN_FLIGHT:]:
            job.write(*aggregate(record))
    assert [str(decode(record.value).topic) for record in held] == [
        f"org.acme/lamp-{number}/things/twin/commands/modify" for number in range(IN_FLIGHT + 2)
    ]
    assert [bytes(decode(record.value).value) for record in held] == [b"0", b"1", b"2", b"3"]


def test_what_was_not_acknowledged_comes_again_with_the_next_connection(
    topics: Kafka, port: int, name: str, request: pytest.FixtureRequest
) -> None:
    configured = settings(topics, port, name, sources=[source(name)])
    with closing(Device(port)) as device, Counterpart(topics, Answers(b=[None])) as job:
        with connected(configured):
            for lamp in "abc":
                device.publish(f"{name}/{lamp}", lamp)
            # the broker sends the third one when the first one is acknowledged
            eventually(lambda: len(job.seen) == 3, "all signals")
        device.publish(f"{name}/d", "d")
        with connected(configured):
            eventually(lambda: len(job.seen) == 6, "those behind the open one, and the one that came meanwhile")
    assert plain(job) == ["a", "b", "c", "b", "c", "d"]
    # a message that the broker marks as delivered before is a request of its own; Artemis marks it only when the
    # connection broke, not when the client had said goodbye
    marked = request.node.callspec.params["port"] is mosquitto
    assert len(set(ids(job))) == (6 if marked else 4)


@pytest.mark.parametrize(
    ("parts", "expect"), [({}, ["a", "a", "b"]), ({"reconnect_for_redelivery": False}, ["a", "b"])]
)
def test_a_rejected_message_comes_again_unless_the_settings_say_otherwise(
    topics: Kafka, port: int, name: str, parts: dict[str, Any], expect: list[str]
) -> None:
    configured = settings(topics, port, name, sources=[source(name)], **parts)
    with closing(Device(port)) as device, Counterpart(topics, Answers(a=[503])) as job, connected(configured):
        device.publish(f"{name}/a", "a")
        eventually(lambda: plain(job).count("a") == expect.count("a"), "the first message")
        device.publish(f"{name}/b", "b")
        eventually(lambda: "b" in plain(job), "the second message")
    assert plain(job) == expect


def test_with_qos_0_nothing_comes_again(topics: Kafka, port: int, name: str) -> None:
    configured = settings(topics, port, name, sources=[source(name, qos=0)])
    with closing(Device(port)) as device, Counterpart(topics, Answers(a=[503])) as job, connected(configured):
        device.publish(f"{name}/a", "a")
        device.publish(f"{name}/b", "b")
        eventually(lambda: len(job.seen) == 2, "both signals")
    assert plain(job) == ["a", "b"]


def test_answers_and_events_are_published(topics: Kafka, port: int, name: str) -> None:
    label = f"{name}:delivered"
    configured = settings(
        topics,
        port,
        name,
        sources=[source(name, reply_target={"address": "answers/{{ thing:name }}"})],
        targets=[
            {
                "address": "events/{{ thing:name }}",
                "topics": ["_/_/things/twin/events"],
                "issued_ack": "{{connection:id}}:delivered",
                "payload": "value",
            }
        ],
    )
    with closing(Device(port, "answers/+", "events/+")) as device, Counterpart(topics), connected(configured):
        device.publish(f"{name}/lamp", "21.5")
        eventually(lambda: len(device.received) == 1, "the answer")
        signals = Signals(topics)
        signals.event("told", {"a": 1}, [label])
        eventually(lambda: len(device.received) == 2, "the event")
        eventually(lambda: "told" in acks_of(topics), "the acknowledgement")
    answer, event = device.received
    assert (answer.topic, json.loads(answer.payload)["status"]) == ("answers/lamp", 200)
    assert (event.topic, event.payload) == ("events/lamp", b'{"a": 1}')
    assert acks_of(topics)["told"][label]["status"] == 200


def test_a_connection_without_its_broker_is_not_open(topics: Kafka, name: str) -> None:
    (nowhere,) = free_ports(1)
    configured = settings(topics, nowhere, name, sources=[source(name)])
    with Connector(configured, configured.connections) as connector:
        eventually(lambda: (CONNECTION_FAILURES.name, name) in FIGURES.read().counters, "an attempt")
        assert not connector.is_open


def test_two_connectors_of_one_connection_share_its_targets(topics: Kafka, port: int, name: str) -> None:
    configured = settings(
        topics, port, name, targets=[{"address": f"{name}/out", "topics": ["_/_/things/twin/events"]}]
    )
    signals = Signals(topics)
    with closing(Device(port, f"{name}/out")) as device, connected(configured), connected(configured):
        for number in range(20):
            signals.event(f"e{number}", number, [])
        eventually(
            lambda: {json.loads(message.payload)["value"] for message in device.received} == set(range(20)),
            "all events",
        )


def test_a_broker_that_is_away_gets_every_signal_in_order_and_is_read_again(
    topics: Kafka, port: int, name: str, tmp_path: Path
) -> None:
    """What is published meanwhile waits, up to 1,000 messages; those after them are not read."""
    (proxied,) = free_ports(1)
    proxy = Program("proxy", ["-c", PROXY, str(proxied), str(port)], Settings(), tmp_path)
    try:
        eventually(lambda: reachable(proxied), "the proxy")
        target = {"address": f"{name}/out", "topics": ["_/_/things/twin/events"]}
        configured = settings(topics, proxied, name, sources=[source(f"{name}-in")], targets=[target])
        signals = Signals(topics)
        with (
            closing(Device(port, f"{name}/out")) as device,
            Counterpart(topics) as job,
            connected(configured) as connector,
        ):
            signals.event("before", 0, [])
            eventually(lambda: len(device.received) == 1, "the first event")
            proxy.kill()
            for number in range(1, 21):
                signals.event(f"e{number}", number, [])
            device.publish(f"{name}-in/late", "1")
            proxy.start()
            eventually(lambda: connector.is_open and len(values(device)) == 21, "all events")
            assert values(device) == list(range(21))
            eventually(lambda: plain(job) == ["late"], "what was published meanwhile")
    finally:
        proxy.kill()


def values(device: Device) -> list[int]:
    return list(dict.fromkeys(json.loads(message.payload)["value"] for message in device.received))


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
