"""What is counted of a query's batches, from Spark's own progress; each of them once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from ackstream.observe.metrics import (
    AHEAD,
    BATCH_SECONDS,
    BATCHES_DONE,
    INPUT_ROWS,
    LAST_BATCH,
    OVERDUE,
    PHASE_SECONDS,
    SIGN,
    STATE_BYTES,
    TICK,
)
from ackstream.spark.clock import ClockReading
from ackstream.spark.progress import QueryObservation, lags, newest

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def _progress(batch: int, seconds: float = 0.4, rows: tuple[int, ...] = (3, 4)) -> dict[str, Any]:
    """Return the progress of a batch as Spark 4.2 writes it, in part."""
    return {
        "id": "3f7f2b1e-0c5d-4b43-8a55-0f2d1f9b8e11",
        "name": "correlate",
        "timestamp": "2026-11-23T08:00:00.000Z",
        "batchId": batch,
        "batchDuration": int(seconds * 1000),
        "durationMs": {"addBatch": 300, "queryPlanning": 50, "triggerExecution": int(seconds * 1000)},
        "stateOperators": [{"numRowsTotal": 6, "memoryUsedBytes": 1_000}, {"memoryUsedBytes": 24}],
        "sources": [{"description": "KafkaV2[x]", "numInputRows": count} for count in rows],
    }


class _Progresses:
    """The JVM's array of the last batches, which counts what is read of it."""

    def __init__(self, *batches: int) -> None:
        self.batches, self.read = batches, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        batch = self.batches[index]
        return SimpleNamespace(batchId=lambda: batch, json=lambda: self._json(batch))

    def _json(self, batch: int) -> str:
        self.read += 1
        return json.dumps(_progress(batch))


def test_each_batch_counts_once_however_often_and_late_one_looks() -> None:
    observation = QueryObservation("correlate")
    for array, read in ((_Progresses(), 0), (_Progresses(0, 1), 2), (_Progresses(0, 1), 0), (_Progresses(1, 2, 3), 2)):
        observation.look(newest(array, observation.last), None)
        assert array.read == read
    assert observation.last == 3
    tally = observation.tally
    assert tally.counters == {
        (BATCHES_DONE.name, "correlate"): 4,
        (INPUT_ROWS.name, "correlate"): 28,
        (PHASE_SECONDS.name, "correlate", "addBatch"): pytest.approx(1.2),
        (PHASE_SECONDS.name, "correlate", "queryPlanning"): pytest.approx(0.2),
    }
    assert tally.histograms[BATCH_SECONDS.name, "correlate"][-1] == pytest.approx(1.6)
    assert tally.gauges == {(LAST_BATCH.name, "correlate"): 1_795_420_800.4, (STATE_BYTES.name, "correlate"): 1_024}


def test_what_was_read_before_does_not_change_while_another_thread_has_it() -> None:
    observation = QueryObservation("correlate")
    observation.look([_progress(0)], None)
    before = observation.tally
    observation.look([_progress(1)], None)
    assert before.counters[BATCHES_DONE.name, "correlate"] == 1


def test_a_progress_without_what_only_some_queries_have_is_counted() -> None:
    observation = QueryObservation("archive")
    observation.look([{"name": "archive", "timestamp": "2026-11-23T08:00:00.000Z", "batchId": 0}], None)
    assert observation.tally.counters == {(BATCHES_DONE.name, "archive"): 1}


def test_a_clock_that_has_given_no_sign_yet_has_none_and_one_that_ticks_shows_how_late_it_is() -> None:
    observation = QueryObservation("x")
    observation.look([], ClockReading(None, 0, 0, 0))
    assert observation.tally.gauges == {(OVERDUE.name, "x"): 0, (AHEAD.name, "x"): 0}
    observation.look([], ClockReading(2.0, 7_000, 1_500, 30_000))
    found = observation.tally.gauges
    assert (found[OVERDUE.name, "x"], found[AHEAD.name, "x"], found[TICK.name, "x"]) == (1.5, 30.0, 7.0)
    assert (SIGN.name, "x") in found


@pytest.mark.parametrize(
    ("offsets", "ends", "found"),
    [
        ({}, {A0: 5}, {}),
        ({A0: 2, A1: 5}, {A0: 5, A1: 5}, {"a": 3}),
        # a partition that is new, and an end that was looked up before the offset
        ({A0: 2}, {A0: 5, A1: 9, TopicPartition("b", 0): 1}, {"a": 3}),
        ({A0: 7}, {A0: 5}, {"a": 0}),
    ],
)
def test_lag_is_what_lies_between_offsets_and_ends(
    offsets: dict[TopicPartition, int], ends: dict[TopicPartition, int], found: dict[str, int]
) -> None:
    assert lags(offsets, ends) == found
