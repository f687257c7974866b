"""Commands whose deadline is over, as receivers see them; the rest of receivers is in ``tests/testing``."""

from __future__ import annotations

import json
import logging
from concurrent.futures import TimeoutError as FutureTimeout
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaError

from ackstream.client import Ack, DittoError, Responder, Retry, Subscriber, subscription
from ackstream.client.core.messages import Work
from ackstream.client.parties import answers
from ackstream.errors import BadParameterError, UnreachableError
from ackstream.protocol.ledger import reply_id
from ackstream.testing import RequestSystem

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_000_000
TWIN, LIVE = "org.acme/lamp/things/twin/commands/modify", "org.acme/lamp/things/live/commands/modify"
MESSAGE, EVENT = "org.acme/lamp/things/live/messages/dim", "org.acme/lamp/things/twin/events/modified"


def record(topic: str, seconds_ago: float, **headers: Any) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()} | {"correlation-id": "c"}
    value = json.dumps({"topic": topic, "headers": named, "path": "/attributes/x", "value": 1}).encode()
    stored = NOW - round(seconds_ago * 1000)
    return SimpleNamespace(topic="signals", partition=0, offset=0, timestamp=stored, headers=[], key=b"", value=value)


class Receiver:
    """A responder or a subscriber of a system in memory, and what its handler saw."""

    def __init__(self, kind: str = "responder", **options: Any) -> None:
        self.seen: list[bool] = []
        self.fails: list[Exception] = []
        self.during: Callable[[], object] = lambda: None
        system = self.system = RequestSystem(start_ms=NOW)
        if kind == "responder":
            self.client = Responder(system.connection, handler=self._handle, labels=["door:open"], **options)
        else:
            wanted = [subscription("events"), subscription("live-commands"), subscription("messages")]
            self.client = Subscriber(
                system.connection, handler=self._handle, labels=["door:open"], subscriptions=wanted, **options
            )

    def _handle(self, signal: Any) -> Ack:
        self.seen.append(signal.expired)
        self.during()
        if self.fails:
            raise self.fails.pop(0)
        return Ack()

    def receive(self, *records: Any) -> None:
        for offset, each in enumerate(records):
            self.client._handle(each, Work(offset))


DOOR = {"requested_acks": ["door:open"]}


@pytest.mark.parametrize(
    ("kind", "topic", "seconds_ago", "headers", "handled"),
    [
        # what arrives at a deadline is in time
        ("responder", TWIN, 2.0, {"timeout": "2s", **DOOR}, True),
        ("responder", TWIN, 2.001, {"timeout": "2s", **DOOR}, False),
        # its default
        ("responder", TWIN, 59, DOOR, True),
        ("responder", TWIN, 61, DOOR, False),
        # its response alone is awaited
        ("responder", LIVE, 3, {"timeout": "2s"}, False),
        # no one was told that it was not carried out
        ("responder", LIVE, 3, {"timeout": "2s", "response_required": False}, True),
        ("responder", TWIN, 3, {"timeout": "2s", "response_required": False, "requested_acks": []}, True),
        ("subscriber", MESSAGE, 1, {"timeout": "2s"}, True),
        ("subscriber", MESSAGE, 3, {"timeout": "2s"}, False),
        ("subscriber", LIVE, 3, {"timeout": "2s", **DOOR}, False),
        ("subscriber", MESSAGE, 3, {"timeout": "2s", "response_required": False}, True),
        # it has happened, whoever waits for acknowledgements
        ("subscriber", EVENT, 3, {"timeout": "2s", **DOOR}, True),
    ],
)
def test_a_command_is_handled_as_long_as_it_is_awaited(kind, topic, seconds_ago, headers, handled):
    receiver = Receiver(kind)
    receiver.receive(record(topic, seconds_ago, **headers))
    counts = receiver.client.statistics
    assert receiver.seen == [False] * handled
    assert (counts.handled, counts.expired, counts.received, counts.answers) == (
        handled,
        not handled,
        1,
        counts.answers,
    )
    if not handled:
        assert counts.answers == 0


@pytest.mark.parametrize(
    ("seconds_ago", "headers", "handled"),
    [(2.0, {"timeout": b"2s"}, True), (2.001, {"timeout": b"2s"}, False), (59, {}, True), (61, {}, False)],
)
def test_a_record_of_any_kind_is_handled_as_long_as_it_is_awaited(seconds_ago, headers, handled):
    receiver = Receiver(topics=["orders"])
    found = record(TWIN, seconds_ago)
    found.headers = [("requested-acks", b"door:open"), *headers.items()]
    receiver.receive(found)
    assert receiver.seen == [False] * handled
    assert receiver.client.statistics.expired == (not handled)


