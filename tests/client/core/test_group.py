from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core import group
from ackstream.client.core.group import COMMIT_SECONDS, GroupMember, OffsetProgress
from ackstream.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_position_is_that_of_the_first_unfinished_record():
    progress = OffsetProgress()
    works = [progress.begin("p", offset) for offset in range(10, 14)]
    works[1].remaining = 2
    assert progress.positions() == {"p": 11}
    works[1].remaining -= 1
    assert progress.positions() == {"p": 11}
    works[1].remaining -= 1
    assert progress.positions() == {"p": 14}


def test_a_partition_without_records_is_where_it_started():
    progress = OffsetProgress()
    progress.start("p", 7)
    progress.start("p", 3)
    assert progress.positions() == {"p": 7}


def test_a_record_is_taken_up_once():
    progress = OffsetProgress()
    assert progress.begin("p", 5)
    assert progress.begin("p", 5) is None
    assert progress.begin("p", 4) is None
    # offsets may have gaps
    assert progress.begin("p", 9)


def test_what_is_finished_behind_a_record_that_is_not_takes_no_memory():
    progress = OffsetProgress()
    progress.start("p", 0)
    first = progress.begin("p", 0)
    first.remaining = 1
    for offset in range(1, 5_000):
        progress.begin("p", offset)
    last = progress.begin("p", 5_000)
    last.remaining = 1
    assert len(progress._work["p"]) <= 2_000
    assert progress.positions() == {"p": 0}
    first.remaining = 0
    assert progress.positions() == {"p": 5_000}
    last.remaining = 0
    assert progress.positions() == {"p": 5_001}


def test_partitions_of_other_members_are_forgotten():
    progress = OffsetProgress()
    for partition in "ab":
        progress.begin(partition, 1)
    progress.keep(["b", "c"])
    assert progress.positions() == {"b": 2}
    # it may come back, and then begins anew
    assert progress.begin("a", 0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_no_position_passes_unfinished_work_and_finished_work_leads_to_the_end(answers, random):
    progress = OffsetProgress()
    works = []
    for offset, number in enumerate(answers):
        work = progress.begin("p", offset)
        work.remaining = number
        works.append(work)
    parts = [work for work in works for _ in range(work.remaining)]
    random.shuffle(parts)
    for part in parts:
        assert progress.positions()["p"] == min(work.offset for work in works if work.remaining)
        part.remaining -= 1
    assert progress.positions() == {"p": len(answers)}


P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Consumer:
    """A consumer whose assignment and offsets the test decides."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.metadata: list[str] = []
        self.error: KafkaError | None = None
        self.closed = False

    def subscribe(self, topics: list[str], listener: Any) -> None:
        assert topics == ["t"]
        self.listener = listener

    def assign(self, *partitions: TopicPartition) -> None:
        self.assigned = set(partitions)
        self.listener.on_partitions_assigned(partitions)

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def position(self, partition: TopicPartition, timeout_ms: int) -> int | None:
        assert timeout_ms > 0
        return self.offsets.get(partition)

    def commit_async(self, offsets: dict[Any, Any], callback: Callable[[Any, Any], None]) -> None:
        self._note(offsets)
        callback(offsets, self.error)

    def commit(self, offsets: dict[Any, Any], timeout_ms: int) -> None:
        assert timeout_ms > 0
        self._note(offsets)
        if self.error is not None:
            raise self.error

    def _note(self, offsets: dict[Any, Any]) -> None:
        self.commits.append({partition: offset.offset for partition, offset in offsets.items()})
        self.metadata += [offset.metadata for offset in offsets.values()]

    def close(self, *, autocommit: bool, timeout_ms: int) -> None:
        assert not autocommit
        assert timeout_ms > 0
        self.closed = True


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def progress() -> OffsetProgress:
    return OffsetProgress()


@pytest.fixture
def member(consumer: Consumer, progress: OffsetProgress) -> GroupMember:
    return GroupMember(consumer, "g", ["t"], progress, progress.start)


def record(partition: int, offset: int) -> Any:
    return SimpleNamespace(topic="t", partition=partition, offset=offset)


def test_a_member_follows_its_partitions_from_their_first_record_or_their_position(consumer, progress, member):
    consumer.offsets = {P0: 5, P1: 7}
    consumer.assign(P0, P1)
    member.follow([record(0, 3), record(0, 4)])
    member.wait_until_joined()
    assert member.partitions == {P0, P1}
    assert progress.positions() == {P0: 3, P1: 7}
    consumer.assign(P1)
    member.follow([])
    assert progress.positions() == {P1: 7}


def test_a_member_has_joined_once_the_broker_has_where_its_group_begins(consumer, member, monkeypatch):
    monkeypatch.setattr(group, "JOIN_SECONDS", 0.01)
    consumer.offsets, consumer.error = {P0: 5}, KafkaError("rebalancing")
    consumer.assign(P0)
    member.follow([])
    with pytest.raises(UnreachableError):
        member.wait_until_joined()
    consumer.error = None
    member.follow([record(0, 5)])
    member.wait_until_joined()
    assert consumer.commits == [{P0: 5}, {P0: 5}]


def test_a_member_without_partitions_joins_and_commits_nothing(consumer, member):
    consumer.assign()
    member.follow([])
    member.wait_until_joined()
    assert consumer.commits == []


def test_unknown_offsets_are_asked_for_again(consumer, progress, member, caplog, monkeypatch):
    monkeypatch.setattr(group, "JOIN_SECONDS", 0.01)
    consumer.assign(P0)
    with caplog.at_level(logging.WARNING):
        member.follow([])
    assert "offsets of the group g failed and is retried" in caplog.text
    with pytest.raises(UnreachableError, match="group g assigned no partitions"):
        member.wait_until_joined()
    consumer.offsets = {P0: 5}
    member.follow([])
    assert progress.positions() == {P0: 5}


def test_changed_positions_are_committed_once_a_second_until_the_broker_has_them(consumer, progress, member):
    progress.begin(P0, 0)
    consumer.error = KafkaError("gone")
    member.commit(10.0)
    member.commit(10.0 + COMMIT_SECONDS / 2)
    consumer.error = None
    member.commit(10.0 + COMMIT_SECONDS)
    member.commit(10.0 + 2 * COMMIT_SECONDS)
    assert consumer.commits == [{P0: 1}, {P0: 1}]


@pytest.mark.parametrize("error", [None, KafkaError("gone")])
def test_a_leaving_member_commits_with_its_metadata_and_closes_the_consumer(consumer, progress, member, error):
    progress.begin(P0, 4)
    consumer.error = error
    member.leave(lambda partition: f"seen {partition.partition}")
    assert (consumer.commits, consumer.metadata, consumer.closed) == ([{P0: 5}], ["seen 0"], True)
