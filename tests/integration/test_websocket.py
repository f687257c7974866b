"""WebSockets of the gateway on the real broker; a thread plays the correlate job, the test itself the twin."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.settings import Gateway, Kafka, Settings
from tests.harness.counterpart import Counterpart
from tests.harness.gateway import Client, serving
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration

EVENT = "org.acme/lamp/things/twin/events/modified"
MESSAGE = "org.acme/lamp/things/live/messages/ask"
NOT_UNIQUE = "acknowledgement:label.not.unique"


class World:
    """A gateway, and a producer that writes what the twin would."""

    def __init__(self, kafka: Kafka, address: str, stack: ExitStack) -> None:
        self._kafka = kafka
        self.address = address.replace("http", "ws")
        self._stack = stack
        self._producer = stack.enter_context(_producer(kafka))

    def client(self, query: str = "", **headers: str) -> Client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.address}/ws/2{query}"
        return Client(self._stack.enter_context(connect(url, additional_headers=named)))

    def event(self, correlation_id: str, value: Any = 1, path: str = "/attributes/x", **headers: Any) -> None:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        self.write(
            "events", {"topic": EVENT, "headers": named, "path": path, "value": value, "revision": 2}, correlation_id
        )

    def write(self, topic: str, message: dict[str, Any], correlation_id: str) -> None:
        headers = [("correlation-id", correlation_id.encode())]
        name = self._kafka.topic(topic)
        self._producer.send(name, key=b"k", value=json.dumps(message).encode(), headers=headers).get(
            timeout=PATIENCE_SECONDS
        )

    def records(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in records(self._kafka, topic)]

    def acks(self, number: int) -> list[dict[str, Any]]:
        return eventually(lambda: len(found := self.records("acks")) >= number and found, f"{number} acknowledgements")


@contextmanager
def _producer(kafka: Kafka) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    try:
        yield producer
    finally:
        producer.close()


@pytest.fixture
def world(kafka: Kafka) -> Iterator[World]:
    settings = Settings(kafka=kafka, gateway=Gateway(port=0))
    ensure_topics(settings)
    with ExitStack() as stack:
        stack.enter_context(Counterpart(kafka, signs=True))
        address, _ = stack.enter_context(serving(settings))
        yield World(kafka, address, stack)


def test_a_client_subscribes_acknowledges_and_gets_the_answer_to_its_own_request(world: World):
    subscriber = world.client(declared_acks="my-ack")
    subscriber.subscribe("START-SEND-EVENTS")
    world.event("c-1", requested_acks=["twin-persisted", "my-ack", "other"])
    event = subscriber.get()
    assert event["headers"] == {"correlation-id": "c-1", "requested-acks": ["my-ack"]}
    assert (event["topic"], event["value"], event["revision"]) == (EVENT, 1, 2)
    # those of others are refused
    other = "org.acme/lamp/things/twin/acks/other"
    subscriber.tell({"topic": other, "headers": {"correlation-id": "c-1"}, "path": "/", "status": 200})
    assert subscriber.get()["value"]["error"] == "acknowledgement:label.not.declared"
    ack = "org.acme/lamp/things/twin/acks/my-ack"
    subscriber.tell({"topic": ack, "headers": {"correlation-id": "c-1"}, "path": "/", "value": "seen", "status": 202})
    (found,) = world.acks(1)
    assert (found["topic"], found["value"], found["status"]) == (ack, "seen", 202)

    requester = world.client()
    command = "org.acme/lamp/things/twin/commands/modify"
    requester.tell(
        {"topic": command, "headers": {"correlation-id": "c-2", "requested-acks": ["my-ack"]}, "path": "/", "value": 5}
    )
    answer = requester.get()
    assert answer["headers"]["correlation-id"] == "c-2"
    assert (answer["status"], answer["value"]["my-ack"]["status"]) == (200, 200)


def test_a_label_belongs_to_one_client_until_it_leaves(world: World):
    # the example of the documents
    labels = "some-connection-id:ack-label-1,my:ack-label-2"
    with connect(f"{world.address}/ws/2?declared-acks={labels}") as first:
        Client(first).subscribe("START-SEND-EVENTS")
        late = world.client("?declared-acks=my:ack-label-2")
        error = late.get()
        assert (error["topic"], error["status"]) == ("unknown/unknown/things/twin/errors", 409)
        assert error["value"]["error"] == NOT_UNIQUE
        with pytest.raises(ConnectionClosed):
            late.text()
    again = world.client("?declared-acks=my:ack-label-2")
    again.subscribe("START-SEND-MESSAGES")


def test_what_the_filter_drops_and_what_is_not_subscribed_is_acknowledged_weakly(world: World):
    client = world.client("?declared-acks=my-ack")
    client.subscribe("START-SEND-EVENTS?namespaces=org.acme&filter=gt(attributes/x,1)")
    world.event("c-1", 1, requested_acks=["my-ack", "nobody"])
    world.event("c-2", 2, requested_acks=["my-ack"])
    assert client.get()["headers"]["correlation-id"] == "c-2"
    client.subscribe("STOP-SEND-EVENTS")
    world.event("c-3", 2, requested_acks=["my-ack"])
    filtered, unsubscribed = world.acks(2)
    for ack, identity, reason in (
        (filtered, "c-1", "dropped by a configured RQL filter."),
        (unsubscribed, "c-3", "did not subscribe for the signal type."),
    ):
        assert ack["headers"]["correlation-id"] == identity
        assert ack["headers"]["ditto-weak-ack"] is True
        assert (ack["status"], ack["topic"]) == (200, "org.acme/lamp/things/twin/acks/my-ack")
        assert ack["value"].endswith(reason)


def test_live_messages_are_answered_and_their_sender_does_not_hear_itself(world: World):
    device, sender = world.client(), world.client()
    device.subscribe("START-SEND-MESSAGES")
    sender.subscribe("START-SEND-MESSAGES")
    message = {"topic": MESSAGE, "headers": {"correlation-id": "c-1"}, "path": "/inbox/messages/ask", "value": "?"}
    sender.tell(message)
    asked = device.get()
    assert (asked["topic"], asked["value"]) == (MESSAGE, "?")
    device.tell(message | {"value": "!", "status": 200})
    (answer,) = world.acks(1)
    assert (answer["value"], answer["status"], shown_id(answer["headers"]["correlation-id"])) == ("!", 200, "c-1")
    # the first thing the sender hears is its reply
    assert sender.get()["status"] == 200


def test_live_events_of_one_client_reach_others_without_labels(world: World):
    device, listener = world.client(), world.client("?declared-acks=my-ack")
    listener.subscribe("START-SEND-LIVE-EVENTS")
    topic = "org.acme/lamp/things/live/events/modified"
    device.tell({"topic": topic, "headers": {"requested-acks": ["my-ack"]}, "path": "/attributes/x", "value": 1})
    event = listener.get()
    assert (event["topic"], event["value"]) == (topic, 1)
    assert "requested-acks" not in event["headers"]


def test_an_ack_of_an_undeclared_label_is_an_error_for_its_sender_alone(world: World):
    holder, stranger = world.client("?declared-acks=my-ack"), world.client()
    ack = {"topic": "org.acme/lamp/things/twin/acks/my-ack", "headers": {"correlation-id": "c-1"}, "path": "/"}
    stranger.tell(ack | {"status": 400})
    error = stranger.get()
    assert (error["status"], error["value"]["error"]) == (400, "acknowledgement:label.not.declared")
    assert error["headers"]["correlation-id"] == "c-1"
    holder.subscribe("START-SEND-EVENTS")
    world.event("c-1", requested_acks=["my-ack"])
    holder.get()
    holder.tell(ack | {"status": 200})
    (found,) = world.acks(1)
    assert found["status"] == 200


def test_what_cannot_be_read_of_a_subscription_is_an_error_under_its_correlation_id(world: World):
    client = world.client()
    client.tell("START-SEND-EVENTS?filter=eq(attributes/x&correlation-id=mine")
    error = client.get()
    assert (error["value"]["error"], error["headers"]["correlation-id"]) == ("rql.expression.invalid", "mine")
    client.subscribe("START-SEND-EVENTS")


async def _listen_together(world: World, number: int) -> tuple[int, list[str]]:
    """Connect so many clients in one thread; return how many threads that cost the gateway, and what they heard."""
    async with AsyncExitStack() as stack:
        url = f"{world.address}/ws/2"
        first = await stack.enter_async_context(connect_async(url, open_timeout=PATIENCE_SECONDS))
        threads = threading.active_count()
        sockets = [
            await stack.enter_async_context(connect_async(url, open_timeout=PATIENCE_SECONDS)) for _ in range(number)
        ]
        for socket in (first, *sockets):
            await socket.send("START-SEND-EVENTS")
            assert await socket.recv() == "START-SEND-EVENTS:ACK"
        cost = threading.active_count() - threads
        world.event("c-1")
        heard = await asyncio.wait_for(asyncio.gather(*[socket.recv() for socket in sockets]), PATIENCE_SECONDS)
        return cost, [json.loads(text)["headers"]["correlation-id"] for text in heard]


def test_300_sockets_cost_no_threads(world: World):
    cost, heard = asyncio.run(_listen_together(world, 300))
    assert heard == ["c-1"] * 300
    # a pool of the gateway may grow by a few meanwhile
    assert cost < 20
