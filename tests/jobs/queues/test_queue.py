from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.queues import queue as queue_module
from ackstream.jobs.queues.queue import UNREADABLE_MS
from ackstream.jobs.queues.records import Event
from ackstream.jobs.queues.state import QueueState
from ackstream.protocol.queues import PREFETCH
from tests.jobs.queues.recording import RecordingQueue
from tests.jobs.queues.rules import amps, backoff, solace

if TYPE_CHECKING:
    from ackstream.protocol.queues import Settlement
    from ackstream.protocol.readers import SampleOutcome
    from ackstream.settings.jobs import QueueSettings

ALL: tuple[SampleOutcome, ...] = ("accepted", "failed", "rejected")
SETTLEMENTS: tuple[Settlement, ...] = (*ALL, "working")


def _queue(rules: QueueSettings, *messages: str, consumers: str = "A") -> RecordingQueue:
    queue = RecordingQueue(rules)
    for message in messages:
        queue.put(message, 0)
    for consumer in consumers:
        queue.join(consumer, 0, outcomes=ALL)
    return queue


def _delivery(message: str, consumer: str, count: int, at: int) -> Event:
    return Event("q", message, at, "delivered", consumer, count)


def _exits(queue: RecordingQueue) -> list[Any]:
    return [(event.message, event.at, event.outcome, event.reason, event.consumer) for event in queue.exits]


def _sent(queue: RecordingQueue, now: int = 0) -> list[tuple[str, str | None]]:
    return [(delivery.message, delivery.consumer) for delivery in queue.dispatched(now)]


def test_messages_go_out_in_order_and_stay_until_they_are_settled() -> None:
    queue = _queue(solace(), "1", "2")
    assert queue.dispatched(5) == [_delivery("1", "A", 1, 5), _delivery("2", "A", 1, 5)]
    assert list(queue) == ["1", "2"]
    assert queue.settle("A", "2", "accepted", 6) is None
    assert (list(queue), _exits(queue)) == (["1"], [("2", 6, "settled", "accepted", "A")])


def test_a_connected_consumer_may_take_for_ever() -> None:
    queue = _queue(solace(), "1")
    _sent(queue)
    assert (queue.deadline, _sent(queue, 86_400_000)) == (None, [])


def test_messages_of_a_lost_consumer_are_redelivered_in_order_and_marked() -> None:
    queue = _queue(solace(), "1", "2", "3")
    _sent(queue)
    queue.settle("A", "2", "accepted", 1)
    queue.unbind("A", 2, "closed")
    queue.put("4", 3)
    queue.join("B", 3)
    again = queue.dispatched(4)
    assert [(delivery.message, delivery.count > 1) for delivery in again] == [("1", True), ("3", True), ("4", False)]


def test_a_second_consumer_of_the_same_name_takes_over() -> None:
    queue = _queue(solace(), "1")
    _sent(queue)
    queue.join("A", 1)
    assert [delivery.count for delivery in queue.dispatched(1)] == [2]


def test_a_full_consumer_gets_more_when_it_settles() -> None:
    queue = _queue(solace(max_backlog=2), "1", "2", "3")
    assert _sent(queue) == [("1", "A"), ("2", "A")]
    assert _sent(queue, 1) == []
    queue.settle("A", "1", "failed", 2)
    assert _sent(queue, 2) == [("1", "A")], "a redelivery is older than what waits"
    queue.settle("A", "2", "accepted", 3)
    assert _sent(queue, 3) == [("3", "A")]


@pytest.mark.parametrize(
    ("limit", "asked", "granted"),
    [(3, 10, 3), (3, 2, 2), (3, None, 3), (0, 10, 10), (0, None, 255), (1_000, None, 255)],
)
def test_a_requested_backlog_is_granted_up_to_the_limit(limit: int, asked: int | None, granted: int) -> None:
    queue = RecordingQueue(amps(max_backlog=limit))
    queue.join("A", 0, backlog=asked)
    assert queue.consumers["A"].backlog == granted


def test_all_consumers_together_have_a_limit_too() -> None:
    queue = _queue(amps(max_backlog=2, max_total_backlog=3), "1", "2", "3", "4", consumers="AB")
    assert len(_sent(queue)) == 3


