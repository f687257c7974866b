from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.queues.endpoint import OLDEST_VERSION, PIECE, STATE_VERSION, Endpoint
from ackstream.jobs.queues.queue import MAX_TTL_MS, STEP_MS, UNREADABLE_MS, Queue
from ackstream.jobs.queues.records import Arrival, ConsumerReport, Event, answer_unknown
from ackstream.jobs.queues.state import SEGMENT
from ackstream.protocol import queues
from ackstream.protocol.queues import (
    Alive,
    Bind,
    Bound,
    Drain,
    Drained,
    MessageDelivered,
    NotSettled,
    SettleMessages,
    Unbind,
    Unbound,
)
from ackstream.spark.records import LOOKS
from tests.jobs.queues.rules import amps, backoff, solace

if TYPE_CHECKING:
    from ackstream.settings.jobs import QueueSettings

SESSION, DAY = 30_000, 86_400_000
LOOK = SESSION // LOOKS
BARRIER = 7
"""The number of the message that is one, of those that laws are tried with."""
ALL: tuple[Any, ...] = ("failed", "rejected")


class Service:
    """An endpoint that is put away and taken up again after each batch."""

    def __init__(self, rules: QueueSettings, state: tuple[int, bytes] | None = None) -> None:
        self.rules = rules
        self.events: list[Any] = []
        self.answers: list[Any] = []
        self.timeout: int | None = None
        self._state = state
        self._offset = 0

    def batch(self, *records: tuple[int, Any], watermark: int = 0, ticks: bool = True) -> list[Any]:
        """Process messages (named by their partition) and records of consumers; return the answers.

        :param watermark: that of the batch
        :param ticks: whether the ticks come before it that the queue has asked for
        """
        earlier = self._tick_until(watermark) if ticks else []
        arrivals = [
            Arrival(at, "m", record, 0, 5, "orders") if isinstance(record, int) else record
            for at, record in records
            if isinstance(record, (int, Arrival))
        ]
        said = []
        for at, record in records:
            if not isinstance(record, (int, Arrival)):
                self._offset += 1
                value = record if isinstance(record, bytes) else queues.write(record)
                said.append(ConsumerReport(at, 0, self._offset, b"A", value))
        endpoint = Endpoint(self.rules, SESSION)
        if self._state is not None:
            endpoint.load(*self._state)
        list(endpoint.process(arrivals, said, watermark))
        self._state = endpoint.dump()
        self.timeout = endpoint.next_timeout
        self.events += endpoint.events
        self.answers += endpoint.answers
        self.unreadable = endpoint.unreadable
        return earlier + endpoint.answers

    def _tick_until(self, watermark: int) -> list[Any]:
        answers: list[Any] = []
        while self.timeout is not None and self.timeout < watermark:
            answers += self.batch(watermark=self.timeout)
        return answers

    def told(self, *records: tuple[int, Any], watermark: int = 0) -> list[tuple[str, str, int]]:
        """Return (consumer, message's partition, count) of the deliveries of a batch."""
        answers = self.batch(*records, watermark=watermark)
        return [(a.consumer, str(a.partition), a.count) for a in answers if isinstance(a, MessageDelivered)]

    def happened(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(getattr(event, name) for name in names) for event in self.events]


def _bind(consumer: str = "A", session: int = 1, **more: Any) -> Bind:
    return Bind("q", consumer, session, outcomes=ALL, **more)


def _settle(*messages: int, consumer: str = "A", session: int = 1, outcome: Any = "accepted") -> SettleMessages:
    return SettleMessages("q", consumer, session, tuple(f"m-{message}-0" for message in messages), outcome)


def test_a_bind_is_answered_with_the_granted_backlog_then_messages_follow() -> None:
    service = Service(amps(max_backlog=3, lease_ms=60_000))
    answers = service.batch((10, 1), (11, _bind(backlog=10)), (12, 2))
    assert answers == [
        Bound("q", "A", 1, 1, 3, 60_000, SESSION, DAY),
        MessageDelivered("q", "A", 1, 2, "m-1-0", "m", 1, 0, 5, 1, "orders"),
        MessageDelivered("q", "A", 1, 3, "m-2-0", "m", 2, 0, 5, 1, "orders"),
    ]
    assert service.timeout == 12 + LOOK


def test_the_same_message_twice_is_one() -> None:
    service = Service(solace())
    service.batch((10, 1), (11, 1))
    assert service.told((12, 1), (13, _bind())) == [("A", "1", 1)]


def test_a_backlog_that_no_state_could_hold_is_unreadable() -> None:
    service = Service(solace(max_backlog=0))
    assert service.batch((1, queues.write(_bind(backlog=1)).replace(b'"backlog":1', b'"backlog":%d' % 2**64))) == []
    assert len(service.unreadable) == 1
    service.batch((2, _bind(backlog=queues.MAX_BACKLOG)))
    assert service.unreadable == []


def test_a_repeated_bind_is_answered_again_and_changes_nothing() -> None:
    service = Service(solace())
    service.batch((1, 1), (2, _bind()))
    assert service.batch((3, _bind())) == [Bound("q", "A", 1, 3, 255, 0, SESSION, DAY)]


