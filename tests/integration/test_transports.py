"""Every transport on a real broker of its kind: what settlement does there, and what a target confirms.

The system is played: it answers with the statuses that a test names. With Kafka and the jobs see
``test_connectivity_table`` and ``test_connectivity_crash``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.connectivity.intake import Intake
from ackstream.connectivity.transports.transport import OutgoingMessage, Published, transport
from ackstream.errors import UnreachableError
from ackstream.protocol.ditto.connection_rules import SettlementAnswer
from ackstream.protocol.ditto.twin.access import OPEN
from ackstream.settings import Kafka, Settings
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.programs import PROXY
from tests.harness.remotes import REMOTES, Amqp091, Amqp10, Mqtt, Mqtt5, Remote, keep_messages
from tests.harness.waiting import eventually

pytestmark = pytest.mark.integration
_numbers = count()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Any], Any]]:
    """Return what starts a broker, or finds it running."""
    running: dict[Any, Any] = {}
    with ExitStack() as stack:

        def start(broker: Any) -> Any:
            if broker not in running:
                running[broker] = stack.enter_context(broker(tmp_path_factory.mktemp("broker")))
            return running[broker]

        yield start


@pytest.fixture(params=REMOTES, ids=lambda remote: remote.__name__)
def remote(request: pytest.FixtureRequest, brokers: Callable[[Any], Any]) -> Iterator[Remote]:
    found = request.param(brokers(request.param.broker), f"t{next(_numbers)}")
    yield found
    found.close()


class System:
    """Answers signals by their correlation-id with the statuses that are named, then with ``default``."""

    def __init__(self, default: int | None = 204, **statuses: list[int]) -> None:
        self.asked: list[str] = []
        self.redelivered: list[bool] = []
        self.given_up: list[str] = []
        self._default = default
        self._statuses = statuses

    def ask(self, asked: Any, *, redelivered: bool, received: Any, **_options: Any) -> None:
        identity = asked.envelope.headers["correlation-id"]
        self.asked.append(identity)
        self.redelivered.append(redelivered)
        left = self._statuses.get(identity)
        status = left.pop(0) if left else self._default
        if status is not None:
            received(SettlementAnswer((status,)))

    def give_up(self, _message: Any, reason: str, received: Any, answer: Any = None) -> None:
        self.given_up.append(reason)
        received(SettlementAnswer(()) if answer is None else answer)


def command(identity: str, name: str = "lamp") -> dict[str, Any]:
    headers = {"correlation-id": identity, "requested-acks": ["my-ack"]}
    topic = f"org.acme/{name}/things/twin/commands/modify"
    return {"topic": topic, "headers": headers, "path": "/attributes/x", "value": 1}


@contextmanager
def consuming(settings: dict[str, Any], system: System) -> Iterator[Any]:
    """Run the source of a connection."""
    (connection,) = Settings(connections=(settings,)).connections
    source = connection.sources[0]
    played: Any = system
    labels: Any = SimpleNamespace(complete=True, taken=False)
    intake = Intake(
        connection, source, played, lambda _message, done: done(Published(200)), labels, OPEN, lambda: False
    )
    with transport(connection.type).source(connection, 0, source, Kafka(), intake) as running:
        running.start()
        yield running


@contextmanager
def publishing(settings: dict[str, Any]) -> Iterator[Any]:
    """Run the publisher of a connection."""
    (connection,) = Settings(connections=(settings,)).connections
    publisher = transport(connection.type).publisher(connection, Kafka())
    try:
        yield publisher
    finally:
        publisher.close()


# -- sources -----------------------------------------------------------------------------------------------------------


def test_a_settled_message_leaves_its_queue(remote: Remote) -> None:
    system = System()
    with consuming(remote.connection(), system):
        for identity in "abc":
            remote.send(command(identity))
        eventually(lambda: system.asked == ["a", "b", "c"] and remote.depth() == 0, "the settlement")
    assert not remote.rejected()


def test_a_message_stays_until_it_is_settled_and_comes_again_after_a_restart(remote: Remote) -> None:
    system = System(default=None)
    with consuming(remote.connection(), system):
        for identity in "abc":
            remote.send(command(identity))
        eventually(lambda: len(system.asked) == 3, "the signals")
        assert remote.depth() == 3
    # Artemis counts them less for a moment, while it takes them back
    eventually(lambda: remote.depth() == 3, "the same messages in their queue")
    system = System()
    with consuming(remote.connection(), system):
        eventually(lambda: sorted(system.asked) == ["a", "b", "c"] and remote.depth() == 0, "all, again")
    # Artemis does not mark messages of MQTT if the client said goodbye
    assert all(system.redelivered) or remote.settings["type"].startswith("mqtt")


def test_a_message_is_tried_again_until_it_succeeds_and_its_neighbours_are_not(remote: Remote) -> None:
    system = System(b=[503, 408])
    with consuming(remote.connection(), system):
        for identity in "abc":
            remote.send(command(identity))
        eventually(lambda: system.asked.count("b") == 3 and remote.depth() == 0, "the third attempt")
    assert not remote.rejected()
    assert sorted(system.asked) == ["a", "b", "b", "b", "c"]


def test_a_message_that_is_never_accepted_is_given_up_and_its_neighbours_are_carried_out_once(remote: Remote) -> None:
    system = System(bad=[503] * 100)
    names = [*(f"n{number}" for number in range(100)), "bad", *(f"n{number}" for number in range(100, 300))]
    with consuming({**remote.connection(), "max_attempts": 5}, system):
        for name in names:
            remote.send(command(name))
        eventually(lambda: remote.depth() == 0, "the settlement of all")
    assert sorted(system.asked) == sorted(names + ["bad"] * 4)
    assert [reason.startswith("It failed 5 times") for reason in system.given_up] == [True]
    assert not remote.rejected()


def test_a_message_that_would_fail_again_is_rejected_for_good(remote: Remote) -> None:
    system = System(b=[404])
    with consuming(remote.connection(), system):
        for identity in "abc":
            remote.send(command(identity))
        eventually(lambda: system.asked == ["a", "b", "c"] and remote.depth() == 0, "the settlement")
    assert remote.rejected() in (1, None)


def test_a_message_that_is_no_signal_is_given_up_and_settled(remote: Remote) -> None:
    system = System()
    with consuming(remote.connection(), system):
        remote.send(b"?")
        remote.send(command("a"))
        eventually(lambda: system.asked == ["a"] and remote.depth() == 0, "the one after it")
    assert len(system.given_up) == 1
    assert not remote.rejected()


@pytest.mark.parametrize("kind", [Amqp10, Mqtt5], ids=lambda kind: kind.__name__)
def test_a_message_that_kafka_would_not_take_holds_up_no_others(kind: Any, brokers: Callable[[Any], Any]) -> None:
    remote, system = kind(brokers(kind.broker), f"t{next(_numbers)}"), System()
    with consuming(remote.connection(), system):
        remote.send(b"?" * 12_500_000)
        remote.send(command("small"))
        eventually(lambda: system.asked == ["small"] and remote.depth() == 0, "the settlement")
    # a broker of MQTT 5 has dropped it
    assert len(system.given_up) == (kind is Amqp10)
    remote.close()


def test_no_more_than_may_be_in_flight_is_taken(remote: Remote) -> None:
    system = System(default=None)
    with consuming(remote.connection(max_in_flight=3), system) as source:
        for number in range(8):
            remote.send(command(f"n{number}"))
        # a broker counts a message a little after it has confirmed it
        eventually(lambda: len(system.asked) == 3 and remote.depth() == 8, "as many as may be in flight")
        assert source.alive
        assert len(system.asked) == 3


def test_a_message_is_about_the_thing_that_its_address_names(remote: Remote) -> None:
    system, enforcement = System(), {"input": "{{ source:address }}", "filters": ["{{ thing:name }}"]}
    with consuming(remote.connection(enforcement=enforcement), system):
        remote.send(command("forged"))
        remote.send(command("a", remote.addresses[0]))
        eventually(lambda: system.asked == ["a"] and remote.depth() == 0, "the settlement")
    assert ["could not be matched against" in reason for reason in system.given_up] == [True]
    assert not remote.rejected()


@pytest.mark.parametrize("kind", [Amqp10, Amqp091], ids=lambda kind: kind.__name__)
def test_with_qos_0_too_no_more_than_may_be_in_flight_is_taken(kind: Any, brokers: Callable[[Any], Any]) -> None:
    remote = kind(brokers(kind.broker), f"t{next(_numbers)}")
    system = System(default=None)
    for number in range(8):
        remote.send(command(f"n{number}"))
    with consuming(remote.connection(max_in_flight=3, qos=0), system) as source:
        eventually(lambda: len(system.asked) == 3 and remote.depth() == 5, "as many as may be in flight")
        assert source.alive
        assert len(system.asked) == 3
    # those that the broker sent ahead go back
    eventually(lambda: remote.depth() == 5, "the others in their queue")
    remote.close()


def test_with_qos_0_no_message_comes_again(remote: Remote) -> None:
    system = System(a=[503])
    with consuming(remote.connection(qos=0), system):
        for identity in "ab":
            remote.send(command(identity))
        eventually(lambda: system.asked == ["a", "b"] and remote.depth() == 0, "both")
    assert not remote.rejected()


# -- targets -----------------------------------------------------------------------------------------------------------


def test_a_target_confirms_what_the_broker_has_in_order(remote: Remote) -> None:
    number = 300
    results: list[Published] = []
    settings = remote.connection(targets=[remote.target()])
    address = settings["targets"][0]["address"]
    headers = {"content-type": "text/plain", "correlation-id": "mine", "device": "7"}
    with publishing(settings) as publisher:
        for index in range(number):
            message = OutgoingMessage(address, headers | {"mqtt.qos": str(remote.qos)}, b"%d" % index)
            publisher.publish(message, results.append)
        eventually(lambda: len(results) == number, "the confirmations")
        assert publisher.alive
    assert {result.status for result in results} == {200}
    received = eventually(lambda: len(found := remote.receive()) == number and found, "all of them")
    assert [payload for _, payload in received] == [b"%d" % index for index in range(number)]
    if remote.settings["type"] != "mqtt":
        shown = received[0][0]
        assert {name: shown[name] for name in headers} == headers


def test_what_the_broker_does_not_take_is_not_confirmed_and_nothing_else_is_published_twice(
    brokers: Callable[[Any], Any],
) -> None:
    remote = Amqp091(brokers(Amqp091.broker), "refused")
    results: dict[tuple[str, int], Published] = {}
    unfit: list[Published] = []
    addresses = ("/refused-out", "/nowhere", "missing/key")
    with publishing(remote.connection()) as publisher:
        for headers in ({"correlation-id": "x" * 256}, {"larger": "x" * 200_000}):
            publisher.publish(OutgoingMessage("/refused-out", headers, b"unfit"), unfit.append)
        for number in range(20):
            # the broker closes the channel for each message to an exchange that it does not know
            for address in addresses:
                publisher.publish(
                    OutgoingMessage(address, {}, b"%d" % number),
                    lambda result, key=(address, number): results.update({key: result}),
                )
        eventually(lambda: len(results) == 60, "all results")
        assert publisher.alive
    assert [(result.status, result.away) for result in unfit] == [(400, False)] * 2
    for address, status in zip(addresses, (200, 400, 400), strict=True):
        found = {(result.status, result.away) for (where, _), result in results.items() if where == address}
        assert found == {(status, False)}
    assert "missing" in json.loads(bytes(results["missing/key", 0].payload))["description"]
    assert [payload for _, payload in remote.receive()] == [b"%d" % number for number in range(20)]
    remote.close()


@pytest.mark.parametrize("kind", [Mqtt, Mqtt5], ids=lambda kind: kind.__name__)
def test_a_topic_that_costs_an_mqtt_connection_has_no_other_message_published_twice(
    kind: Any, brokers: Callable[[Any], Any]
) -> None:
    remote = kind(brokers(kind.broker), f"t{next(_numbers)}")
    full, results = f"full/{remote.name}", dict[bytes, int]()
    # the queue of the client that is away takes one message
    keep_messages(remote.settings["port"], full)
    others = [b"%d" % number for number in range(300)]
    with publishing(remote.connection()) as publisher:

        def publish(address: str, payload: bytes) -> None:
            message = OutgoingMessage(address, {}, payload)
            publisher.publish(message, lambda result: results.update({payload: result.status}))

        for alone in (b"kept", b"refused"):
            publish(full, alone)
            eventually(partial(results.__contains__, alone), "its result")
        for payload in others:
            publish(remote.out, payload)
            if payload.endswith(b"50"):
                publish(full, b"refused " + payload)
            elif payload.endswith(b"99"):
                # a second one would not be sent behind the first
                eventually(partial(results.__contains__, b"refused " + payload[:-2] + b"50"), "its result")
        eventually(lambda: len(results) == 305, "all results")
    eventually(lambda: len(remote.receive()) >= 300, "all of them")
    assert [payload for _, payload in remote.receive()] == others
    refused = {payload for payload, status in results.items() if status == 500}
    assert refused == {b"refused", *(b"refused " + payload for payload in others[50::100])}
    remote.close()


# -- the network -------------------------------------------------------------------------------------------------------


def test_after_a_lost_connection_every_message_is_settled_and_published(remote: Remote, tmp_path: Path) -> None:
    """Opened again by its connector, or by its client (MQTT)."""
    (port,) = free_ports(1)
    settings = remote.connection(targets=[remote.target()])
    proxy = Program("proxy", ["-c", PROXY, str(port), str(settings["port"])], Settings(), tmp_path)
    settings["port"] = port
    system = System(default=None)
    results: list[Published] = []
    message = OutgoingMessage(settings["targets"][0]["address"], {}, b"1")

    try:
        with ExitStack() as stack:
            source, publisher = eventually(lambda: _open(stack, settings, system), "the proxy")
            for identity in "abc":
                remote.send(command(identity))
            eventually(lambda: len(system.asked) == 3, "the signals")
            proxy.kill()
            reconnects = settings["type"].startswith("mqtt")
            if not reconnects:
                eventually(lambda: not (source.alive or publisher.alive), "the end of both")
            publisher.publish(message, results.append)
            if not reconnects:
                assert results[0].away
            proxy.start()
            if reconnects:
                eventually(lambda: results, "the confirmation")
                assert results[0].status == 200
        system = System()
        with ExitStack() as stack:
            source, publisher = eventually(lambda: _open(stack, settings, system), "the proxy again")
            eventually(lambda: set(system.asked) == {"a", "b", "c"} and remote.depth() == 0, "the settlement")
            publisher.publish(message, results.append)
            eventually(lambda: results[-1].status == 200, "the confirmation")
    finally:
        proxy.kill()


@pytest.mark.parametrize("kind", [Amqp10, Amqp091], ids=lambda kind: kind.__name__)
def test_a_broker_that_does_not_answer_holds_up_no_end(
    kind: Any, brokers: Callable[[Any], Any], tmp_path: Path
) -> None:
    remote = kind(brokers(kind.broker), f"t{next(_numbers)}")
    (port,) = free_ports(1)
    settings = remote.connection(targets=[remote.target()])
    proxy = Program("proxy", ["-c", PROXY, str(port), str(settings["port"])], Settings(), tmp_path)
    settings["port"] = port
    results: list[Published] = []
    try:
        with ExitStack() as stack:
            _source, publisher = eventually(lambda: _open(stack, settings, System()), "the proxy")
            proxy.pause()
            publisher.publish(OutgoingMessage(settings["targets"][0]["address"], {}, b"1"), results.append)
            began = time.monotonic()
        assert time.monotonic() - began < 30
        assert [result.away for result in results] == [True]
    finally:
        proxy.resume()
        proxy.kill()
    remote.close()


def _open(stack: ExitStack, settings: dict[str, Any], system: System) -> Any:
    try:
        return stack.enter_context(consuming(settings, system)), stack.enter_context(publishing(settings))
    except UnreachableError:
        return None