def test_only_the_first_consumer_of_an_exclusive_queue_has_messages() -> None:
    queue = _queue(solace(exclusive=True), "1", "2", consumers="AB")
    assert _sent(queue) == [("1", "A"), ("2", "A")]
    queue.unbind("A", 1, "closed")
    assert _sent(queue, 1) == [("1", "B"), ("2", "B")]


# -- settlement


def test_a_failed_message_is_redelivered_up_to_the_limit_then_becomes_a_dead_letter() -> None:
    queue = _queue(solace(max_redelivery=2), "1")
    counts = []
    for now in range(3):
        counts += [delivery.count for delivery in queue.dispatched(now)]
        queue.settle("A", "1", "failed", now)
    assert counts == [1, 2, 3]
    assert _exits(queue) == [("1", 2, "dead-letter", "max-deliveries", "A")]


def test_without_a_limit_a_failed_message_is_redelivered_for_ever() -> None:
    queue = _queue(solace(), "1")
    for now in range(1_000):
        assert [delivery.count for delivery in queue.dispatched(now)] == [now + 1]
        queue.settle("A", "1", "failed", now)
    assert list(queue) == ["1"]


def test_redeliveries_are_delayed_more_and_more() -> None:
    queue = _queue(solace(backoff=backoff(1_000, 200, 3_000)), "1", "2")
    now, delays = 0, []
    queue.dispatched(now)
    for _ in range(4):
        queue.settle("A", "1", "failed", now)
        deadline = queue.deadline
        assert deadline is not None
        assert queue.dispatched(deadline - 1) == []
        assert [delivery.message for delivery in queue.dispatched(deadline)] == ["1"]
        delays.append(deadline - now)
        now = deadline
    assert delays == [1_000, 2_000, 3_000, 3_000]


@pytest.mark.parametrize(("dead_letters", "how"), [(True, "dead-letter"), (False, "discarded")])
def test_a_rejected_message_leaves_at_once(dead_letters: bool, how: Any) -> None:  # noqa: FBT001
    queue = _queue(solace(dead_letters=dead_letters), "1")
    _sent(queue)
    queue.settle("A", "1", "rejected", 1)
    assert _exits(queue) == [("1", 1, how, "rejected", "A")]


@pytest.mark.parametrize(("respect", "how"), [(True, "discarded"), (False, "dead-letter")])
def test_a_message_that_wants_no_dead_letter_is_discarded_where_that_is_respected(respect: bool, how: Any) -> None:  # noqa: FBT001
    queue = _queue(solace(respect_eligible=respect))
    queue.put("1", 0, eligible=False)
    _sent(queue)
    queue.settle("A", "1", "rejected", 1)
    assert [exit_.outcome for exit_ in queue.exits] == [how]


def test_an_outcome_that_was_not_declared_has_no_effect_and_the_message_stays() -> None:
    queue = RecordingQueue(solace())
    queue.put("1", 0)
    queue.join("A", 0)
    _sent(queue)
    assert queue.settle("A", "1", "failed", 1) == "outcome-not-enabled"
    assert list(queue["1"].holders) == ["A"]
    assert queue.settle("A", "1", "accepted", 2) is None


def test_an_unbound_consumer_cannot_settle() -> None:
    queue = _queue(solace(), "1")
    _sent(queue)
    queue.unbind("A", 1, "closed")
    assert queue.settle("A", "1", "accepted", 2) == "not-held"
    assert list(queue) == ["1"]


def test_redelivery_can_be_off() -> None:
    queue = _queue(solace(redelivery_enabled=False), "1")
    _sent(queue)
    queue.unbind("A", 1, "closed")
    queue.join("A", 2)
    assert _sent(queue, 2) == []
    assert _exits(queue) == [("1", 1, "dead-letter", "max-deliveries", None)]


def test_a_message_leaves_after_its_last_allowed_cancel() -> None:
    queue = _queue(amps(max_failures=2), "m1")
    for now in range(2):
        _sent(queue, now)
        queue.settle("A", "m1", "failed", now)
    assert _exits(queue) == [("m1", 1, "dead-letter", "max-failures", "A")]


# -- who may settle


