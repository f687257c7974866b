"""Other systems with many addresses: an HTTP service, and brokers with a consumer of all addresses."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL
from typing import Any
from urllib.parse import unquote

import pika
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError
from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

from ackstream.connectivity.transports.amqp10_link import Node
from benchmarks.addressing.plan import Arrived, Plan, number_in
from tests.harness.brokers import artemis, qpid
from tests.harness.cluster import Cluster
from tests.harness.remotes import keep_messages
from tests.harness.waiting import eventually

TOPICS = ["_/_/things/twin/events"]
ID = "plant"
FIRST = b'{"value": -1}'
"""Fills an address that takes one message alone."""


class HttpService:
    """Answers 503 at one address for ever, 500 to all or some while it is out of order, and one message never."""

    kind = "http-push"
    exact = True
    """No message is accepted twice."""

    plan = Plan()
    small = Plan(600, 20, 13, 102)
    max_attempts = 12
    outage = True

    def __init__(self, plan: Plan, _directory: Path) -> None:
        self.arrived: list[Arrived] = []
        self.attempts: Counter[int] = Counter()
        # the part of the requests that it answers with 500
        self.failing = 0.0
        self._ended = threading.Event()
        lock, remote, chance = threading.Lock(), self, random.Random(7)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # head and body of a response in one segment, or the client waits for 40 ms
            wbufsize = -1
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                number = number_in(self.rfile.read(int(self.headers["content-length"])))
                address = plan.texts[unquote(self.path.removeprefix("/"))]
                with lock:
                    remote.attempts[number] += 1
                    if number != plan.unsettled:
                        status = 503 if address == plan.never else 500 if chance.random() < remote.failing else 200
                        if status == 200:
                            remote.arrived.append(Arrived(address, number, time.monotonic()))
                if number == plan.unsettled:
                    remote._ended.wait()
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None:
                """Expect a client that has closed the connection."""

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def connection(self) -> dict[str, Any]:
        """Return the settings of the connection."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        target = {"address": "POST:/{{ thing:name }}", "topics": TOPICS}
        return {"id": ID, "type": self.kind, "url": url, "timeout": "1s", "targets": [target]}

    def close(self) -> None:
        """Stop the service."""
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()


class Broker:
    """A broker, and a thread that consumes all addresses but the one that is full."""

    kind = ""
    exact = False
    outage = False
    max_attempts = 2
    """An attempt may take 30 s, and three messages are tried before the others are given up with them."""
    plan = small = Plan()
    target = "{{ header:address }}"

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.arrived: list[Arrived] = []
        self.attempts: Counter[int] = Counter()
        self.failing = 0.0
        self._plan, self._ended = plan, threading.Event()
        with ExitStack() as stack:
            self._open(directory, stack)
            thread = threading.Thread(target=self._consume, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._ended.set)
            self._stack = stack.pop_all()

    @property
    def settings(self) -> dict[str, Any]:
        """Return where the broker is."""
        raise NotImplementedError

    @property
    def connection(self) -> dict[str, Any]:
        """Return the settings of the connection."""
        targets = [{"address": self.target, "topics": TOPICS}]
        return {"id": ID, "type": self.kind, "targets": targets, **self.settings}

    def _open(self, directory: Path, stack: ExitStack) -> None:
        """Start the broker, create the addresses, and fill that which takes no more."""
        raise NotImplementedError

    def _consume(self) -> None:
        """Take messages until the end."""
        raise NotImplementedError

    def _take(self, address: str, payload: bytes) -> None:
        number = number_in(payload)
        self.attempts[number] += 1
        self.arrived.append(Arrived(self._plan.texts[address], number, time.monotonic()))

    def close(self) -> None:
        """Stop the broker."""
        self._stack.close()


class Amqp10(Broker):
    """Artemis: it rejects messages to a full queue, and grants no credit to another one."""

    kind = "amqp-10"
    plan = Plan(good="bench.{name}", full="full.{name}", held="held.{name}")
    small = Plan(600, 20, 13, 102, "bench.{name}", "full.{name}", "held.{name}")

    @property
    def settings(self) -> dict[str, Any]:
        return {"port": self._broker.amqp}

    def _open(self, directory: Path, stack: ExitStack) -> None:
        self._broker = stack.enter_context(artemis(directory))
        with closing(BlockingConnection(f"amqp://127.0.0.1:{self._broker.amqp}", timeout=30)) as sender:
            for address in (self._plan.never_taken, self._plan.never_settled):
                sender.create_sender(address, options=Node("queue")).send(Message(body=FIRST.decode()))

    def _consume(self) -> None:
        remote = self

        class Consumer(MessagingHandler):  # type: ignore[misc]  # proton is not typed
            def on_start(self, event: Any) -> None:
                connection = event.container.connect(f"amqp://127.0.0.1:{remote._broker.amqp}", reconnect=False)
                for address in remote._plan.taken:
                    event.container.create_receiver(connection, address, options=Node("queue"))

            def on_message(self, event: Any) -> None:
                remote._take(event.link.source.address, event.message.body.encode())

        container = Container(Consumer())
        container.timeout = 0.1
        container.start()
        while container.process() and not self._ended.is_set():
            pass


