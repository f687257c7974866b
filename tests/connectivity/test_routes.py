from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from ackstream.client.errors import (
    HandlerFailedError,
    MessageTooLargeError,
    NotEntitledError,
    ReaderClosedError,
    TakenOverError,
    WouldBlockError,
)
from ackstream.client.publishing.publications import Receipt
from ackstream.client.reading.samples import Sample
from ackstream.connectivity import routes
from ackstream.connectivity.routes import Route, Router, has_passed, headers_behind
from ackstream.kafka.clients import Closing
from ackstream.settings import Kafka, RouteSettings, Settings
from tests.client.connections import FakeConnection

PATIENCE_SECONDS = 30.0
PLANT = RouteSettings(name="plant", topic_prefix="plant-")
DELIVERED = RouteSettings(name="plant", topic_prefix="plant-", label="plant:delivered")


def _sample(seq: int, **headers: bytes) -> Sample:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return Sample("w1", "orders", b"k", b"%d" % seq, found, 0, seq, 0, seq)


def _routed(by: bytes) -> Sample:
    return replace(_sample(1, routed_by=by), publisher="route-other")


ASKING: dict[str, bytes] = {"correlation_id": b"c1", "requested_acks": b'["plant:delivered", "other"]'}


class _Publisher(Closing):
    """The other system: keeps the futures open until the test answers."""

    def __init__(self, kafka: Kafka, *, name: str, on_error: Any, block: bool, **_: Any) -> None:
        assert not block
        self.kafka, self.name, self.fail = kafka, name, on_error
        self.published: list[tuple[bytes, dict[str, Any]]] = []
        self.futures: list[Future[Receipt]] = []
        self.complete: set[int] = set()
        self.room = 100
        self.closed = False

    def publish(self, value: bytes, **message: Any) -> Future[Receipt]:
        if value == b"13":
            raise MessageTooLargeError("message too large")
        if len(self.futures) >= self.room:
            raise WouldBlockError("full")
        self.published.append((value, message))
        self.futures.append(Future())
        return self.futures[-1]

    def answer(self, seq: int) -> None:
        self.futures[seq - 1].set_result(Receipt(seq, "persisted", None, seq, 0))

    def is_sample_app_acknowledged(self, seq: int) -> bool:
        return seq in self.complete

    def publish_flush(self, _timeout: float) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(NotEntitledError("not entitled"))

    def close(self) -> None:
        self.closed = True


class _Reader(Closing):
    """This system: hands out what the test puts in."""

    def __init__(self, _kafka: Kafka, name: str, **options: Any) -> None:
        self.name, self.options = name, options
        self.coming: list[Sample] = []
        self.acknowledged: list[int] = []
        self.full = self.closed = False

    def take(self, timeout: float) -> list[Sample]:
        if self.closed:
            raise ReaderClosedError("The reader is closed.")
        found, self.coming = self.coming, []
        if not found:
            time.sleep(min(timeout, 0.005))  # as a reader without samples does
        return found

    def acknowledge_sample(self, sample: Sample) -> None:
        self.acknowledged.append(sample.seq)

    def close(self) -> None:
        self.closed = True


class _Labels:
    def __init__(self, _stack: Any, _kafka: Kafka, wanted: frozenset[str], _group: None) -> None:
        self.issued = wanted

    def keep(self, _now: float) -> None: ...


class _Answers:
    sent: list[tuple[str, Any]]

    waiting = 0

    def __init__(self, _producer: Any, _kafka: Kafka, labels: _Labels) -> None:
        # it waits for their lease
        assert isinstance(labels, _Labels)
        type(self).sent = []

    def send(self, correlation_id: str, message: Any, _work: Any) -> None:
        self.sent.append((correlation_id, message))

    def turn(self, _now: float) -> None: ...


@pytest.fixture
def open_route(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[RouteSettings], Any]]:
    for name, stub in (
        ("Publisher", _Publisher),
        ("SampleReader", _Reader),
        ("Labels", _Labels),
        ("Answers", _Answers),
    ):
        monkeypatch.setattr(routes, name, stub)
    monkeypatch.setattr(routes, "connection_of", lambda _kafka: FakeConnection(producer=Mock()))
    monkeypatch.setattr(routes, "END_TO_END_SECONDS", 0.0)
    opened: list[Route] = []

    def make(settings: RouteSettings) -> Any:
        opened.append(Route(settings, Kafka()))
        return opened[-1]

    yield make
    for route in opened:
        route.close()


