"""Other systems as their devices see them: what they send to a source, and what they receive from a target.

Each uses a client library of its own kind, apart from the product's code.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pika
from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from proton import Message, symbol
from proton.reactor import SenderOption
from proton.utils import BlockingConnection

from tests.harness.brokers import RunningBroker, artemis, qpid
from tests.harness.waiting import eventually


class Remote:
    """One of them; its source reads ``queues`` addresses, its target writes to one."""

    broker: Callable[[Path], AbstractContextManager[RunningBroker]] = staticmethod(artemis)
    qos = 1

    def __init__(self, broker: RunningBroker, name: str, queues: int = 1) -> None:
        self.name = name
        self.running = broker
        self.addresses = [f"{name}-in{number}" for number in range(queues)]
        self.out = f"{name}-out"
        self.received: deque[tuple[dict[str, str], bytes]] = deque()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of a connection without sources and targets."""
        raise NotImplementedError

    def connection(self, *, targets: list[dict[str, Any]] | None = None, **source: Any) -> dict[str, Any]:
        """Return the settings of a connection with one source."""
        found = {"addresses": self.addresses, "qos": self.qos, **source}
        return {"id": self.name, "sources": [found], "targets": targets or [], **self.settings}

    def target(self, topic: str = "_/_/things/twin/events", **parts: Any) -> dict[str, Any]:
        return {"address": self.out, "topics": [topic], **parts}

    def send(self, message: dict[str, Any] | bytes, number: int = 0) -> None:
        """Send a message to an address of the source, and wait until the broker has it."""
        raise NotImplementedError

    def depth(self, number: int = 0) -> int:
        """Return how many messages of an address are not settled."""
        return self.running.depth(self.addresses[number])

    def rejected(self) -> int | None:
        """Return how many messages were rejected for good; ``None`` where the broker cannot know."""
        return None

    def receive(self) -> list[tuple[dict[str, str], bytes]]:
        """Return what has come to the target's address so far: headers and payloads."""
        return list(self.received)

    def close(self) -> None:
        """Disconnect."""

    @staticmethod
    def payload(message: dict[str, Any] | bytes) -> bytes:
        return message if isinstance(message, bytes) else json.dumps(message).encode()


class Mqtt(Remote):
    """MQTT 3.1.1, QoS 1."""

    kind = "mqtt"

    def __init__(self, broker: RunningBroker, name: str, queues: int = 1) -> None:
        super().__init__(broker, name, queues)
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5 if self.kind == "mqtt-5" else MQTTv311)
        subscribed: list[Any] = []
        self._client.on_subscribe = lambda *_arguments: subscribed.append(True)
        self._client.on_message = self._arrived
        self._client.connect("127.0.0.1", broker.mqtt)
        self._client.loop_start()
        self._client.subscribe(self.out, 2)
        eventually(lambda: subscribed, "the subscription")

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": self.kind, "port": self.running.mqtt}

    def send(self, message: dict[str, Any] | bytes, number: int = 0) -> None:
        sent = self._client.publish(self.addresses[number], self.payload(message), self.qos)
        sent.wait_for_publish(30)
        assert sent.is_published()

    def depth(self, number: int = 0) -> int:
        # the broker's queue of the subscription
        return self.running.depth(f"{self.name}-0.{self.addresses[number]}")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _arrived(self, _client: Any, _data: Any, message: Any) -> None:
        properties = message.properties
        headers = dict(getattr(properties, "UserProperty", ()))
        headers["content-type"] = getattr(properties, "ContentType", "")
        headers["correlation-id"] = getattr(properties, "CorrelationData", b"").decode()
        self.received.append((headers, bytes(message.payload)))


def keep_messages(port: int, topic: str) -> None:
    """Have a broker keep the messages to a topic for a client that is away."""
    client = Client(CallbackAPIVersion.VERSION2, client_id=f"keeper-{topic}", clean_session=False, protocol=MQTTv311)
    subscribed: list[Any] = []
    client.on_subscribe = lambda *_arguments: subscribed.append(True)
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe(topic, 1)
    eventually(lambda: subscribed, "the subscription")
    client.disconnect()
    client.loop_stop()


class MqttExactly(Mqtt):
    """MQTT 3.1.1, QoS 2."""

    qos = 2


class Mqtt5(Mqtt):
    """MQTT 5, QoS 1."""

    kind = "mqtt-5"


class Mqtt5Exactly(Mqtt5):
    """MQTT 5, QoS 2."""

    qos = 2


class _Queue(SenderOption):
    """Asks the broker for a queue, where it creates the address."""

    def apply(self, sender: Any) -> None:
        sender.target.capabilities.put_object(symbol("queue"))


class Amqp10(Remote):
    """AMQP 1.0."""

    def __init__(self, broker: RunningBroker, name: str, queues: int = 1) -> None:
        super().__init__(broker, name, queues)
        self._connection = BlockingConnection(f"amqp://127.0.0.1:{broker.amqp}", timeout=30)
        self._senders = {
            address: self._connection.create_sender(address, options=_Queue()) for address in self.addresses
        }
        self._rejected_before = broker.depth("DLQ")

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": "amqp-10", "port": self.running.amqp}

    def send(self, message: dict[str, Any] | bytes, number: int = 0) -> None:
        self._senders[self.addresses[number]].send(Message(body=self.payload(message).decode(), durable=True))

    def rejected(self) -> int:
        return self.running.depth("DLQ") - self._rejected_before

    def receive(self) -> list[tuple[dict[str, str], bytes]]:
        receiver = self._connection.create_receiver(self.out)
        for _ in range(self.running.depth(self.out)):
            message = receiver.receive(30)
            receiver.accept()
            named = {"content-type": str(message.content_type), "correlation-id": message.correlation_id}
            self.received.append(((message.properties or {}) | named, message.body.encode()))
        receiver.close()
        return list(self.received)

    def close(self) -> None:
        self._connection.close()


class Amqp091(Remote):
    """AMQP 0.9.1."""

    broker = staticmethod(qpid)

    def __init__(self, broker: RunningBroker, name: str, queues: int = 1) -> None:
        super().__init__(broker, name, queues)
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", broker.amqp, heartbeat=0)  # used now and then
        )
        self._channel = self._connection.channel()
        # a rejected message goes there at once
        self._dead = [f"{address}_DLQ" for address in self.addresses]
        for dead in self._dead:
            self._channel.queue_declare(dead, durable=True)
        arguments = {"x-qpid-dlq-enabled": True, "x-qpid-maximum-delivery-count": 1}
        for address in self.addresses:
            self._channel.queue_declare(address, durable=True, arguments=arguments)
        self._channel.queue_declare(self.out, durable=True)

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": "amqp-091", "port": self.running.amqp}

    def target(self, topic: str = "_/_/things/twin/events", **parts: Any) -> dict[str, Any]:
        return {"address": f"/{self.out}", "topics": [topic], **parts}

    def send(self, message: dict[str, Any] | bytes, number: int = 0) -> None:
        self._channel.basic_publish("", self.addresses[number], self.payload(message))

    def rejected(self) -> int:
        return sum(map(self.running.depth, self._dead))

    def receive(self) -> list[tuple[dict[str, str], bytes]]:
        while (found := self._channel.basic_get(self.out, auto_ack=True))[0] is not None:
            _method, properties, body = found
            named = {"content-type": properties.content_type, "correlation-id": properties.correlation_id}
            self.received.append(((properties.headers or {}) | named, body))
        return list(self.received)

    def close(self) -> None:
        self._connection.close()


REMOTES = [Mqtt, MqttExactly, Mqtt5, Mqtt5Exactly, Amqp10, Amqp091]
