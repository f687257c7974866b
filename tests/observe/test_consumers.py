"""Queues as the page shows them: the records are those of a queue in memory, or written as the protocol writes them."""

from __future__ import annotations

from typing import Any

from ackstream.observe.consumers import QueueLine, QueueView
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, SettleMessages, Unbind, Unbound

WINDOW = 60_000
WHO: dict[str, Any] = {"queue": "work", "consumer": "w1", "session": 1}


def delivered(message: str, number: int = 1, **more: Any) -> MessageDelivered:
    place = {"topic": "messages", "partition": 0, "offset": 7, "batch": 3}
    return MessageDelivered(**{**WHO, "number": number, "message": message, "count": 1, **place, **more})


def line(view: QueueView, now: int = 10_000) -> QueueLine:
    (found,) = view.lines(now)
    return found


def test_a_message_is_held_until_it_is_settled() -> None:
    view = QueueView(WINDOW)
    view.request(Bind(**WHO), 900)
    view.answer(Bound(**WHO, number=1, backlog=1, lease_ms=0, session_ms=1), 950)
    assert view.answer(delivered("m1"), 1_000)
    assert view.answer(delivered("m2"), 2_000)
    assert line(view) == QueueLine("work", 1, 2, 9_000, 1, 2, 0, 0, 0, 2_000)
    view.request(SettleMessages(**WHO, messages=("m1", "never")), 3_000)
    assert line(view) == QueueLine("work", 1, 1, 8_000, 1, 2, 0, 1, 0, 3_000)


def test_a_copy_of_a_delivery_counts_once_and_a_redelivery_again() -> None:
    view = QueueView(WINDOW)
    assert view.answer(delivered("m1"), 1_000)
    assert not view.answer(delivered("m1"), 1_500)
    assert view.answer(delivered("m1", consumer="w2", count=2), 4_000)
    found = line(view)
    assert (found.held, found.most, found.delivered, found.redelivered, found.oldest) == (1, 2, 2, 1, 6_000)


def test_a_lease_that_has_ended_takes_the_message_back() -> None:
    view = QueueView(WINDOW)
    view.answer(delivered("m1", until=5_000), 1_000)
    assert line(view, 4_999).held == 1
    assert (line(view, 5_000).held, line(view, 5_000).oldest) == (0, None)


def test_a_consumer_that_leaves_or_is_lost_holds_nothing() -> None:
    for end in (Unbind(**WHO), Unbound(**WHO, reason="lost")):
        view = QueueView(WINDOW)
        view.request(Alive(**WHO), 900)
        view.answer(delivered("m1"), 1_000)
        view.answer(delivered("m2", consumer="w2"), 1_000)
        if isinstance(end, Unbind):
            view.request(end, 2_000)
        else:
            view.answer(end, 2_000)
        assert (line(view).held, line(view).consumers) == (1, 0)


def test_the_queue_with_most_messages_held_comes_first() -> None:
    view = QueueView(WINDOW)
    view.dead("quiet", 1_000)
    view.answer(delivered("m1"), 1_000)
    assert [(found.queue, found.held, found.dead) for found in view.lines(2_000)] == [("work", 1, 0), ("quiet", 0, 1)]
