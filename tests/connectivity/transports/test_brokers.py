"""Sources and publishers of message brokers, whose broker is played: it knows its exchanges, and confirms late."""

from __future__ import annotations

import threading
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.connectivity.transports import brokers
from ackstream.connectivity.transports.brokers import ConfirmingPublisher, Confirms, PushedSource
from ackstream.connectivity.transports.transport import ExternalMessage, OutgoingMessage, Published
from ackstream.errors import UnreachableError
from ackstream.settings import Kafka
from ackstream.settings.connections import Source
from tests.harness.waiting import eventually


class PlayedBroker:
    """Stores what it knows, and confirms late; closes the channel for anything else."""

    def __init__(self, *exchanges: str, forbidden: tuple[str, ...] = ()) -> None:
        self.confirms = Confirms()
        self.stored: list[bytes] = []
        self.refused: list[bytes] = []
        self.channels = 1
        self._exchanges, self._forbidden = exchanges, forbidden
        self._tags = count(1)

    def publish(self, *messages: str) -> None:
        """Publish to addresses; the payload is ``address`` or what follows ``address=``."""
        for text in messages:
            address, _, payload = text.partition("=")
            self.confirms.add(OutgoingMessage(address, {}, (payload or address).encode()), _ignore)
        while not self.confirms.idle:
            self.turn()

    def turn(self) -> None:
        """Receive all that may be sent; then confirm it, unless one of it closed the channel."""
        received = []
        while (unconfirmed := self.confirms.take()) is not None:
            tag = next(self._tags)
            self.confirms.sent(tag, unconfirmed)
            received.append((tag, unconfirmed))
        assert received
        closes = False
        for _tag, unconfirmed in received:
            closes = unconfirmed.exchange not in self._exchanges or unconfirmed.message.address in self._forbidden
            if closes:
                break
            self.stored.append(unconfirmed.message.payload)
        if closes:
            refused = self.confirms.channel_closed()
            self.refused += [] if refused is None else [refused.message.payload]
            self._tags = count(1)
            self.channels += 1
            return
        for tag in self.confirms.tags(received[-1][0], multiple=True):
            assert self.confirms.confirm(tag, stored=True) is not None
        assert self.confirms.tags(99, multiple=False) == [99]


def _ignore(_result: Published) -> None: ...


def test_a_message_to_a_missing_exchange_is_refused_alone_and_no_other_is_published_twice() -> None:
    broker = PlayedBroker("events")
    broker.publish(*[f"{address}/k={index}" for index in range(5) for address in ("events", "typo")])
    assert broker.stored == [b"0", b"1", b"2", b"3", b"4"]
    assert broker.refused == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_to_an_exchange_that_was_created_meanwhile_is_sent() -> None:
    broker = PlayedBroker("events")
    broker.publish("late/k=1")
    broker._exchanges = ("events", "late")
    broker.publish("late/k=2", "late/k=3")
    assert (broker.refused, broker.stored, broker.channels) == ([b"1"], [b"2", b"3"], 2)


def test_of_messages_to_an_exchange_only_the_one_that_is_not_permitted_is_refused() -> None:
    broker = PlayedBroker("events", forbidden=("events/secret",))
    broker.publish("events/a=1")
    broker.publish("events/a=2", "events/secret=3", "events/b=4")
    assert broker.refused == [b"3"]
    # what was in flight with it is sent again, in order
    assert broker.stored == [b"1", b"2", b"2", b"4"]
    stored = len(broker.stored)
    broker.publish("events/a=5", "events/secret=6", "events/b=7", "events/c=8")
    # from now on its routing keys are known apart
    assert broker.stored[stored:] == [b"5", b"7", b"8"]
    assert broker.refused == [b"3", b"6"]


def test_messages_to_an_exchange_that_takes_them_are_in_flight_together() -> None:
    broker = PlayedBroker("events", "")
    broker.publish("events/a", "/queue")
    for address in ("events/a", "events/b", "/other"):
        broker.confirms.add(OutgoingMessage(address, {}, b""), _ignore)
    broker.turn()
    assert broker.confirms.idle