def test_each_message_leaves_once_with_a_row_for_each_step() -> None:
    service = Service(solace())
    service.batch((1, 1), (2, _bind()))
    service.batch((3, _settle(1)))
    assert service.happened("event", "message", "at", "consumer", "count", "outcome", "reason") == [
        ("delivered", "m-1-0", 2, "A", 1, None, None),
        ("left", "m-1-0", 3, "A", 1, "settled", "accepted"),
    ]
    assert (
        service.happened("topic", "partition", "offset", "batch", "subject", "received_at")
        == [("m", 1, 0, 5, "orders", 1)] * 2
    )


def test_messages_of_an_unbound_consumer_go_to_others_in_order_marked_as_redelivered() -> None:
    service = Service(solace())
    service.batch((1, 1), (1, 2), (1, 3), (2, _bind()))
    service.batch((3, _settle(2)), (4, Unbind("q", "A", 1, handed_out=4)))
    assert service.told((5, _bind("B"))) == [("B", "1", 2), ("B", "3", 2)]
    assert [event.reason for event in service.events if event.event == "returned"] == ["closed", "closed"]


def test_a_silent_consumer_is_lost_when_its_session_ends_and_not_before() -> None:
    service = Service(solace())
    service.batch((0, 1), (0, _bind()), (0, _bind("B")))
    service.batch((20_000, Alive("q", "A", 1, received=2, handed_out=2)))
    end = SESSION + 20_000 - LOOK
    assert service.batch(watermark=end - 1) == []
    assert service.batch(watermark=end) == [Unbound("q", "B", 1, "lost")]
    assert service.told((36_000, _bind("C")), watermark=50_000) == [("C", "1", 2)]
    assert service.happened("event", "at", "consumer", "reason")[1] == ("returned", 50_000, "A", "lost")


@pytest.mark.parametrize("tick_first", [True, False])
@pytest.mark.parametrize("away_ms", [20_000, 60_000, 86_400_000])
def test_time_in_which_kafka_was_away_is_no_consumers_silence(away_ms: int, *, tick_first: bool) -> None:
    service = Service(amps(lease_ms=40_000, max_deliveries=1, max_backlog=1))
    service.batch((0, 1), (0, 2), (0, _bind()), (0, _bind("B")))
    signs = [(100 + each, Alive("q", name, 1, 2, handed_out=2)) for each, name in enumerate("AB")]
    service.batch(*signs)
    back = 10_000 + away_ms
    if tick_first:
        service.batch(watermark=back, ticks=False)
    # what the clients had kept is stored one after the other
    assert service.batch((back, signs[0][1])) == []
    assert service.batch((back + 2_000, signs[1][1])) == []
    assert service.batch((back + 3_000, _settle(1)), (back + 3_000, _settle(2, consumer="B"))) == []
    assert service.happened("event", "reason")[2:] == [("left", "accepted"), ("left", "accepted")]


def test_a_lease_and_a_session_end_where_others_could_write() -> None:
    service = Service(amps(lease_ms=40_000, max_backlog=1))
    service.batch((0, 1), (0, 2), (0, _bind()), (0, _bind("B")))
    service.batch(*((100 + each, Alive("q", name, 1, 2, handed_out=2)) for each, name in enumerate("AB")))
    service.batch(*((at, Alive("q", "B", 1, 2, handed_out=2)) for at in range(10_000, 60_000, 10_000)))
    returned = [("returned", 30_100, "A", "lost"), ("returned", 40_101, "B", "lease")]
    assert [each for each in service.happened("event", "at", "consumer", "reason") if each[-1]] == returned


def test_a_backlog_of_alive_records_keeps_a_session_although_it_is_read_late() -> None:
    service = Service(solace())
    service.batch((0, 1), (0, _bind()))
    service.batch(*((at, Alive("q", "A", 1)) for at in range(10_000, 3_600_000, 10_000)))
    assert service.batch(watermark=3_600_000) == []


@pytest.mark.parametrize("record", [Alive("q", "A", 1), _settle(1)])
def test_a_record_of_a_lost_consumer_is_answered_with_unbound(record: Any) -> None:
    service = Service(solace())
    service.batch((0, 1), (0, _bind()))
    service.batch(watermark=SESSION)
    assert service.batch((SESSION + 1, record)) == [Unbound("q", "A", 1, "lost")]


def test_a_sign_of_life_of_a_session_that_does_not_exist_is_answered_and_changes_nothing() -> None:
    service = Service(solace())
    service.batch((0, Bind("q", "A", 1)), (0, 1))
    state, events, timeout = service._state, list(service.events), service.timeout
    assert service.batch((0, Alive("q", "A", 2))) == [Unbound("q", "A", 2, "replaced")]
    assert (service._state, service.events, service.timeout) == (state, events, timeout)


