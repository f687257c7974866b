from __future__ import annotations

import json
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from kafka import TopicPartition

from ackstream.errors import StoppedError
from ackstream.settings import Kafka
from ackstream.spark import progress
from ackstream.spark.batches import repeating
from ackstream.spark.progress import compare_ids, consumed_offsets, first_offsets, lost_records

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
    with pytest.raises(StoppedError, match="The topic signals was created anew while correlate read it"):
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
        pytest.raises(StoppedError, match="The topic signals was created anew while correlate read it"),
        progress.committer(Kafka(), query, "group", ["signals"], {"signals": "1"}, measures=False),
    ):
        assert ended.wait(60)


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
