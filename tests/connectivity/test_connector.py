from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.connectivity import connector
from ackstream.connectivity.connector import TRANSPORTS
from ackstream.connectivity.transport import MessageSource, redelivers
from ackstream.kafka.clients import Closing
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


class Part(Closing):
    """What a connection opens and closes."""

    def __init__(self, *_: Any) -> None:
        self.alive, self.closed, self.error = True, False, None

    def start(self) -> None: ...

    def close(self) -> None:
        self.closed = True
        if self.error is not None:
            raise self.error


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any], list[Any]]:
    """Return a connection with the workers and the sources it opens."""
    workers: list[Any] = []
    sources: list[Any] = []

    def make(made: list[Any]) -> Any:
        def part(*_: Any) -> Part:
            made.append(Part())
            return made[-1]

        return part

    transport = SimpleNamespace(publisher=lambda *_: SimpleNamespace(close=lambda: None), source=make(sources))
    monkeypatch.setattr(connector, "TRANSPORTS", {"kafka": transport})
    monkeypatch.setattr(connector, "Labels", lambda *_: SimpleNamespace(held=frozenset()))
    monkeypatch.setattr(connector, "Intake", lambda *_: None)
    monkeypatch.setattr(connector, "OutboundWorker", make(workers))
    labels = SimpleNamespace(to_declare=())
    connection: Any = SimpleNamespace(id="c", type="kafka", labels=labels, targets=["t"], sources=["s"])
    system: Any = SimpleNamespace(extra=None)
    kafka: Any = None
    return connector._Link(connection, kafka, system), workers, sources


@pytest.mark.parametrize("died", ["worker", "source"])
@pytest.mark.parametrize("error", [None, AssertionError("not assigned")], ids=["in order", "fails to close"])
def test_a_connection_whose_worker_or_source_died_is_opened_again(
    opened: tuple[Any, list[Any], list[Any]], died: str, error: Exception | None
) -> None:
    link, workers, sources = opened
    assert [link.turn(0.0), link.turn(0.0), len(workers), len(sources)] == [True, True, 1, 1]
    (part,) = workers if died == "worker" else sources
    part.alive, part.error = False, error
    assert link.turn(0.0)
    for parts in (workers, sources):
        assert [each.closed for each in parts] == [True, False]
    assert link.turn(0.0)
    assert len(workers) == 2


def test_a_source_whose_thread_raises_is_not_alive() -> None:
    class Source(MessageSource):
        def start(self) -> None:
            self._thread.start()

        def _turn(self) -> None:
            raise AssertionError("not assigned")

        def _disconnect(self) -> None: ...

    intake: Any = SimpleNamespace(forget=lambda: None)
    source = Source("c", intake)
    source.start()
    source._thread.join()
    assert not source.alive
    source.close()