def test_a_second_consumer_of_a_name_takes_over_and_the_first_is_unbound() -> None:
    service = Service(solace())
    service.batch((0, 1), (0, _bind()))
    answers = service.batch((1, _bind(session=2)), (2, _settle(1)))
    assert answers == [
        Unbound("q", "A", 1, "replaced"),
        Bound("q", "A", 2, 1, 255, 0, SESSION, DAY),
        MessageDelivered("q", "A", 2, 2, "m-1-0", "m", 1, 0, 5, 1, "orders"),
        Unbound("q", "A", 1, "replaced"),
    ]


@pytest.mark.parametrize(
    ("rules", "bound", "settle", "reason"),
    [
        (solace(), Bind("q", "A", 1), _settle(1, outcome="failed"), "outcome-not-enabled"),
        (solace(), _bind(), _settle(1, consumer="B"), "held-by-another"),
        (solace(), _bind(backlog=1), _settle(2), "not-held"),
        (solace(), _bind(), _settle(3), "not-in-queue"),
        (amps(settler="strict", max_backlog=9), _bind(), _settle(1, consumer="B"), "held-by-another"),
        (amps(max_backlog=9), _bind(), _settle(1, consumer="B", outcome="working"), "held-by-another"),
        (amps(settler="strict"), _bind(), _settle(2, outcome="working"), "not-held"),
        (amps(early_ms=9_000), _bind(), _settle(3, outcome="working"), "not-in-queue"),
    ],
)
def test_a_settlement_without_effect_is_answered_and_recorded(
    rules: QueueSettings, bound: Bind, settle: SettleMessages, reason: str
) -> None:
    service = Service(rules)
    service.batch((0, 1), (0, 2), (1, bound), (1, _bind("B")) if settle.consumer == "B" else (1, b"{}"))
    (answer,) = service.batch((2, settle))
    assert isinstance(answer, NotSettled)
    assert (answer.message, answer.reason) == (settle.messages[0], reason)
    assert service.happened("event", "at", "consumer", "outcome", "reason")[-1] == (
        "refused", 2, settle.consumer, settle.outcome, reason,
    )  # fmt: skip


def test_anybody_may_settle_where_the_queue_allows_it() -> None:
    service = Service(amps())
    service.batch((0, 1), (1, _bind()))
    assert service.batch((2, _settle(1, consumer="B", session=0))) == []
    assert service.happened("event", "consumer", "reason")[-1] == ("left", "B", "accepted")


def test_only_a_bound_holder_goes_on_working() -> None:
    service = Service(amps())
    service.batch((0, 1), (1, _bind()))
    (answer,) = service.batch((2, _settle(1, consumer="B", session=0, outcome="working")))
    assert answer == NotSettled("q", "B", 0, 0, "m-1-0", "working", "held-by-another")


def test_work_that_goes_on_begins_the_lease_anew_up_to_its_limit_since_the_application_got_the_message() -> None:
    service = Service(amps(lease_ms=1_000, max_lease_ms=2_000))
    service.batch((0, 1), (0, _bind()))
    service.batch((500, Alive("q", "A", 1, received=2, handed_out=2)))
    for at in (1_499, 2_498):
        assert service.batch((at, _settle(1, outcome="working"))) == []
    refused = NotSettled("q", "A", 1, 3, "m-1-0", "working", "max-lease")
    assert service.batch((2_499, _settle(1, outcome="working"))) == [refused]
    assert service.told(watermark=2_499) == []
    assert service.told(watermark=2_500) == [("A", "1", 2)]
    assert service.happened("event", "at", "outcome", "reason")[1:-1] == [
        ("refused", 2_499, "working", "max-lease"),
        ("returned", 2_500, None, "lease"),
    ]


def test_work_shows_that_an_application_got_the_message_and_may_be_reported_twice_at_a_time() -> None:
    service = Service(amps(lease_ms=1_000, max_lease_ms=1_000))
    service.batch((0, 1), (0, _bind()))
    assert service.batch((100, _settle(1, 1, outcome="working"))) == []
    # as the report that it was handed out, which may come later, begins no longer lease
    service.batch((600, Alive("q", "A", 1, received=2, handed_out=2)))
    assert service.told(watermark=1_100) == [("A", "1", 2)]


@pytest.mark.parametrize("days", [0, 2])
@pytest.mark.parametrize("rules", [solace(), amps(at_most_once=True, lease_ms=1_000)])
def test_work_on_a_message_without_a_lease_changes_nothing(rules: QueueSettings, days: int) -> None:
    service = Service(rules)
    service.batch((0, 1), (0, 2), (0, _bind(backlog=1)))
    events = list(service.events)
    service.batch((1, Alive("q", "A", 1, received=2, handed_out=2)))
    assert service.batch((2 + days * DAY, _settle(1, outcome="working"))) == []
    assert service.events == events, "its consumer has no room for the next one yet"


def test_time_in_which_kafka_was_away_does_not_count_for_the_limit_of_a_lease() -> None:
    service = Service(amps(lease_ms=40_000, max_lease_ms=60_000))
    service.batch((0, 1), (0, _bind()))
    service.batch((100, Alive("q", "A", 1, received=2, handed_out=2)))
    back = 100 + LOOK + DAY
    assert service.batch((back, _settle(1, outcome="working"))) == []
    service.batch(*((at, _settle(1, outcome="working")) for at in range(back, back + 55_000, 5_000)))
    returned = [each for each in service.happened("at", "event", "reason") if each[1] == "returned"]
    assert returned == [(100 + DAY + 60_000, "returned", "lease")]


