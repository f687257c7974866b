"""What of AMQP 0.9.1 is decided without a broker."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pika import BasicProperties
from pika.exceptions import ConnectionWrongStateError
from pika.spec import Basic

from ackstream.connectivity.transports import amqp091
from ackstream.connectivity.transports.amqp091 import (
    Amqp091Publisher,
    Amqp091Source,
    basic_properties,
    external_message,
    parameters,
)
from ackstream.connectivity.transports.brokers import Confirms, Unconfirmed
from ackstream.connectivity.transports.transport import OutgoingMessage
from ackstream.errors import UnreachableError
from ackstream.settings import Kafka
from ackstream.settings.connections import Amqp091Connection, AmqpSourceSettings
from tests.prose import each


class Channel:
    """Keeps what a source does to a delivery."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def basic_ack(self, delivery: int) -> None:
        assert delivery == 7
        self.done.append("basicAck")

    def basic_nack(self, delivery: int, *, requeue: bool) -> None:
        assert delivery == 7
        self.done.append(f"basicNack(requeue={str(requeue).lower()})")


def settled(settlement: Any, **parts: Any) -> list[str]:
    connection, intake = Amqp091Connection(id="plant", type="amqp-091"), Any
    source = Amqp091Source(connection, 0, AmqpSourceSettings(addresses=("in",), **parts), Kafka(), intake)  # type: ignore[arg-type]
    source._channel = channel = Channel()
    source._settle(7, settlement)
    return channel.done