@pytest.mark.parametrize("kind", ["responder", "subscriber"])
def test_a_program_may_ask_for_commands_whose_deadline_is_over(kind):
    receiver = Receiver(kind, expired="handle")
    receiver.receive(record(MESSAGE, 3, timeout="2s"), record(MESSAGE, 1, timeout="2s"))
    assert receiver.seen == [True, False]
    assert receiver.client.statistics.expired == 0


def test_commands_that_are_not_handled_are_logged_in_one_line(caplog):
    receiver = Receiver()
    receiver.receive(*[record(LIVE, 3, timeout="2s")] * 5)
    with caplog.at_level(logging.WARNING):
        receiver.client._turn(0.0)
        receiver.client._turn(1.0)
    assert [each.getMessage() for each in caplog.records] == [
        "5 commands were not handled, as their deadline was over; expired='handle' does."
    ]


def order(**changes: Any) -> Any:
    """An order that cancels ``record(TWIN, 0)``."""
    given = {"topic": "signals", "correlation_id": "c", "named": ("c", "signals", 0, 0), "value": None} | changes
    headers = [("correlation-id", given["correlation_id"].encode()), ("cancel", reply_id(*given["named"]).encode())]
    return SimpleNamespace(
        topic=given["topic"], partition=0, offset=1, timestamp=NOW, headers=headers, key=b"", value=given["value"]
    )


@pytest.mark.parametrize(
    ("changes", "cancels"),
    [
        ({}, True),
        # another request
        ({"named": ("c", "signals", 0, 9)}, False),
        ({"correlation_id": "d"}, False),
        # who may write to another topic has no say in this one
        ({"topic": "orders"}, False),
        ({"value": b"{}"}, False),
    ],
)
@pytest.mark.parametrize("kind", ["responder", "subscriber"])
def test_a_request_that_is_cancelled_before_it_is_handled_is_skipped(kind, changes, cancels):
    receiver = Receiver(kind)
    found = record(MESSAGE, 0, **DOOR)
    receiver.client._orders.note(order(**changes))
    receiver.receive(found)
    counts = receiver.client.statistics
    assert (len(receiver.seen), counts.handled, counts.cancelled) == (not cancels, not cancels, cancels)
    assert (counts.received, bool(counts.answers)) == (1, not cancels)


def test_a_request_that_is_read_again_after_its_order_stays_cancelled():
    receiver = Receiver()
    receiver.client._orders.note(order())
    receiver.receive(order())
    receiver.receive(record(TWIN, 0, **DOOR))
    assert (receiver.seen, receiver.client.statistics.cancelled, receiver.client.statistics.received) == ([], 1, 1)


def test_orders_take_a_bounded_space(monkeypatch):
    monkeypatch.setattr(answers, "MAX_ORDERS", 2)
    receiver = Receiver()
    for offset in range(3):
        receiver.client._orders.note(order(named=("c", "signals", 0, offset)))
    receiver.receive(record(TWIN, 0, **DOOR), record(TWIN, 0, **DOOR))
    assert (len(receiver.seen), receiver.client.statistics.cancelled) == (2, 0)


@pytest.mark.parametrize(("failures", "attempts", "calls"), [(0, 3, 1), (2, 3, 3), (3, 3, 3), (1, 1, 1)])
@pytest.mark.parametrize("kind", ["responder", "subscriber"])
def test_a_handler_that_fails_is_called_again_for_the_same_signal(kind, failures, attempts, calls, caplog):
    receiver = Receiver(kind, retry=Retry(attempts, 0.0))
    receiver.fails = [ValueError(f"no {number}") for number in range(failures)]
    receiver.receive(record(MESSAGE, 0, **DOOR))
    counts, over = receiver.client.statistics, failures == attempts
    assert (len(receiver.seen), counts.handled, counts.failed) == (calls, 1, int(over))
    # of a label, and of the response that a subscriber may give
    statuses = {json.loads(each.value)["status"] for each in receiver.system.records["acks"]}
    assert statuses == {500 if over else 200}
    assert caplog.text.count("next call in 0 s") == calls - 1