@pytest.mark.parametrize(
    ("rules", "ignored"),
    [(solace(), "held-by-another"), (amps(settler="strict"), "held-by-another"), (amps(), None)],
)
def test_settling_a_message_that_another_consumer_holds(rules: QueueSettings, ignored: Any) -> None:
    queue = _queue(rules, "m1", consumers="AB")
    queue.deliver("m1", "A", 0)
    assert queue.settle("B", "m1", "accepted", 1) == ignored
    assert ("m1" in queue) == (ignored is not None)


@pytest.mark.parametrize(("rules", "ignored"), [(solace(), "not-held"), (amps(settler="strict"), None), (amps(), None)])
def test_settling_a_message_without_a_holder(rules: QueueSettings, ignored: Any) -> None:
    queue = _queue(rules, "m1")
    assert queue.settle("A", "m1", "accepted", 1) == ignored


def test_a_message_that_was_never_here_is_ignored() -> None:
    assert _queue(solace()).settle("A", "m9", "accepted", 1) == "not-in-queue"


@pytest.mark.parametrize(("arrives", "leaves"), [(86_400_001, True), (86_400_002, False)])
def test_an_early_settlement_is_remembered_for_a_day(arrives: int, leaves: bool) -> None:  # noqa: FBT001
    queue = _queue(amps())
    assert queue.settle("A", "m1", "accepted", 1) == "not-in-queue"
    queue.put("m1", arrives)
    assert (_exits(queue) == [("m1", arrives, "settled", "settled-early", None)]) == leaves
    assert (_sent(queue, arrives) == []) == leaves


@pytest.mark.parametrize("outcome", ["failed", "rejected"])
def test_an_early_settlement_that_does_not_accept_leaves_the_message_in_the_queue(outcome: Any) -> None:
    queue = _queue(amps())
    assert queue.settle("A", "m1", outcome, 1) == "not-in-queue"
    queue.put("m1", 2)
    assert _exits(queue) == []
    assert _sent(queue, 2) == [("m1", "A")]


def test_a_lease_that_ended_is_not_its_holders_any_more() -> None:
    queue = _queue(amps(lease_ms=1_000, settler="strict"), "m1", consumers="AB")
    assert queue.deliver("m1", "A", 50) is not None
    assert queue.deliver("m1", "B", 1_049) is None
    assert queue.deliver("m1", "B", 1_050) == _delivery("m1", "B", 2, 1_050)
    assert queue.settle("A", "m1", "accepted", 1_060) == "held-by-another"
    assert queue.deadline == 2_050


def test_a_message_is_not_delivered_more_often_than_allowed() -> None:
    queue = _queue(amps(max_deliveries=2), "m1", consumers="AB")
    queue.deliver("m1", "A", 0)
    queue.unbind("A", 1, "closed")
    queue.deliver("m1", "B", 2)
    queue.unbind("B", 3, "closed")
    assert _exits(queue) == [("m1", 3, "dead-letter", "max-deliveries", None)]


def test_at_most_once_a_message_leaves_when_it_is_sent_and_settling_makes_room() -> None:
    queue = _queue(amps(at_most_once=True), "m1", "m2")
    assert _sent(queue) == [("m1", "A")]
    assert list(queue) == ["m2"]
    assert queue.settle("A", "m1", "failed", 1) is None
    assert _sent(queue, 1) == [("m2", "A")]
    queue.unbind("A", 2, "closed")
    assert list(queue) == []


# -- time to live


@pytest.mark.parametrize(
    ("respect", "own", "limit", "leaves"),
    [(True, 10, 60, 10), (True, 60, 10, 10), (True, 0, 10, 10), (False, 10, 60, 60), (False, 10, 0, None)],
)
def test_a_message_lives_as_long_as_the_lesser_time(respect: bool, own: int, limit: int, leaves: int | None) -> None:  # noqa: FBT001
    queue = RecordingQueue(solace(respect_ttl=respect, max_ttl_ms=limit))
    queue.put("1", 100, ttl_ms=own)
    assert queue.deadline == (None if leaves is None else 100 + leaves)
    queue.advance(10_000)
    assert _exits(queue) == ([] if leaves is None else [("1", 100 + leaves, "dead-letter", "expired", None)])