def test_a_lease_ends_by_itself_and_the_message_goes_to_another() -> None:
    service = Service(amps(lease_ms=1_000))
    service.batch((0, 1), (0, _bind()), (0, _bind("B")))
    assert service.timeout == LOOK, "A may not have it yet"
    service.batch((500, Alive("q", "A", 1, received=2, handed_out=2)), (600, Alive("q", "A", 1, received=2)))
    assert service.timeout == 1_500
    assert service.told(watermark=1_500) == [("A", "1", 2)]
    assert ("returned", "A", 1_500, "lease") in service.happened("event", "consumer", "at", "reason")


def test_failures_are_delayed_and_limited_then_the_message_is_dead() -> None:
    service = Service(solace(max_redelivery=1, backoff=backoff(1_000)))
    service.batch((0, 1), (0, _bind()))
    assert service.told((10, _settle(1, outcome="failed"))) == []
    assert service.timeout == 1_010
    assert service.told(watermark=1_010) == [("A", "1", 2)]
    service.batch((1_020, _settle(1, outcome="failed")))
    assert service.happened("event", "count", "outcome", "reason")[-2:] == [
        ("returned", 2, None, "failed"),
        ("left", 2, "dead-letter", "max-deliveries"),
    ]


def test_a_message_expires_by_its_own_time_which_began_when_it_was_received() -> None:
    service = Service(solace(respect_ttl=True))
    service.batch((5_000, Alive("q", "A", 1)), (1_000, Arrival(1_000, "m", 1, 0, 5, ttl_ms=5_000)))
    service.batch(watermark=6_000)
    assert service.happened("event", "at", "consumer", "reason") == [("left", 6_000, None, "expired")]


def test_a_time_to_live_beyond_all_measure_is_cut() -> None:
    service = Service(solace(respect_ttl=True))
    service.batch((1_000, Arrival(1_000, "m", 1, 0, 5, ttl_ms=2**63 - 1)))
    assert service.timeout == 1_000 + MAX_TTL_MS


def test_a_message_that_leaves_when_it_is_sent_makes_room_when_it_is_settled() -> None:
    service = Service(amps(at_most_once=True))
    assert service.told((0, 1), (0, 2), (1, _bind())) == [("A", "1", 1)]
    assert service.happened("event", "reason") == [("delivered", None), ("left", "sent")]
    assert service.told((2, _settle(1))) == [("A", "2", 1)]


def test_a_record_that_cannot_be_read_is_given_back_and_stops_nothing() -> None:
    service = Service(solace())
    assert service.told((0, b"{"), (1, 1), (2, _bind())) == [("A", "1", 1)]
    assert [(report.key, report.value) for report, _ in service.unreadable] == [(b"A", b"{")]


@pytest.mark.parametrize(
    "record", [Bind("q", "", 1), Bind("q", "A" * 256, 1), SettleMessages("q", "A", 1, ("m" * 301,))]
)
def test_names_that_the_state_would_have_to_keep_are_short(record: Any) -> None:
    service = Service(amps())
    assert service.batch((0, record)) == []
    assert len(service.unreadable) == 1


def test_a_record_that_was_too_large_to_be_read_is_given_back() -> None:
    endpoint = Endpoint(solace(), SESSION)
    list(endpoint.process([], [ConsumerReport(1, 0, 1, b"A", None)], 0))
    assert [reason for _, reason in endpoint.unreadable] == ["The record is too large."]


def test_a_record_whose_processing_fails_is_given_back_and_the_batch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue, settle = Queue.enqueue, Queue.settle

    def failing(own: Any, queue: Queue, *arguments: Any, **more: Any) -> Any:
        if "m-3-0" in (getattr(arguments[0], "id", None), *arguments):
            raise KeyError("unforeseen")
        return own(queue, *arguments, **more)

    monkeypatch.setattr(Queue, "enqueue", _wrapped(failing, enqueue))
    monkeypatch.setattr(Queue, "settle", _wrapped(failing, settle))
    service = Service(solace())
    assert service.told((0, 1), (0, 3), (0, 2), (1, _bind())) == [("A", "1", 1), ("A", "2", 1)]
    assert service.happened("event", "message", "outcome", "reason", "partition")[0] == (
        "left", "m-3-0", "dead-letter", "error", 3,
    )  # fmt: skip
    service.batch((2, _settle(3)), (3, _settle(2)))
    assert [reason for _, reason in service.unreadable] == ["It cannot be processed: KeyError('unforeseen')."]
    assert service.happened("event", "message", "reason")[-1] == ("left", "m-2-0", "accepted")


def _wrapped(failing: Any, own: Any) -> Any:
    return lambda queue, *arguments, **more: failing(own, queue, *arguments, **more)


