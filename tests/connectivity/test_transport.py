from __future__ import annotations

from typing import Any

from ackstream.connectivity import transport
from ackstream.connectivity.transport import KafkaSettlement, MqttSettlement
from tests.prose import each


@each("settlement", "transport-amqp10")
def test_prose_amqp_1_0(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert transport.AMQP_1_0[given_["settlement"]].value == expect["action"]


@each("settlement", "transport-amqp091")
def test_prose_amqp_0_9_1(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert transport.AMQP_0_9_1[given_["settlement"]].value == expect["action"]


@each("settlement", "transport-mqtt")
def test_prose_mqtt(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    settlement = given_.get("settlement", "reject-without-redelivery")
    for reconnect in [given_["reconnectForRedelivery"]] if "reconnectForRedelivery" in given_ else [False, True]:
        action = transport.mqtt(settlement, reconnect_for_redelivery=reconnect)
        assert (action is MqttSettlement.RECONNECT) is expect["action"].startswith("not acknowledged")


@each("settlement", "kafka-qos")
def test_prose_kafka(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    action = transport.kafka(given_["settlement"], qos=given_["sourceQos"])
    assert (action is KafkaSettlement.COMMIT) is expect["action"].startswith("offset is committed")
    assert (action is KafkaSettlement.CONSUME_AGAIN) is ("consumes again" in expect["action"])
    assert (action is KafkaSettlement.NOTHING) is expect["action"].startswith("nothing")
