from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.backlog import MAX_LACKING, AckPacing, Backlog, BatchAcks, DestinationChange
from ackstream.observe.metrics import DESTINATION_LAG, DESTINATION_SYNC, WAITING_ACKS, Tally
from ackstream.protocol.messages import CommandAck
from ackstream.settings import Destination


def _destination(name: str, type: str = "sync", **ages: str) -> Destination:  # noqa: A002 - the setting's name
    return Destination(name=name, path=f"lakes/{name}", type=type, **ages)


def _backlog(*names: str, acknowledged: int = -1, stored: int = -1, **ages: str) -> Backlog:
    destinations = [_destination(name, **ages) for name in names or ("a",)]
    return Backlog(destinations, acknowledged=acknowledged, stored=stored)


def _upto(backlog: Backlog, most: int) -> int:
    """Return the batch up to which acks were sent, or may be sent now."""
    return [backlog.acknowledged, *backlog.ready(most)][-1]


def test_a_batch_is_ready_when_every_sync_destination_has_it() -> None:
    backlog = _backlog("a", "b")
    backlog.add(0, 0)
    backlog.add(1, 0)
    backlog.report("a", 1)
    assert _upto(backlog, 100) == -1
    backlog.report("b", 0)
    assert _upto(backlog, 100) == 0
    backlog.confirm(0)
    assert (backlog.acknowledged, _upto(backlog, 100)) == (0, 0)


def test_without_sync_destinations_everything_is_ready_at_once() -> None:
    backlog = Backlog([_destination("other", "async")], acknowledged=-1, stored=-1)
    backlog.add(7, 0)
    backlog.report("other", 3)
    assert _upto(backlog, 100) == 7


def test_a_lagging_destination_is_downgraded_and_upgraded_when_it_has_caught_up() -> None:
    backlog = _backlog("a", "b", check_interval="15s", downgrade_age="60s", upgrade_age="10s")
    backlog.add(0, 10)
    backlog.report("a", 0)
    assert backlog.check(60_000) == []
    assert backlog.check(75_000) == [DestinationChange("b", -1, "async", "downgrade", 74_990)]
    assert _upto(backlog, 100) == 0
    assert backlog.check(90_000) == []
    backlog.report("b", 0)
    assert backlog.check(105_000) == [DestinationChange("b", 0, "sync", "upgrade", 0)]
    backlog.add(1, 106_000)
    backlog.report("a", 1)
    assert _upto(backlog, 100) == 0


def test_each_destination_has_its_own_rules() -> None:
    destinations = [_destination("a", check_interval="1s", downgrade_age="1ms"), _destination("b")]
    backlog = Backlog(destinations, acknowledged=-1, stored=-1)
    backlog.add(0, 0)
    assert backlog.check(999) == []
    assert backlog.check(1000) == [DestinationChange("a", -1, "async", "downgrade", 1000)]
    assert backlog.check(9000) == []
    assert _upto(backlog, 100) == -1


def test_ages_are_compared_once_per_check_interval() -> None:
    backlog = _backlog(check_interval="1s", downgrade_age="500ms", upgrade_age="100ms")
    backlog.add(0, 1000)
    assert [bool(backlog.check(now)) for now in (1499, 1500, 1999, 2000, 2001)] == [False, False, False, True, False]
    backlog.report("a", 0)
    assert [bool(backlog.check(now)) for now in (2002, 2999, 3500, 3600)] == [False, False, True, False]


def test_a_report_does_not_go_back() -> None:
    backlog = _backlog()
    backlog.add(5, 0)
    backlog.report("a", 5)
    backlog.report("a", 3)
    assert _upto(backlog, 100) == 5


def test_a_batch_reported_before_it_was_added_has_no_age() -> None:
    backlog = _backlog(check_interval="1ms", downgrade_age="1s")
    backlog.report("a", 5)
    backlog.add(5, 0)
    assert backlog.check(60_000) == []


def test_a_batch_without_messages_waits_for_those_before_it_alone() -> None:
    backlog = _backlog()
    backlog.add(0, 0, stored=False)
    assert _upto(backlog, 100) == 0
    backlog.add(1, 0)
    backlog.add(2, 0, stored=False)
    assert _upto(backlog, 100) == 0
    backlog.report("a", 1)
    assert _upto(backlog, 100) == 2


def test_after_a_restart_unacknowledged_batches_wait_for_the_stored_ones() -> None:
    backlog = _backlog(acknowledged=3, stored=5)
    for batch in (4, 6):
        backlog.add(batch, 0, stored=False)
    backlog.report("a", 4)
    assert _upto(backlog, 100) == 4
    backlog.report("a", 5)
    assert _upto(backlog, 100) == 6