def test_a_message_that_a_consumer_cannot_read_is_for_others_and_a_dead_letter_if_none_can() -> None:
    service = Service(solace())
    service.batch((0, 1), (1, Bind("q", "A", 1)))
    unavailable = partial(SettleMessages, "q", session=1, messages=("m-1-0",), outcome="rejected", unavailable=True)
    assert service.told((2, _bind("B")), (3, unavailable(consumer="A"))) == [("B", "1", 1)], "B may be able to"
    assert service.told((4, Bind("q", "A", 2)), (5, unavailable(consumer="B"))) == [("A", "1", 1)], "A is another one"
    service.batch((6, unavailable(consumer="A", session=2)))
    assert service.happened("event", "reason")[-1] == ("returned", "unavailable"), "C may come"
    alive = [Alive("q", name, session) for name, session in (("A", 2), ("B", 1))]
    for at in range(SESSION // 2, UNREADABLE_MS + SESSION, SESSION // 2):
        service.batch(*((at, each) for each in alive))
    assert service.happened("event", "outcome", "reason")[-1] == ("left", "dead-letter", "unavailable")


def test_what_does_not_fit_into_a_queue_leaves_it_at_once_as_a_dead_letter() -> None:
    service = Service(solace(max_depth=2))
    service.batch((0, 1), (0, 2), (0, 3))
    assert service.happened("event", "message", "outcome", "reason", "subject") == [
        ("left", "m-3-0", "dead-letter", "queue-full", "orders")
    ]
    service.batch((1, _bind()), (2, _settle(1)), (3, 4))
    assert service.happened("event", "message")[-1] == ("delivered", "m-4-0"), "there is room again"


def test_the_topics_of_messages_count_towards_what_a_queue_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackstream.jobs.queues.endpoint.MAX_SUBJECT_BYTES", 12)
    service = Service(solace())
    service.batch((0, 1), (0, 2))
    service.batch((1, 3))
    assert service.happened("message", "reason") == [("m-3-0", "queue-full")]
    service.batch((2, _bind()), (3, _settle(1)), (4, 4))
    assert service.happened("event", "message")[-1] == ("delivered", "m-4-0")


def test_a_queue_that_holds_nothing_needs_no_state() -> None:
    endpoint = Endpoint(solace(), SESSION)
    list(endpoint.process([], [ConsumerReport(1, 0, 1, b"A", queues.write(Unbind("q", "A", 1)))], 0))
    assert (endpoint.dump(), endpoint.next_timeout, endpoint.answers) == (None, None, [])


STATE = (
    b"\x95\x1e\x81\xa1A\x94\x07\xcduN\x05\x81\xa5m-2-0\x06\x84\xa5m-1-0\x98\xa1m\x01\x00\x05\xa6orders\x01\x01"
    b"\xa1A\xa5m-2-0\x98\xa1m\x02\x00\x05\xa6orders\x02\x01\xa1A\xa5m-3-0\x98\xa1m\x03\x00\x05\xa6orders\x03\x01"
    b"\xa1A\xa5m-4-0\x98\xa1m\x04\x00\x05\xa6orders\x04\x00\xc0\x96\x94\x9b\xa5m-1-0\x01\xc0\xc3\xc2\x01\x01\xcd"
    b"\x04\x06\x80\x90\x00\x9b\xa5m-2-0\x02\xc0\xc2\xc2\x01\x00\x00\x81\xa1A\xcd\xea~\x90\x00\x9b\xa5m-3-0\x03"
    b"\xce\x00\x01_\x93\xc3\xc2\x01\x00\x00\x81\xa1A\xcd\xea~\x90\x00\x9b\xa5m-4-0\x04\xc0\xc3\xc3\x00\x00\x00"
    b"\x80\x90\x00\x91\x95\xa1A\x02\x92\xa6failed\xa8accepted\x82\xa5m-2-0\xc0\xa5m-3-0\x0a\xc2\x81\xa5m-9-0\xce"
    b"\x05&\\\x1e\x04\xa1A\x81M\x05\x90"
)
"""At 30 ms: A (session 7, backlog 2) holds 2 and 3 until 60,030, and its application has 3 since 10; 1 failed once and
is delayed until 1,030; 2 may not become a dead letter; 3 expires at 90,003; 4 is a barrier; 9 was settled before it
arrived. Answer 6 is the delivery of 2, which A has not reported as received. Order 77 drained the queue at 5 ms."""


def _state(blob: bytes) -> Any:
    """Return a state without its only set's order."""
    state = msgspec.msgpack.decode(blob)
    for _name, _backlog, outcomes, *_ in state[3][1]:
        outcomes.sort()
    return state


def test_a_state_is_encoded_as_this_version_always_was() -> None:
    endpoint = Endpoint(amps(lease_ms=60_000, max_backlog=2), SESSION)
    endpoint.load(STATE_VERSION, STATE)
    version, blob = endpoint.dump() or (0, b"")
    assert (version, _state(blob)) == (STATE_VERSION, _state(STATE))


def test_a_checkpoint_continues() -> None:
    rules = amps(lease_ms=60_000, max_backlog=2, backoff=backoff(1_000))
    service = Service(rules, state=(STATE_VERSION, STATE))
    assert service.told((1_040, _settle(2, session=7))) == [("A", "1", 2)]
    service.batch((1_050, 9))
    assert service.happened("event", "message", "reason")[-1] == ("left", "m-9-0", "settled-early")
    assert service.told((1_060, _settle(1, 3, session=7))) == [("A", "4", 1)], "the barrier is last"
    assert service.timeout == 1_060 + LOOK


UNDRAINED = STATE.replace(b"\x81M\x05\x90", b"\x80\x90")
OF_VERSION_6 = UNDRAINED.replace(b"\xc0\x96\x94", b"\xc0\x95\x94").replace(b"\x04\xa1A\x80\x90", b"\x04\xa1A\x90")


def test_a_checkpoint_without_orders_continues() -> None:
    endpoint = Endpoint(amps(lease_ms=60_000, max_backlog=2), SESSION)
    endpoint.load(6, OF_VERSION_6)
    version, blob = endpoint.dump() or (0, b"")
    assert (version, _state(blob)) == (STATE_VERSION, _state(UNDRAINED))


def test_a_checkpoint_of_an_earlier_release_continues() -> None:
    """It had whether an application got a message, and not since when: since its last batch, as far as is known."""
    got, since = b"\xa5m-3-0\xc3", b"\xa5m-3-0\x1e"
    former = OF_VERSION_6.replace(b"\xa5m-3-0\x0a", got)
    endpoint = Endpoint(amps(lease_ms=60_000, max_backlog=2), SESSION)
    endpoint.load(5, former)
    version, blob = endpoint.dump() or (0, b"")
    assert (version, _state(blob)) == (STATE_VERSION, _state(UNDRAINED.replace(b"\xa5m-3-0\x0a", since)))
    service = Service(amps(lease_ms=60_000, max_lease_ms=61_000, max_backlog=2), state=(5, former))
    service.batch(*((at, _settle(3, session=7, outcome="working")) for at in range(10_000, 80_000, 10_000)))
    assert ("m-3-0", 61_030, "lease") in service.happened("message", "at", "reason")


def test_what_is_received_stays_in_the_queue() -> None:
    """SOL-18."""
    service = Service(solace())
    service.batch(*((0, number) for number in range(1, 7)), (1, _bind()))
    service.batch((2, Alive("q", "A", 1, received=7)))
    assert service.told((3, Unbind("q", "A", 1)), (4, _bind("B"))) == [("B", str(number), 1) for number in range(1, 7)]


def test_a_delivery_that_did_not_arrive_is_repeated_as_a_copy_with_the_same_count() -> None:
    service = Service(solace())
    service.batch((0, 1), (0, 2), (1, _bind()))
    copy, _ = service.batch((2, Alive("q", "A", 1, received=3, missing=(2,))))
    assert copy == MessageDelivered("q", "A", 1, 4, "m-1-0", "m", 1, 0, 5, 1, "orders")
    assert service.batch((3, Alive("q", "A", 1, received=4))) == []
    assert service.batch((20_000, Alive("q", "A", 1, received=4))) == []
    assert len(service.events) == 2, "no event happened to the message"


def test_a_later_number_shows_whether_the_last_delivery_was_lost() -> None:
    """SOL-19 at the pace of batches: a sign of life without a delivery is answered, and not taken for a loss."""
    service = Service(solace())
    service.batch((0, 1), (1, _bind()))
    again = Bound("q", "A", 1, 3, 255, 0, SESSION, DAY)
    assert service.batch((10_001, Alive("q", "A", 1, received=1))) == [again]
    copy, _ = service.batch((10_002, Alive("q", "A", 1, received=3, missing=(2,))))
    assert (copy.number, copy.message, copy.count) == (4, "m-1-0", 1)
    assert service.batch((10_003, Alive("q", "A", 1, received=5))) == []


def test_a_job_that_was_away_delivers_each_message_once() -> None:
    """Each sign of life reports what its consumer had received then: nothing of what the job writes now."""
    service = Service(solace(lease_ms=60_000, max_redelivery=4))
    service.batch((0, _bind(backlog=1_000)))
    messages = ((at, at) for at in range(1_000, 600_000, 1_000))
    signs = ((at, Alive("q", "A", 1, received=1)) for at in range(10_000, 600_000, 10_000))
    answers = service.batch(*messages, *signs)
    delivered = [one.message for one in answers if isinstance(one, MessageDelivered)]
    assert len(delivered) == len(set(delivered)) == 599
    assert len(answers) - len(delivered) <= 59, "an answer to each sign of life at most"
    assert {event.event for event in service.events} == {"delivered"}


@pytest.mark.parametrize(("handed_out", "left"), [(0, []), (1, []), (2, ["max-deliveries"])])
@pytest.mark.parametrize("end", ["closes", "is replaced", "is lost", "exceeds the lease"])
def test_a_delivery_that_no_application_got_does_not_count(end: str, handed_out: int, left: list[str]) -> None:
    service = Service(solace(lease_ms=5_000, max_redelivery=4))
    now = 0
    service.batch((now, 1), (now, 2))
    for session in range(1, 6):
        service.batch((now, _bind(session=session)))
        service.batch((now, Alive("q", "A", session, received=3, handed_out=handed_out)))
        if end == "closes":
            service.batch((now, Unbind("q", "A", session, handed_out)))
        elif end != "is replaced":
            now += SESSION if end == "is lost" else 5_000
            service.batch(watermark=now)
    service.batch((now, _bind(session=9)))
    assert [event.reason for event in service.events if event.event == "left"] == left


def test_a_consumer_that_binds_as_stopped_gets_nothing_until_it_starts() -> None:
    service = Service(solace())
    assert service.told((0, 1), (1, _bind(stopped=True)), (2, Alive("q", "A", 1, received=1, stopped=True))) == []
    assert service.told((3, Alive("q", "A", 1, received=1))) == [("A", "1", 1)]


def test_what_was_settled_returned_or_sent_once_is_not_repeated() -> None:
    service = Service(solace())
    service.batch((0, 1), (0, 2), (1, _bind()))
    service.batch((2, _settle(1)), (3, _settle(2, outcome="rejected")))
    assert service.batch((20_000, Alive("q", "A", 1, received=1, missing=(2, 3)))) == []
    once = Service(amps(at_most_once=True))
    once.batch((0, 1), (1, _bind()))
    assert once.told((2, Alive("q", "A", 1, received=2, missing=(2,)))) == []


def test_a_stopped_consumer_keeps_what_it_holds_and_gets_no_more_until_it_starts() -> None:
    service = Service(solace())
    service.batch((0, 1), (1, _bind()))
    assert service.told((2, Alive("q", "A", 1, received=2, stopped=True)), (3, 2), (4, _bind("B"))) == [("B", "2", 1)]
    assert service.batch((5, _settle(1))) == []
    service.batch((6, Unbind("q", "B", 1)))
    assert service.told((7, Alive("q", "A", 1, received=2))) == [("A", "2", 1)]


def test_rules_may_change_between_starts_and_apply_to_what_is_in_the_queue() -> None:
    service = Service(solace())
    service.batch((0, 1), (0, 2), (0, 3), (1, _bind()))
    service.rules = amps(max_depth=2, max_backlog=1, lease_ms=5_000, max_ttl_ms=60_000)
    # what it holds it keeps; what arrives does not fit any more
    assert service.told((2, 4), (3, _settle(1, 2, 3)), (4, 5)) == [("A", "5", 1)]
    assert service.happened("message", "reason")[3] == ("m-4-0", "queue-full")
    service.batch((4, Alive("q", "A", 1, received=5, handed_out=5)))
    assert service.timeout == 5_004
    service.rules = solace()
    assert service.batch(watermark=5_004) == [MessageDelivered("q", "A", 1, 6, "m-5-0", "m", 5, 0, 5, 2, "orders")]


@pytest.mark.parametrize("version", [OLDEST_VERSION - 1, STATE_VERSION + 1])
def test_a_state_of_an_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match=f"version {version}; this release reads version 7"):
        Endpoint(solace(), SESSION).load(version, b"")


