from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client.queues._queue_session import MAX_MISSING, AckBatches, QueueSession
from ackstream.client.queues.queued_messages import AckMode, FlowQos, after_handler, takes_call
from ackstream.errors import InconsistentQosError, NotConnectedError, OutcomeNotEnabledError, PreconditionNotMetError
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, NotSettled, SettleMessages, Unbind, Unbound

if TYPE_CHECKING:
    from ackstream.protocol.queues import QueueAnswer, QueueRequest


BIND = Bind("q", "A", 7, None, ("failed",))
BOUND = Bound("q", "A", 7, 1, 10, 0, 30_000, 60_000)


def _delivered(number: int, message: str = "m", count: int = 1, **more: Any) -> MessageDelivered:
    return MessageDelivered(**{"queue": "q", "session": 7} | more, consumer="A", number=number, message=message,
                     topic="messages", partition=0, offset=0, batch=0, count=count)  # fmt: skip


def _session(*answers: QueueAnswer, ack_batch: int = 1, ack_timeout_ms: int = 1_000) -> QueueSession:
    session = _new_session(AckBatches(BIND, ack_batch, ack_timeout_ms))
    for record in answers:
        session.receive(record)
    return session


def _new_session(
    batches: AckBatches | None = None,
    *,
    counts: Counter[str] | None = None,
    flow: FlowQos | None = None,
    stopped: bool = False,
) -> QueueSession:
    counted = Counter() if counts is None else counts
    return QueueSession(BIND, batches or AckBatches(BIND), counted, flow or FlowQos(), stopped=stopped)


def _due(session: QueueSession, now: int) -> list[Any]:
    """Return the records that are due, without questions."""
    return [record for record in session.due(now) if record.session == BIND.session]


def test_a_bind_is_repeated_until_it_is_answered_then_there_are_signs_of_life() -> None:
    session = _session()
    assert [_due(session, now) for now in (0, 2_999, 3_000)] == [[BIND], [], [BIND]]
    session.receive(BOUND)
    assert [_due(session, now) for now in (5_999, 6_000, 15_999, 16_000)] == [
        [],
        [Alive("q", "A", 7, received=1)],
        [],
        [Alive("q", "A", 7, received=1)],
    ]


def test_a_queue_that_has_not_answered_for_a_third_of_a_session_is_asked_until_it_answers() -> None:
    session, question = _session(), Alive("q", "A", 8)
    assert session.unanswered
    session.receive(BOUND, 0)
    assert not session.unanswered
    session.receive(_delivered(2), 9_000)
    asked = [(question in list(session.due(now)), session.unanswered) for now in (18_999, 19_000, 28_999, 29_000)]
    assert asked == [(False, False), (True, True), (False, True), (True, True)]
    assert session.receive(Unbound("q", "A", 8, "replaced"), 30_000) is None
    assert (session.unanswered, session.over) == (False, None)
    assert question not in list(session.due(39_999))


def test_a_duplicate_delivery_is_dropped_and_a_redelivery_is_not() -> None:
    session = _session(BOUND)
    first, again = _delivered(2), _delivered(3, count=2)
    assert [session.receive(record) for record in (first, first, again, first, again)] == [
        first,
        None,
        again,
        None,
        None,
    ]


@pytest.mark.parametrize("record", [_delivered(2, queue="other"), _delivered(2, session=6)])
def test_an_answer_to_another_queue_or_session_is_ignored(record: MessageDelivered) -> None:
    assert _session(BOUND).receive(record) is None


def test_a_settlement_is_sent_once() -> None:
    delivery = _delivered(2)
    session = _session(BOUND, delivery)
    assert session.settle(delivery, "accepted", 0) == [SettleMessages("q", "A", 7, ("m",))]
    assert session.settle(delivery, "failed", 0) == []


