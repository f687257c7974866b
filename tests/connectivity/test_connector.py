from __future__ import annotations

from typing import Any

from ackstream.connectivity.connector import TRANSPORTS
from ackstream.connectivity.transport import redelivers
from ackstream.settings.connections import KafkaConnection, MqttConnection
from tests.prose import each


def test_every_type_of_connection_has_a_transport() -> None:
    types = {connection.model_fields["type"].annotation.__args__[0] for connection in (KafkaConnection, MqttConnection)}
    assert TRANSPORTS.keys() == types


@each("settlement", "transport-mqtt")
def test_prose_settlement_of_an_mqtt_message(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    settlement = given_.get("settlement", "reject-without-redelivery")
    for reconnect in [given_["reconnectForRedelivery"]] if "reconnectForRedelivery" in given_ else [False, True]:
        assert redelivers(settlement, 1, able=reconnect) is expect["action"].startswith("not acknowledged")
