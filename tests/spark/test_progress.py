from __future__ import annotations

import json
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from kafka import TopicPartition

from ackstream.errors import StartError, StoppedError
from ackstream.observe.metrics import FIGURES, TRANSACTION
from ackstream.settings import Settings
from ackstream.spark import progress
from ackstream.spark.batches import repeating
from ackstream.spark.progress import (
    TopicWatch,
    compare_ids,
    compare_partitions,
    consumed_offsets,
    first_offsets,
    lost_records,
    open_transactions,
    planned_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def _progress(description: str, start: Any, end: Any) -> Any:
    return SimpleNamespace(description=description, startOffset=start and json.dumps(start), endOffset=json.dumps(end))


def test_offsets_are_those_of_the_kafka_sources_of_the_last_batch_and_of_the_first() -> None:
    delta = _progress("DeltaSource[x]", {"reservoirVersion": 1}, {"reservoirVersion": 2})
    first = SimpleNamespace(sources=[delta, _progress("KafkaV2[x]", {"a": {"0": 5}}, {"a": {"0": 7, "1": 2}})])
    query: Any = SimpleNamespace(lastProgress=first, recentProgress=[first])
    assert consumed_offsets(query) == {TopicPartition("a", 0): 7, TopicPartition("a", 1): 2}
    assert first_offsets(query) == {TopicPartition("a", 0): 5}
    new: Any = SimpleNamespace(lastProgress=None, recentProgress=[])
    assert consumed_offsets(new) == first_offsets(new) == {}


def test_the_jvm_is_asked_for_the_planned_offsets_of_a_batch_once_and_else_whether_they_are_the_same() -> None:
    text, offset, read = {"a": {"0": 5}}, mock.Mock(), 0

    def values() -> Any:
        nonlocal read
        read += 1
        return SimpleNamespace(hasNext=mock.Mock(side_effect=[True, False]), next=lambda: offset)

    offset.getClass.return_value.getSimpleName.return_value = "KafkaSourceOffset"
    offset.json = lambda: json.dumps(text)
    plan = SimpleNamespace(valuesIterator=values, toString=lambda: json.dumps(text))
    execution = SimpleNamespace(availableOffsets=lambda: plan)
    planned = planned_offsets(SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution)))  # type: ignore[arg-type]
    assert [planned() for _ in range(9)] == [{TopicPartition("a", 0): 5}] * 9
    assert read == 1
    text["a"]["0"] = 6
    assert [planned() for _ in range(9)] == [{TopicPartition("a", 0): 6}] * 9
    assert read == 2


@pytest.mark.parametrize(
    ("before", "after", "beginnings", "lost"),
    [
        ({}, {"a": 9}, {"a": 4}, {}),
        ({"a": 2}, {"a": 9}, {"a": 2}, {}),
        ({"a": 2}, {"a": 9}, {"a": 4}, {"a": 2}),
        ({"a": 2, "b": 0}, {"a": 3, "b": 5}, {"a": 9, "b": 0}, {"a": 1}),
        # a partition that is no longer there, and one whose beginning is not known
        ({"a": 2, "b": 1}, {"b": 5}, {"a": 9}, {}),
    ],
)
def test_what_was_deleted_before_it_was_read_is_counted(before: Any, after: Any, beginnings: Any, lost: Any) -> None:
    assert lost_records(before, after, beginnings) == lost


def test_a_query_whose_topic_is_created_anew_is_stopped() -> None:
    known: dict[str, str] = {}
    compare_ids(known, {"signals": "1", "acks": "2"}, "correlate")
    # a topic that is being created may be missing for a moment
    compare_ids(known, {"acks": "2"}, "correlate")
    with pytest.raises(StoppedError, match="The topic signals was re-created while correlate read it"):
        compare_ids(known, {"signals": "3", "acks": "2"}, "correlate")


