from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.persist.pacing import AckPacing
from ackstream.protocol.messages import CommandAck


def _success(first: int, last: int, **fields: Any) -> CommandAck:
    return CommandAck(ack_type="persisted", client="p1", first=first, seq=last, **fields)


def _failure(seq: int, **fields: Any) -> CommandAck:
    return CommandAck(ack_type="persisted", status="failure", client="p1", first=seq, seq=seq, reason="x", **fields)


FLUSH = CommandAck(ack_type="persisted", client="p1", cid="flush")


def _taken(pacing: AckPacing, now: int) -> list[tuple[Any, ...]]:
    return [(paced.ack.first, paced.ack.seq, paced.ack.reason) for paced in pacing.take(now)]


def test_successes_wait_for_the_interval_and_become_one() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 2)], batch=4, due=1_000)
    pacing.add("p1", [_success(3, 3)], batch=5, due=1_500)
    assert (_taken(pacing, 999), pacing.oldest) == ([], 4)
    assert (_taken(pacing, 1_000), pacing.oldest) == ([(1, 3, None)], None)


def test_the_example_of_the_document_is_kept_in_order() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 2), _failure(3), _success(4, 5)], batch=0, due=1_000)
    pacing.add("p1", [_success(6, 6)], batch=1, due=1_200)
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
        pacing.add("p1", [_success(*batch)], batch=0, due=1_000, window=window)
    assert [run[:2] for run in _taken(pacing, 0)] == at_once
    assert [run[:2] for run in _taken(pacing, 1_000)] == later


def test_a_third_begins_anew_after_each_ack() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 4)], batch=0, due=10, window=30)
    assert _taken(pacing, 10) == [(1, 4, None)]
    pacing.add("p1", [_success(5, 13)], batch=1, due=20, window=30)
    assert _taken(pacing, 10) == []
    pacing.add("p1", [_success(14, 14)], batch=2, due=30, window=30)
    assert _taken(pacing, 10) == [(5, 14, None)]


def test_a_smaller_window_counts_what_waits_already() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 250)], batch=0, due=1_000, window=900)
    pacing.add("p1", [_success(251, 400)], batch=1, due=1_000, window=300)
    assert [run[:2] for run in _taken(pacing, 0)] == [(1, 251), (252, 351)]
    assert [run[:2] for run in _taken(pacing, 1_000)] == [(352, 400)]


def test_who_waits_is_answered_at_once_with_everything_before() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 2)], batch=0, due=1_000)
    pacing.add("p1", [_success(3, 3)], batch=1, due=1_000, urgent=True)
    assert _taken(pacing, 0) == [(1, 3, None)]
    pacing.add("p1", [_success(4, 4), FLUSH, _success(5, 5)], batch=2, due=1_000)
    assert _taken(pacing, 0) == [(4, 4, None), (None, None, None)]
    assert _taken(pacing, 1_000) == [(5, 5, None)]


def test_an_ack_with_a_command_id_is_merged_with_none() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 1, cid="c1"), _success(2, 2, cid="c2"), _success(3, 3)], batch=0, due=1_000)
    assert _taken(pacing, 0) == [(1, 1, None), (2, 2, None)]


def test_acks_of_another_session_and_of_others_are_not_merged() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 1, session="a"), _success(2, 2, session="b")], batch=0, due=5)
    pacing.add("p2", [_success(3, 3)], batch=0, due=10)
    assert _taken(pacing, 5) == [(1, 1, None), (2, 2, None)]
    assert _taken(pacing, 10) == [(3, 3, None)]


def test_a_merged_ack_has_the_id_of_what_it_says() -> None:
    pacing = AckPacing()
    pacing.add("p1", [_success(1, 2).identified(), _success(3, 4).identified()], batch=0, due=0)
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
        pacing.add("p1", acks, batch=0, due=now + 50, window=window, urgent=urgent)
        first = numbers[-1] + 1
        take(window)
    now += 50
    take(0)
    assert (sent, pacing.oldest) == (expected, None)