def test_a_bind_and_an_order_for_an_unknown_queue_are_rejected() -> None:
    values = (queues.write(_bind()), b"[]", queues.write(Drain("nowhere", "ada", 2)))
    said = [ConsumerReport(1, 0, offset, b"A", value) for offset, value in enumerate(values)]
    answers, unreadable = answer_unknown("nowhere", said)
    assert answers == [Unbound("nowhere", "A", 1, "unknown-queue"), Unbound("nowhere", "ada", 2, "unknown-queue")]
    assert [report.value for report, _ in unreadable] == [b"[]"]


# -- laws

consumers = st.sampled_from("AB")
records = st.one_of(
    st.integers(1, 9),
    st.builds(_bind, consumers, st.integers(1, 2)),
    st.builds(lambda name, session: Alive("q", name, session), consumers, st.integers(1, 2)),
    st.builds(
        lambda name, *report: Alive("q", name, 1, *report),
        consumers, st.integers(0, 6), st.tuples(st.integers(1, 6)) | st.just(()), st.booleans(), st.integers(0, 6),
    ),
    st.builds(lambda name, session: Unbind("q", name, session), consumers, st.integers(1, 2)),
    st.builds(
        lambda message, name, session, outcome: _settle(message, consumer=name, session=session, outcome=outcome),
        st.integers(1, 9), consumers, st.integers(1, 2), st.sampled_from(("accepted", "working", *ALL)),
    ),
    st.builds(lambda order: Drain("q", "ada", order), st.integers(1, 3)),
    st.none(),
)  # fmt: skip
rules = st.sampled_from(
    [
        solace(max_backlog=2),
        solace(max_redelivery=2, backoff=backoff(2_000, 200, 9_000), max_ttl_ms=60_000),
        amps(lease_ms=7_000, max_lease_ms=12_000, max_backlog=2, early_ms=20_000),
        amps(settler="strict", max_deliveries=3, max_failures=2, fairness="fast"),
        solace(exclusive=True),
        amps(at_most_once=True),
        amps(max_depth=2, lease_ms=7_000),
    ]
)
histories = st.lists(st.tuples(st.integers(1, 12_000), records, st.booleans()), max_size=50)


