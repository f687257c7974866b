from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core import worker
from ackstream.client.core.messages import OffsetProgress
from ackstream.client.core.worker import COMMIT_SECONDS, GroupMember
from ackstream.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable


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
    monkeypatch.setattr(worker, "JOIN_SECONDS", 0.01)
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
    monkeypatch.setattr(worker, "JOIN_SECONDS", 0.01)
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