def test_batches_that_waited_for_a_removed_destination_are_ready_at_once() -> None:
    backlog = Backlog([_destination("other", "async")], acknowledged=3, stored=5)
    backlog.add(4, 0, stored=False)
    backlog.add(5, 0, stored=False)
    assert _upto(backlog, 100) == 5


def test_a_replayed_batch_is_ignored() -> None:
    backlog = _backlog()
    backlog.add(0, 0)
    backlog.report("a", 0)
    backlog.confirm(_upto(backlog, 100))
    backlog.add(0, 5)
    assert (_upto(backlog, 100), backlog.acknowledged) == (0, 0)


def test_a_long_backlog_is_ready_in_parts() -> None:
    backlog = _backlog(check_interval="1s", downgrade_age="1s")
    for batch in range(10):
        backlog.add(batch, 0)
    assert backlog.check(1000) == [DestinationChange("a", -1, "async", "downgrade", 1000)]
    assert _upto(backlog, 4) == 3
    backlog.confirm(3)
    assert _upto(backlog, 4) == 7


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
@given(data=st.data())
def test_no_batch_is_ready_before_every_sync_destination_has_it(names: tuple[str, ...], data: st.DataObject) -> None:
    backlog = _backlog(*names, acknowledged=-1, stored=-1)
    reported = dict.fromkeys(names, -1)
    brought: list[int] = []
    count = 0
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.booleans()):
            stored = data.draw(st.booleans())
            backlog.add(count, 0, stored=stored)
            brought += [count] if stored else []
            count += 1
        else:
            name = data.draw(st.sampled_from(names))
            reported[name] = max(reported[name], data.draw(st.integers(-1, 30)))
            backlog.report(name, reported[name])
        ready = _upto(backlog, 100)
        lacking = [batch for batch in brought if batch > min(reported.values())]
        assert ready == (lacking[0] - 1 if lacking else count - 1)


def test_acks_wait_while_earlier_ones_do_even_if_no_destination_is_waited_for_any_more() -> None:
    backlog = Backlog([], acknowledged=3, stored=5, written=5, deferred=[4, 5])
    # told at once, a success of batch 6 would overtake a failure of batch 4
    assert backlog.defers(6)
    backlog.add(6, 0)
    assert _upto(backlog, 100) == 6
    backlog.confirm(5)
    assert backlog.defers(7)
    backlog.confirm(6)
    assert not backlog.defers(7)


def test_a_replayed_batch_waits_only_if_its_row_has_the_acks() -> None:
    # 5 was written when no destination was waited for: a second row of it, with acks, would be refused
    backlog = Backlog([_destination("a")], acknowledged=3, stored=5, written=5, deferred=[4])
    assert [backlog.defers(batch) for batch in (3, 4, 5, 6)] == [False, True, False, True]


def test_without_destinations_no_batch_waits() -> None:
    backlog = Backlog([], acknowledged=3, stored=5, written=5)
    assert not backlog.defers(6)
    backlog.pass_over(6)
    backlog.pass_over(5)
    assert (backlog.acknowledged, _upto(backlog, 100)) == (6, 6)


def test_a_batch_that_does_not_wait_passes_none_that_does() -> None:
    backlog = Backlog([_destination("a")], acknowledged=3, stored=5, written=6, deferred=[4, 5])
    backlog.pass_over(6)
    assert backlog.acknowledged == 3
    backlog.report("a", 5)
    assert _upto(backlog, 100) == 5


def test_what_is_about_to_be_replayed_waits_until_it_is_committed() -> None:
    # its messages may be missing: the replay brings both
    backlog = Backlog([], acknowledged=3, stored=4, written=5, deferred=[4, 5], replayed=5)
    assert _upto(backlog, 100) == 4
    backlog.confirm(4)
    assert not backlog.defers(5)
    waited_for = Backlog([_destination("a")], acknowledged=3, stored=4, written=5, deferred=[4, 5], replayed=5)
    waited_for.report("a", 5)
    assert _upto(waited_for, 100) == 4
    assert waited_for.defers(5)
    waited_for.add(5, 0)
    assert _upto(waited_for, 100) == 5


def test_a_half_written_batch_that_nobody_replays_is_never_ready() -> None:
    # a new checkpoint begins behind it: its states are in the table, its messages are not
    backlog = Backlog([], acknowledged=5, stored=6, written=7, deferred=[6])
    backlog.add(8, 0)
    assert backlog.ready(100) == [6, 8]


