from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ackstream.connectivity import connector
from ackstream.connectivity.connector import TRANSPORTS
from ackstream.connectivity.transport import redelivers
from ackstream.kafka.clients import Closing
from ackstream.settings.connections import KafkaConnection, MqttConnection
from tests.prose import each

if TYPE_CHECKING:
    import pytest


def test_every_type_of_connection_has_a_transport() -> None:
    types = {connection.model_fields["type"].annotation.__args__[0] for connection in (KafkaConnection, MqttConnection)}
    assert TRANSPORTS.keys() == types


@each("settlement", "transport-mqtt")
def test_prose_settlement_of_an_mqtt_message(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    settlement = given_.get("settlement", "reject-without-redelivery")
    for reconnect in [given_["reconnectForRedelivery"]] if "reconnectForRedelivery" in given_ else [False, True]:
        assert redelivers(settlement, 1, able=reconnect) is expect["action"].startswith("not acknowledged")


def test_a_connection_whose_worker_died_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Worker(Closing):
        def __init__(self, *_: Any) -> None:
            self.alive, self.closed = True, False
            opened.append(self)

        def close(self) -> None:
            self.closed = True

    transport = SimpleNamespace(publisher=lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(connector, "TRANSPORTS", {"kafka": transport})
    monkeypatch.setattr(connector, "Labels", lambda *_: SimpleNamespace(held=frozenset()))
    monkeypatch.setattr(connector, "OutboundWorker", Worker)
    labels = SimpleNamespace(to_declare=())
    connection: Any = SimpleNamespace(id="c", type="kafka", labels=labels, targets=["t"], sources=[])
    system: Any = SimpleNamespace(extra=None)
    kafka: Any = None
    link = connector._Link(connection, kafka, system)
    assert [link.turn(0.0), link.turn(0.0), len(opened)] == [True, True, 1]
    opened[0].alive = False
    assert link.turn(0.0)
    assert [worker.closed for worker in opened] == [True, False]
