"""What the sources of brokers that push messages share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.connectivity import transport
from ackstream.connectivity.transport import ExternalMessage, Published, PushedSource, Redelivery, not_published


def test_messages_rejected_within_one_wait_go_back_together() -> None:
    redelivery = Redelivery()
    assert [redelivery.due(now) for now in (10.0, 10.05, 10.09)] == [10.1, 10.1, 10.1]


def test_without_a_settled_message_each_wait_is_twice_as_long() -> None:
    redelivery = Redelivery()
    now, waits = 0.0, []
    for _ in range(12):
        due = redelivery.due(now)
        waits.append(round(due - now, 3))
        now = due
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    redelivery.reset()
    assert redelivery.due(now) == pytest.approx(now + 0.1)


class Pushed(PushedSource):
    """A source whose broker and intake are played."""

    def __init__(self, qos: int = 1) -> None:
        self.settle: dict[str, Any] = {}
        self.settled: list[tuple[str, str]] = []
        self.room = SimpleNamespace(take=self._take, turn=lambda: None, forget=lambda: None, room=9)
        intake: Any = self.room
        super().__init__("plant", intake, qos)

    def start(self) -> None: ...

    def push(self, *deliveries: str) -> None:
        self._arrived.extend((each, ExternalMessage(each, {}, b""), False) for each in deliveries)
        self._turn()

    def _take(self, message: ExternalMessage, done: Any, *, redelivered: bool) -> None:
        assert not redelivered
        self.settle[message.identity] = done
        self.room.room -= 1
        self.wait()

    def wait(self) -> None:
        """Pass the time that it takes to take a message."""

    def _pump(self, seconds: float) -> None:
        assert seconds > 0

    def _settle(self, delivery: str, settlement: Any) -> None:
        self.settled.append((delivery, settlement))

    def _disconnect(self) -> None: ...


def test_settled_messages_leave_at_once_and_rejected_ones_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(transport, "time", clock)
    source = Pushed()
    source.push("a", "b", "c")
    source.settle["b"]("reject-with-redelivery")
    source.settle["c"]("reject-without-redelivery")
    source._turn()
    assert source.settled == [("c", "reject-without-redelivery")]
    source.settle["a"]("settle")
    clock.now = 0.2
    source._turn()
    assert source.settled[1:] == [("a", "settle"), ("b", "reject-with-redelivery")]


def test_messages_are_taken_while_there_is_room() -> None:
    source = Pushed()
    source.room.room = 2
    source.push("a", "b", "c")
    assert list(source.settle) == ["a", "b"]
    source.room.room = 1
    source._turn()
    assert list(source.settle) == ["a", "b", "c"]


def test_heartbeats_are_sent_while_messages_are_taken_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now[0]))
    source = Pushed()
    monkeypatch.setattr(source, "wait", lambda: now.append(now.pop() + 0.6))
    source.push("a", "b", "c")
    # then data is exchanged again
    assert list(source.settle) == ["a", "b"]
    source._turn()
    assert list(source.settle) == ["a", "b", "c"]


@pytest.mark.parametrize(("status", "away"), [(400, False), (408, True), (500, True), (503, True)])
def test_what_failed_is_published_again_unless_it_is_the_fault_of_the_message(
    status: int,
    away: bool,  # noqa: FBT001 - a table
) -> None:
    assert not_published(ConnectionError("gone"), status).away is away


def test_what_failed_is_reported_by_name_and_text() -> None:
    result = not_published(ConnectionError("gone"), 503)
    assert (result.status, result.succeeded, result.away) == (503, False, True)
    assert bytes(result.payload) == b'{"message":"Encountered <ConnectionError>.","description":"gone"}'
    assert result.reason == '503 {"message":"Encountered <ConnectionError>.","description":"gone"}'
    assert Published(404).reason == "404"


def test_with_qos_0_a_rejected_message_makes_room_at_once() -> None:
    source = Pushed(qos=0)
    source.push("a")
    source.settle["a"]("reject-with-redelivery")
    assert source.settled == [("a", "reject-with-redelivery")]
