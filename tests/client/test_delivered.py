from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.outbox import Work
from ackstream.client.signals import Ack, After, Delivered, OpenDelivery, Response
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.errors import DittoError
from ackstream.protocol.ditto.topics import TopicPath


class Worker:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None, float]] = []
        self.outbox = SimpleNamespace(hold=self._hold, release=self._release)

    def send(self, correlation_id: str, message: Envelope, work: Work, delay: float = 0.0) -> None:
        assert (correlation_id, work.offset) == ("c", 7)
        self.sent.append((str(message.topic).rpartition("/")[2], message.status, delay))

    @staticmethod
    def _hold(work: Work) -> None:
        work.remaining += 1

    @staticmethod
    def _release(work: Work) -> None:
        work.remaining -= 1


def delivered(*labels: str) -> tuple[Delivered, OpenDelivery, Worker, Work]:
    worker, work = Worker(), Work(7)
    opened = OpenDelivery(worker, work, labels)  # type: ignore[arg-type]
    topic = TopicPath.parse("org.acme/lamp/things/twin/events/modified")
    signal = Delivered("c", Envelope(topic, {}), "twin", labels, False, False, None, 0, "events", 0, 7, opened)  # noqa: FBT003
    return signal, opened, worker, work


def test_what_was_not_answered_is_acknowledged_at_the_end():
    signal, opened, worker, _ = delivered("a-a", "b-b")
    signal.ack(202, label="b-b")
    opened.finish(signal, Ack())
    assert worker.sent == [("b-b", 202, 0.0), ("a-a", 200, 0.0)]


def test_what_was_not_answered_gets_the_nack():
    signal, opened, worker, _ = delivered("a-a", "b-b")
    signal.ack(label="a-a")
    opened.fail(signal, ValueError("broken"))
    assert worker.sent == [("a-a", 200, 0.0), ("b-b", 500, 0.0)]


def test_an_answer_that_comes_later_is_an_answer():
    signal, opened, worker, _ = delivered("a-a")
    signal.answer([After(2, Ack(204)), Response(200)])
    opened.finish(signal, Ack())
    assert worker.sent == [("a-a", 204, 2.0), ("modified", 200, 0.0)]


@pytest.mark.parametrize("answer", [Ack(label="c-c"), Ack(label="live-response"), [Ack(), Ack(label="c-c")]])
def test_a_label_that_was_not_asked_for_is_refused_and_nothing_is_sent(answer: Any):
    signal, _, worker, _ = delivered("a-a")
    with pytest.raises(DittoError):
        signal.answer(answer)
    assert worker.sent == []


def test_a_held_offset_waits_for_all_labels_and_no_longer_than_it_must():
    signal, opened, _, work = delivered("a-a", "b-b")
    assert opened.hold()
    signal.ack(label="a-a")
    assert work.remaining == 1
    signal.ack(label="b-b")
    assert work.remaining == 0
    assert not opened.give_up()


def test_a_held_offset_can_be_given_up_once():
    _, opened, _, work = delivered("a-a")
    opened.hold()
    assert (opened.give_up(), opened.give_up(), work.remaining) == (True, False, 0)


def test_a_signal_without_labels_holds_nothing():
    _, opened, _, work = delivered()
    assert (opened.hold(), work.remaining) == (False, 0)
