"""Progress, quorums and cancellations as programs see them, in the system in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import Ack, After, Command, Response, Signal, subscription
from ackstream.settings import Settings
from ackstream.testing import RequestSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client import Answer

THING = "org.acme:lamp"


@pytest.fixture
def system() -> RequestSystem:
    settings = Settings()
    correlate = settings.correlate.model_copy(update={"request_topics": ("orders",)})
    return RequestSystem(settings.model_copy(update={"correlate": correlate}))


def _command() -> Any:
    return Command.modify_attribute(THING, "on", value=True)


def test_a_party_that_asks_for_time_confirms_after_the_first_deadline(system: RequestSystem) -> None:
    def handler(signal: Signal) -> Answer:
        signal.working(extend=60)
        return After(30, Ack(204))

    with system.responder(handler=handler, labels=["a-ack"]), system.requester() as requester:
        reply = requester.send(_command(), acks=["a-ack"], timeout=25).result()
        assert (reply.status, reply.completed_by) == (204, "acknowledgements")
    assert [(row.status, row.disposition) for record in system.ledger for row in record.acks or ()] == [
        (102, "progress"),
        (204, "accepted"),
    ]


def test_progress_without_more_time_lets_the_deadline_pass(system: RequestSystem) -> None:
    def handler(signal: Signal) -> Answer:
        signal.working()
        return After(7, Ack())

    with system.responder(handler=handler, labels=["a-ack"]), system.requester() as requester:
        reply = requester.send(_command(), acks=["a-ack"], timeout=5).result()
    assert (reply.status, reply.completed_by) == (408, "timeout")


def test_a_subscriber_that_has_only_reported_progress_still_acknowledges(system: RequestSystem) -> None:
    def handler(signal: Any) -> None:
        signal.working("10s")

    with (
        system.subscriber(handler=handler, subscriptions=[subscription("live-commands")], labels=["a-ack"]),
        system.responder(handler=lambda _: Response(204)),
        system.requester() as requester,
    ):
        live = Command.modify_attribute(THING, "on", value=True, channel="live")
        reply = requester.send(live, acks=["a-ack"], timeout=5).result()
    assert {label: ack.status for label, ack in reply.acks.items()} == {"a-ack": 200, "live-response": 204}


@pytest.mark.parametrize("extend", ["soon", -1])
def test_an_invalid_extension_is_an_error_of_the_party(system: RequestSystem, extend: Any) -> None:
    with system.responder(handler=_working(extend), labels=["a-ack"]), system.requester() as requester:
        reply = requester.send(_command(), acks=["a-ack"], timeout=5).result()
    assert reply.status in (400, 408)


def _working(extend: Any) -> Callable[[Signal], Answer]:
    def handler(signal: Signal) -> Answer:
        signal.working(extend)
        return None

    return handler


def test_a_request_is_taken_back(system: RequestSystem) -> None:
    with system.responder(handler=lambda _: None, labels=["a-ack"]), system.requester() as requester:
        future = requester.send(_command(), acks=["a-ack"], timeout=20, correlation_id="c")
        assert requester.cancel("c")
        reply = future.result()
        assert (reply.status, reply.completed_by, reply.ok) == (499, "cancelled", False)
        assert reply.explanation == "The request was cancelled."
        assert not requester.cancel("c")
        assert not requester.cancel("unknown")


def test_an_order_is_taken_back_without_a_trace_at_its_parties(system: RequestSystem) -> None:
    seen: list[Any] = []
    with (
        system.responder(handler=seen.append, labels=["a-ack"], topics=["orders"]),
        system.requester() as requester,
    ):
        future = requester.send_record("orders", b"x", key=b"7", acks=["a-ack"], timeout=20, correlation_id="c")
        assert requester.cancel("c")
        assert future.result().completed_by == "cancelled"
    assert [signal.content for signal in seen] == [b"x"]
    assert system.records["orders"][0].key == b"7"
    assert system.records["orders"][-1].key != b"7", "a compacted topic would delete the order"


def test_a_handler_at_work_sees_that_its_request_was_taken_back_and_answers_too_late(system: RequestSystem) -> None:
    seen: list[Any] = []

    def handler(signal: Signal) -> Answer:
        seen.append(signal.cancelled)
        requester.cancel(signal.correlation_id)
        seen.extend((signal.cancelled, signal.reply_id))
        return Ack(204)

    with system.responder(handler=handler, labels=["a-ack"]), system.requester() as requester:
        reply = requester.send(_command(), acks=["a-ack"], timeout=20).result()
    assert (seen, reply.status) == ([False, True, reply.reply_id], 499)
    assert [row.disposition for record in system.ledger for row in record.acks or ()] == ["late"]


def test_two_of_three_parties_are_enough(system: RequestSystem) -> None:
    command = _command()
    command.headers["ack-quorum"] = 2

    def handler(_signal: Signal) -> Answer:
        return [Ack(200, label="a-ack"), Ack(409, label="b-ack"), Ack(201, label="c-ack")]

    labels = ["a-ack", "b-ack", "c-ack"]
    with system.responder(handler=handler, labels=labels), system.requester() as requester:
        reply = requester.send(command, acks=labels, timeout=5).result()
    assert (reply.status, reply.ok, sorted(reply.acks)) == (200, True, labels)