def test_a_redelivered_message_may_be_settled_again() -> None:
    first, again = _delivered(2), _delivered(3, count=2)
    session = _session(BOUND, first)
    session.settle(first, "failed", 0)
    session.receive(again)
    assert session.settle(again, "accepted", 0) == [SettleMessages("q", "A", 7, ("m",))]


def test_acceptances_are_sent_together_and_failures_alone_and_at_once() -> None:
    """AMPS-33 and AMPS-34 as they are on the wire."""
    deliveries = [_delivered(number, f"m{number}") for number in range(2, 8)]
    session = _session(BOUND, *deliveries, ack_batch=4)
    _due(session, 0)
    said = [session.settle(one, "accepted", at) for at, one in enumerate(deliveries[:3])]
    assert said == [[], [], []]
    assert session.settle(deliveries[3], "failed", 10) == [SettleMessages("q", "A", 7, ("m5",), "failed")]
    assert session.settle(deliveries[4], "accepted", 20) == [SettleMessages("q", "A", 7, ("m2", "m3", "m4", "m6"))]
    session.settle(deliveries[5], "accepted", 30)
    assert [_due(session, now) for now in (1_029, 1_030)] == [[], [SettleMessages("q", "A", 7, ("m7",))]]


def test_a_batch_shrinks_to_the_granted_backlog() -> None:
    delivery = _delivered(2)
    session = _session(Bound("q", "A", 7, 1, 1, 0, 30_000, 60_000), delivery, ack_batch=10)
    assert session.settle(delivery, "accepted", 0) == [SettleMessages("q", "A", 7, ("m",))]


def test_an_outcome_that_was_not_declared_is_refused_and_the_message_stays() -> None:
    delivery = _delivered(2)
    session = _session(BOUND, delivery)
    with pytest.raises(OutcomeNotEnabledError, match="rejected"):
        session.settle(delivery, "rejected", 0)
    assert len(session.settle(delivery, "failed", 0)) == 1


def test_what_was_delivered_in_a_session_that_is_over_cannot_be_settled() -> None:
    delivery = _delivered(2)
    session = _session(BOUND, delivery, Unbound("q", "A", 7, "lost"))
    with pytest.raises(NotConnectedError, match="will be redelivered"):
        session.settle(delivery, "accepted", 0)
    with pytest.raises(NotConnectedError):
        _session(BOUND).settle(_delivered(2, session=6), "accepted", 0)
    assert _due(session, 60_000) == []


def test_closing_sends_the_acceptances_then_the_unbind() -> None:
    delivery = _delivered(2)
    session = _session(BOUND, delivery, ack_batch=4)
    session.settle(delivery, "accepted", 0)
    assert list(session.end()) == [SettleMessages("q", "A", 7, ("m",)), Unbind("q", "A", 7)]
    assert list(session.end()) == []
    assert list(_session(Unbound("q", "A", 7, "lost")).end()) == []


def test_a_message_that_cannot_be_read_is_rejected_once_whatever_was_declared() -> None:
    delivery = _delivered(2)
    session = _session(BOUND, delivery)
    assert session.refuse(delivery) == [SettleMessages("q", "A", 7, ("m",), "rejected", unavailable=True)]
    assert session.refuse(delivery) == session.settle(delivery, "accepted", 0) == []


def test_a_second_settlement_does_not_settle_the_next_delivery_of_the_message() -> None:
    first, again = _delivered(2), _delivered(3, count=2)
    session = _session(BOUND, first)
    assert session.settle(first, "failed", 0) != []
    session.receive(again)
    assert session.settle(first, "accepted", 0) == []
    assert session.settle(again, "accepted", 0) != []


def _leasing() -> QueueSession:
    session = _session(Bound("q", "A", 7, 1, 10, 5_000, 30_000, 60_000))
    _due(session, 0)
    return session


