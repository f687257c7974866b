"""MQTT messages as headers and payloads, and what the client of the product changes of paho."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS, Client, MQTTMessage, _ConnectionState
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ackstream.connectivity.transports import mqtt_client
from ackstream.connectivity.transports.mqtt import external_message, publish_properties
from ackstream.connectivity.transports.mqtt_client import (
    MAX_REPEATED,
    MAX_UNCONFIRMED,
    MqttClient,
    Suspects,
)
from ackstream.errors import UnreachableError
from ackstream.settings.connections import MqttConnection

HEADERS = {"correlation-id": "mine", "reply-to": "answers/7", "content-type": "text/plain", "device": "7", "x": "ä"}


def message(**parts: Any) -> Any:
    values = {"topic": "in/7", "qos": 2, "retain": True, "payload": bytearray(b"21.5"), "properties": None, "mid": 258}
    return SimpleNamespace(**{**values, **parts})


def test_topic_quality_and_retention_are_headers() -> None:
    found = external_message(message())
    assert found.headers == {"mqtt.topic": "in/7", "mqtt.qos": "2", "mqtt.retain": "true"}
    assert found.payload == b"21.5"


def test_properties_of_mqtt_5_are_headers_both_ways() -> None:
    properties = publish_properties(HEADERS | {"mqtt.qos": "2"})
    assert properties.CorrelationData == b"mine"
    assert (properties.ResponseTopic, properties.ContentType) == ("answers/7", "text/plain")
    assert properties.UserProperty == [("device", "7"), ("x", "ä")]
    found = external_message(message(properties=properties))
    assert found.headers == HEADERS | {"mqtt.topic": "in/7", "mqtt.qos": "2", "mqtt.retain": "true"}


def test_a_sender_cannot_forge_the_topic_of_its_message() -> None:
    properties = publish_properties({})
    properties.UserProperty = [("mqtt.topic", "admin"), ("Device", "7")]
    assert external_message(message(properties=properties)).headers["mqtt.topic"] == "in/7"
    assert external_message(message(properties=properties)).headers["device"] == "7"


def connected(kind: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[MqttClient, list[bytes]]:
    """Return a client whose broker has answered, and the packets that it sends."""
    client = MqttClient(MqttConnection(id="plant", type=kind), "0", persistent=True)
    client._state, client._accepts = _ConnectionState.MQTT_CS_CONNECTED, True
    sent: list[bytes] = []
    monkeypatch.setattr(
        client, "_packet_queue", lambda _command, data, *_: sent.append(bytes(data)) or MQTT_ERR_SUCCESS
    )
    return client, sent


@pytest.mark.parametrize(
    ("kind", "qos", "accepted", "packet"),
    [
        ("mqtt", 1, True, b"\x40\x02\x01\x02"),
        ("mqtt", 1, False, b"\x40\x02\x01\x02"),
        ("mqtt", 2, True, b"\x50\x02\x01\x02"),
        ("mqtt-5", 1, True, b"\x40\x02\x01\x02"),
        ("mqtt-5", 1, False, b"\x40\x03\x01\x02\x83"),
        ("mqtt-5", 2, False, b"\x50\x03\x01\x02\x83"),
    ],
)
def test_a_receipt_says_in_mqtt_5_that_a_message_is_rejected(
    kind: Any,
    qos: int,
    accepted: bool,  # noqa: FBT001 - a table
    packet: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, sent = connected(kind, monkeypatch)
    client.receipt(message(qos=qos), accepted=accepted)
    assert sent == [packet]


def test_a_message_of_qos_2_is_handed_over_once_and_received_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = connected("mqtt", monkeypatch)
    arrived: list[Any] = []
    client.on_message = lambda _client, _data, each: arrived.append(each)
    client._in_packet["command"] = 0x34
    client._in_packet["packet"] = bytearray(b"\x00\x02in\x01\x0221.5")
    client._handle_publish()
    assert [(each.topic, each.payload, each.qos) for each in arrived] == [("in", b"21.5", 2)]
    assert sent == []
    client.receipt(arrived[0], accepted=True)
    client._in_packet["packet"] = bytearray(b"\x01\x02")
    client._handle_pubrel()
    # PUBREC, PUBCOMP
    assert sent == [b"\x50\x02\x01\x02", b"\x70\x02\x01\x02"]
    assert len(arrived) == 1


def test_a_message_of_qos_2_that_was_acknowledged_is_not_handed_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its PUBREC was lost with the connection, and the broker sends it again."""
    client, sent = connected("mqtt", monkeypatch)
    arrived: list[Any] = []
    client.on_message = lambda _client, _data, each: arrived.append(each)

    def publish(command: int) -> None:
        client._in_packet["command"] = command
        client._in_packet["packet"] = bytearray(b"\x00\x02in\x01\x0221.5")
        client._handle_publish()

    publish(0x34)
    publish(0x3C)
    assert len(arrived) == 2
    client.receipt(arrived[1], accepted=True)
    publish(0x3C)
    assert (len(arrived), sent) == (2, [b"\x50\x02\x01\x02"] * 2)
    client._in_packet["packet"] = bytearray(b"\x01\x02")
    client._handle_pubrel()
    # the packet id is free again
    publish(0x34)
    assert len(arrived) == 3
    client.receipt(arrived[2], accepted=True)
    client.forget()
    publish(0x34)
    assert len(arrived) == 4