@pytest.mark.parametrize(
    ("error", "seconds_ago", "headers", "calls"),
    [
        (ValueError("no"), 0.0, {}, 2),
        # the answer, at once
        (DittoError(409, "a:b", "no"), 0.0, {}, 1),
        # the next call would begin after the deadline
        (ValueError("no"), 1.5, {"timeout": "2s"}, 1),
        (ValueError("no"), 0.5, {"timeout": "2s"}, 2),
        # no one waits for an answer
        (ValueError("no"), 1.5, {"timeout": "2s", "response_required": False, "requested_acks": []}, 2),
    ],
)
def test_a_handler_is_called_again_unless_its_error_is_an_answer_or_would_come_too_late(
    monkeypatch, error, seconds_ago, headers, calls
):
    receiver = Receiver(retry=Retry(2, 1.0))
    paused: list[float] = []
    monkeypatch.setattr(receiver.client._worker, "pause", lambda seconds, _: paused.append(seconds) or True)
    receiver.fails = [error] * 2
    receiver.receive(record(MESSAGE, seconds_ago, **DOOR | headers))
    assert (len(receiver.seen), paused) == (calls, [1.0] * (calls - 1))


def test_a_handler_is_not_called_again_for_a_request_that_was_cancelled():
    receiver = Receiver(retry=Retry(3, 0.0))
    receiver.fails = [ValueError("no")] * 3
    receiver.during = lambda: receiver.client._orders.note(order())
    receiver.receive(record(MESSAGE, 0, **DOOR))
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("kind", ["responder", "subscriber"])
def test_a_cancellation_ends_the_pause_before_the_next_call_of_a_handler_which_is_not_made(kind, monkeypatch):
    receiver = Receiver(kind, retry=Retry(3, 50.0))
    receiver.fails = [ValueError("no")] * 3

    def wait(seconds: float, _over: object) -> None:
        receiver.system.advance(seconds)
        if receiver.system.now >= NOW + 1_000:
            receiver.client._note(order())

    monkeypatch.setattr(receiver.client._worker, "_wait", wait)
    receiver.receive(record(MESSAGE, 0, **DOOR))
    assert (len(receiver.seen), receiver.system.now) == (1, NOW + 1_000)


def test_a_number_is_no_retry():
    with pytest.raises(BadParameterError, match="retry is 3: give Retry, not int"):
        Receiver(retry=3)


def test_an_unknown_word_for_expired_commands_is_refused():
    with pytest.raises(BadParameterError, match="expired is 'drop': choose among skip, handle"):
        Receiver(expired="drop")


@pytest.mark.parametrize("kind", ["responder", "subscriber"])
def test_commands_are_handled_after_the_clock_of_the_broker_was_set_back(kind):
    receiver = Receiver(kind)
    receiver.client._worker.outbox.broker.note(SimpleNamespace(timestamp=NOW + 3_600_000))
    receiver.system.advance(2)
    # no answer was stored since
    receiver.receive(record(LIVE, 0, timeout="10s"), record(LIVE, 9, timeout="10s"))
    assert (receiver.seen, receiver.client.statistics.expired) == ([False], 1)


@pytest.mark.parametrize("error", [KafkaError("away"), FutureTimeout()])
def test_no_command_is_over_by_what_the_clock_of_the_broker_was_long_ago(error, monkeypatch, caplog):
    receiver = Receiver()
    receiver.system.advance(2)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ackstream.client.core.labels.ask_time", fail)
    receiver.receive(record(LIVE, 9, timeout="10s"))
    assert receiver.seen == [False]
    assert "The broker's time is not known" in caplog.text


def test_without_the_time_of_the_broker_every_command_is_handled():
    receiver = Receiver()
    receiver.client._worker.outbox.broker._ahead.clear()
    receiver.receive(record(LIVE, 1_000, timeout="2s"))
    assert receiver.seen == [False]


@pytest.mark.parametrize("error", [KafkaError("away"), UnreachableError("no topic"), FutureTimeout(), ValueError("?")])
def test_a_broker_that_does_not_give_its_time_is_logged(error, caplog, monkeypatch):
    receiver = Receiver()

    def away() -> None:
        raise error

    monkeypatch.setattr(receiver.client._worker.outbox, "ask_time", away)
    receiver.client._worker.begin()
    assert "The broker's time is not known: commands are handled after their deadline, too" in caplog.text