class Mqtt(Broker):
    """Artemis, MQTT 3.1.1: it ends the connection for a message to a full address."""

    kind = "mqtt"
    version = MQTTv311
    plan = Plan(unsettled=None, good="bench/{name}", full="full/{name}")
    small = Plan(600, 20, 13, None, "bench/{name}", "full/{name}")

    @property
    def settings(self) -> dict[str, Any]:
        return {"port": self._broker.mqtt}

    def _open(self, directory: Path, stack: ExitStack) -> None:
        self._broker = stack.enter_context(artemis(directory))
        self._client = self._connect("bench/#", stack)
        # its queue is full once it has one message for a client that is away
        keep_messages(self._broker.mqtt, self._plan.never_taken)
        self._client.publish(self._plan.never_taken, FIRST, 1).wait_for_publish(30)

    def _connect(self, topics: str, stack: ExitStack) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, protocol=self.version)
        subscribed: list[Any] = []
        client.on_subscribe = lambda *_: subscribed.append(True)
        client.on_message = lambda _client, _data, message: self._take(message.topic, message.payload)
        client.connect("127.0.0.1", self._broker.mqtt)
        client.loop_start()
        stack.callback(client.loop_stop)
        stack.callback(client.disconnect)
        # exactly once: repeated messages were published twice
        client.subscribe(topics, 2)
        eventually(lambda: subscribed, "the subscription")
        return client

    def _consume(self) -> None:
        """Leave it to the client's thread."""


class Mqtt5(Mqtt):
    """Artemis, MQTT 5: it answers with a reason."""

    kind = "mqtt-5"
    version = MQTTv5


class Amqp091(Broker):
    """Qpid: it does not take messages to a queue that is full."""

    kind = "amqp-091"
    target = "/{{ header:address }}"
    plan = Plan(unsettled=None, good="bench.{name}", full="full.{name}")
    small = Plan(600, 20, 13, None, "bench.{name}", "full.{name}")

    @property
    def settings(self) -> dict[str, Any]:
        return {"port": self._broker.amqp}

    def _open(self, directory: Path, stack: ExitStack) -> None:
        self._broker = stack.enter_context(qpid(directory))
        parameters = pika.ConnectionParameters("127.0.0.1", self._broker.amqp, heartbeat=0)
        self._connection = stack.enter_context(closing(pika.BlockingConnection(parameters)))
        self._channel = self._connection.channel()
        for address in self._plan.taken:
            self._channel.queue_declare(address, durable=True)
        full = {"qpid.policy_type": "reject", "qpid.max_count": 1}
        self._channel.queue_declare(self._plan.never_taken, durable=True, arguments=full)
        self._channel.basic_publish("", self._plan.never_taken, FIRST)

    def _consume(self) -> None:
        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            self._take(method.routing_key, body)

        for address in self._plan.taken:
            self._channel.basic_consume(address, take, auto_ack=True)
        while not self._ended.is_set():
            self._connection.process_data_events(0.1)


class OtherKafka(Broker):
    """A cluster whose third node is dead: the topic that it shares has fewer replicas in sync than a record needs."""

    kind = "kafka"
    plan = Plan(unsettled=None, good="bench-{index}", full="full-{index}")
    small = Plan(600, 20, 13, None, "bench-{index}", "full-{index}")

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap": self._cluster.bootstrap}

    def _open(self, directory: Path, stack: ExitStack) -> None:
        self._cluster, never = Cluster(directory, 3, stack), self._plan.never_taken
        servers = self._cluster.bootstrap
        made = {text: _topic(1 + number % 2) for number, text in enumerate(self._plan.taken)} | {never: _topic(1, 3)}
        admin = stack.enter_context(closing(KafkaAdminClient(bootstrap_servers=servers)))
        admin.create_topics(made)
        admin.wait_for_topics(list(made))
        self._cluster.nodes[2].signal(SIGKILL)

        def shrunk() -> bool:
            # it may query the dead node
            with suppress(KafkaConnectionError):
                return bool(admin.describe_topics([never])[0]["partitions"][0]["isr_nodes"] == [1])
            return False

        eventually(shrunk, "a smaller set of replicas in sync")
        self._consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        stack.callback(self._consumer.close)
        self._consumer.assign([TopicPartition(text, 0) for text in self._plan.taken])
        self._consumer.seek_to_beginning()

    def _consume(self) -> None:
        while not self._ended.is_set():
            for records in self._consumer.poll(timeout_ms=100).values():
                for record in records:
                    self._take(record.topic, record.value)


def _topic(*nodes: int) -> dict[str, Any]:
    """Return a topic of one partition, a record of which needs all of these nodes."""
    return {"assignments": {0: list(nodes)}, "configs": {"min.insync.replicas": str(len(nodes))}}


REMOTES: dict[str, Any] = {each.kind: each for each in (HttpService, Amqp10, Mqtt, Mqtt5, Amqp091, OtherKafka)}
