"""An order of an operator to drain a queue: all that was published before it leaves, and nothing else, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.queues.endpoint import PIECE, Endpoint
from ackstream.jobs.queues.queue import MAX_DRAINS
from ackstream.jobs.queues.records import Arrival, ConsumerReport
from ackstream.jobs.queues.state import SEGMENT
from ackstream.protocol import queues
from ackstream.protocol.queues import Bind, Drain, Drained, NotSettled, SettleMessages
from tests.jobs.queues.rules import amps, backoff, solace
from tests.jobs.queues.test_endpoint import SESSION, Service, _played, histories, rules

if TYPE_CHECKING:
    from ackstream.settings.jobs import QueueSettings

WHO = "ada"


def _bind(**more: Any) -> Bind:
    return Bind("q", "A", 1, outcomes=("failed", "rejected"), **more)


def _settle(message: int, outcome: Any) -> SettleMessages:
    return SettleMessages("q", "A", 1, (f"m-{message}-0",), outcome)


def _order(number: int = 7) -> Drain:
    return Drain("q", WHO, number)


def _left(service: Service) -> list[tuple[Any, ...]]:
    return sorted(
        row[1:] for row in service.happened("event", "message", "outcome", "reason", "consumer") if row[0] == "left"
    )


def test_delivered_delayed_and_waiting_messages_become_dead_letters() -> None:
    service = Service(solace(max_backlog=2, backoff=backoff()))
    service.batch((1, 1), (1, 2), (1, 3), (2, _bind()), (3, _settle(1, "failed")))
    answers = service.batch((4, _order()), (5, 4))
    assert answers[0] == Drained("q", WHO, 7, 3)
    assert _left(service) == [(f"m-{number}-0", "dead-letter", "drained", WHO) for number in (1, 2, 3)]
    assert [answer.message for answer in answers[1:]] == ["m-4-0"], "a message published later is delivered"


def test_a_settlement_of_a_drained_message_has_no_effect() -> None:
    service = Service(solace())
    service.batch((1, 1), (2, _bind()))
    *_, answer = service.batch((3, _order()), (4, _settle(1, "rejected")))
    assert isinstance(answer, NotSettled)
    assert (answer.message, answer.reason) == ("m-1-0", "not-in-queue")
    assert len(_left(service)) == 1


def test_an_order_counts_once_and_its_copies_have_no_answer() -> None:
    service = Service(solace())
    service.batch((1, 1), (2, _order()))
    assert service.batch((3, 2), (4, _order())) == []
    assert [message for message, *_ in _left(service)] == ["m-1-0"]
    assert service.batch((5, _order(8))) == [Drained("q", WHO, 8, 1)]
    service.batch((6, 3), (7, _order(7)), (8, _order(8)))
    assert len(_left(service)) == 2


def test_the_latest_orders_are_remembered() -> None:
    service = Service(solace())
    service.batch(*((number, _order(number)) for number in range(1, MAX_DRAINS + 2)))
    assert service.batch((50, _order(2))) == []
    assert service.batch((51, _order(1))) == [Drained("q", WHO, 1, 0)]


def test_a_message_that_was_published_before_the_order_leaves_when_it_arrives() -> None:
    service = Service(solace())
    service.batch((5, _order()))
    # persist stored it after that
    service.batch((4, 1), (6, 2), (7, _bind()))
    assert _left(service) == [("m-1-0", "dead-letter", "drained", None)]
    assert service.happened("event", "message")[-1] == ("delivered", "m-2-0")


def test_a_message_that_was_published_after_the_order_stays_though_it_arrived_first() -> None:
    service = Service(solace())
    service.batch((1, 1), (6, 2))
    assert service.batch((5, _order())) == [Drained("q", WHO, 7, 1)]
    assert [message for message, *_ in _left(service)] == ["m-1-0"]


@pytest.mark.parametrize(
    ("rules", "eligible", "outcome"),
    [
        (solace(), True, "dead-letter"),
        (solace(), False, "discarded"),
        (amps(respect_eligible=False), False, "dead-letter"),
        (amps(dead_letters=False), True, "discarded"),
    ],
)
def test_a_drained_message_goes_where_a_rejected_one_goes(
    rules: QueueSettings, outcome: str, *, eligible: bool
) -> None:
    found = set()
    for end in (_order(), _settle(1, "rejected")):
        service = Service(rules)
        service.batch((1, Arrival(1, "m", 1, 0, 5, eligible=eligible)), (2, _bind()), (3, end))
        found |= {how for _, how, *_ in _left(service)}
    assert found == {outcome}


def test_a_large_queue_is_drained_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackstream.jobs.queues.queue.SEGMENT", 100)
    monkeypatch.setattr("ackstream.jobs.queues.endpoint.PIECE", 50)
    endpoint = Endpoint(solace(), SESSION)
    list(endpoint.process([Arrival(offset, "m", 0, offset, 0) for offset in range(1_000)], [], 0))
    version, blob = endpoint.dump() or (0, b"")
    endpoint = Endpoint(solace(), SESSION)
    endpoint.load(version, blob)
    pieces, opened = [], []
    for _ in endpoint.process([], [ConsumerReport(949, 0, 1, b"ada", queues.write(_order()))], 0):
        opened.append(len(endpoint._locations))
        pieces.append(endpoint.take())
    pieces.append(endpoint.take())
    assert [answer for answers, *_ in pieces for answer in answers] == [Drained("q", WHO, 7, 950)]
    sizes = [len(events) for *_, events in pieces]
    assert (sum(sizes), max(sizes) <= 51) == (950, True)
    # the first and the last messages, and the segment that is being drained
    assert max(opened) <= 300


@given(rules, histories, st.sampled_from((1, 2, SEGMENT)), st.sampled_from((1, 3, PIECE)))
def test_after_an_order_no_earlier_message_is_open_each_left_once_and_a_later_one_stays(
    rules: QueueSettings, history: list[tuple[int, Any, bool]], segment: int, piece: int
) -> None:
    now = sum(step for step, *_ in history) + 1
    service = _played(rules, [*history, (1, _order(), True)], cut=True, segment=segment, piece=piece)
    arrived = {f"m-{record}-0" for _, record, _ in history if isinstance(record, int)}
    assert [message for message, *_ in _left(service)] == sorted(arrived)
    service.batch((now + 1, 10), (now + 2, _order()))
    assert [row for row in _left(service) if row[0] == "m-10-0" and row[2] == "drained"] == []