def test_while_a_message_is_sent_alone_the_others_wait() -> None:
    confirms = Confirms()
    for address in ("a/1", "a/2", "b/1"):
        confirms.add(OutgoingMessage(address, {}, address.encode()), _ignore)
    order = []
    for tag in (1, 2, 3):
        unconfirmed = confirms.take()
        assert unconfirmed is not None
        confirms.sent(tag, unconfirmed)
        assert confirms.take() is None
        order.append(unconfirmed.message.payload)
        # a negative confirm is no sign that the exchange takes messages
        confirms.confirm(tag, stored=tag > 1)
    assert order == [b"a/1", b"a/2", b"b/1"]


def test_a_message_that_could_not_be_sent_holds_back_no_other() -> None:
    confirms = Confirms()
    for address in ("a/1", "b/1"):
        confirms.add(OutgoingMessage(address, {}, b""), _ignore)
    assert confirms.take() is not None
    assert confirms.take() is not None


def test_what_is_not_confirmed_is_given_up_in_order_and_forgotten() -> None:
    broker = PlayedBroker("a")
    broker.publish("a/0")
    for payload in (b"1", b"2", b"3"):
        broker.confirms.add(OutgoingMessage("a/k", {}, payload), _ignore)
    for tag in (1, 2):
        unconfirmed = broker.confirms.take()
        assert unconfirmed is not None
        broker.confirms.sent(tag, unconfirmed)
    assert [each.message.payload for each in broker.confirms.give_up()] == [b"1", b"2", b"3"]
    assert broker.confirms.idle
    assert broker.confirms.confirm(1, stored=True) is None
    assert broker.confirms.channel_closed() is None


def test_no_more_exchanges_and_addresses_are_remembered_than_the_limit_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brokers, "REMEMBERED", 3)
    forbidden = tuple(f"a/no{number}" for number in range(5))
    broker = PlayedBroker("a", *(f"x{number}" for number in range(9)), forbidden=forbidden)
    broker.publish("a/yes", *forbidden, *[f"x{number}/k" for number in range(9)])
    assert list(broker.confirms._refusing) == ["a/no2", "a/no3", "a/no4"]
    assert list(broker.confirms._proven) == ["x6", "x7", "x8"]


def test_after_a_message_that_was_refused_others_to_its_exchange_are_in_flight_together() -> None:
    broker = PlayedBroker("events", forbidden=("events/large",))
    broker.publish("events/1", "events/large", "events/2")
    for number in range(1000):
        broker.confirms.add(OutgoingMessage(f"events/{number}", {}, b""), _ignore)
    broker.turn()
    assert broker.confirms.idle


def test_an_address_that_refused_a_message_and_took_another_is_as_any_other() -> None:
    broker = PlayedBroker("events", forbidden=("events/k",))
    broker.publish("events/1", "events/k")
    broker._forbidden = ()
    broker.publish("events/1", "events/k")
    for _ in range(3):
        broker.confirms.add(OutgoingMessage("events/k", {}, b""), _ignore)
    broker.turn()
    assert broker.confirms.idle


# -- publishers --------------------------------------------------------------------------------------------------------


class PlayedPublisher(ConfirmingPublisher):
    """Has sent what it accepted at its next turn; the broker confirms on request."""

    def __init__(self) -> None:
        super().__init__("plant")
        self.sent = Confirms()
        self.ends: list[Exception] = []
        self.confirms = threading.Event()
        self.disconnected = False
        link: Any = SimpleNamespace(close=lambda: vars(self).update(disconnected=True))
        self._link = link
        self._thread.start()

    def _unconfirmed(self) -> list[Confirms]:
        return [self.sent]

    def _turn(self) -> None:
        while self._accepted:
            self.sent.add(*self._accepted.popleft())
        if self.confirms.is_set():
            for sent in self.sent.give_up():
                sent.done(Published(200))
        for error in self.ends:
            raise error


def test_a_publisher_that_is_closed_waits_for_the_confirmations_of_the_broker() -> None:
    publisher, statuses = PlayedPublisher(), []
    publisher.publish(OutgoingMessage("a/k", {}, b""), lambda result: statuses.append(result.status))
    publisher.confirms.set()
    publisher.close()
    assert (statuses, publisher.disconnected, publisher.alive) == ([200], True, False)