def test_a_lease_begins_with_the_first_report_of_the_delivery() -> None:
    session, delivery = _leasing(), _delivered(2)
    session.receive(delivery, 1_000)
    assert [session.lease_left(delivery, now) for now in (1_000, 1_999)] == [5_000, 5_000]
    assert _due(session, 2_000) == _received(2)
    session.report(4_000)
    assert session.lease_left(delivery, 4_000) == 3_000
    assert [session.expire(delivery, now) for now in (6_999, 7_000)] == [False, True]
    assert session.settle(delivery, "accepted", 7_000) == []
    assert _session(BOUND).lease_left(_delivered(3), 0) is None


def test_a_lease_begins_anew_with_the_report_that_the_message_was_handed_out() -> None:
    session, deliveries = _leasing(), [_delivered(number, f"m{number}") for number in range(2, 8)]
    for one in deliveries:
        session.receive(one, 0)
    session.report(0)
    # in time for the next report, as far as it depends on leases; then one whose lease would end before
    at_once = [session.hand_out(one, 2_000) for one in deliveries[:5]] + [session.hand_out(deliveries[5], 3_000)]
    assert [bool(records) for records in at_once] == [True, True, False, True, False, True]
    assert [session.lease_left(one, 3_000) for one in deliveries] == [4_000] * 4 + [5_000] * 2


def _working() -> list[SettleMessages]:
    return [SettleMessages("q", "A", 7, ("m",), "working")]


def test_work_that_goes_on_is_reported_each_third_of_a_lease_up_to_the_limit_of_the_queue() -> None:
    session, delivery = _leasing(), _delivered(2)
    session.receive(delivery, 0)
    session.hand_out(delivery, 1_000)
    reports = {
        at: session.lease_left(delivery, at) for at in range(1_000, 66_000, 100) if session.working(delivery, at)
    }
    assert list(reports)[:3] == [2_700, 4_400, 6_100]
    assert len(reports) == 38
    limit = 1_000 + 60_000
    assert all(left == min(5_000, max(0, limit - at)) for at, left in reports.items()), "no more than the queue grants"


def test_a_late_report_of_the_handing_out_makes_no_lease_longer_than_the_queue_grants() -> None:
    session = _session(Bound("q", "A", 7, 1, 10, 1_500, 30_000, 1_500))
    first, second, third = (_delivered(number, f"m{number}") for number in (2, 3, 4))
    for one in (first, second, third):
        session.receive(one, 0)
        session.hand_out(one, 0)
    assert session.working(third, 600) != []
    session.report(1_000)
    assert session.lease_left(third, 1_000) == 500


def test_work_is_not_reported_without_a_lease() -> None:
    session, delivery = _session(BOUND), _delivered(2)
    session.receive(delivery, 0)
    session.hand_out(delivery, 0)
    session.report(0)
    assert session.working(delivery, 59_000) == []
    assert session.lease_left(delivery, 59_000) is None


def test_a_second_delivery_to_the_same_consumer_has_a_lease_and_a_limit_of_its_own() -> None:
    session, first, again = _session(Bound("q", "A", 7, 1, 10, 5_000, 30_000, 6_000)), _delivered(2), _delivered(3)
    session.receive(first, 0)
    session.hand_out(first, 0)
    session.receive(again, 6_100)
    session.report(6_200)
    assert session.lease_left(again, 6_200) == 5_000
    assert not session.expire(again, 6_300)
    session.hand_out(again, 7_000)
    assert session.working(again, 9_000) == _working()
    assert session.lease_left(again, 9_000) == 4_000


def test_work_on_what_is_settled_or_was_delivered_in_a_session_that_is_over_is_an_error() -> None:
    session, first, again = _leasing(), _delivered(2), _delivered(3, count=2)
    session.receive(first, 0)
    session.receive(again, 0)
    session.hand_out(again, 0)
    with pytest.raises(PreconditionNotMetError, match="of message m is settled, or its lease has ended"):
        session.working(first, 4_000)
    assert session.working(again, 4_000) == _working()
    session.settle(again, "accepted", 5_000)
    with pytest.raises(PreconditionNotMetError, match="of message m is settled, or its lease has ended"):
        session.working(again, 8_000)
    session.receive(Unbound("q", "A", 7, "lost"))
    with pytest.raises(NotConnectedError):
        session.working(again, 9_000)


