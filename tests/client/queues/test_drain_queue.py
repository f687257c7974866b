from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client import BindTimeout, UnknownQueueError, drain_queue
from ackstream.client.core.connection import Connection
from ackstream.client.core.lifetime import Session
from ackstream.errors import BadParameterError
from ackstream.kafka.clients import Closing
from ackstream.protocol.queues import Drain, Drained, Unbound, read, write
from ackstream.settings import Kafka

Answers = Callable[[Drain], list[Any]]
FOREIGN = Drained("orders", "ada", 1, 9)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[Any]]:
    """Let the queues answer each order with these; return the orders."""
    sent: list[Any] = []
    given: list[Answers] = []

    class Link(Closing):
        def __init__(self, name: str, **topics: str) -> None:
            assert topics == {"sends": "app-acks", "addressed": "queue-deliveries"}
            self.name = name

        def send(self, value: bytes) -> None:
            sent.append(read(value))
            assert sent[-1].consumer == self.name

        def read(self) -> list[Any]:
            # an unreadable record, and the answer to an earlier order
            values = [b"?", write(FOREIGN), *map(write, given[0](sent[-1]))]
            return [SimpleNamespace(value=value) for value in values]

        def close(self) -> None:
            """There is nothing to close."""

    def serve(answers: Answers) -> list[Any]:
        given[:] = [answers]
        return sent

    monkeypatch.setattr(Connection, "link", Link)
    return serve


def test_the_number_of_drained_messages_is_returned(served: Callable[[Answers], list[Any]]) -> None:
    sent = served(lambda order: [Drained(order.queue, order.consumer, order.session, 3)])
    assert drain_queue(Kafka(), queue="orders") == 3
    assert [order.queue for order in sent] == ["orders"]


def test_each_call_is_an_order_of_its_own(served: Callable[[Answers], list[Any]]) -> None:
    sent = served(lambda order: [Drained(order.queue, order.consumer, order.session, 0)])
    assert [drain_queue(Kafka(), queue="orders") for _ in range(2)] == [0, 0]
    assert len({order.session for order in sent}) == 2


def test_an_unknown_queue_is_an_error(served: Callable[[Answers], list[Any]]) -> None:
    served(lambda order: [Unbound(order.queue, order.consumer, order.session, "unknown-queue")])
    with pytest.raises(UnknownQueueError, match=r"There is no queue orders: add it to \[\[queues\]\]"):
        drain_queue(Kafka(), queue="orders")


def test_an_order_is_repeated_under_its_number_until_the_timeout(
    served: Callable[[Answers], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "due", lambda *_: "begin")
    sent = served(lambda _: [])
    with pytest.raises(
        BindTimeout, match=r"order to drain the queue orders, which stays in force, within 0\.05 s: .*submit queues"
    ):
        drain_queue(Kafka(), queue="orders", timeout=0.05)
    assert len(sent) > 1
    assert {order.session for order in sent} == {sent[0].session}


@pytest.mark.parametrize("queue", ["", "q" * 256])
def test_a_name_that_no_queue_can_have_is_refused(queue: str) -> None:
    with pytest.raises(BadParameterError, match="queue has"):
        drain_queue(Kafka(), queue=queue)