def test_a_publisher_that_is_closed_reports_the_messages_that_were_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brokers, "CLOSE_SECONDS", 0.1)
    publisher, results = PlayedPublisher(), []
    publisher.publish(OutgoingMessage("a/k", {}, b""), results.append)
    publisher.close()
    publisher.publish(OutgoingMessage("a/k", {}, b""), results.append)
    assert [(result.status, result.away) for result in results] == [(503, True)] * 2


@pytest.mark.parametrize("error", [UnreachableError("It is gone."), ValueError("a fault of the client library")])
def test_a_lost_connection_is_reported_for_each_message_and_ends_the_publisher(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, results = PlayedPublisher(), []
    for _ in range(2):
        publisher.publish(OutgoingMessage("a/k", {}, b""), results.append)
    publisher.ends.append(error)
    eventually(lambda: publisher.disconnected, "the end of the publisher")
    assert not publisher.alive
    assert [(result.status, str(error) in result.reason) for result in results] == [(503, True)] * 2
    # the remedy is in the error; the place of a fault is in the log
    assert ("A thread that publishes died." in caplog.text) is isinstance(error, ValueError)
    publisher.close()


# -- sources -----------------------------------------------------------------------------------------------------------


class Pushed(PushedSource):
    """A source whose broker and intake are played."""

    def __init__(self, qos: int = 1) -> None:
        self.settle: dict[str, Any] = {}
        self.settled: list[tuple[str, str]] = []
        self.room = SimpleNamespace(take=self._take, turn=lambda _seconds=0.0: None, forget=lambda: None, room=9)
        intake: Any = self.room
        super().__init__(SimpleNamespace(id="plant"), 0, Source(addresses=("in",), qos=qos), Kafka(), intake)
        self._link = SimpleNamespace(turn=lambda _seconds: None)

    def start(self) -> None: ...

    def push(self, *deliveries: str) -> None:
        self._arrived.extend((each, ExternalMessage(each, {}, b""), 0) for each in deliveries)
        self._turn()

    def _take(self, message: ExternalMessage, done: Any, *, delivered: int) -> None:
        assert not delivered
        self.settle[message.identity] = done
        self.room.room -= 1
        self.wait()

    def wait(self) -> None:
        """Pass the time that it takes to take a message."""

    def _settle(self, delivery: str, settlement: Any) -> None:
        self.settled.append((delivery, settlement))


def test_messages_are_settled_as_the_intake_decides() -> None:
    source = Pushed()
    source.push("a", "b", "c")
    source.settle["c"]("reject-without-redelivery")
    source.settle["a"]("settle")
    source._turn()
    assert source.settled == [("c", "reject-without-redelivery"), ("a", "settle")]


def test_messages_are_taken_while_there_is_room() -> None:
    source = Pushed()
    source.room.room = 2
    source.push("a", "b", "c")
    assert list(source.settle) == ["a", "b"]
    source.room.room = 1
    source._turn()
    assert list(source.settle) == ["a", "b", "c"]


def test_a_broker_is_not_read_while_the_messages_that_wait_for_room_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers.transport, "MAX_BYTES", 2)
    source = Pushed()
    source.room.room = 0
    reads: list[float] = []
    source._link = SimpleNamespace(turn=reads.append)
    for number in range(3):
        source._turn()
        assert len(reads) == min(number + 1, 2)
        source._arrived.append(("d", ExternalMessage("d", {}, b"x"), 0))
    source.room.room = 9
    source._turn()
    source._turn()
    assert len(reads) == 3


def test_heartbeats_are_sent_while_messages_are_taken_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(brokers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    source = Pushed()
    monkeypatch.setattr(source, "wait", lambda: now.append(now.pop() + 0.6))
    source.push("a", "b", "c")
    # then data is exchanged again
    assert list(source.settle) == ["a", "b"]
    source._turn()
    assert list(source.settle) == ["a", "b", "c"]


def test_with_qos_0_a_rejected_message_makes_room_at_once() -> None:
    source = Pushed(qos=0)
    source.push("a")
    source.settle["a"]("reject-with-redelivery")
    assert source.settled == [("a", "reject-with-redelivery")]