def test_a_held_message_expires_when_it_is_returned() -> None:
    queue = _queue(solace(max_ttl_ms=10), "1")
    _sent(queue)
    queue.advance(50)
    assert list(queue) == ["1"]
    queue.unbind("A", 60, "closed")
    assert _exits(queue) == [("1", 60, "dead-letter", "expired", None)]


def test_a_message_expires_while_its_redelivery_is_delayed() -> None:
    queue = _queue(solace(max_ttl_ms=500, backoff=backoff()), "1")
    _sent(queue)
    queue.settle("A", "1", "failed", 100)
    assert _sent(queue, 5_000) == []
    assert _exits(queue) == [("1", 500, "dead-letter", "expired", None)]


# -- barriers


def test_a_barrier_waits_for_all_earlier_messages_and_goes_to_every_consumer() -> None:
    queue = RecordingQueue(amps(max_backlog=5))
    queue.join("A", 0)
    queue.join("B", 0)
    queue.put("1", 0)
    queue.put("barrier", 0, barrier=True)
    queue.put("2", 0)
    assert _sent(queue) == [("1", "A")]
    queue.settle("A", "1", "accepted", 1)
    assert _sent(queue, 1) == [("barrier", "A"), ("barrier", "B"), ("2", "A")]
    queue.settle("A", "barrier", "accepted", 2)
    assert "barrier" in queue
    queue.unbind("B", 3, "closed")
    assert "barrier" not in queue


def test_a_barrier_of_an_at_most_once_queue_goes_to_every_consumer_and_leaves_once() -> None:
    queue = RecordingQueue(amps(at_most_once=True))
    queue.join("A", 0)
    queue.join("B", 0)
    queue.put("barrier", 0, barrier=True)
    assert _sent(queue) == [("barrier", "A"), ("barrier", "B")]
    assert _exits(queue) == [("barrier", 0, "settled", "sent", None)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.integers(1, 9), st.just("")),
        st.tuples(st.just("bind"), st.sampled_from("AB"), st.just("")),
        st.tuples(st.just("unbind"), st.sampled_from("AB"), st.just("")),
        st.tuples(st.sampled_from(SETTLEMENTS), st.integers(1, 9), st.sampled_from("AB")),
        st.tuples(st.just("wait"), st.integers(1, 3_000) | st.integers(1, 600), st.just("")),
    ),
    max_size=60,
)
rules = st.sampled_from(
    [
        solace(max_backlog=2),
        solace(max_redelivery=1, backoff=backoff(100, 200, 900), max_ttl_ms=4_000),
        amps(lease_ms=700, max_lease_ms=1_500, max_backlog=2, early_ms=0),
        amps(settler="strict", max_deliveries=3, max_failures=2, early_ms=0),
        solace(exclusive=True),
    ]
)


@given(rules, steps)
def test_a_message_has_one_holder_and_leaves_once_and_none_is_lost(rule: QueueSettings, taken: list[Any]) -> None:
    queue = RecordingQueue(rule)
    queued: set[str] = set()
    deliveries: dict[str, int] = {}
    got: dict[str, int] = {}
    now = 0
    for op, subject, consumer in taken:
        if op == "enqueue" and str(subject) not in queued:
            queued.add(str(subject))
            queue.put(str(subject), now)
        elif op == "bind":
            queue.join(subject, now, outcomes=ALL)
        elif op == "unbind":
            queue.unbind(subject, now, "closed")
        elif op == "wait":
            now += subject
        elif op in SETTLEMENTS and consumer in queue.consumers:
            queue.settle(consumer, str(subject), op, now)
        for delivery in queue.dispatched(now):
            got[delivery.message] = now
            deliveries[delivery.message] = deliveries.get(delivery.message, 0) + 1
            assert deliveries[delivery.message] == delivery.count
            assert delivery.message in queue, "nothing that has left is delivered"
        held = [message for one in queue.consumers.values() for message in one.held]
        assert len(held) == len(set(held))
        assert {message for message in queue if queue[message].holders} == set(held)
        ends = {message: list(queue[message].holders.values()) for message in held if rule.lease}
        assert all(now < end <= got[message] + rule.max_lease for message, (end,) in ends.items() if end)
        assert all(len(one.held) <= one.backlog for one in queue.consumers.values() if one.backlog)
        left = [exit_.message for exit_ in queue.exits]
        assert len(left) == len(set(left))
        assert set(left) | set(queue) == queued
    assert all(count <= rule.max_deliveries for count in deliveries.values() if rule.max_deliveries)


