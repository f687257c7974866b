"""What MQTT sources and targets decide between their broker and the system, both played here."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS

from ackstream.connectivity.system import Lanes, Place
from ackstream.connectivity.transports import mqtt_client
from ackstream.connectivity.transports.mqtt import MqttPublisher, MqttSource
from ackstream.connectivity.transports.mqtt_client import MAX_REPEATED
from ackstream.connectivity.transports.transport import OutgoingMessage
from ackstream.errors import UnreachableError
from ackstream.settings import Kafka
from ackstream.settings.connections import MqttConnection, Source
from tests.harness.waiting import eventually

AGAIN = "reject-with-redelivery"
PAUSE_SECONDS = 0.02


class Played:
    """The client and the intake of a source; ``settle`` says how the intake settles a message."""

    def __init__(self, *, max_in_flight: int = 200, **settings: Any) -> None:
        self.room, self.alive = 10, True
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self.taken: list[Any] = []
        self.able: list[bool] = []
        self.settle: dict[int, Callable[[Any], None]] = {}
        self.left = self.subscribed = 0
        connection = MqttConnection(id="plant", type="mqtt", **settings)
        source = Source(addresses=("in",), qos=1, max_in_flight=max_in_flight)
        self.source = MqttSource(connection, 0, source, Kafka(), self)  # type: ignore[arg-type]
        self.source._client = self  # type: ignore[assignment]
        self.connect()

    def connect(self, *, present: bool | None = None) -> None:
        self.source._connected(self.left > 0 if present is None else present)

    def unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(reason)

    def deliver(self, *numbers: int, qos: int = 1, topic: str = "in") -> None:
        for number in numbers:
            payload = b"%d" % number
            message = SimpleNamespace(
                mid=number, qos=qos, dup=False, topic=topic, retain=False, payload=payload, properties=None
            )
            self.source._incoming(None, None, message)  # type: ignore[arg-type]
            self.source._turn()

    def take(self, message: Any, done: Callable[[Any], None], *, delivered: int, able: bool) -> None:
        assert delivered == 0
        self.able.append(able)
        self.settle[int(message.payload)] = done
        self.taken.append(message)

    def turn(self, timeout: float = 0.0) -> None:
        """Have nothing to do."""

    def subscribe_all(self, filters: Any, qos: int) -> None:
        assert (filters, qos) == (("in",), 1)
        self.subscribed += 1

    def receipt(self, message: Any, *, accepted: bool) -> None:
        self.acknowledged.append(message.mid)
        if not accepted:
            self.refused.append(message.mid)

    def forget(self) -> None:
        assert self.left == 0

    def join(self) -> None:
        self.connect()

    def leave(self) -> None:
        self.left += 1


@pytest.fixture
def played() -> Played:
    return Played()


def test_what_a_session_with_other_addresses_delivers_is_not_carried_out(played: Played) -> None:
    played.deliver(1)
    played.deliver(2, topic="old/x")
    assert [message.unreadable.split(":")[0] for message in played.taken] == [
        "", "its topic is not an address of the source"
    ]  # fmt: skip


def test_a_message_that_comes_before_the_subscription_is_confirmed_shows_that_it_holds(played: Played) -> None:
    assert not played.source._joined.is_set()
    played.deliver(1)
    assert played.source._joined.is_set()


def test_messages_are_acknowledged_in_order_of_arrival(played: Played) -> None:
    played.deliver(1, 2, 3)
    played.settle[2]("settle")
    played.source._turn()
    assert played.acknowledged == []
    played.settle[1]("reject-without-redelivery")
    played.source._turn()
    assert (played.acknowledged, played.refused) == ([1, 2], [1])


def test_messages_of_an_earlier_session_are_not_acknowledged(played: Played) -> None:
    played.deliver(1)
    played.connect()
    played.settle[1]("settle")
    played.source._turn()
    played.deliver(2)
    played.settle[2]("settle")
    played.source._turn()
    assert played.acknowledged == [2]


@pytest.mark.parametrize(("qos", "reconnects", "able"), [(0, True, False), (1, True, True), (1, False, False)])
def test_a_message_is_tried_again_unless_its_qos_or_the_settings_exclude_it(
    *, qos: int, reconnects: bool, able: bool
) -> None:
    played = Played(reconnect_for_redelivery=reconnects)
    played.deliver(1, qos=qos)
    assert played.able == [able]
    played.settle[1](AGAIN)
    played.source._turn()
    assert (played.acknowledged, played.left) == ([1] if qos else [], 0)


def test_by_default_an_unprocessed_message_is_not_acknowledged() -> None:
    assert MqttConnection(id="plant", type="mqtt").reconnect_for_redelivery


def test_messages_that_wait_for_an_earlier_one_to_be_acknowledged_take_room() -> None:
    played = Played(max_in_flight=3)
    played.deliver(1, 2, 3)
    played.settle[2]("settle")
    played.settle[3]("settle")
    played.source._turn()
    assert (played.acknowledged, played.source._room) == ([], 0)
    played.settle[1]("settle")
    played.source._turn()
    assert (played.acknowledged, played.source._room) == ([1, 2, 3], 3)


@pytest.mark.parametrize("present", [False, True])
def test_a_source_whose_subscription_is_refused_ends_also_after_a_reconnect(
    played: Played,
    present: bool,  # noqa: FBT001 - a table
) -> None:
    played.left = int(present)
    played.connect()
    refused = SimpleNamespace(is_failure=True)
    played.source._subscribed(None, None, 1, [refused], None)
    with pytest.raises(UnreachableError, match="it refuses subscriptions"):
        played.source._turn()


def test_a_source_whose_login_is_refused_after_a_reconnect_ends(played: Played) -> None:
    played.source._joined.set()
    played.alive = False
    with pytest.raises(UnreachableError, match="it refuses the connection"):
        played.source._turn()


class Sending:
    """The client of a publisher: confirms what it publishes before ``publish`` returns, or when it is told to."""

    def __init__(self, *, at_once: bool = False, rc: Any = MQTT_ERR_SUCCESS) -> None:
        self.sent: list[dict[str, Any]] = []
        self.rc, self.left = rc, threading.Event()
        publisher = MqttPublisher.__new__(MqttPublisher)
        publisher._five, publisher._changed, publisher._waiting, publisher._early = False, threading.Condition(), {}, {}
        publisher._client = self  # type: ignore[assignment]
        self.publisher, self.at_once = publisher, at_once

    def publish(self, topic: str, payload: bytes, **options: Any) -> Any:
        self.sent.append({"topic": topic, "payload": payload, **options})
        if self.at_once:
            self.confirm(len(self.sent))
        return SimpleNamespace(rc=self.rc, mid=len(self.sent))

    def confirm(self, identity: int, *, failure: str = "") -> None:
        code = SimpleNamespace(is_failure=bool(failure), getName=lambda: failure)
        self.publisher._confirmed(identity, code)

    def is_connected(self) -> bool:
        return self.rc == MQTT_ERR_SUCCESS

    def leave(self) -> None:
        self.left.set()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_target_is_confirmed_whether_the_broker_is_faster_or_not(at_once: bool) -> None:  # noqa: FBT001 - a table
    sending = Sending(at_once=at_once)
    results: list[Any] = []
    sending.publisher.publish(OutgoingMessage("out", {}, b"1"), results.append)
    if not at_once:
        assert results == []
        sending.confirm(1)
    assert [result.status for result in results] == [200]
    assert (sending.publisher._waiting, sending.publisher._early) == ({}, {})


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ("Payload format invalid", 400),
        ("Topic name invalid", 400),
        ("Not authorized", 400),
        ("Quota exceeded", 500),
        ("Unspecified error", 500),
    ],
)
def test_a_reason_of_the_broker_says_whether_a_message_is_refused_or_published_again(failure: str, status: int) -> None:
    sending = Sending()
    results: list[Any] = []
    sending.publisher.publish(OutgoingMessage("out", {}, b"1"), results.append)
    sending.confirm(1, failure=failure)
    assert [(result.status, result.away) for result in results] == [(status, status == 500)]


def test_a_message_of_qos_0_is_decided_when_it_is_written() -> None:
    """No broker confirms it. One that reads nothing is to hold back those that publish."""
    sending = Sending()
    results: list[Any] = []
    for _ in range(3):
        sending.publisher.publish(OutgoingMessage("out", {"mqtt.qos": "0"}, b"1"), results.append)
    assert (results, list(sending.publisher._waiting)) == ([], [1, 2, 3])
    sending.confirm(1)
    # dropped with the connection
    sending.confirm(2, failure="Unspecified error")
    assert [(result.status, result.away) for result in results] == [(200, False), (500, True)]
    sending.at_once = True
    sending.publisher.publish(OutgoingMessage("out", {"mqtt.qos": "0"}, b"1"), results.append)
    assert (results[2].status, list(sending.publisher._waiting), sending.publisher._early) == (200, [3], {})


def test_a_message_of_qos_0_without_a_connection_is_not_kept() -> None:
    sending = Sending(rc=MQTT_ERR_NO_CONN)
    results: list[Any] = []
    sending.publisher.publish(OutgoingMessage("out", {"mqtt.qos": "0"}, b"1"), results.append)
    assert [(result.status, result.away) for result in results] == [(503, True)]
    assert (sending.publisher._waiting, sending.publisher._early) == ({}, {})


def test_a_message_of_qos_1_waits_for_the_connection() -> None:
    sending = Sending(rc=MQTT_ERR_NO_CONN)
    results: list[Any] = []
    sending.publisher.publish(OutgoingMessage("out", {}, b"1"), results.append)
    assert (results, list(sending.publisher._waiting)) == ([], [1])
    # no confirmation can come
    sending.publisher.close()
    assert sending.left.is_set()


def test_a_publisher_that_closes_waits_for_confirmations() -> None:
    sending = Sending()
    results: list[Any] = []
    sending.publisher.publish(OutgoingMessage("out", {}, b"1"), results.append)
    closing = threading.Thread(target=sending.publisher.close)
    closing.start()
    assert not sending.left.wait(0.02)
    sending.confirm(1)
    closing.join()
    assert ([result.status for result in results], sending.left.is_set()) == ([200], True)


def test_headers_of_a_target_name_topic_quality_and_retention() -> None:
    sending = Sending()
    headers = {"mqtt.topic": "other", "mqtt.qos": "2", "mqtt.retain": "true"}
    sending.publisher.publish(OutgoingMessage("out", headers, b"1"), print)
    sending.publisher.publish(OutgoingMessage("out", {}, b"2"), print)
    assert [(each["topic"], each["qos"], each["retain"]) for each in sending.sent] == [
        ("other", 2, True),
        ("out", 1, False),
    ]


@pytest.mark.parametrize("name", ["device", "correlation-id", "reply-to", "content-type"])
def test_a_header_that_mqtt_cannot_carry_is_an_error_of_the_message_which_the_client_does_not_keep(name: str) -> None:
    sending = Sending()
    sending.publisher._five = True
    results: list[Any] = []
    sending.publisher.publish(OutgoingMessage("out", {name: "x" * 65_536}, b"1"), results.append)
    assert ([(result.status, result.away) for result in results], sending.sent) == ([(400, False)], [])


def test_a_quality_that_is_none_is_an_error_of_the_message() -> None:
    results: list[Any] = []
    Sending().publisher.publish(OutgoingMessage("out", {"mqtt.qos": "high"}, b"1"), results.append)
    assert [(result.status, result.away) for result in results] == [(400, False)]


class Intolerant:
    """A broker of MQTT 3.1.1 that ends the connection at a message that begins with ``bad``.

    It confirms a message at once, or, if ``lazy``, in a pause of the client: not if the next one ends the connection.
    """

    def __init__(self, *, lazy: bool = False) -> None:
        self.connections: list[list[bytes]] = []
        self._lazy = lazy
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections.append([])
                with client, suppress(OSError):
                    self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        held = b""
        while header := client.recv(2, socket.MSG_WAITALL):
            # no packet here is longer than 127 bytes
            body = client.recv(header[1], socket.MSG_WAITALL)
            if header[0] >> 4 == 1:
                client.sendall(b"\x20\x02\x00\x00")
            elif header[0] >> 4 == 3:
                start = 2 + int.from_bytes(body[:2], "big")
                self.connections[-1].append(body[start + 2 :])
                if body[start + 2 :].startswith(b"bad"):
                    return
                if body[start + 2 :] == b"ignored":
                    continue
                held += b"\x40\x02" + body[start : start + 2]
            if not (self._lazy and select.select([client], [], [], PAUSE_SECONDS)[0]):
                client.sendall(held)
                held = b""


def test_messages_at_which_a_broker_ends_the_connection_hold_back_no_others() -> None:
    broker = Intolerant()
    publisher = MqttPublisher(MqttConnection(id="plant", type="mqtt", host="127.0.0.1", port=broker.port), Kafka())
    publisher._client.reconnect_delay_set(0.01, 0.01)  # type: ignore[arg-type]
    results: dict[str, tuple[int, bool]] = {}
    all_known = threading.Event()

    def note(name: str, result: Any) -> None:
        results[name] = (result.status, result.unsent)
        if len(results) == 7:
            all_known.set()

    try:
        for name in ("a", "bad1", "c", "d", "bad2", "e"):
            publisher.publish(OutgoingMessage(f"out/{name}", {}, name.encode()), partial(note, name))
        publisher.publish(OutgoingMessage("out/bad1", {}, b"behind"), partial(note, "behind"))
        assert all_known.wait(30)
    finally:
        publisher.close()
        broker.close()
    taken = {name: (500, False) if "bad" in name else (200, False) for name in results}
    assert results == taken | {"behind": (503, True)}
    # alone, once it is suspected
    assert broker.connections.count([b"bad1"]) > 1


def test_once_a_topic_has_cost_the_connection_its_messages_are_sent_alone_and_no_other_is_sent_twice() -> None:
    broker = Intolerant(lazy=True)
    publisher = MqttPublisher(MqttConnection(id="plant", type="mqtt", host="127.0.0.1", port=broker.port), Kafka())
    publisher._client.reconnect_delay_set(0.01, 0.01)  # type: ignore[arg-type]
    results: list[tuple[bytes, int]] = []

    def publish(payload: bytes) -> None:
        topic = "bad" if payload == b"bad" else f"out/{len(payload)}"
        publisher.publish(OutgoingMessage(topic, {}, payload), lambda result: results.append((payload, result.status)))

    def fails_again(failed: int) -> bool:
        return results.count((b"bad", 500)) > failed

    others = [b"%d" % number for number in range(200)]
    try:
        publish(b"bad")
        eventually(lambda: results == [(b"bad", 500)], "the first failure")
        for number, payload in enumerate(others):
            publish(payload)
            if number % 50 == 30:
                failed = results.count((b"bad", 500))
                publish(b"bad")
                eventually(partial(fails_again, failed), "a failure")
        eventually(lambda: len(results) == 205, "all results")
    finally:
        publisher.close()
        broker.close()
    assert results.count((b"bad", 500)) == 5
    assert [payload for each in broker.connections for payload in each if payload != b"bad"] == others
    # one connection for each message to a topic that is known to cost it
    assert sum(b"bad" in each for each in broker.connections) == MAX_REPEATED + 4


@pytest.mark.parametrize("before", [b"bad", b"good"])
def test_a_message_that_the_broker_leaves_unconfirmed_fails_and_holds_up_no_others(
    before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_client, "DELIVERY_SECONDS", 0.2)
    broker = Intolerant()
    publisher = MqttPublisher(MqttConnection(id="plant", type="mqtt", host="127.0.0.1", port=broker.port), Kafka())
    publisher._client.reconnect_delay_set(0.01, 0.01)  # type: ignore[arg-type]
    results: dict[bytes, int] = {}

    def publish(topic: str, payload: bytes) -> None:
        message = OutgoingMessage(topic, {}, payload)
        publisher.publish(message, lambda result: results.update({payload: result.status}))

    others = [b"%d" % number for number in range(30)]
    try:
        publish("t", before)
        eventually(lambda: before in results, "the first one")
        publish("t", b"ignored")
        for payload in others:
            publish(f"out/{int(payload)}", payload)
        eventually(lambda: len(results) == 32, "all results")
        # later ones to its topic hold up nothing either
        publish("t", b"later")
        eventually(lambda: b"later" in results, "a later one")
    finally:
        publisher.close()
        broker.close()
    assert results == {before: 500 if before == b"bad" else 200, b"ignored": 500, b"later": 200} | dict.fromkeys(
        others, 200
    )


def test_a_message_at_which_a_broker_ends_the_connection_is_given_up_and_the_others_arrive_once_in_order() -> None:
    broker, lanes = Intolerant(), Lanes(2)
    publisher = MqttPublisher(MqttConnection(id="plant", type="mqtt", host="127.0.0.1", port=broker.port), Kafka())
    publisher._client.reconnect_delay_set(0.01, 0.01)  # type: ignore[arg-type]
    places = [Place("events", 0, number, 0, f"lamp{number % 10}") for number in range(200)]
    accepted: list[Place] = []
    given_up: list[Place] = []

    def publish(place: Place) -> None:
        payload = b"bad" if place.offset == 13 else b"%d" % place.offset
        publisher.publish(OutgoingMessage(place.address, {}, payload), partial(published, place))

    def published(place: Place, result: Any) -> None:
        with lanes.changed:
            if result.succeeded:
                accepted.append(place)
            elif lanes.failed(place, time.monotonic()) == [place]:
                given_up.append(place)
            else:
                return
            lanes.settled(place, accepted=result.succeeded)

    def turn() -> bool:
        for _ in range(10):
            with lanes.changed:
                place = lanes.next(time.monotonic())
                if place is None and places and lanes.waits(place := places.pop(0), time.monotonic()):
                    place = None
            if place is not None:
                publish(place)
        return len(accepted) + len(given_up) == 200

    try:
        eventually(turn, "all messages")
    finally:
        publisher.close()
        broker.close()
    assert [place.offset for place in given_up] == [13]
    for number in range(10):
        offsets = [place.offset for place in accepted if place.offset % 10 == number]
        assert offsets == sorted(set(offsets))
