"""What an MQTT source decides between its broker and its intake, both played here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.connectivity import mqtt
from ackstream.connectivity.mqtt import MqttSource
from ackstream.settings import Kafka
from ackstream.settings.connections import MqttConnection, Source

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN = "reject-with-redelivery"


class Played:
    """The client and the intake of a source; ``settle`` says how the intake settles a message."""

    def __init__(self, *, reconnect: bool) -> None:
        self.room = 10
        self.acknowledged: list[int] = []
        self.settle: dict[int, Callable[[Any], None]] = {}
        self.left = 0
        connection = MqttConnection(id="plant", type="mqtt", reconnect_for_redelivery=reconnect)
        self.source = MqttSource(connection, 0, Source(addresses=("in",), qos=1), Kafka(), self)  # type: ignore[arg-type]
        self.source._client = self  # type: ignore[assignment]
        self.connect()

    def connect(self) -> None:
        self.source._connected(self, None, None, SimpleNamespace(is_failure=False), None)

    def deliver(self, *numbers: int, qos: int = 1) -> None:
        for number in numbers:
            message = SimpleNamespace(mid=number, qos=qos, dup=False, topic="in", retain=False, payload=b"%d" % number)
            self.source._incoming(None, None, message)  # type: ignore[arg-type]
            self.source._turn()

    def take(self, message: Any, done: Callable[[Any], None], *, redelivered: bool) -> None:  # noqa: ARG002
        self.settle[int(message.payload)] = done

    def turn(self, timeout: float = 0.0) -> None:
        """Have nothing to do."""

    def subscribe(self, topics: Any) -> None:
        assert topics == [("in", 1)]

    def ack(self, mid: int, qos: int) -> None:
        assert qos == 1
        self.acknowledged.append(mid)

    def disconnect(self) -> None:
        self.left += 1

    def loop_stop(self) -> None:
        """Have nothing to stop."""


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played(reconnect=True)
    monkeypatch.setattr(mqtt, "connect", lambda client, _connection: client.connect())
    monkeypatch.setattr(mqtt, "backoff", lambda _attempt: 0.0)
    return found


def test_messages_are_acknowledged_in_order_of_arrival(played: Played) -> None:
    played.deliver(1, 2, 3)
    played.settle[2]("settle")
    played.source._turn()
    assert played.acknowledged == []
    played.settle[1]("reject-without-redelivery")
    played.source._turn()
    assert played.acknowledged == [1, 2]


def test_a_rejected_message_reconnects_when_those_before_it_are_acknowledged(played: Played) -> None:
    played.deliver(1, 2, 3)
    played.settle[2](AGAIN)
    played.source._turn()
    assert (played.acknowledged, played.left) == ([], 0)
    played.settle[1]("settle")
    played.source._turn()
    assert (played.acknowledged, played.left) == ([1], 1)
    # an answer that comes late is for a delivery that is over
    played.settle[3]("settle")
    played.deliver(2)
    played.settle[2]("settle")
    played.source._turn()
    assert (played.acknowledged, played.left) == ([1, 2], 1)


def test_messages_of_an_earlier_session_are_not_acknowledged(played: Played) -> None:
    played.deliver(1)
    played.connect()
    played.settle[1]("settle")
    played.source._turn()
    played.deliver(2)
    played.settle[2]("settle")
    played.source._turn()
    assert played.acknowledged == [2]


def test_with_qos_0_nothing_is_acknowledged_or_redelivered(played: Played) -> None:
    played.deliver(1, qos=0)
    played.settle[1](AGAIN)
    played.source._turn()
    assert (played.acknowledged, played.left) == ([], 0)


def test_without_reconnects_a_rejected_message_is_acknowledged() -> None:
    played = Played(reconnect=False)
    played.deliver(1)
    played.settle[1](AGAIN)
    played.source._turn()
    assert (played.acknowledged, played.left) == ([1], 0)