def _take(queue: RecordingQueue, step: tuple[Any, Any, Any], now: int) -> list[Any]:
    op, subject, consumer = step
    answer = None
    if op == "enqueue":
        if str(subject) not in queue:
            queue.put(str(subject), now, barrier=subject == 5)
    elif op == "bind":
        queue.join(subject, now, outcomes=ALL)
    elif op == "unbind":
        queue.unbind(subject, now, "closed")
    elif op in SETTLEMENTS and consumer in queue.consumers:
        answer = queue.settle(consumer, str(subject), op, now)
    queue.dispatch(now)
    seen = [answer, *queue.events]
    queue.events.clear()
    return seen


@given(rules, steps)
def test_a_saved_and_loaded_queue_continues_the_same(rule: QueueSettings, taken: list[Any]) -> None:
    queue, other, now = RecordingQueue(rule), RecordingQueue(rule), 0
    for step in taken:
        now += step[1] if step[0] == "wait" else 0
        assert _take(other, step, now) == _take(queue, step, now)
        state = other.dump()
        blob = msgspec.msgpack.encode(state)
        other = RecordingQueue(rule)
        if state is not None:
            other.load(msgspec.msgpack.decode(blob, type=QueueState))


def test_a_return_is_reported_even_if_the_message_then_leaves() -> None:
    queue = _queue(solace(max_redelivery=1), "1")
    _sent(queue)
    queue.unbind("A", 1, "closed")
    queue.join("B", 1)
    _sent(queue, 2)
    queue.unbind("B", 3, "closed")
    returns = [(event.consumer, event.at, event.reason) for event in queue.events if event.event == "returned"]
    assert returns == [("A", 1, "closed"), ("B", 3, "closed")]
    assert [exit_.reason for exit_ in queue.exits] == ["max-deliveries"]


def test_only_the_newest_stray_settlements_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackstream.jobs.queues.queue.MAX_EARLY", 2)
    queue = _queue(amps())
    for message in "123":
        assert queue.settle("A", message, "accepted", 1) == "not-in-queue"
    for message in "123":
        queue.put(message, 2)
    assert [exit_.message for exit_ in queue.exits] == ["2", "3"]


@pytest.mark.parametrize(("eligible", "how"), [(True, "dead-letter"), (False, "discarded")])
def test_a_full_queue_gives_up_what_arrives(*, eligible: bool, how: str) -> None:
    queue = _queue(solace(max_depth=1), "1")
    queue.put("2", 7, eligible=eligible)
    assert _exits(queue) == [("2", 7, how, "queue-full", None)]
    assert list(queue) == ["1"]


@pytest.mark.parametrize("exclusive", [False, True])
def test_what_a_consumer_cannot_read_goes_to_another_and_never_to_it_again(exclusive: bool) -> None:  # noqa: FBT001
    queue = RecordingQueue(solace(exclusive=exclusive, max_redelivery=1))
    queue.put("1", 0)
    queue.join("A", 0)
    _sent(queue)
    queue.join("B", 1)
    assert queue.settle("A", "1", "rejected", 1, unavailable=True) is None
    queue.put("2", 2)
    assert _sent(queue, 2) == [("1", "B"), ("2", "A")]
    queue.unbind("B", 3, "lost")
    assert _sent(queue, 3) == _sent(queue, 2 + UNREADABLE_MS) == queue.exits == []
    assert _sent(queue, 3 + UNREADABLE_MS) == []
    assert [(exit_.message, exit_.reason) for exit_ in queue.exits] == [("1", "unavailable")]