@each("settlement", "transport-amqp091-")
def test_prose_settlement_of_a_delivery(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert settled(given_["settlement"]) == [expect["action"]]


def test_with_qos_0_it_was_settled_before() -> None:
    assert settled("reject-with-redelivery", qos=0) == []


METHOD = SimpleNamespace(exchange="plants", routing_key="lamp.7")


def test_headers_and_properties_of_a_message_are_headers() -> None:
    properties = BasicProperties(
        headers={"Device": b"7", "count": 3, "on": True, "none": None},
        content_type="text/plain",
        correlation_id="mine",
        reply_to="answers",
    )
    found = external_message(METHOD, properties, b"21.5")
    assert found.headers == {
        "device": "7",
        "count": "3",
        "on": "true",
        "content-type": "text/plain",
        "correlation-id": "mine",
        "reply-to": "answers",
        "amqp.exchange": "plants",
        "amqp.routing-key": "lamp.7",
    }
    assert found.payload == b"21.5"


def test_headers_of_a_target_are_properties_or_headers_and_the_message_is_persistent() -> None:
    headers = {"content-type": "text/plain", "correlation-id": "mine", "reply-to": "answers", "device": "7"}
    found = basic_properties(headers, "run-1")
    assert (found.content_type, found.correlation_id, found.reply_to) == ("text/plain", "mine", "answers")
    assert (found.headers, found.message_id, found.delivery_mode) == ({"device": "7"}, "run-1", 2)


def test_a_name_or_a_property_that_is_no_text_is_one_as_far_as_it_can_be() -> None:
    properties = BasicProperties(headers={b"\xffA": 1}, content_type=b"\xff")
    method = SimpleNamespace(exchange=b"\xff", routing_key="k")
    assert external_message(method, properties, b"").headers == {
        "\ufffda": "1",
        "content-type": "\ufffd",
        "amqp.exchange": "\ufffd",
        "amqp.routing-key": "k",
    }


def field(kind: str, form: str, value: Any) -> bytes:
    return kind.encode() + struct.pack(f">{form}", value)


def table(**fields: bytes) -> bytes:
    inner = b"".join(bytes([len(name)]) + name.encode() + value for name, value in fields.items())
    return struct.pack(">I", len(inner)) + inner


def nested(depth: int) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = b"F" + table(x=value)
    return value


UNKNOWN = b"A" + struct.pack(">I", 2) + b"?1"


def test_headers_that_the_client_library_cannot_decode_end_no_source() -> None:
    """Spoken by pika's own decoder of a message's properties, which reads headers as this module says."""
    headers = table(
        milliseconds=field("T", "Q", 1_700_000_000_000),
        none=field("d", "d", float("nan")),
        much=field("f", "f", float("inf")),
        fraction=field("f", "f", 3.5),
        endless=nested(2_000),
        unknown=UNKNOWN,
        after=field("I", "i", 7),
    )
    properties = BasicProperties()
    properties.decode(struct.pack(">H", BasicProperties.FLAG_HEADERS) + headers)
    found = dict(external_message(METHOD, properties, b"").headers)
    assert found.pop("endless").startswith("{'x': {'x': ")
    assert found == {
        "milliseconds": "1700000000000",
        "none": "nan",
        "much": "inf",
        "fraction": "3.5",
        "unknown": "?1",
        "after": "7",
        "amqp.exchange": "plants",
        "amqp.routing-key": "lamp.7",
    }


def test_both_sides_send_heartbeats_whatever_the_broker_offers() -> None:
    assert parameters(Amqp091Connection(id="plant", type="amqp-091")).heartbeat == 30


@pytest.mark.parametrize(
    ("address", "headers", "error", "away"),
    [
        ("events/k", {"correlation-id": "x" * 256}, None, False),
        ("events/k", {"large": "x" * 131_072}, None, False),
        ("events/" + "k" * 256, {}, None, False),
        ("events/k", {}, ConnectionWrongStateError(), True),
    ],
    ids=["correlation-id", "larger than a frame", "routing key", "no connection"],
)
def test_a_message_that_amqp_cannot_carry_is_refused_and_the_next_one_is_sent(
    address: str,
    headers: dict[str, str],
    error: Exception | None,
    away: bool,  # noqa: FBT001 - a table
) -> None:
    def publish(exchange: str, key: str, _body: bytes, properties: BasicProperties, *, mandatory: bool) -> None:
        assert mandatory
        if error is not None:
            raise error
        Basic.Publish(exchange=exchange, routing_key=key).encode()
        properties.encode()

    publisher = Amqp091Publisher.__new__(Amqp091Publisher)
    publisher._prefix, publisher._channels, publisher._tag, publisher._confirms = "r", 1, 0, Confirms()
    publisher._channel = SimpleNamespace(basic_publish=publish)
    publisher._link = SimpleNamespace(connection=SimpleNamespace(params=SimpleNamespace(frame_max=131_072)))  # type: ignore[assignment]
    results: list[Any] = []
    publisher._send(Unconfirmed(OutgoingMessage(address, headers, b""), results.append))
    assert [(result.status, result.away) for result in results] == [(503, True) if away else (400, False)]
    assert (publisher._tag, publisher._confirms.idle) == (0, True)


def test_a_confirm_for_many_does_not_store_what_was_refused_before() -> None:
    publisher = Amqp091Publisher.__new__(Amqp091Publisher)
    timers: list[Callable[[], None]] = []
    loop = SimpleNamespace(call_later=lambda _seconds, callback: timers.append(callback))
    publisher._link = SimpleNamespace(loop=loop)  # type: ignore[assignment]
    publisher._confirms, publisher._returned, publisher._refused = Confirms(), set(), set()
    publisher._accepted = deque()
    channel = publisher._channel = object()
    results: dict[int, Any] = {}
    for tag in (1, 2, 3):
        publisher._confirms.sent(tag, Unconfirmed(OutgoingMessage("x/q", {}, b""), partial(results.__setitem__, tag)))
    publisher._confirm(channel, SimpleNamespace(method=Basic.Nack(1)))
    publisher._confirm(channel, SimpleNamespace(method=Basic.Ack(3, multiple=True)))
    for callback in timers:
        callback()
    assert {tag: (result.status, result.away) for tag, result in results.items()} == {
        1: (503, True), 2: (200, False), 3: (200, False)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("redelivered", "headers", "delivered"),
    [(False, None, 0), (True, None, 1), (True, {"x-delivery-count": 7}, 7), (False, {"x-delivery-count": "many"}, 0)],
)
def test_the_broker_s_count_of_deliveries_is_passed_on(
    *, redelivered: bool, headers: dict[str, Any] | None, delivered: int
) -> None:
    connection, intake = Amqp091Connection(id="plant", type="amqp-091"), Any
    source = Amqp091Source(connection, 0, AmqpSourceSettings(addresses=("in",)), Kafka(), intake)  # type: ignore[arg-type]
    method = SimpleNamespace(delivery_tag=7, redelivered=redelivered, **vars(METHOD))
    source._received(None, method, BasicProperties(headers=headers), b"")
    assert [count for _, _, count in source._arrived] == [delivered]


@pytest.mark.parametrize(
    ("input_", "warns"),
    [("{{ source:address }}", 1), ("{{ header:amqp.routing-key }}", 1), ("{{ header:user-id }}", 0)],
)
def test_an_enforcement_by_a_text_that_the_sender_chooses_is_a_warning(
    input_: str, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    connection, intake = Amqp091Connection(id="plant", type="amqp-091"), Any
    enforcement = {"input": input_, "filters": ["{{ thing:name }}"]}
    source = AmqpSourceSettings.model_validate({"addresses": ["in"], "enforcement": enforcement})
    Amqp091Source(connection, 0, source, Kafka(), intake)  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warns


class Silent:
    """A connection whose broker does not answer: neither open, nor closed."""

    is_open = is_closing = is_closed = False

    def __init__(self, _parameters: Any, **_callbacks: Any) -> None:
        self.ended: list[str] = []
        silent.append(self)

    def _terminate_stream(self, error: Exception) -> None:
        self.ended.append(str(error))


silent: list[Silent] = []


def test_a_source_whose_broker_does_not_answer_does_not_hold_up_the_other_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amqp091, "SelectConnection", Silent)
    monkeypatch.setattr(amqp091, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(amqp091, "LEAVE_SECONDS", 0.1)
    connection, intake = Amqp091Connection(id="plant", type="amqp-091"), Any
    source = Amqp091Source(connection, 0, AmqpSourceSettings(addresses=("in",)), Kafka(), intake)  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="did not answer"):
        source.start()
    assert [each.ended for each in silent] == [["It did not answer in time."]]


class Full:
    """An intake with room for some messages."""

    def __init__(self, channel: Channel) -> None:
        self.room = 1
        self.acknowledged_before: list[list[str]] = []
        self._channel = channel

    def take(self, _message: Any, _done: Any, *, delivered: int) -> None:
        assert not delivered
        self.room -= 1
        self.acknowledged_before.append(list(self._channel.done))

    def turn(self) -> None: ...


@pytest.mark.parametrize(("qos", "acknowledged"), [(0, ["basicAck"]), (1, [])])
def test_with_qos_0_a_message_is_acknowledged_as_soon_as_there_is_room_for_it(
    qos: int, acknowledged: list[str]
) -> None:
    channel = Channel()
    intake = Full(channel)
    connection = Amqp091Connection(id="plant", type="amqp-091")
    source = Amqp091Source(connection, 0, AmqpSourceSettings(addresses=("in",), qos=qos), Kafka(), intake)  # type: ignore[arg-type]
    source._channel = channel
    source._link = SimpleNamespace(turn=lambda _seconds: None)
    for _ in range(2):
        source._received(
            None, SimpleNamespace(delivery_tag=7, redelivered=False, **vars(METHOD)), BasicProperties(), b""
        )
    source._turn()
    assert intake.acknowledged_before == [acknowledged]
    # the second one waits, and the broker sends no third
    assert channel.done == acknowledged
