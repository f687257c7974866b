"""Messages of other systems, as they come and as they go; headers are texts, names in lower case."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, json_text
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.ditto.placeholders import Context, Template

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.protocol.ditto.settlement import Settlement


CONNECTION_ID = "ditto-connection-id"


class ExternalMessage(msgspec.Struct, frozen=True):
    """A message that came. ``identity`` tells it from all others: its correlation-id where it brings none."""

    identity: str
    headers: Mapping[str, str]
    payload: bytes


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to be published; ``address`` is that of its transport."""

    address: str
    headers: dict[str, str]
    payload: bytes


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a signal as texts, for placeholders and for transports."""
    return {
        name.lower(): value if isinstance(value, str) else json_text(value)
        for name, value in headers.items()
        if value is not None
    }


def resolved(mapping: Mapping[str, str], context: Context) -> dict[str, str]:
    """Return the headers of a header mapping; what comes to nothing is left out."""
    found = {name.lower(): Template.parse(text).resolve(context) for name, text in mapping.items()}
    return {name: value for name, value in found.items() if value is not None}


def outgoing(
    signal: Envelope,
    address: str,
    mapping: Mapping[str, str],
    connection_id: str,
    *,
    payload: bytes | None = None,
    content_type: str = PROTOCOL_CONTENT_TYPE,
    further: Mapping[str, str] | None = None,
) -> OutgoingMessage | None:
    """Return a signal as a message: content-type, correlation-id, connection id and the mapped headers.

    :param address: a template
    :param payload: else the protocol JSON
    :param further: headers that placeholders find besides those of the signal, which win
    :return: ``None`` where the address comes to nothing
    """
    headers = text_headers(signal.headers)
    context = Context({**(further or {}), **headers}, connection_id, signal.topic)
    where = Template.parse(address).resolve(context)
    if not where:
        return None
    own = {CONTENT_TYPE: content_type, CONNECTION_ID: connection_id}
    if CORRELATION_ID in headers:
        own[CORRELATION_ID] = headers[CORRELATION_ID]
    return OutgoingMessage(where, own | resolved(mapping, context), encode(signal) if payload is None else payload)


# -- Publishing to another system: what its transport answers becomes an acknowledgement, where one is asked for.


class Published(msgspec.Struct, frozen=True):
    """The transport has a message: the status and payload of the acknowledgement that says so."""

    status: int
    payload: Raw | UnsetType = UNSET


class TargetPublisher(Protocol):
    """What sends messages to another system. Safe to use from several threads, none of which it holds up."""

    def publish(self, message: OutgoingMessage, done: Callable[[Published | Exception], None]) -> None:
        """Send a message; ``done`` is called once, in any thread, with what the transport answers."""

    def status_of(self, error: Exception) -> int:
        """Return the status of the acknowledgement for a message that was not published."""

    def close(self) -> None:
        """Send what was accepted, for some seconds at most, and disconnect."""


# -- What a settlement is on each transport.
# Source of the rules: Eclipse Ditto, the consumer actors of its transports (ditto.md 7). AMQP is here as a table only:
# no AMQP client comes with ackstream.


class Amqp10(Enum):
    """Delivery states of AMQP 1.0."""

    ACCEPTED = "ACCEPTED"
    MODIFIED_FAILED = "MODIFIED_FAILED"
    REJECTED = "REJECTED"


class Amqp091(Enum):
    """Methods of AMQP 0.9.1."""

    ACK = "basicAck"
    NACK_REQUEUE = "basicNack(requeue=true)"
    NACK = "basicNack(requeue=false)"


class MqttSettlement(Enum):
    """What an MQTT client does with a message of QoS 1."""

    ACKNOWLEDGE = "acknowledged"
    RECONNECT = "not acknowledged; client reconnects"


class KafkaSettlement(Enum):
    """What becomes of the offset of a Kafka record."""

    COMMIT = "offset is committed"
    CONSUME_AGAIN = "consumed again from the last committed offset"
    NOTHING = "nothing (auto-commit)"


AMQP_1_0: dict[Settlement, Amqp10] = {
    "settle": Amqp10.ACCEPTED,
    "reject-with-redelivery": Amqp10.MODIFIED_FAILED,
    "reject-without-redelivery": Amqp10.REJECTED,
}
AMQP_0_9_1: dict[Settlement, Amqp091] = {
    "settle": Amqp091.ACK,
    "reject-with-redelivery": Amqp091.NACK_REQUEUE,
    "reject-without-redelivery": Amqp091.NACK,
}


def mqtt(settlement: Settlement, *, reconnect_for_redelivery: bool) -> MqttSettlement:
    """Return what an MQTT client does; a message can only be had again by a new connection."""
    again = settlement == "reject-with-redelivery" and reconnect_for_redelivery
    return MqttSettlement.RECONNECT if again else MqttSettlement.ACKNOWLEDGE


def kafka(settlement: Settlement, *, qos: int) -> KafkaSettlement:
    """Return what becomes of an offset; with ``qos`` 0 the record is lost, whatever becomes of it."""
    if qos == 0:
        return KafkaSettlement.NOTHING
    return KafkaSettlement.CONSUME_AGAIN if settlement == "reject-with-redelivery" else KafkaSettlement.COMMIT
