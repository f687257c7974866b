from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition

from ackstream.client.core.messages import OffsetProgress, Work
from ackstream.kafka.clients import backoff
from tests.prose import each

IN, ONE, TWO = (TopicPartition("in", number) for number in range(3))


def settle(work: Work) -> None:
    work.remaining = 0


def taken(work: Work | None) -> Work:
    assert work is not None
    work.remaining = 1
    return work


def begun(*offsets: int) -> tuple[OffsetProgress, dict[int, Any]]:
    progress = OffsetProgress()
    return progress, {offset: taken(progress.begin(IN, offset)) for offset in offsets}


@each("settlement", "kafka-order")
def test_prose_offsets_are_committed_in_order(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert "12 and 11 wait for 10" in expect["commits"]
    progress, found = begun(*given_["offsets in flight"])
    positions = []
    for offset in given_["settled in order"]:
        settle(found[offset])
        positions.append(progress.positions()[IN])
    assert positions == [10, 10, 13]


@each("settlement", "kafka-reject-blocks")
def test_prose_after_a_restart_a_rejected_record_comes_again_with_those_behind_it(
    given_: dict[str, Any], expect: dict[str, Any]
) -> None:
    assert "delivered again" in expect["record 12"]
    progress, found = begun(*given_["offsets in flight"])
    for offset, settlement in given_["results"].items():
        if settlement == "settle":
            settle(found[int(offset)])
    assert progress.positions() == {IN: 11}
    # while it runs, the rejected one alone is tried again
    assert progress.next(IN) == 13


def test_the_wait_is_a_minute_at_most() -> None:
    assert [backoff(attempt) for attempt in (1, 2, 3, 10, 11, 10_000)] == [0.1, 0.2, 0.4, 51.2, 60.0, 60.0]


def test_places_do_not_disturb_each_other() -> None:
    progress = OffsetProgress()
    taken(progress.begin(ONE, 1))
    settle(taken(progress.begin(TWO, 1)))
    assert progress.positions() == {ONE: 1, TWO: 2}


def test_a_place_that_went_to_somebody_else_is_forgotten() -> None:
    progress, _ = begun(5)
    progress.keep([])
    assert (progress.positions(), progress.next(IN)) == ({}, 0)
    progress.start(IN, 5)
    assert (progress.positions(), progress.next(IN)) == ({IN: 5}, 5)


@given(st.lists(st.sampled_from(["settle", "reject"]), min_size=1, max_size=8), st.randoms())
def test_no_position_ever_passes_a_record_that_is_not_settled(fates: list[str], random: Any) -> None:
    progress, found = begun(*range(len(fates)))
    order = list(enumerate(fates))
    random.shuffle(order)
    settled = set()
    for offset, fate in order:
        if fate == "settle":
            settled.add(offset)
            settle(found[offset])
        assert set(range(progress.positions()[IN])) <= settled


@pytest.mark.parametrize("offset", [3, 4])
def test_a_record_is_taken_up_once(offset: int) -> None:
    progress, _ = begun(3, 4)
    assert progress.begin(IN, offset) is None
