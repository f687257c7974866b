from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core import group
from ackstream.client.core.group import COMMIT_SECONDS, Assignor, GroupMember, spread
from ackstream.client.core.messages import OffsetProgress
from ackstream.errors import UnreachableError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Consumer:
    """A consumer whose assignment and offsets the test decides."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.metadata: list[str] = []
        self.error: KafkaError | None = None
        self.known: dict[TopicPartition, int] = {}
        self.closed, self.reached = False, True

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

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0, 1}

    def committed(self, partition: TopicPartition, timeout_ms: int) -> int | None:
        assert timeout_ms > 0
        if self.error is not None:
            raise self.error
        return self.known.get(partition)

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


def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "WARN_SECONDS", 0.005)
    monkeypatch.setattr(group, "JOIN_SECONDS", 0.01)


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
    no_patience(monkeypatch)
    consumer.offsets, consumer.error = {P0: 5}, KafkaError("rebalancing")
    consumer.assign(P0)
    member.follow([])
    with pytest.raises(UnreachableError):
        member.wait_until_joined()
    consumer.error = None
    member.follow([record(0, 5)])
    member.wait_until_joined()
    assert consumer.commits == [{P0: 5}, {P0: 5}]


def test_a_member_does_not_fail_because_another_one_is_busy(consumer, member, monkeypatch, caplog):
    no_patience(monkeypatch)
    consumer.known = {P1: 7}
    # nothing is assigned, but the group has offsets: it reads all that is written from now on
    member.wait_until_joined()
    assert "has assigned no partitions to this member for 0.005 s" in caplog.text


def test_a_member_without_partitions_joins_and_commits_nothing(consumer, member):
    consumer.assign()
    member.follow([])
    member.wait_until_joined()
    assert consumer.commits == []


def test_unknown_offsets_are_asked_for_again(consumer, progress, member, caplog, monkeypatch):
    no_patience(monkeypatch)
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


def test_a_member_commits_what_is_done_before_others_have_its_partitions(consumer, progress):
    late = progress.begin(P0, 4)
    late.remaining = 1
    progress.begin(P0, 5)

    def settle() -> None:
        late.remaining = 0

    GroupMember(consumer, "g", ["t"], progress, progress.start, settle=settle)
    consumer.listener.on_partitions_revoked({P0})
    assert consumer.commits == [{P0: 6}]


def test_no_record_is_to_be_handled_until_the_group_has_assigned_its_partitions_anew(consumer, member):
    consumer.assign(P0)
    assert not member.rebalancing
    consumer.listener.on_partitions_revoked({P0})
    assert (member.rebalancing, member.expelled) == (True, False)
    consumer.assign(P0)
    assert not member.rebalancing


@pytest.mark.parametrize(
    ("offset", "committed"),
    [
        # nobody else had it: what is read again is not handled again
        (0, 3),
        (3, 3),
        # another member has done the record that was at hand, and those behind it
        (51, 51),
    ],
)
def test_a_member_that_was_ruled_out_commits_nothing_before_what_others_have_committed(
    offset, committed, consumer, progress, member
):
    consumer.offsets = {P0: 0}
    consumer.assign(P0)
    member.follow([])
    for number in range(5):
        progress.begin(P0, number).remaining = number == 3
    consumer.listener.on_partitions_lost({P0})
    consumer.offsets = {P0: offset}
    consumer.assign(P0)
    member.follow([])
    assert consumer.commits[-1] == {P0: committed}
    assert [number for number in (0, 4, 51, 52) if progress.begin(P0, number)] == [51, 52]


def test_a_member_that_is_ruled_out_commits_nothing_and_claims_nothing(consumer, progress):
    assignor = Assignor()
    GroupMember(consumer, "g", ["t"], progress, progress.start, assignor)
    progress.begin(P0, 4)
    assignor.held, assignor.busy = [P0, P1], P1
    consumer.listener.on_partitions_lost({P0, P1})
    assert consumer.commits == []
    assert claims(assignor) == []


@pytest.mark.parametrize("end", [GroupMember.leave, GroupMember.abandon])
def test_the_end_of_a_member_is_not_followed_by_another_commit(consumer, progress, member, end):
    progress.begin(P0, 4)
    end(member)
    known = len(consumer.commits)
    consumer.listener.on_partitions_revoked({P0})
    assert len(consumer.commits) == known


@pytest.mark.parametrize("error", [None, KafkaError("gone")])
def test_a_leaving_member_commits_with_its_metadata_and_closes_the_consumer(consumer, progress, member, error):
    progress.begin(P0, 4)
    consumer.error = error
    member.leave(lambda partition: f"seen {partition.partition}")
    assert (consumer.commits, consumer.metadata, consumer.closed) == ([{P0: 5}], ["seen 0"], True)


def test_a_member_that_leaves_while_no_broker_is_connected_does_not_wait_for_its_commit(consumer, progress, member):
    progress.begin(P0, 4)
    consumer.reached = False
    member.leave()
    assert (consumer.commits, consumer.closed) == ([], True)


# -- how a group spreads its partitions --------------------------------------------------------------------------------


PARTITIONS = [TopicPartition(topic, number) for topic in ("events", "signals") for number in range(8)]
_members = st.lists(st.lists(st.sampled_from(PARTITIONS), unique=True), min_size=1, max_size=6)


@given(_members, st.integers(0, 16))
def test_each_partition_has_one_member_and_all_have_about_as_many(held, number):
    partitions = PARTITIONS[:number]
    members = {f"m{index}": ({"events", "signals"}, mine) for index, mine in enumerate(held)}
    found = spread(partitions, members)
    assert sorted(each for given in found.values() for each in given) == sorted(partitions)
    sizes = [len(given) for given in found.values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.permutations(PARTITIONS), st.lists(st.integers(0, 5), min_size=16, max_size=16))
def test_a_member_keeps_the_partition_at_hand_whoever_comes_or_goes(order, owners):
    held = {f"m{owner}": [] for owner in range(6)}
    for partition, owner in zip(order, owners, strict=True):
        held[f"m{owner}"].append(partition)
    found = spread(PARTITIONS, {name: ({"events", "signals"}, mine) for name, mine in held.items()})
    assert all(mine[0] in found[name] for name, mine in held.items() if mine)


def test_a_group_that_is_even_stays_as_it_is():
    held = {"a": PARTITIONS[::2], "b": PARTITIONS[1::2]}
    members = {name: ({"events", "signals"}, mine) for name, mine in held.items()}
    assert {name: sorted(given) for name, given in spread(PARTITIONS, members).items()} == held


def test_a_member_that_reads_one_topic_is_given_no_other():
    found = spread(PARTITIONS, {"a": ({"signals"}, PARTITIONS), "b": ({"events", "signals"}, [])})
    assert Counter(each.topic for each in found["a"]) == {"signals": 8}


def claims(assignor: Assignor) -> list[TopicPartition]:
    return msgspec.json.decode(assignor.metadata({"t"}).user_data, type=list[TopicPartition])


def test_the_partitions_that_a_member_holds_are_told_to_the_one_that_assigns():
    first, second = Assignor(), Assignor()
    first.held, first.busy = [P0, P1], P1
    members = [
        SimpleNamespace(member_id=name, metadata=assignor.metadata({"t"}))
        for name, assignor in (("a", first), ("b", second))
    ]
    assert claims(first) == [P1, P0]
    found = second.assign(SimpleNamespace(partitions_for_topic=lambda _: {0, 1}), members)
    assert {name: given.partitions() for name, given in found.items()} == {"a": [P1], "b": [P0]}
    first.on_assignment(found["a"], 3)
    assert first.held == [P1]