def test_a_topic_that_was_created_anew_while_the_query_started_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids are those of the checkpoint: a first look, after the start, could find the new topic."""
    ended = threading.Event()
    query: Any = SimpleNamespace(name="correlate", stop=ended.set, lastProgress=None, recentProgress=[])
    monkeypatch.setattr(progress, "SECONDS", 0.001)
    monkeypatch.setattr(progress, "connect_consumer", lambda *_: mock.Mock())
    monkeypatch.setattr(progress, "connect_admin", lambda *_: nullcontext())
    monkeypatch.setattr(progress.kafka_topics, "ids", lambda *_: {"signals": "2"})
    with (
        pytest.raises(StoppedError, match="The topic signals was re-created while correlate read it"),
        progress.committer(Settings(), query, ["signals"], ["signals"], {"signals": "1"}),
    ):
        assert ended.wait(60)


def test_a_topic_with_fewer_partitions_than_before_stops_the_query() -> None:
    known: dict[str, int] = {}
    for found in ({"replies": 4, "acks": 2}, {"replies": 8, "acks": 2}):
        compare_partitions(known, found, "correlate")
    with pytest.raises(StoppedError, match=r"replies was re-created with 4 partitions while correlate ran, and had 8"):
        compare_partitions(known, {"replies": 4, "acks": 2}, "correlate")


A, B = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.mark.parametrize(
    ("known", "stable", "ends", "found"),
    [
        ({}, {A: 5, B: 7}, {A: 5, B: 7}, {}),
        ({}, {A: 5, B: 7}, {A: 6, B: 7}, {A: (5, 30.0)}),
        ({A: (5, 10.0)}, {A: 5, B: 7}, {A: 6, B: 9}, {A: (5, 10.0), B: (7, 30.0)}),
        # another transaction than before, and one that has ended
        ({A: (5, 10.0), B: (7, 10.0)}, {A: 6, B: 9}, {A: 8, B: 9}, {A: (6, 30.0)}),
        # the end was looked up first: records came meanwhile
        ({}, {A: 8}, {A: 7}, {}),
    ],
    ids=["none", "first-look", "still-open", "next-one", "no-transaction"],
)
def test_a_transaction_is_open_while_the_end_of_what_is_read_stands_still_before_the_end(
    known: Any, stable: Any, ends: Any, found: Any
) -> None:
    assert open_transactions(known, stable, ends, 30.0) == found


class Topics:
    """A broker's topics, for the looks of a job that reads ``acks``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partition = TopicPartition("acks", 0)
        self.stable, self.end = 17, 17
        self.fault: StartError | None = None
        self.watch = TopicWatch(Settings(), "correlate", ["acks"], ["acks", "replies"])
        monkeypatch.setattr(progress.kafka_topics, "ids", lambda *_: {"acks": "1"})
        monkeypatch.setattr(progress.kafka_topics, "check", self._check)
        monkeypatch.setattr(progress.kafka_topics, "ends", lambda *_: {self.partition: self.end})

    def _check(self, _admin: object, _settings: Settings, names: list[str]) -> dict[str, int]:
        assert names == ["acks", "replies"]
        if self.fault is not None:
            raise self.fault
        return dict.fromkeys(names, 1)

    def look(self, now: float) -> float:
        """Look, and return the figure."""
        consumer = mock.Mock(partitions_for_topic=lambda _: {0}, end_offsets=lambda _: {self.partition: self.stable})
        assert self.watch.look(consumer, None, {}, now) == {self.partition: self.stable}
        return FIGURES.read().gauges[TRANSACTION.name, "correlate", "acks"]


def test_a_topic_whose_configuration_no_start_would_accept_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics(monkeypatch)
    topics.look(0.0)
    topics.fault = StartError("The topic acks has …: run `kafka-configs.sh …`.")
    with pytest.raises(StoppedError, match=r"^The topic acks .*sh …`\. It was changed while correlate ran\.$"):
        topics.look(5.0)


def test_a_transaction_that_stays_open_is_reported_once_and_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics = Topics(monkeypatch)
    assert topics.look(0.0) == 0
    topics.end = 18
    assert [topics.look(5.0 * number) for number in range(1, 6)] == [0, 5, 10, 15, 20]
    (line,) = caplog.messages
    assert line.startswith("An open transaction in the topic acks, partition 0, holds back all records from offset 17")
    assert "sh --bootstrap-server localhost:9092 describe-producers --topic acks --partition 0`" in line
    topics.stable = 18
    assert topics.look(30.0) == 0


class Work:
    """Work that fails as often as it is told to."""

    def __init__(self, failures: float, error: Exception | None = None) -> None:
        self.failures, self.error = failures, error or ConnectionError("away")
        self.done = threading.Event()

    @contextmanager
    def connect(self) -> Iterator[Any]:
        yield self

    def __call__(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        self.done.set()


def test_work_that_fails_is_retried() -> None:
    work = Work(3)
    with repeating("test", 0.001, work.connect, patience=60):
        assert work.done.wait(60)


def test_work_that_fails_at_once_is_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    clock = mock.Mock(monotonic=lambda: work.failures / -2)
    work = Work(600)
    with (
        mock.patch("ackstream.spark.batches.time", clock),
        mock.patch("ackstream.spark.batches.RETRY_SECONDS", 0),
        repeating("test", 0, work.connect),
    ):
        assert work.done.wait(60)
    assert 5 < len(caplog.records) < 25


def test_work_that_fails_for_too_long_ends_the_block_with_a_sentence() -> None:
    ended = threading.Event()
    with (
        pytest.raises(StoppedError, match=r"^The test has failed for \d+ s, at last with ConnectionError\('away'\)\.$"),
        repeating("test", 0.001, Work(float("inf")).connect, 0.01, ended.set),
    ):
        assert ended.wait(60)


def test_work_that_cannot_go_on_is_not_retried() -> None:
    ended, work = threading.Event(), Work(float("inf"), StoppedError("gone"))
    with pytest.raises(StoppedError, match=r"^gone$"), repeating("test", 0.001, work.connect, give_up=ended.set):
        assert ended.wait(60)
