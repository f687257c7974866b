"""What a settlement is on each transport.

Source of the rules: Eclipse Ditto, the consumer actors of its transports (ditto.md 7). AMQP is here as a table only:
no AMQP client comes with ackstream.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackstream.protocol.settlement import Settlement


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


class Mqtt(Enum):
    """What an MQTT client does with a message of QoS 1."""

    ACKNOWLEDGE = "acknowledged"
    RECONNECT = "not acknowledged; client reconnects"


class Kafka(Enum):
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


def mqtt(settlement: Settlement, *, reconnect_for_redelivery: bool) -> Mqtt:
    """Return what an MQTT client does; a message can only be had again by a new connection."""
    again = settlement == "reject-with-redelivery" and reconnect_for_redelivery
    return Mqtt.RECONNECT if again else Mqtt.ACKNOWLEDGE


def kafka(settlement: Settlement, *, qos: int) -> Kafka:
    """Return what becomes of an offset; with ``qos`` 0 the record is lost, whatever becomes of it."""
    if qos == 0:
        return Kafka.NOTHING
    return Kafka.CONSUME_AGAIN if settlement == "reject-with-redelivery" else Kafka.COMMIT