def test_what_was_confirmed_stays_so() -> None:
    backlog = Backlog([], acknowledged=3, stored=3)
    backlog.pass_over(6)
    backlog.confirm(5)
    assert backlog.acknowledged == 6


def test_its_gauges_are_what_waits_and_what_each_sync_destination_lacks() -> None:
    destinations = [_destination("a", downgrade_age="60s"), _destination("b"), _destination("other", "async")]
    backlog = Backlog(destinations, acknowledged=-1, stored=-1)
    for batch in range(3):
        backlog.add(batch, 0, stored=batch < 2)
    backlog.report("b", 1)
    backlog.check(75_000)
    tally = Tally()
    backlog.measure(tally)
    assert tally.gauges == {
        (WAITING_ACKS.name,): 3,
        (DESTINATION_LAG.name, "a"): 2,
        (DESTINATION_LAG.name, "b"): 0,
        (DESTINATION_SYNC.name, "a"): 0,
        (DESTINATION_SYNC.name, "b"): 1,
    }


def test_how_long_a_destination_lacks_something_is_known_in_little_memory_however_long_it_is_away() -> None:
    backlog = Backlog(
        [_destination("gone"), _destination("a", check_interval="1s", downgrade_age="30s")], acknowledged=-1, stored=-1
    )
    for batch in range(4 * MAX_LACKING):
        backlog.add(batch, batch * 2_000)
        backlog.add(batch, batch * 2_000)
        if batch < 4 * MAX_LACKING - 20:
            backlog.report("a", batch)
    assert len(backlog._lacking) <= MAX_LACKING
    now = (4 * MAX_LACKING - 1) * 2_000
    assert backlog._lacking[0][1] == 0
    (change,) = backlog.check(now)
    # the oldest of the last 20
    assert (change.destination, change.mode, change.age_ms) == ("a", "async", 38_000)


def test_of_several_batches_in_a_second_the_age_is_that_of_the_first() -> None:
    backlog = _backlog(check_interval="1ms", downgrade_age="10s")
    backlog.add(0, 0)
    backlog.add(1, 500)
    backlog.report("a", 0)
    # the second is lacked as long as it is not reported
    assert [len(backlog.check(now)) for now in (9_999, 10_000)] == [0, 1]


# -- pacing ------------------------------------------------------------------------------------------------------------


def _success(first: int, last: int, **fields: Any) -> CommandAck:
    return CommandAck(ack_type="persisted", client="p1", first=first, seq=last, **fields)


def _failure(seq: int, **fields: Any) -> CommandAck:
    return CommandAck(ack_type="persisted", status="failure", client="p1", first=seq, seq=seq, reason="x", **fields)


FLUSH = CommandAck(ack_type="persisted", client="p1", cid="flush")


def _add(pacing: AckPacing, client: str, acks: list[CommandAck], *, batch: int, due: int, **wanted: Any) -> None:
    pacing.add(BatchAcks(client, acks, due, **wanted), batch, 0)


def _taken(pacing: AckPacing, now: int) -> list[tuple[Any, ...]]:
    return [(paced.ack.first, paced.ack.seq, paced.ack.reason) for paced in pacing.take(now)]


def test_successes_wait_for_the_interval_and_become_one() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 2)], batch=4, due=1_000)
    _add(pacing, "p1", [_success(3, 3)], batch=5, due=1_500)
    assert (_taken(pacing, 999), pacing.oldest) == ([], 4)
    assert (_taken(pacing, 1_000), pacing.oldest) == ([(1, 3, None)], None)


def test_the_example_of_the_document_is_kept_in_order() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 2), _failure(3), _success(4, 5)], batch=0, due=1_000)
    _add(pacing, "p1", [_success(6, 6)], batch=1, due=1_200)
    assert _taken(pacing, 1_000) == [(1, 2, None), (3, 3, "x"), (4, 6, None)]


