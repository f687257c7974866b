from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client import (
    NotConnectedError,
    OutcomeNotEnabledError,
    PreconditionNotMetError,
    QueueConsumer,
    QueueMessage,
)
from ackstream.settings.jobs import QueueSettings
from ackstream.testing import QueueSystem
from ackstream.testing.queue import AT_ONCE


def _system(**rules: Any) -> QueueSystem:
    return QueueSystem(QueueSettings(**{"name": "q", "topics": ("*",)} | rules))


def test_its_consumer_is_that_of_the_sdk_and_its_message_has_what_was_published() -> None:
    system = _system()
    consumer = system.consumer(name="a")
    assert isinstance(consumer, QueueConsumer)
    system.advance(1)
    identity = system.publish(b"v", topic="orders", key=b"k", headers={"colour": b"red"})
    message = next(iter(consumer))
    assert (message.id, message.publisher, message.topic, message.key) == (identity, "publisher", "orders", b"k")
    assert (message.value, message.headers, message.timestamp_ms, message.count) == (b"v", {"colour": b"red"}, 1_000, 1)
    message.settle()
    message.settle()
    assert (consumer.statistics.accepted, system.depth, consumer.receive()) == (1, 0, None)


def test_a_second_settlement_does_not_settle_the_next_delivery_of_the_message() -> None:
    system = _system()
    consumer = system.consumer(name="a", outcomes=["failed"])
    identity = system.publish(b"v")
    message = next(iter(consumer))
    message.settle("failed")
    message.settle()
    again = next(iter(consumer))
    assert (again.id, again.count, system.depth) == (identity, 2, 1)


def test_a_consumer_knows_its_backlog_and_its_lease_and_a_message_how_much_of_it_is_left() -> None:
    system = _system(lease="10s", max_backlog=3)
    consumer = system.consumer(name="a", backlog=5)
    assert (consumer.backlog, consumer.lease) == (3, 10.0)
    system.publish(b"v")
    system.advance(2)
    message = next(iter(consumer))
    system.advance(4)
    assert message.lease_left == 6.0
    system.advance(4)
    assert message.lease_left == 2.0


def test_a_settlement_that_comes_too_late_is_reported() -> None:
    refused: list[tuple[str, str]] = []
    system = _system(lease="10s")
    consumer = system.consumer(name="a", on_refused=lambda refusal: refused.append((refusal.message, refusal.reason)))
    identity = system.publish(b"v")
    message = next(iter(consumer))
    consumer.stop()
    system.consumer(name="b")
    system.advance(10)
    message.settle()
    assert refused == [(identity, "held-by-another")]
    assert consumer.statistics.refused == 1


def test_work_that_goes_on_keeps_a_message_up_to_the_limit_of_the_queue() -> None:
    system = _system(lease="10s", max_lease="25s")
    consumer = system.consumer(name="a")
    system.publish(b"v")
    message = next(iter(consumer))
    for _ in range(3):
        system.advance(8)
        message.working()
        assert consumer.receive() is None
    system.advance(1)
    again = consumer.receive()
    assert again is not None
    assert (again.count, system.now, consumer.statistics.refused) == (2, 25_000, 1)
    again.settle()
    with pytest.raises(PreconditionNotMetError):
        again.working()
    consumer.close()
    with pytest.raises(NotConnectedError):
        message.working()


def test_a_message_whose_handler_always_fails_comes_back_with_time_and_publish_returns() -> None:
    system, seen = _system(), []

    def handle(message: QueueMessage) -> None:
        seen.append((system.now, message.value))
        if message.value == b"poison":
            raise LookupError

    system.consumer(name="a", handler=handle, mode="auto-cancel")
    system.publish(b"poison")
    assert (len(seen), system.depth) == (AT_ONCE, 1)
    system.publish(b"good")
    assert (seen[-1], system.depth) == ((0, b"good"), 1)
    seen.clear()
    system.advance(3)
    assert Counter(seen) == {(time, b"poison"): AT_ONCE for time in (1_000, 2_000, 3_000)}


def test_a_message_whose_handler_always_fails_holds_up_no_other() -> None:
    system, seen = _system(), []

    def handle(message: QueueMessage) -> None:
        seen.append(message.value)
        if message.value == b"poison":
            raise LookupError

    system.publish(b"poison")
    for number in range(5):
        system.publish(b"%d" % number)
    system.consumer(name="a", handler=handle, mode="auto-cancel", backlog=1)
    system.publish(b"5")
    assert Counter(seen) == {b"poison": AT_ONCE} | {b"%d" % number: 1 for number in range(6)}
    assert system.depth == 1


def test_a_message_that_is_given_back_without_a_handler_waits_as_well() -> None:
    system = _system()
    consumer = system.consumer(name="a", outcomes=["failed"])
    system.publish(b"v")
    for _ in range(AT_ONCE):
        message = consumer.receive()
        assert message is not None
        message.settle("failed")
    assert consumer.receive() is None
    system.advance(1)
    assert (consumer.receive() is None, system.depth) == (False, 1)