@pytest.mark.parametrize(("reason", "left"), [("not-held", 0), ("held-by-another", 0), ("max-lease", 4_500)])
def test_a_lease_that_could_not_begin_anew_has_ended_unless_it_is_at_its_limit(reason: Any, left: int) -> None:
    session, delivery = _leasing(), _delivered(2)
    session.receive(delivery, 0)
    session.hand_out(delivery, 0)
    assert session.working(delivery, 2_000) == _working()
    refused = NotSettled("q", "A", 7, 3, "m", "working", reason)
    assert session.receive(refused, 2_500) == refused
    assert session.lease_left(delivery, 2_500) == left
    session.receive(NotSettled("q", "A", 7, 4, "other", "working", reason), 2_500)
    assert session.lease_left(_delivered(5, "other"), 2_500) == 5_000


def test_what_was_accepted_before_a_message_that_ends_its_process_is_settled_soon() -> None:
    waiting, sessions = [f"m{number}" for number in range(20)], 0
    while len(waiting) > 1:
        sessions += 1
        deliveries = [_delivered(number, message) for number, message in enumerate(waiting, 2)]
        session = _session(BOUND, *deliveries, ack_batch=100)
        stored: list[QueueRequest] = []
        for one in deliveries:
            stored += session.hand_out(one, 0)
            if one.message != "m19":
                session.settle(one, "accepted", 0)
        settled = {message for one in stored if isinstance(one, SettleMessages) for message in one.messages}
        waiting = [message for message in waiting if message not in settled]
    assert (waiting, sessions) == (["m19"], 3)


def test_a_redelivery_is_not_expired_with_the_delivery_before() -> None:
    session, first, again = _leasing(), _delivered(2), _delivered(3, count=2)
    session.receive(first, 0)
    session.report(0)
    session.receive(again, 5_000)
    assert session.expire(first, 5_000)
    assert not session.expire(again, 5_000)
    assert len(session.settle(again, "accepted", 5_000)) == 1


def test_what_the_application_got_is_reported_within_a_second_and_at_the_end() -> None:
    session = _session(BOUND, *(deliveries := [_delivered(number, f"m{number}") for number in range(2, 6)]))
    session.report(0)
    # each of them comes before the report of the one before is due
    first = [session.hand_out(one, at) for at, one in zip((0, 600, 1_200), deliveries, strict=False)]
    assert [bool(records) for records in first] == [True, True, False]
    assert _due(session, 2_200) == [Alive("q", "A", 7, received=5, handed_out=4)]
    assert _due(session, 2_300) == []
    session.hand_out(deliveries[3], 2_400)
    assert list(session.end()) == [Unbind("q", "A", 7, handed_out=5)]


def test_everything_is_counted() -> None:
    counts: Counter[str] = Counter()
    session = _new_session(counts=counts)
    delivery = _delivered(2)
    for record in (BOUND, delivery, delivery, NotSettled("q", "A", 7, 3, "m", "failed", "not-held")):
        session.receive(record)
    session.settle(delivery, "failed", 0)
    assert counts == {"received": 1, "copies": 1, "refused": 1, "failed": 1}


def _flow(backlog: int = 0, **flow: Any) -> QueueSession:
    session = _new_session(flow=FlowQos(**flow))
    _due(session, 0)
    session.receive(Bound("q", "A", 7, 1, backlog, 0, 30_000, 60_000))
    _due(session, 5_000)
    return session


def _received(number: int) -> list[Alive]:
    return [Alive("q", "A", 7, received=number)]


def test_what_has_arrived_is_reported_when_the_threshold_of_the_window_is_reached() -> None:
    """SOL-15: 60 % of 10; the answers of a session are numbered from 1, which is that to the bind."""
    session = _flow(window=10)
    for number in range(2, 7):
        session.receive(_delivered(number), 6_000)
    assert _due(session, 6_000) == []
    session.receive(_delivered(7), 6_005)
    assert [_due(session, 6_005), _due(session, 7_500)] == [_received(7), []]


