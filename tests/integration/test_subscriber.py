"""Subscriber and Declarer on the real broker; the test itself writes what the twin and requesters write."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaProducer

from ackstream.client import Ack, Delivered, Response, Subscriber
from ackstream.client.core.labels import Declarer
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.twin.subscriptions import subscription
from ackstream.protocol.errors import DittoError, thing_not_found
from ackstream.settings import Kafka, Settings
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.integration

EVENT = "org.acme/lamp/things/twin/events/modified"
MESSAGE = "org.acme/lamp/things/live/messages/ask"
EVENTS = [subscription("events")]


class World:
    def __init__(self, kafka: Kafka, producer: KafkaProducer) -> None:
        self.kafka = kafka
        self._producer = producer

    def event(self, correlation_id: str, value: Any = 1, **headers: Any) -> None:
        self._write("events", EVENT, correlation_id, value, headers)

    def message(self, correlation_id: str, value: Any = 1, **headers: Any) -> None:
        self._write("signals", MESSAGE, correlation_id, value, headers)

    def _write(self, place: str, topic: str, correlation_id: str, value: Any, headers: dict[str, Any]) -> None:
        named = {name.replace("_", "-"): text for name, text in headers.items()} | {"correlation-id": correlation_id}
        message = {"topic": topic, "headers": named, "path": "/attributes/x", "value": value}
        self._producer.send(self.kafka.topic(place), key=b"k", value=json.dumps(message).encode()).get(
            timeout=PATIENCE_SECONDS
        )

    def answers(self, number: int) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            return [json.loads(record.value) for record in records(self.kafka, "acks")]

        return eventually(lambda: len(found := look()) >= number and found, f"{number} answers")


@pytest.fixture
def world(kafka: Kafka) -> Iterator[World]:
    ensure_topics(Settings(kafka=kafka), ("signals", "events", "acks", "declarations"))
    with ExitStack() as stack:
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        stack.callback(producer.close)
        yield World(kafka, producer)


def brief(answer: dict[str, Any]) -> tuple[str, int, Any]:
    return answer["topic"].rpartition("/")[2], answer["status"], answer.get("value")


def test_what_a_handler_returns_or_raises_becomes_the_acknowledgement(world: World):
    def handle(signal: Delivered) -> Any:
        match signal.value:
            case "raise":
                raise ValueError("no such lamp")
            case "refuse":
                raise thing_not_found("org.acme:lamp")
            case "one itself":
                signal.ack(202, "mine", label="b-b")
            case "returned":
                return Ack(204)
        return None

    with Subscriber(world.kafka, handler=handle, subscriptions=EVENTS, labels=["a-a", "b-b"]) as subscriber:
        for value in ("automatic", "returned", "one itself", "raise", "refuse"):
            world.event(f"c-{value}", value, requested_acks=["twin-persisted", "b-b", "other", "a-a"])
        found = world.answers(10)
        statistics = subscriber.statistics
    by_signal: dict[str, list[tuple[str, int, Any]]] = {}
    for answer in found:
        by_signal.setdefault(answer["headers"]["correlation-id"][2:], []).append(brief(answer))
    assert by_signal["automatic"] == [("b-b", 200, None), ("a-a", 200, None)]
    assert by_signal["returned"] == [("b-b", 204, None), ("a-a", 204, None)]
    assert by_signal["one itself"] == [("b-b", 202, "mine"), ("a-a", 200, None)]
    assert [status for _, status, _ in by_signal["raise"]] == [500, 500]
    assert [value["error"] for *_, value in by_signal["refuse"]] == ["things:thing.notfound"] * 2
    assert (statistics.handled, statistics.failed, statistics.dropped) == (5, 2, 0)


def test_what_it_does_not_get_is_acknowledged_weakly(world: World):
    seen: list[Any] = []
    with Subscriber(
        world.kafka,
        handler=lambda signal: seen.append(signal.value),
        subscriptions=[subscription("events", filter="gt(attributes/x,1)")],
        labels=["a-a"],
        visible=lambda signal: signal.correlation_id != "hidden",
    ):
        world.event("filtered", 1, requested_acks=["a-a", "other"])
        world.event("hidden", 2, requested_acks=["a-a"])
        world.message("not subscribed", 2, requested_acks=["a-a"])
        world.event("seen", 3, requested_acks=["a-a"])
        answers = world.answers(4)
    weak = {answer["headers"]["correlation-id"]: answer["headers"].get("ditto-weak-ack", False) for answer in answers}
    assert weak == {"filtered": True, "hidden": True, "not subscribed": True, "seen": False}
    assert seen == [3]


def test_live_messages_get_a_response(world: World):
    with Subscriber(
        world.kafka,
        handler=lambda signal: Response(200, {"heard": signal.value}),
        subscriptions=[subscription("messages")],
        labels=["a-a"],
    ):
        world.message("c-1", "hello", requested_acks=["a-a"])
        response, ack = world.answers(2)
    assert (response["topic"], response["value"]) == (MESSAGE, {"heard": "hello"})
    assert ack["topic"] == "org.acme/lamp/things/live/acks/a-a"


def test_extra_fields_are_there_for_the_filter_and_the_handler(world: World):
    extra: list[Any] = []
    with Subscriber(
        world.kafka,
        handler=lambda signal: extra.append(json.loads(bytes(signal.envelope.extra))),
        subscriptions=[subscription("events", filter='eq(attributes/room,"hall")', extra_fields="attributes/room")],
        extra=lambda thing_id, fields: {"attributes": {"room": "hall"}, "asked": [thing_id, fields]},
    ):
        world.event("c-1")
        eventually(lambda: extra, "the event")
    assert extra == [{"attributes": {"room": "hall"}, "asked": ["org.acme:lamp", "attributes/room"]}]


def test_without_its_extra_fields_a_signal_is_answered_with_the_reason(world: World):
    def extra(_thing_id: str, _fields: str) -> Any:
        raise thing_not_found("org.acme:lamp")

    with Subscriber(
        world.kafka,
        handler=lambda _signal: None,
        subscriptions=[subscription("events", extra_fields="attributes")],
        labels=["a-a"],
        extra=extra,
    ) as subscriber:
        world.event("c-1", requested_acks=["a-a", "other"])
        (ack,) = world.answers(1)
        assert subscriber.statistics.handled == 0
    assert (brief(ack)[:2], ack["value"]["error"]) == (("a-a", 404), "things:thing.notfound")


def test_labels_are_taken_until_the_subscriber_is_closed_and_groups_share_them(world: World):
    def subscriber(labels: list[str], group: str | None = None) -> Subscriber:
        return Subscriber(world.kafka, handler=lambda _signal: None, subscriptions=EVENTS, labels=labels, group=group)

    with subscriber(["a-a", "b-b"], "workers"), subscriber(["b-b", "a-a"], "workers"):
        for labels, group in ((["a-a"], None), (["a-a"], "workers"), (["b-b", "c-c"], "others")):
            with pytest.raises(DittoError, match="taken by other subscribers"):
                subscriber(labels, group)
    with subscriber(["a-a"]) as alone:
        assert alone.labels == {"a-a"}


def test_the_lease_of_a_dead_process_ends_and_a_living_one_keeps_its_labels(world: World):
    with ExitStack() as stack:
        dead = stack.enter_context(Declarer(world.kafka, lease_ms=1_500))
        # renewed or not, it does not end while this test runs
        living = stack.enter_context(Declarer(world.kafka, lease_ms=300_000))
        kept = living.declare(["living"])
        kept.future.result(PATIENCE_SECONDS)
        dead.declare(["dead"]).future.result(PATIENCE_SECONDS)
        # nothing of it runs any more, and nothing is given back
        dead._reader.close()

        def taken() -> bool:
            try:
                living.declare(["dead"]).future.result(PATIENCE_SECONDS)
            except DittoError:
                return False
            return True

        eventually(taken, "the end of the lease")
        assert kept.held
        with pytest.raises(DittoError):
            living.declare(["living"]).future.result(PATIENCE_SECONDS)


def test_a_claim_is_renewed_under_its_own_key_for_as_long_as_its_declarer_lives(world: World):
    with Declarer(world.kafka, lease_ms=1_500) as declarer:
        declarer.declare(["a-a"]).future.result(PATIENCE_SECONDS)

        def renewals() -> bool:
            keys = [record.key for record in records(world.kafka, "declarations") if record.value]
            return any(keys.count(key) > 3 for key in set(keys))

        eventually(renewals, "the first renewals")


def test_a_group_goes_on_where_it_was_and_what_was_not_acknowledged_comes_again(world: World):
    seen: list[Any] = []
    lock = threading.Lock()

    def subscriber(handle: Any) -> Subscriber:
        return Subscriber(
            world.kafka,
            handler=handle,
            subscriptions=EVENTS,
            labels=["a-a"],
            group="workers",
            start="earliest",
            automatic=False,
        )

    def some(signal: Delivered) -> None:
        with lock:
            seen.append(signal.value)
        if signal.value != 2:
            signal.ack()

    for number in (1, 2, 3):
        world.event(f"c-{number}", number, requested_acks=["a-a"])
    with subscriber(some):
        eventually(lambda: len(seen) == 3, "the first three")
        world.answers(2)
    again: list[Delivered] = []
    with subscriber(again.append) as second:
        eventually(lambda: len(again) == 2, "what was not finished")
        assert [signal.value for signal in again] == [2, 3]
        # from another thread, later
        again[0].ack(202)
        world.answers(3)
        with pytest.raises(DittoError, match="not declared"):
            again[1].ack(label="b-b")
        assert second.statistics.handled == 2