@pytest.mark.parametrize("saved", [False, True])
def test_what_no_bound_consumer_can_read_waits_for_one_that_can(saved: bool) -> None:  # noqa: FBT001
    queue = _refused()
    assert (_sent(queue, 1), queue.deadline) == ([], 1 + UNREADABLE_MS)
    if saved:
        state, queue = queue.dump(), RecordingQueue(solace())
        assert state is not None
        queue.load(msgspec.convert(msgspec.to_builtins(state), QueueState))
    # another one that cannot read it changes nothing
    queue.join("B", 100)
    assert _sent(queue, 100) == [("1", "B")]
    queue.settle("B", "1", "rejected", 101, unavailable=True)
    assert _sent(queue, 101) == []
    queue.join("C", 101 + UNREADABLE_MS - 1)
    assert _sent(queue, 101 + UNREADABLE_MS - 1) == [("1", "C")]
    queue.settle("C", "1", "accepted", 101 + UNREADABLE_MS)
    assert [(exit_.outcome, exit_.reason) for exit_ in queue.exits] == [("settled", "accepted")]


def test_a_message_that_is_delayed_waits_and_one_that_is_held_does_not() -> None:
    queue = _queue(solace(), "1")
    queue.delay("1", 5)
    assert (_sent(queue, 4), queue.deadline) == ([], 5)
    assert _sent(queue, 5) == [("1", "A")]
    queue.delay("1", 9)
    queue.delay("2", 9)
    assert queue.deadline is None


def test_a_message_waits_anew_after_a_consumer_that_had_no_room_for_it() -> None:
    queue = _refused()
    assert _sent(queue, 1) == []
    queue.join("B", 200_000)
    queue.consumers["B"].stopped = True
    assert _sent(queue, 200_000) == []
    queue.unbind("B", UNREADABLE_MS + 10, "closed")
    # nobody knows whether it could have read it
    assert (_sent(queue, UNREADABLE_MS + 10), queue.exits) == ([], [])
    assert queue.deadline == 2 * UNREADABLE_MS + 10


def test_a_consumer_that_is_bound_anew_may_read_what_it_could_not() -> None:
    queue = _refused()
    assert _sent(queue, 1) == []
    queue.join("A", 2)
    assert _sent(queue, 2) == [("1", "A")]


def test_what_waits_for_a_consumer_that_can_read_it_expires_as_any_other() -> None:
    queue = _refused(max_ttl_ms=1_000)
    assert _sent(queue, 1) == _sent(queue, 1_000) == []
    assert [exit_.reason for exit_ in queue.exits] == ["expired"]


def test_only_so_many_wait_for_a_consumer_that_can_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MAX_UNREADABLE", 2)
    queue = _queue(solace(), "1", "2", "3", "4")
    _sent(queue)
    for message in "1234":
        queue.settle("A", message, "rejected", 1, unavailable=True)
    _sent(queue, 1)
    assert [exit_.message for exit_ in queue.exits] == ["3", "4"]
    queue.settle("A", "1", "accepted", 2)


def _refused(**rules: Any) -> RecordingQueue:
    """Return a queue whose only consumer cannot read its only message."""
    queue = RecordingQueue(solace(**rules))
    queue.put("1", 0)
    queue.join("A", 0)
    _sent(queue)
    queue.settle("A", "1", "rejected", 1, unavailable=True)
    return queue


@pytest.mark.parametrize("behind", [1, PREFETCH + 1], ids=["one", "too many"])
def test_what_waits_for_a_consumer_that_can_read_it_holds_up_no_other(behind: int) -> None:
    unreadable = [f"u{number}" for number in range(behind)]
    queue = _queue(solace(), *unreadable, consumers="")
    queue.join("A", 0, backlog=1_000)
    _sent(queue)
    queue.put("last", 0)
    queue.join("B", 0)
    queue.consumers["B"].stopped = True
    for message in unreadable:
        queue.settle("A", message, "rejected", 1, unavailable=True)
    # the whole queue does not go through the hands of a consumer that can read nothing
    assert _sent(queue, 1) == ([("last", "A")] if behind <= PREFETCH else [])
    queue.consumers["B"].stopped = False
    assert _sent(queue, 2)[0] == ("u0", "B")


def test_what_no_consumer_could_read_waits_while_none_is_bound() -> None:
    queue = RecordingQueue(solace())
    queue.put("1", 0)
    queue.join("A", 0)
    _sent(queue)
    queue.settle("A", "1", "rejected", 1, unavailable=True)
    queue.unbind("A", 1, "closed")
    queue.put_aside()
    assert _sent(queue, 2) == []
    assert list(queue) == ["1"]
    queue.join("A", 3)
    assert _sent(queue, 3) == [("1", "A")]