def _arrival(at: int, number: int) -> tuple[int, Arrival]:
    """Return one of all sorts of messages."""
    return at, Arrival(
        at, "m", number, 0, 5, "orders" if number % 2 else None, number % 3 * 9_000, eligible=number % 4 > 0,
        barrier=number == BARRIER,
    )  # fmt: skip


def _played(
    rules: QueueSettings,
    history: list[tuple[int, Any, bool]],
    *,
    cut: bool,
    segment: int = SEGMENT,
    piece: int = PIECE,
    step: int = STEP_MS,
) -> Service:
    """Play a history with ticks (``None``), which end a batch; ``cut``: also where the history says so."""
    sizes = {"queue.SEGMENT": segment, "queue.STEP_MS": step, "endpoint.PIECE": piece}
    with ExitStack() as stack:
        for name, size in sizes.items():
            stack.enter_context(patch(f"ackstream.jobs.queues.{name}", size))
        return _play(rules, history, cut=cut)


def _play(rules: QueueSettings, history: list[tuple[int, Any, bool]], *, cut: bool) -> Service:
    service, now, batch = Service(rules), 0, []
    stored: set[int] = set()
    for step, record, here in history:
        now += step
        if isinstance(record, int):
            if record in stored:
                # the table has each message once
                continue
            stored.add(record)
        if record is None:
            service.batch(*batch)
            service.batch(watermark=now)
            batch = []
        else:
            batch.append(_arrival(now, record) if isinstance(record, int) else (now, record))
            if cut and here:
                service.batch(*batch)
                batch = []
    service.batch(*batch)
    return service