def test_a_message_with_the_id_of_an_acknowledged_one_is_handed_over_unless_it_is_marked_as_a_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that returned to an older state of the session gives an id again whose PUBREL never came."""
    client, sent = connected("mqtt", monkeypatch)
    arrived: list[Any] = []
    client.on_message = lambda _client, _data, each: arrived.append(each)
    client._unreleased.add(258)
    client._in_packet["command"] = 0x34
    client._in_packet["packet"] = bytearray(b"\x00\x02in\x01\x02other")
    client._handle_publish()
    assert ([each.payload for each in arrived], sent) == ([b"other"], [])


def test_nothing_is_acknowledged_while_the_client_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = connected("mqtt", monkeypatch)
    client._state = _ConnectionState.MQTT_CS_CONNECTING
    client.receipt(message(qos=1), accepted=True)
    client.receipt(message(qos=2), accepted=True)
    # the broker marks it as a repetition, and it is not handed over again
    assert (sent, client._unreleased) == ([], {258})


def publishing(
    count: int, monkeypatch: pytest.MonkeyPatch, qos: int = 2, topics: tuple[str, ...] = ("out",)
) -> tuple[MqttClient, list[bytes], list[Any]]:
    """Return a client that has published messages, its packets, and what it reports as confirmed."""
    client, sent = connected("mqtt-5", monkeypatch)
    client._sock = SimpleNamespace(close=lambda: None)
    confirmed: list[Any] = []
    client.on_confirmed = lambda identity, reason: confirmed.append((identity, reason.getName()))
    for number in range(count):
        client.publish(topics[number % len(topics)], b"x", qos)
    return client, sent, confirmed


def test_a_message_of_qos_2_that_the_broker_refuses_is_reported_as_refused_and_not_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, sent, confirmed = publishing(3, monkeypatch)
    sent.clear()
    for packet in (b"\x00\x01\x87", b"\x00\x02\x97\x00", b"\x00\x03", b"\x00\x09\x87"):
        client._in_packet["packet"] = bytearray(packet)
        client._handle_pubrec()
    assert confirmed == [(1, "Not authorized"), (2, "Quota exceeded")]
    # PUBREL of the one that was accepted
    assert (sent, list(client._out_messages)) == ([b"\x62\x02\x00\x03"], [3])


class Connection:
    """A socket that takes so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def send(self, data: bytes) -> int:
        if not self.room:
            raise BlockingIOError
        taken = min(self.room, len(data))
        self.room -= taken
        return taken

    def close(self) -> None: ...


def test_each_message_of_qos_0_is_reported_when_it_is_written_or_lost_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = MqttClient(MqttConnection(id="plant", type="mqtt"), "0", persistent=False)
    client._state, client._accepts = _ConnectionState.MQTT_CS_CONNECTED, True
    size = len(b"\x30\x06\x00\x03outx")
    # the second is written in part
    sock: Any = Connection(size + 1)
    client._sock = sock
    # as while its thread runs
    thread: Any = threading.current_thread()
    client._thread = thread
    reported: list[Any] = []
    client.on_confirmed = lambda identity, reason: reported.append((identity, reason.is_failure))
    for _ in range(3):
        client.publish("out", b"x", 0)
    assert reported == []
    client._packet_write()
    assert reported == [(1, False)]

    def refused() -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr(client, "_create_socket", refused)
    client._host = "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        client.reconnect()
    assert reported == [(1, False), (2, True), (3, True)]
    with pytest.raises(ConnectionRefusedError):
        client.reconnect()
    assert len(reported) == 3


def test_a_confirmed_message_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, confirmed = publishing(2, monkeypatch, qos=1)
    client._in_packet["packet"] = bytearray(b"\x00\x02")
    client._handle_pubackcomp("PUBACK")
    assert (confirmed, list(client._out_messages)) == ([(2, "Success")], [1])