def test_what_has_arrived_is_reported_after_a_second() -> None:
    """SOL-16."""
    session = _flow(window=10)
    for number in range(2, 5):
        session.receive(_delivered(number), 6_000)
    assert [_due(session, now) for now in (6_999, 7_000, 8_500)] == [[], _received(4), []]


@pytest.mark.parametrize(
    ("window", "backlog", "percent", "threshold"),
    [(255, 100, 60, 60), (255, 0, 60, 153), (255, 10_000, 60, 153), (10, 0, 60, 6), (1, 0, 60, 1), (10, 0, 75, 7)],
)
def test_the_threshold_is_part_of_the_window_or_of_the_smaller_backlog(
    window: int, backlog: int, percent: int, threshold: int
) -> None:
    """SOL-17."""
    assert FlowQos(window, percent).threshold(backlog) == threshold


@pytest.mark.parametrize("flow", [{"window": 0}, {"threshold_percent": 0}, {"threshold_percent": 101}, {"ack_time": 0}])
def test_a_flow_that_reports_nothing_is_refused(flow: dict[str, Any]) -> None:
    with pytest.raises(InconsistentQosError, match="reports nothing in time"):
        FlowQos(**flow)


def test_a_delivery_that_did_not_arrive_is_reported_at_once_and_once() -> None:
    session = _flow()
    session.receive(_delivered(2), 6_000)
    session.receive(_delivered(5), 6_001)
    assert [_due(session, 6_001), _due(session, 6_002)] == [[Alive("q", "A", 7, 5, (3, 4))], []]
    # it is handed out when its copy arrives; the original is a copy then
    copy = _delivered(6, "m3")
    assert [session.receive(record, 6_100) for record in (copy, _delivered(3, "m3"))] == [copy, None]


def test_a_bound_that_is_repeated_shows_that_the_last_delivery_did_not_arrive() -> None:
    session = _flow()
    session.receive(_delivered(2), 6_000)
    assert session.receive(Bound("q", "A", 7, 4, 0, 0, 30_000, 60_000), 6_001) is None
    assert _due(session, 6_001) == [Alive("q", "A", 7, 4, (3,))]


def test_what_one_report_has_no_room_for_is_not_reported_as_received() -> None:
    session = _flow()
    session.receive(_delivered(MAX_MISSING + 500))
    first, second = _due(session, 6_000)[0], _due(session, 6_001)[0]
    assert isinstance(first, Alive)
    assert isinstance(second, Alive)
    assert (first.missing, first.received) == (tuple(range(2, MAX_MISSING + 2)), MAX_MISSING + 1)
    session.stored(first)
    session.stored(second)
    assert second.missing == tuple(range(MAX_MISSING + 2, MAX_MISSING + 500))
    assert _due(session, 16_001) == _received(MAX_MISSING + 500)


def test_what_was_not_reported_as_missing_is_not_reported_as_handed_out() -> None:
    session, delivery = _session(BOUND), _delivered(MAX_MISSING + 500)
    session.receive(delivery)
    first, *_ = session.hand_out(delivery, 0)
    assert isinstance(first, Alive)
    assert (first.received, first.handed_out) == (MAX_MISSING + 1, MAX_MISSING + 1)
    assert list(session.end())[-1] == Unbind("q", "A", 7, handed_out=1)
    session.stored(first)


def test_a_report_of_missing_deliveries_that_kafka_does_not_take_is_made_again_as_things_are_then() -> None:
    session = _flow()
    session.receive(_delivered(4), 6_000)
    session.stopped = True
    (sign,) = _due(session, 6_000)
    assert sign == Alive("q", "A", 7, 4, (2, 3), stopped=True)
    session.stopped = False
    session.receive(_delivered(5), 6_001)
    # the service must not forget 2 and 3 before it knows that they are missing
    assert _due(session, 6_002) == _received(1)
    session.not_stored(sign)
    # the report itself is due at once
    (again,) = _due(session, 6_003)
    assert again == Alive("q", "A", 7, 5, (2, 3))
    session.stored(again)
    assert _due(session, 16_003) == _received(5)