def _until(look: Callable[[], Any]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < limit
        time.sleep(0.002)  # leaves the processor to the route


def test_a_message_is_acknowledged_once_the_other_system_has_stored_it(open_route: Callable[..., Any]) -> None:
    route = open_route(PLANT)
    reader, publisher = route._reader, route._publisher
    assert (reader.name, publisher.name, publisher.kafka.topic_prefix) == ("route-plant", "route-plant", "plant-")
    assert reader.options["qos"].kind == "application-explicit"
    reader.coming = [_sample(1), _sample(2)]
    _until(lambda: len(publisher.published) == 2)
    assert reader.acknowledged == []
    publisher.answer(2)
    publisher.answer(1)
    assert reader.acknowledged == [2, 1]
    value, message = publisher.published[0]
    assert (value, message["topic"], message["key"]) == (b"1", "orders", b"k")


def test_what_the_other_system_refuses_stays_unacknowledged(open_route: Callable[..., Any]) -> None:
    route = open_route(DELIVERED)
    reader, publisher = route._reader, route._publisher
    reader.coming = [_sample(13, **ASKING), _sample(2)]
    _until(lambda: publisher.futures)
    publisher.futures[0].set_exception(NotEntitledError("not entitled"))
    assert reader.acknowledged == []
    ((correlation_id, answer),) = _Answers.sent
    assert (correlation_id, answer.status) == ("c1", 400)
    reader.full = True
    with pytest.raises(HandlerFailedError, match="refused all messages that the route plant may hold"):
        route.wait_closed(PATIENCE_SECONDS)


def test_a_route_waits_for_room_in_the_other_system(open_route: Callable[..., Any]) -> None:
    route = open_route(PLANT)
    publisher = route._publisher
    publisher.room = 1
    route._reader.coming = [_sample(1), _sample(2)]
    _until(lambda: publisher.futures)
    publisher.answer(1)
    publisher.room = 2
    _until(lambda: len(publisher.futures) == 2)
    publisher.room = 0
    route._reader.coming = [_sample(3)]
    route.close()
    assert (route._reader.acknowledged, publisher.closed, route._reader.closed) == ([1], True, True)


def test_the_label_is_issued_once_all_readers_behind_the_route_have_finished(open_route: Callable[..., Any]) -> None:
    route = open_route(DELIVERED)
    publisher = route._publisher
    route._reader.coming = [_sample(1, **ASKING), _sample(2), _sample(3, **ASKING)]
    _until(lambda: len(publisher.futures) == 3)
    for seq in (1, 2, 3):
        publisher.answer(seq)
    assert (route._reader.acknowledged, _Answers.sent) == ([1, 2, 3], [])
    publisher.complete |= {1, 2}
    _until(lambda: _Answers.sent)
    ((correlation_id, answer),) = _Answers.sent
    assert (correlation_id, answer.status, answer.topic.subject) == ("c1", 200, "plant:delivered")


def test_the_label_is_issued_while_the_other_system_takes_nothing(open_route: Callable[..., Any]) -> None:
    route = open_route(DELIVERED)
    publisher = route._publisher
    publisher.room = 1
    route._reader.coming = [_sample(1, **ASKING), _sample(2, **ASKING)]
    _until(lambda: publisher.futures)
    publisher.complete.add(1)
    publisher.answer(1)
    _until(lambda: _Answers.sent)
    assert len(publisher.futures) == 1


def test_of_too_many_messages_that_wait_for_the_other_end_the_oldest_is_given_up(
    open_route: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_AWAITING", 1)
    route = open_route(DELIVERED)
    publisher = route._publisher
    route._reader.coming = [_sample(1, **ASKING), _sample(2, **ASKING | {"correlation_id": b"c2"})]
    _until(lambda: len(publisher.futures) == 2)
    publisher.answer(1)
    publisher.answer(2)
    publisher.complete |= {1, 2}
    _until(lambda: _Answers.sent)
    assert [correlation_id for correlation_id, _ in _Answers.sent] == ["c2"]


def test_a_route_that_loses_its_place_ends_with_that_error(open_route: Callable[..., Any]) -> None:
    route = open_route(PLANT)
    route._publisher.fail(TakenOverError("Another publisher has logged on as route-plant."))
    with pytest.raises(TakenOverError):
        route.wait_closed(PATIENCE_SECONDS)


def test_a_message_names_its_origin_and_its_routes_on_every_hop() -> None:
    first = headers_behind("plant", _sample(7, colour=b"red"))
    assert dict(first) == {
        "colour": b"red",
        "original-writer": b"w1",
        "original-seq": b"7",
        "routed-by": b"plant",
    }
    hop = Sample("route-plant", None, None, b"", dict(first), 0, 1, 0, 1)
    assert (has_passed("plant", hop), has_passed("pla", hop), has_passed("plant", _sample(7))) == (True, False, False)
    second = dict(headers_behind("home", hop))
    assert (second["routed-by"], second["original-writer"], second["original-seq"]) == (b"plant,home", b"w1", b"7")


def test_a_route_passes_nothing_on_that_it_has_passed_on_before(open_route: Callable[..., Any]) -> None:
    wants = open_route(PLANT)._reader.options["filter"]
    assert [wants(sample) for sample in (_sample(1), _routed(b"other"), _routed(b"a,plant"))] == [True, True, False]


def test_a_publisher_that_is_no_route_can_neither_forge_an_origin_nor_step_around_a_route(
    open_route: Callable[..., Any],
) -> None:
    forged = _sample(7, routed_by=b"plant", original_writer=b"line-1", original_seq=b"42")
    assert open_route(PLANT)._reader.options["filter"](forged)
    assert dict(headers_behind("plant", forged)) == {
        "original-writer": b"w1",
        "original-seq": b"7",
        "routed-by": b"plant",
    }


@pytest.mark.parametrize("error", [TakenOverError("not now"), AssertionError("of a client library")])
def test_a_route_that_cannot_be_opened_or_ends_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(routes, "backoff", lambda _attempt: 0.0)
    opened: list[Any] = []
    reopened = threading.Event()

    class Stub(Closing):
        def __init__(self, settings: RouteSettings, *_: Any) -> None:
            opened.append(settings.name)
            if len(opened) == 1:
                raise error
            self.alive = len(opened) > 2
            if self.alive:
                reopened.set()

        def wait_closed(self, _timeout: float) -> None:
            if not self.alive:
                raise error

        def close(self) -> None:
            opened.append("closed")

    monkeypatch.setattr(routes, "Route", Stub)
    with Router(Settings(), [PLANT]):
        assert reopened.wait(PATIENCE_SECONDS)
    assert opened == ["plant", "plant", "closed", "plant", "closed"]