def test_whose_turn_it_is_is_forgotten_with_the_last_consumer() -> None:
    def play(*cuts: int) -> list[tuple[str, str, int]]:
        service = Service(amps(at_most_once=True))
        records = [(1, 2), (2, _bind("B")), (3, Unbind("q", "B", 1)), (4, _bind("B")), (5, _bind("A")), (6, 1)]
        parts = zip((0, *cuts), (*cuts, len(records)), strict=True)
        return [entry for first, last in parts for entry in service.told(*records[first:last])]

    assert play() == play(3) == [("B", "2", 1), ("B", "1", 1)]


@given(rules, histories, st.sampled_from((1, 2, SEGMENT)), st.sampled_from((1, 3, PIECE)), st.integers(0, 9_000))
def test_neither_where_batches_are_cut_nor_what_is_put_aside_or_handed_over_at_once_matters(
    rules: QueueSettings, history: list[tuple[int, Any, bool]], segment: int, piece: int, step: int
) -> None:
    whole = _played(rules, history, cut=False)
    cut = _played(rules, history, cut=True, segment=segment, piece=piece, step=step)
    assert whole.answers == cut.answers
    assert _in_order(whole.events) == _in_order(cut.events)


def _in_order(events: list[Event]) -> list[Event]:
    """Return the events of each order to drain by their messages, which leave at once."""
    groups = groupby(events, lambda event: event.reason == "drained" and event.at)
    return [event for drained, group in groups for event in (sorted(group, key=repr) if drained else group)]


@given(rules, histories, st.sampled_from((1, 2, SEGMENT)))
def test_no_message_is_lost_or_held_twice_and_the_rows_tell_all(
    rules: QueueSettings, history: list[tuple[int, Any, bool]], segment: int
) -> None:
    service = _played(rules, history, cut=True, segment=segment)
    holder: dict[str, str] = {}
    counts: dict[str, int] = {}
    left: set[str] = set()
    for event in service.events:
        if event.event == "delivered":
            assert event.message not in holder
            assert event.message not in left
            before = counts.get(event.message)
            # a delivery that no application got is the same one again
            assert event.count == 1 if before is None else event.count in (before, before + 1)
            counts[event.message] = event.count
            holder[event.message] = event.consumer
        elif event.event == "returned":
            assert holder.pop(event.message) == event.consumer
        elif event.event == "left":
            assert event.message not in left
            holder.pop(event.message, None)
            left.add(event.message)
    deliveries = [answer for answer in service.answers if isinstance(answer, MessageDelivered)]
    # a copy has the count of its original
    delivered = [(event.message, event.count, event.consumer) for event in service.events if event.event == "delivered"]
    assert {(answer.message, answer.count, answer.consumer) for answer in deliveries} == set(delivered)
    assert len(deliveries) >= len(delivered)
    numbers: dict[Any, list[int]] = {}
    for answer in service.answers:
        if not isinstance(answer, (Unbound, Drained)) and answer.number:
            numbers.setdefault((answer.consumer, answer.session), []).append(answer.number)
    for told in numbers.values():
        # a session's number begins again where the same one is bound again
        assert all(after in (before + 1, 1) for before, after in pairwise(told))