def test_any_number_of_messages_is_handled_at_once_one_by_one() -> None:
    system, seen = _system(), []
    for number in range(10 * AT_ONCE):
        system.publish(b"%d" % number)
    system.consumer(name="a", handler=lambda message: seen.append(message.value), mode="auto", backlog=1)
    assert (len(seen), system.depth, system.now) == (10 * AT_ONCE, 0, 0)


@pytest.mark.parametrize(
    ("mode", "raises", "left"), [("auto", False, 0), ("auto", True, 1), ("auto-cancel", False, 0), ("client", False, 1)]
)
def test_a_handler_settles_as_its_mode_says(mode: Any, raises: bool, left: int) -> None:  # noqa: FBT001 - a table
    system, seen = _system(), []

    def handle(message: QueueMessage) -> None:
        seen.append(message.id)
        if raises:
            raise LookupError

    system.consumer(name="a", handler=handle, mode=mode)
    identity = system.publish(b"x")
    assert (seen, system.depth) == ([identity], left)


def test_a_message_that_is_received_is_accepted_with_the_next_one_where_the_library_settles() -> None:
    system = _system()
    consumer = system.consumer(name="a", mode="auto")
    system.publish(b"1")
    system.publish(b"2")
    assert consumer.receive().value == b"1"
    assert system.depth == 2
    assert consumer.receive().value == b"2"
    assert system.depth == 1


def test_a_batch_is_settled_as_a_whole() -> None:
    system, batches = _system(max_failures=2), []
    for number in range(5):
        system.publish(b"%d" % number)

    def handle(messages: list[QueueMessage]) -> None:
        batches.append([int(message.value or b"") for message in messages])
        if 3 in batches[-1]:
            raise LookupError

    system.consumer(name="a", batch_handler=handle, max_batch=2, mode="auto-cancel")
    # whoever is in a batch with one that fails, fails with it
    assert batches == [[0, 1], [2, 3], [4], [2, 3]]
    assert [(message.value, reason) for message, reason in system.dead_letters] == [
        (b"2", "max-failures"),
        (b"3", "max-failures"),
    ]


def test_outcomes_have_to_be_declared() -> None:
    system = _system(max_failures=1)
    consumer = system.consumer(name="a", outcomes=["rejected"])
    for _ in range(2):
        system.publish(b"x")
    with pytest.raises(OutcomeNotEnabledError):
        consumer.receive().settle("failed")
    consumer.receive().settle("rejected")
    assert [reason for _, reason in system.dead_letters] == ["rejected"]


def test_what_a_closed_or_replaced_consumer_held_goes_to_others() -> None:
    system = _system()
    first = system.consumer(name="a")
    system.publish(b"x")
    held = first.receive()
    second = system.consumer(name="a")
    with pytest.raises(NotConnectedError):
        held.settle()
    # it has lost its name, and does not take it from the second one
    first.close()
    assert second.receive().count == 2
    second.close()
    assert system.consumer(name="b").receive().count == 3
    assert system.depth == 1


def test_a_stopped_consumer_hands_out_nothing() -> None:
    system = _system()
    consumer = system.consumer(name="a")
    consumer.stop()
    system.publish(b"x")
    assert consumer.receive() is None
    consumer.start()
    assert consumer.receive().value == b"x"


def test_what_comes_while_a_consumer_is_stopped_is_another_ones() -> None:
    system = _system()
    first, second = system.consumer(name="a"), system.consumer(name="b")
    first.stop()
    values = [b"1", b"2", b"3"]
    for value in values:
        system.publish(value)
    received = []
    while (message := second.receive()) is not None:
        received.append(message.value)
        message.settle()
    assert received == values


def test_a_handler_may_publish_and_a_message_may_expire() -> None:
    system = _system(max_ttl="5s")
    seen: list[bytes | None] = []

    def handle(message: QueueMessage) -> None:
        seen.append(message.value)
        if message.value == b"1":
            system.publish(b"2")

    consumer = system.consumer(name="a", handler=handle, mode="auto")
    system.publish(b"1")
    assert seen == [b"1", b"2"]
    consumer.close()
    system.publish(b"3")
    system.advance(5)
    assert [(message.value, reason) for message, reason in system.dead_letters] == [(b"3", "expired")]


@given(
    failures=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    workers=st.integers(1, 3),
    steps=st.lists(st.integers(0, 20_000), max_size=5),
)
def test_every_message_leaves_once_whatever_fails_and_in_whatever_steps_time_passes(
    failures: list[int], workers: int, steps: list[int]
) -> None:
    system = _system(max_failures=3, backoff={"initial": "1s"}, max_backlog=1)
    left = {b"%d" % number: count for number, count in enumerate(failures)}

    def work(message: QueueMessage) -> None:
        value = message.value or b""
        if left[value]:
            left[value] -= 1
            raise OSError

    for number in range(workers):
        system.consumer(name=f"w{number}", handler=work, mode="auto-cancel")
    for value in left:
        system.publish(value)
    for step in steps:
        system.advance(step / 1000)
    system.advance(60)
    exits = {event.message: event.reason for event in system.events if event.event == "left"}
    assert list(exits.values()).count("accepted") == sum(count < 3 for count in failures)
    assert (len(exits), system.depth) == (len(failures), 0)
    assert {message.value for message, _ in system.dead_letters} == {
        b"%d" % number for number, count in enumerate(failures) if count == 3
    }