@pytest.mark.parametrize(
    ("window", "batches", "at_once", "later"),
    [
        (30, [(1, 9)], [], [(1, 9)]),
        (30, [(1, 10)], [(1, 10)], []),
        (30, [(1, 14)], [(1, 10)], [(11, 14)]),
        (30, [(1, 4), (5, 12)], [(1, 10)], [(11, 12)]),
        (3, [(1, 3)], [(1, 1), (2, 2), (3, 3)], []),
        (2, [(1, 2)], [(1, 1), (2, 2)], []),
        (255, [(1, 84)], [], [(1, 84)]),
        (0, [(1, 10_000)], [], [(1, 10_000)]),
        (1, [(1, 100_000)], [(1, 100_000)], []),
        (30, [(1, 5), (6, 100_007)], [(1, 100_000)], [(100_001, 100_007)]),
    ],
)
def test_each_third_of_a_window_is_acknowledged_at_once(
    window: int, batches: list[tuple[int, int]], at_once: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    pacing = AckPacing()
    for batch in batches:
        _add(pacing, "p1", [_success(*batch)], batch=0, due=1_000, window=window)
    assert [run[:2] for run in _taken(pacing, 0)] == at_once
    assert [run[:2] for run in _taken(pacing, 1_000)] == later


def test_a_third_begins_anew_after_each_ack() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 4)], batch=0, due=10, window=30)
    assert _taken(pacing, 10) == [(1, 4, None)]
    _add(pacing, "p1", [_success(5, 13)], batch=1, due=20, window=30)
    assert _taken(pacing, 10) == []
    _add(pacing, "p1", [_success(14, 14)], batch=2, due=30, window=30)
    assert _taken(pacing, 10) == [(5, 14, None)]


def test_a_smaller_window_counts_what_waits_already() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 250)], batch=0, due=1_000, window=900)
    _add(pacing, "p1", [_success(251, 400)], batch=1, due=1_000, window=300)
    assert [run[:2] for run in _taken(pacing, 0)] == [(1, 251), (252, 351)]
    assert [run[:2] for run in _taken(pacing, 1_000)] == [(352, 400)]


def test_who_waits_is_answered_at_once_with_everything_before() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 2)], batch=0, due=1_000)
    _add(pacing, "p1", [_success(3, 3)], batch=1, due=1_000, urgent=True)
    assert _taken(pacing, 0) == [(1, 3, None)]
    _add(pacing, "p1", [_success(4, 4), FLUSH, _success(5, 5)], batch=2, due=1_000)
    assert _taken(pacing, 0) == [(4, 4, None), (None, None, None)]
    assert _taken(pacing, 1_000) == [(5, 5, None)]


def test_an_ack_with_a_command_id_is_merged_with_none() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 1, cid="c1"), _success(2, 2, cid="c2"), _success(3, 3)], batch=0, due=1_000)
    assert _taken(pacing, 0) == [(1, 1, None), (2, 2, None)]


def test_acks_of_another_session_and_of_others_are_not_merged() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 1, session="a"), _success(2, 2, session="b")], batch=0, due=5)
    _add(pacing, "p2", [_success(3, 3)], batch=0, due=10)
    assert _taken(pacing, 5) == [(1, 1, None), (2, 2, None)]
    assert _taken(pacing, 10) == [(3, 3, None)]


def test_a_merged_ack_has_the_id_of_what_it_says() -> None:
    pacing = AckPacing()
    _add(pacing, "p1", [_success(1, 2).identified(), _success(3, 4).identified()], batch=0, due=0)
    (paced,) = pacing.take(0)
    assert paced.ack == _success(1, 4).identified()


WINDOWS = st.sampled_from([0, 1, 3, 10, 30])
Run = st.tuples(st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 30), WINDOWS)


@given(runs=st.lists(Run, max_size=15))
def test_nothing_is_lost_repeated_or_reordered_and_nothing_waits_longer_than_it_may(
    runs: list[tuple[int, bool, bool, int, int]],
) -> None:
    pacing, now, first = AckPacing(), 0, 1
    expected: list[tuple[int, str | None]] = []
    sent: list[tuple[int, str | None]] = []
    due: dict[int, int] = {}

    def take(window: int) -> None:
        for paced in pacing.take(now):
            ack = paced.ack
            sent.extend((seq, ack.reason) for seq in range(ack.first or 0, (ack.seq or 0) + 1))
        reached = sent[-1][0] if sent else 0
        assert all(seq <= reached for seq, at in due.items() if at <= now)
        assert not window or first - 1 - reached < max(1, window // 3)

    for count, failed, urgent, later, window in runs:
        now += later
        acks = [_failure(first)] if failed else [_success(first, first + count - 1)]
        numbers = range(first, (acks[0].seq or 0) + 1)
        expected += [(seq, acks[0].reason) for seq in numbers]
        due |= dict.fromkeys(numbers, now if urgent else now + 50)
        _add(pacing, "p1", acks, batch=0, due=now + 50, window=window, urgent=urgent)
        first = numbers[-1] + 1
        take(window)
    now += 50
    take(0)
    assert (sent, pacing.oldest) == (expected, None)