def test_a_stopped_consumer_binds_as_such() -> None:
    session = _new_session(stopped=True)
    (bind,) = _due(session, 0)
    assert isinstance(bind, Bind)
    assert bind.stopped
    session.receive(BOUND)
    assert _due(session, 1) == []


def test_stopping_and_starting_is_reported_at_once() -> None:
    session = _flow()
    session.stopped = True
    assert [_due(session, 6_000), _due(session, 6_001)] == [[Alive("q", "A", 7, 1, stopped=True)], []]
    session.stopped = False
    assert _due(session, 6_002) == _received(1)


def test_batches_that_might_never_be_full_are_refused() -> None:
    with pytest.raises(InconsistentQosError, match="more than 0 ms"):
        _session(ack_batch=2, ack_timeout_ms=0)


def _accepted(*messages: str) -> list[SettleMessages]:
    return [SettleMessages("q", "A", 7, messages)]


def test_acceptances_are_sent_when_the_batch_is_full() -> None:
    batches = AckBatches(BIND, 3)
    assert [batches.add(message, 0) for message in "abcd"] == [[], [], _accepted("a", "b", "c"), []]


def test_acceptances_are_sent_when_the_oldest_has_waited_long_enough() -> None:
    batches = AckBatches(BIND, 10, 1_000)
    for at, message in enumerate("abcd"):
        batches.add(message, at * 10)
    assert batches.due(999) == []
    assert batches.due(1_000) == _accepted("a", "b", "c", "d")
    assert batches.due(5_000) == []


def test_another_outcome_is_sent_at_once_alone() -> None:
    batches = AckBatches(BIND, 10)
    batches.add("a", 0)
    assert batches.add("b", 1, "failed") == [SettleMessages("q", "A", 7, ("b",), "failed")]
    assert batches.flush() == _accepted("a")
    assert batches.flush() == []


def test_a_record_settles_no_more_messages_than_fit() -> None:
    batches = AckBatches(BIND, 5_000)
    batches.grant(0)
    sent = [len(records[0].messages) for number in range(2_500) if (records := batches.add(f"m{number}", 0))]
    assert sent == [1_000, 1_000]


@pytest.mark.parametrize(("granted", "size"), [(2, 2), (9, 3), (0, 3)])
def test_a_batch_is_never_larger_than_the_granted_backlog(granted: int, size: int) -> None:
    batches = AckBatches(BIND, 3)
    batches.grant(granted)
    sent = [batches.add(str(number), 0) for number in range(size)]
    assert [bool(entry) for entry in sent] == [False] * (size - 1) + [True]


@pytest.mark.parametrize(("size", "timeout"), [(0, 1_000), (2, 0), (2, -1)])
def test_a_batch_that_might_never_be_sent_is_refused(size: int, timeout: int) -> None:
    with pytest.raises(InconsistentQosError, match="more than 0 ms for more than 1"):
        AckBatches(BIND, size, timeout)


@pytest.mark.parametrize(
    ("mode", "returned", "raised"),
    [("client", None, None), ("auto", "accepted", None), ("auto-cancel", "accepted", "failed")],
)
def test_how_the_library_settles_when_a_handler_has_ended(
    mode: AckMode, returned: str | None, raised: str | None
) -> None:
    assert after_handler(mode, raised=False) == returned
    assert after_handler(mode, raised=True) == raised


def test_the_applications_calls_count_where_nobody_else_acknowledges() -> None:
    assert takes_call("client", "rejected")
    assert not takes_call("auto", "accepted")
    with pytest.raises(OutcomeNotEnabledError, match="cannot be settled as failed"):
        takes_call("auto", "failed")
