"""A gateway in front of the system under test, and clients of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
from kafka import KafkaProducer
from msgspec import UNSET

from ackstream.client import Ack, Response, Signal, Subscriber
from ackstream.client.core.worker import Worker
from ackstream.client.parties.signals import messages, read_signal
from ackstream.gateway.exchange import connected
from ackstream.gateway.server import Server
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode, error_envelope, raw
from ackstream.protocol.ditto.twin.subscriptions import subscription
from ackstream.protocol.errors import DittoError
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Gateway, Kafka
from tests.harness.kafka import following
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS
from tests.prose import prose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from websockets.sync.client import ClientConnection

    from ackstream.client.core.messages import Work


LAMP = "/api/2/things/org.acme:lamp"
TOGETHER = httpx.Limits(max_connections=None, max_keepalive_connections=None)


@contextmanager
def serving(settings: Any) -> Iterator[tuple[str, Server]]:
    """Run a gateway on a free port in a thread, as its command runs it in the main one."""
    with connected(settings) as dependencies:
        address: list[str] = []
        ready = threading.Event()

        def started(url: str) -> None:
            address.append(url)
            ready.set()

        server = Server(dependencies, started)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        thread.start()
        try:
            assert ready.wait(PATIENCE_SECONDS)
            yield address[0], server
        finally:
            server.should_exit = True
            thread.join()


class Running:
    """The system, and a gateway in front of it."""

    def __init__(self, system: System, url: str) -> None:
        self.system = system
        self.url = url

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, self.url + path, timeout=PATIENCE_SECONDS, **options)

    async def together(self, ask: Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]], number: int) -> Any:
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_SECONDS, limits=TOGETHER) as client:
            return await asyncio.gather(*(ask(client, index) for index in range(number)))


def check_header_table(running: Running) -> None:
    table = {identity: case for identity, case in prose("header_defaults").items() if identity.startswith("doc-HTTP-")}
    assert len(table) == 8
    cases = list(table.values())

    async def ask(client: httpx.AsyncClient, index: int) -> httpx.Response:
        given = cases[index]["given"]
        headers = {
            "response-required": str(given["response-required"]).lower(),
            "requested-acks": "http-ack,bar-ack" if given["requested-acks"] == "non-empty" else "[]",
            "timeout": "0s" if given["timeout"] == "zero" else "55s",
        }
        # is there already: whichever of them were first would create another
        return await client.put(f"{LAMP}/attributes/x", json=1, headers=headers)

    answers = asyncio.run(running.together(ask, len(cases)))
    for (identity, case), found in zip(table.items(), answers, strict=True):
        expect = case["expect"]
        if expect["clientError"]:
            assert (found.status_code, found.json()["error"]) == (400, "header.invalid"), identity
        elif expect["outcome"] == "response":
            assert (found.status_code, found.content) == (204, b""), identity
        elif expect["outcome"] == "aggregated response and acks":
            assert found.status_code == 200, identity
            statuses = {label: entry["status"] for label, entry in found.json().items()}
            assert statuses == {"http-ack": 200, "bar-ack": 200}
        else:
            assert (found.status_code, found.content) == (202, b""), identity


class TwinAndDevices:
    """Answers signals as the twin and all devices together: its function returns the answers to one of them."""

    def __init__(self, kafka: Kafka, answer: Callable[[Signal], list[Any]]) -> None:
        self._answer = answer
        self._topic = kafka.topic("twin-acks")
        self._producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        self._worker = Worker(kafka, ["signals"], self._handle, None, "latest")
        self._worker.run()

    def close(self) -> None:
        self._worker.close()
        self._producer.close()

    def _handle(self, record: Any, work: Work) -> None:
        requested = decode(record.value).headers.get("requested-acks", [])
        signal = read_signal(record, {*requested, "live-response"})
        for answer in self._answer(signal):
            if signal.channel == "live" or isinstance(answer, Ack):
                for _, message in messages(signal, answer):
                    self._worker.outbox.send(signal.correlation_id, message, work)
            else:
                self._send_of_twin(signal, _of_twin(signal, answer))

    def _send_of_twin(self, signal: Signal, answer: Envelope) -> None:
        identity = reply_id(signal.correlation_id, signal.topic, signal.partition, signal.offset)
        headers = [("correlation-id", signal.correlation_id.encode()), ("reply-id", identity.encode())]
        self._producer.send(self._topic, key=signal.thing_id.encode(), value=encode(answer), headers=headers)


def _of_twin(signal: Signal, answer: Response | DittoError) -> Envelope:
    headers: dict[str, Any] = {"correlation-id": signal.correlation_id, "response-required": False}
    if isinstance(answer, DittoError):
        return error_envelope(answer, thing_id=signal.thing_id, channel="twin", headers=headers)
    value = UNSET if answer.value is UNSET else raw(answer.value)
    return Envelope(signal.envelope.topic, {**answer.headers, **headers}, signal.path, value, status=answer.status)


class Client:
    """A WebSocket client as one writes it in a test."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def tell(self, message: dict[str, Any] | str) -> None:
        self._socket.send(message if isinstance(message, str) else json.dumps(message))

    def text(self) -> str:
        return str(self._socket.recv(timeout=PATIENCE_SECONDS))

    def get(self) -> dict[str, Any]:
        return json.loads(self.text())

    def subscribe(self, control: str) -> None:
        self.tell(control)
        assert self.text() == f"{control.partition('?')[0]}:ACK"


@contextmanager
def running_with_twin(
    broker: str, spark: SparkSession, directory: Path, labels: list[str], group: str | None = None
) -> Iterator[Running]:
    """Run correlate, the twin itself with one thing, a gateway, and a subscriber to events that has the labels."""
    kafka = Kafka(bootstrap=broker, topic_prefix=f"{directory.name}-{time.time_ns()}-", partitions=2)
    with ExitStack() as stack:
        stack.enter_context(following(kafka))
        system = stack.enter_context(closing(System(kafka, directory, clock=True)))
        system.settings = system.settings.model_copy(update={"gateway": Gateway(port=0)})
        ensure_topics(system.settings)
        stack.enter_context(system.correlate(spark))
        stack.enter_context(system.twin(spark))
        url, _ = stack.enter_context(serving(system.settings))
        made = Running(system, url)
        assert made("PUT", LAMP, json={"attributes": {"x": 0}}).status_code == 201
        stack.enter_context(
            Subscriber(
                kafka, handler=lambda _: None, subscriptions=[subscription("events")], labels=labels, group=group
            )
        )
        yield made