def unconnected(client: MqttClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a client connect to nothing."""
    monkeypatch.setattr(
        client, "_create_socket", lambda: SimpleNamespace(setblocking=lambda _: None, close=lambda: None)
    )
    client._host = "127.0.0.1"


def reconnected(client: MqttClient, monkeypatch: pytest.MonkeyPatch, **properties: int) -> None:
    """Lose the connection, and have the broker accept the next one."""
    unconnected(client, monkeypatch)
    client.reconnect()
    accepts: Any = SimpleNamespace(is_failure=False)
    client._answered(None, None, SimpleNamespace(session_present=False), accepts, SimpleNamespace(**properties))


@pytest.mark.parametrize(
    ("steps", "refused", "together"),
    [
        # a number: so many messages are in flight when a connection is lost; a letter: the next one, answered
        ([], [], 5),
        ([0, 0, 0, 0], [None] * 4, 5),
        ([1], [None], 1),
        ([1, 1, 1], [None, None, "a"], 3),
        ([1, 1, "a", 1, 1], [None] * 4, 1),
        ([3], [None], 1),
        ([3, "a"], [None], 1),
        ([3, "a", "b", "c"], [None], 5),
        ([3, "a", 1, 1, 1], [None, None, None, "b"], 1),
        # the fifth message has the topic of a refused one
        ([1, 1, 1, "b", "c"], [None, None, "a"], 1),
        ([1, 1, 1, "b", "c", "d", 1], [None, None, "a", "a"], 5),
        ([1, 1, 1, "b", "c", "d", "a"], [None, None, "a"], 5),
    ],
)
def test_messages_in_flight_when_a_connection_is_lost_and_those_to_a_topic_that_cost_it_are_sent_alone(
    steps: list[int | str], refused: list[str | None], together: int
) -> None:
    suspects = Suspects()
    messages = [MQTTMessage(number, topic) for number, topic in enumerate((b"a", b"b", b"c", b"d", b"a", b"e"), 1)]
    found = []
    for step in steps:
        if isinstance(step, int):
            found.append(suspects.lost(messages[:step]))
        if isinstance(step, str) or found[-1] is not None:
            answered = messages.pop(0)
            if isinstance(step, str):
                assert answered.topic == step
                suspects.answered(answered)
    assert (found, suspects.together(messages, 5)) == (refused, together)


def test_a_message_at_which_the_connection_is_lost_again_and_again_is_sent_alone_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, _, confirmed = publishing(5, monkeypatch, qos=1, topics=("bad", "out"))
    for _ in range(MAX_REPEATED):
        assert confirmed == []
        reconnected(client, monkeypatch)
        assert client.max_inflight_messages == 1
        # as once the answer to CONNECT is handled
        client._inflight_messages = 1
    reconnected(client, monkeypatch)
    assert confirmed == [(number, "Unspecified error") for number in (1, 3, 5)]
    assert list(client._out_messages) == [2, 4]
    for identity in (2, 4):
        assert client.max_inflight_messages == 1
        client._in_packet["packet"] = bytearray(b"\x00%c" % identity)
        client._handle_pubackcomp("PUBACK")
    assert confirmed[3:] == [(2, "Success"), (4, "Success")]
    # the ids of the reported ones are free again
    client._last_mid = 0
    for _ in range(3):
        client.publish("out", b"x", 1)
    assert list(client._out_messages) == [1, 2, 3]
    assert client.max_inflight_messages == MAX_UNCONFIRMED


def test_the_time_without_a_connection_is_not_one_in_which_the_broker_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(mqtt_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client, _, confirmed = publishing(1, monkeypatch, qos=1)
    client.loop_misc()
    now[0] += 2 * mqtt_client.DELIVERY_SECONDS
    reconnected(client, monkeypatch)
    client.loop_misc()
    assert confirmed == []
    now[0] += mqtt_client.DELIVERY_SECONDS + 1
    client.loop_misc()
    assert confirmed == [(1, "Unspecified error")]


class Counted(list[Any]):
    """Messages that count how often they are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        self.looks += 1
        return super().__iter__()


def test_who_is_alone_is_looked_for_once_for_each_change() -> None:
    suspects, messages = Suspects(), Counted(MQTTMessage(number, b"out") for number in range(1, 21))
    suspects.lost(messages[:2])
    for _ in range(20):
        assert suspects.together(messages, 20) == 1
    assert messages.looks == 1
    suspects.answered(messages.pop(0))
    suspects.answered(messages.pop(0))
    assert suspects.together(messages, 20) == 20
    suspects.lost(messages[2:4])
    assert suspects.together(messages, 20) == 2


@pytest.mark.parametrize(("properties", "limit"), [({"ReceiveMaximum": 2}, 2), ({}, MAX_UNCONFIRMED)])
def test_after_a_reconnect_no_more_messages_are_sent_than_the_broker_accepts_unconfirmed(
    properties: dict[str, int], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _, _ = publishing(0, monkeypatch)
    client._accepts = False
    for _ in range(30):
        client.publish("out", b"x", 1)
    reconnected(client, monkeypatch, **properties)
    states = [each.state for each in client._out_messages.values()]
    assert states == [MessageState.MQTT_MS_PUBLISH] * limit + [MessageState.MQTT_MS_QUEUED] * (30 - limit)
    assert client.max_inflight_messages == limit


def test_what_is_published_before_the_broker_accepts_the_connection_waits_behind_what_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, sent, confirmed = publishing(2, monkeypatch, qos=1)
    sent.clear()
    unconnected(client, monkeypatch)
    client.reconnect()
    (connect,) = sent
    assert connect[0] == 0x10
    client.publish("out", b"later", 1)
    assert client.publish("out", b"at once", 0).rc == MQTT_ERR_NO_CONN
    assert sent == [connect]
    client._in_packet["command"], client._in_packet["packet"] = 0x20, bytearray(b"\x00\x00\x00")
    client._in_packet["remaining_length"] = 3
    client._handle_connack()
    for identity in (1, 2):
        client._in_packet["packet"] = bytearray(b"\x00%c" % identity)
        client._handle_pubackcomp("PUBACK")
    # the packet ids, of which the first two are marked as repetitions
    assert [(packet[0] & 0x08 > 0, packet[packet.index(b"out") + 4]) for packet in sent[1:]] == [
        (True, 1), (True, 2), (False, 3)
    ]  # fmt: skip
    assert confirmed == [(1, "Success"), (2, "Success")]


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], int]]:
    """Return what starts a broker that answers CONNECT with a packet, or not at all, and returns its port."""
    with suppress(OSError), socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve(answer: bytes) -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(answer)
                        connection.recv(1000)

        def start(answer: bytes) -> int:
            threading.Thread(target=serve, args=(answer,), daemon=True).start()
            return int(listening.getsockname()[1])

        yield start
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("answer", "reason"), [(b"\x20\x02\x00\x05", "Not authorized"), (b"", "it does not answer")])
def test_a_client_that_the_broker_does_not_accept_is_not_connected(
    answer: bytes, reason: str, answering: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_client, "CONNECT_SECONDS", 10.0 if answer else 0.05)
    connection = MqttConnection(id="plant", type="mqtt", host="127.0.0.1", port=answering(answer))
    client = MqttClient(connection, "publisher", persistent=False)
    with pytest.raises(UnreachableError, match=reason):
        client.join()
    assert not client.alive


