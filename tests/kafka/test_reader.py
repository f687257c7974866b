from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from kafka import TopicPartition
from kafka.errors import GroupAuthorizationFailedError, KafkaError

from ackstream.errors import UnreachableError
from ackstream.kafka import reader as kafka_reader
from ackstream.kafka.connection import PartitionAssignment, offsets_since
from ackstream.kafka.library import BatchTooLargeError, partition_of
from ackstream.kafka.reader import BACKOFF_SECONDS, TopicReader, check_topics
from ackstream.settings import Kafka

NAME = b"r1"


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("x-signals", "run `ackstream up`, or correct kafka.topic_prefix"),
        ("signals", "create it, and name it in correlate.request_topics if it has requests; or correct the name."),
    ],
)
def test_a_topic_that_is_missing_is_named_with_the_one_who_creates_it(topic: str, remedy: str) -> None:
    consumer = SimpleNamespace(topics=lambda: {"orders"})
    with pytest.raises(UnreachableError, match=f"There is no topic {topic} at b:1: {remedy}"):
        check_topics(consumer, Kafka(bootstrap="b:1", topic_prefix="x-"), reads=["orders", topic])


class Consumer:
    """A consumer of topics with 10 records per partition; the times of records are their offsets."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions
        self.assigned: list[Any] = []
        self.positions: dict[Any, int] = {}
        self.failing = False

    def partitions_for_topic(self, topic: str) -> set[int]:
        if self.failing:
            raise KafkaError("away")
        return set(range(self.partitions[topic]))

    def assign(self, assigned: list[Any]) -> None:
        self.assigned = assigned

    def end_offsets(self, assigned: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(assigned, 10)

    def offsets_for_times(self, times: dict[Any, int]) -> dict[Any, Any]:
        return {found: SimpleNamespace(offset=max(0, time)) if time < 10 else None for found, time in times.items()}

    def seek(self, partition: Any, offset: int) -> None:
        self.positions[partition] = offset


def _assignment(consumer: Consumer) -> PartitionAssignment:
    return PartitionAssignment(consumer, NAME, whole=("all",), addressed="mine")


def test_it_begins_at_the_ends_and_reads_only_its_own_partition_where_that_is_enough() -> None:
    consumer = Consumer(all=2, mine=5)
    assigned = _assignment(consumer)
    own = TopicPartition("mine", partition_of(NAME, 5))
    assert set(consumer.assigned) == {TopicPartition("all", 0), TopicPartition("all", 1), own}
    assert set(consumer.positions.values()) == {10}
    assert assigned.of("mine") == [own]


def test_partitions_that_are_added_are_read_from_their_beginning() -> None:
    consumer = Consumer(all=1, mine=1)
    assigned = _assignment(consumer)
    consumer.partitions["all"] = 2
    assigned.update()
    assert assigned.of("all") == [TopicPartition("all", 0), TopicPartition("all", 1)]
    assert consumer.positions[TopicPartition("all", 1)] == 0
    assert consumer.positions[TopicPartition("all", 0)] == 10


def test_records_for_the_name_are_followed_to_another_partition_and_the_old_one_is_kept() -> None:
    consumer = Consumer(all=1, mine=1)
    assigned = _assignment(consumer)
    grown = next(count for count in range(2, 9) if partition_of(NAME, count) != 0)
    consumer.partitions["mine"] = grown
    assigned.update()
    assert assigned.of("mine") == [TopicPartition("mine", 0), TopicPartition("mine", partition_of(NAME, grown))]
    # whatever the clocks of client and broker: all that came there since this client began
    assert consumer.positions[assigned.of("mine")[1]] == 0


def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    consumer = Consumer(all=1, mine=1)
    assigned = _assignment(consumer)
    consumer.partitions["mine"] = next(count for count in range(2, 9) if partition_of(NAME, count) != 0)
    consumer.failing = True
    with pytest.raises(KafkaError):
        assigned.update()
    assert len(assigned.of("mine")) == 1
    consumer.failing = False
    assigned.update()
    assert len(assigned.of("mine")) == 2


def test_partitions_that_are_not_known_for_a_moment_change_nothing() -> None:
    consumer = Consumer(all=2, mine=1)
    assigned = _assignment(consumer)
    consumer.partitions["all"] = 0
    assigned.update()
    assert len(assigned.of("all")) == 2


def test_a_time_is_the_first_record_since_or_the_end() -> None:
    partition = TopicPartition("all", 0)
    assert offsets_since(Consumer(all=1), [partition], 4) == {partition: 4}
    assert offsets_since(Consumer(all=1), [partition], 99) == {partition: 10}
    assert offsets_since(Consumer(all=1), [], 4) == {}


def test_a_record_that_cannot_be_unpacked_ends_no_reader_whose_partition_another_one_has_by_now() -> None:
    def take() -> NoReturn:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    def poll(**_: object) -> None:
        take()

    def seek(*_: object) -> NoReturn:
        raise ValueError("Unassigned partition")

    part = SimpleNamespace(topic_partition=TopicPartition("t", 0), fetch_offset=5, next_fetch_offset=5)
    fetcher = SimpleNamespace(_next_partition_records=part, _completed_fetches=[])
    coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
    consumer = SimpleNamespace(poll=poll, seek=seek, paused=set, _fetcher=fetcher, _coordinator=coordinator)
    reader = TopicReader(consumer)
    reader.stop.set()
    assert reader.read() == []
    assert reader.unreadable == 0


def test_a_batch_that_is_too_large_is_passed_over_whole_and_reported_once() -> None:
    def take() -> NoReturn:
        error = BatchTooLargeError("The batch has more than 64 MiB once decompressed.")
        error.following = 105
        raise error

    part = SimpleNamespace(topic_partition=TopicPartition("t", 3), fetch_offset=5, next_fetch_offset=5)
    fetcher = SimpleNamespace(_next_partition_records=part, _completed_fetches=[])
    coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
    sought: list[Any] = []
    consumer = SimpleNamespace(
        poll=lambda **_: take(), seek=lambda *place: sought.append(place), _fetcher=fetcher, _coordinator=coordinator
    )
    reader, seen = TopicReader(consumer), []
    reader.on_unreadable = lambda *place: seen.append(place[:2])
    assert (reader.read(), reader.unreadable) == ([], 1)
    assert (sought, seen) == ([(TopicPartition("t", 3), 105)], [(TopicPartition("t", 3), 5)])


def test_an_error_that_is_not_about_a_record_skips_none() -> None:
    def poll(**_: object) -> NoReturn:
        raise GroupAuthorizationFailedError

    sought: list[Any] = []
    # a poll before has left records
    part = SimpleNamespace(topic_partition=TopicPartition("t", 0), fetch_offset=5, next_fetch_offset=5)
    fetcher = SimpleNamespace(_next_partition_records=part, _completed_fetches=[])
    coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
    consumer = SimpleNamespace(
        poll=poll, seek=lambda *place: sought.append(place), paused=set, _fetcher=fetcher, _coordinator=coordinator
    )
    reader = TopicReader(consumer)
    reader.stop.set()
    assert reader.read() == []
    assert (sought, reader.unreadable) == ([], 0)


class Clock:
    """The time of a reader, which passes in its pauses alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_broker_that_refuses_at_once_is_asked_again_and_again_but_logged_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def poll(**_: object) -> NoReturn:
        asked.append(clock.now)
        raise GroupAuthorizationFailedError

    asked: list[float] = []
    clock = Clock()
    monkeypatch.setattr(kafka_reader, "time", clock)
    fetcher = SimpleNamespace(_next_partition_records=None)
    coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
    reader = TopicReader(SimpleNamespace(poll=poll, _fetcher=fetcher, _coordinator=coordinator), clock)  # type: ignore[arg-type]
    while clock.now < 700:
        assert reader.read() == []
    assert len(asked) == 600 / BACKOFF_SECONDS
    assert 10 < len(caplog.records) < 25