def test_a_client_that_the_broker_accepts_is_alive_until_it_leaves_or_is_refused(
    answering: Callable[[bytes], int],
) -> None:
    connection = MqttConnection(id="plant", type="mqtt", host="127.0.0.1", port=answering(b"\x20\x02\x00\x00"))
    client = MqttClient(connection, "publisher", persistent=False)
    client.join()
    assert client.alive
    refused: Any = SimpleNamespace(is_failure=True)
    client._answered(None, None, None, refused, None)  # type: ignore[arg-type]
    assert not client.alive
    client.leave()


def test_paho_has_what_the_client_replaces() -> None:
    names = (
        "_send_pubrec",
        "_send_pubcomp",
        "_handle_publish",
        "_handle_pubrel",
        "_packet_queue",
        "_handle_on_message",
        "_handle_pubrec",
        "_do_on_publish",
        "_sock_close",
        "_messages_reconnect_reset_out",
        "reconnect",
        "_packet_write",
        "_send_publish",
        "_handle_connack",
    )
    assert all(callable(getattr(Client, name)) for name in names)
    attributes = {"_out_messages", "_out_packet", "_inflight_messages", "_max_inflight_messages"}
    assert attributes <= vars(Client(CallbackAPIVersion.VERSION2)).keys()


@pytest.mark.parametrize("text", ["\ufeffb", "a\x00", "ä"])
def test_every_text_of_a_user_property_is_read(text: str) -> None:
    written = text.encode()
    encoded = b"\x26\x00\x01a" + len(written).to_bytes(2, "big") + written
    properties = Properties(PacketTypes.PUBLISH)
    properties.unpack(bytes([len(encoded)]) + encoded)
    assert properties.UserProperty == [("a", text)]


def test_a_text_that_is_longer_than_its_packet_is_refused() -> None:
    with pytest.raises(MalformedPacket):
        Properties(PacketTypes.PUBLISH).unpack(b"\x06\x26\x00\x01a\x00\x09")
