"""The shell of a stateful query: how time reaches a shard, what is kept of it, and what it tells the driver."""

from __future__ import annotations

import json
import logging
import pickle
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.observe.metrics import BATCHES_DONE, OPEN_REQUESTS
from ackstream.settings import Log
from ackstream.spark.operator import (
    SHARD_KEYS,
    SHUFFLE_PARTITIONS,
    ShardBatch,
    Told,
    _Latest,
    _log_as,
    distribute,
    operator,
    shard_keys,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from ackstream.observe.metrics import Tally


class State:
    """Spark's state of a shard."""

    def __init__(self, value: tuple[int, bytes] | None = None, watermark: int = 0) -> None:
        self.value, self.watermark = value, watermark
        self.updates, self.timeout = 0, 0

    exists = property(lambda self: self.value is not None)
    get = property(lambda self: self.value)

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802 - Spark's name
        return self.watermark

    def update(self, value: tuple[int, bytes]) -> None:
        self.value, self.updates = value, self.updates + 1

    def setTimeoutTimestamp(self, timestamp: int) -> None:  # noqa: N802 - Spark's name
        self.timeout = timestamp

    def remove(self) -> None:
        self.value = None


def test_a_worker_that_serves_several_queries_logs_as_the_one_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(format="json").model_dump()
    for name in ("correlate", "settle", "correlate"):
        _log_as(json.dumps({"log": log, "program": name, "query": name}))
        logging.getLogger("x").error("a line of %s", name)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["query"], line["message"]) for line in lines] == [
        ("correlate", "a line of correlate"),
        ("settle", "a line of settle"),
        ("correlate", "a line of correlate"),
    ]


class Remembering:
    """A shard that remembers what it was given, and waits for it."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def load(self, version: int, blob: bytes) -> None:
        assert version == 1
        self.offsets = list(blob)

    def dump(self) -> tuple[int, bytes] | None:
        return (1, bytes(self.offsets)) if self.offsets else None

    @property
    def next_timeout(self) -> int | None:
        return max(self.offsets, default=None)

    def measure(self, tally: Tally) -> None:
        tally.set(OPEN_REQUESTS, value=len(self.offsets))
        tally.count(BATCHES_DONE, "remembering")


def _frame(*rows: tuple[int, int, str | None]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["offset", "timestamp", "clock"]).astype({"offset": "int64"})
    return frame.assign(clock=pd.to_datetime(frame["clock"]))


def _handle(batch: ShardBatch) -> Iterator[pd.DataFrame]:
    with batch.restored(Remembering()) as shard:
        for frame in batch.frames:
            assert frame["offset"].dtype == "int64"
            shard.offsets += frame["offset"].tolist()
            if 0 in shard.offsets:
                shard.offsets = []
    yield pd.DataFrame({"watermark": [batch.watermark], "tick": [batch.tick]})


def _run(state: Any, *frames: pd.DataFrame) -> tuple[tuple[int, int], Any]:
    told: list[Told] = []
    (found,) = operator(_handle, told.append)(("s",), iter(frames), state)
    return (found["watermark"][0], found["tick"][0]), [(one.timeouts, one.ticks) for one in told]


def test_ticks_are_no_records_and_the_latest_is_the_time_of_the_batch() -> None:
    state = State(watermark=900)
    times, _ = _run(
        state,
        _frame((1, 950, None), (7, 1_200, "2026-11-23"), (2, 1_500, None)),
        _frame((8, 1_300, "2026-11-23")),
        _frame((9, 1_100, "2026-11-23"), (3, 1_600, None)),
    )
    assert times == (900, 1_300)
    assert state.value == (1, bytes([1, 2, 3]))


@pytest.mark.parametrize("frames", [[], [_frame()], [_frame((1, 5, None))], [_frame((7, 800, "2026-11-23"))]])
def test_without_a_later_tick_the_time_is_that_of_the_batches_before(frames: list[pd.DataFrame]) -> None:
    assert _run(State(watermark=900), *frames)[0] == (900, 900)


def test_what_a_tick_does_not_change_is_not_written_again() -> None:
    state = State((1, b"\x05"))
    _run(state, _frame((7, 3, "2026-11-23")))
    assert (state.updates, state.timeout) == (0, 5)
    _run(state, _frame((6, 3, None)))
    assert (state.value, state.updates, state.timeout) == ((1, b"\x05\x06"), 1, 6)


def test_a_shard_tells_what_it_waits_for_and_when_it_waits_for_nothing() -> None:
    state = State()
    assert _run(state, _frame((5, 3, None)))[1] == [({"s": 5}, {})]
    assert _run(state, _frame((9, 4, "2026-11-23")))[1] == [({"s": 5}, {"s": 4})]
    # what has not happened although its time has come waits for the next tick
    assert _run(state, _frame((9, 12, "2026-11-23")))[1] == [({"s": 13}, {"s": 12})]
    assert _run(state, _frame((0, 5, None)))[1] == [({"s": None}, {})]
    assert state.value is None


def test_a_timeout_counts_as_reported_after_a_tick_once_its_shard_has_read_that_tick() -> None:
    batches = [
        [Told({"s": 500, "t": 900}, {"s": 400, "t": 400})],
        [Told({"s": 450}, {}), Told({"t": None}, {"t": 600})],
        [Told({"s": 450}, {"s": 600})],
    ]
    told, found = Told(), []
    for reports in batches:
        told = reduce(_Latest().addInPlace, reports, told)
        found.append((told.due(0), told.due(600)))
    assert found == [(500, 900), (450, None), (450, 450)]


def test_the_driver_adds_what_shards_count_and_knows_what_each_holds_now() -> None:
    told: list[Told] = []
    states = {"s": State(), "t": State()}
    for key, offset in (("s", 5), ("t", 6), ("s", 7)):
        list(operator(_handle, told.append)((key,), iter([_frame((offset, 3, None))]), states[key]))
    merged = pickle.loads(pickle.dumps(reduce(_Latest().addInPlace, told, _Latest().zero(Told()))))
    figures = merged.figures()
    # two records in one shard, one in the other, in three batches
    assert figures.gauges == {(OPEN_REQUESTS.name,): 3}
    assert figures.counters == {(BATCHES_DONE.name, "remembering"): 3}


# -- shards and tasks --------------------------------------------------------------------------------------------------


@given(shards=st.integers(1, 64), tasks=st.integers(1, 16), seed=st.integers())
def test_no_task_gets_more_shards_than_another_one_has_to(shards: int, tasks: int, seed: int) -> None:
    def task(key: int) -> int:
        return hash((seed, key))

    keys = spread(shards, tasks, task)
    counts = Counter(task(key) % tasks for key in keys)
    assert len(set(keys)) == shards
    assert max(counts.values()) == -(-shards // tasks)


@pytest.mark.parametrize(("shards", "tasks"), [(2, 2), (6, 2), (8, 2), (16, 8), (3, 4)])
def test_spark_finds_for_each_task_as_many_shards_as_for_the_others(
    spark: SparkSession, shards: int, tasks: int
) -> None:
    spark.conf.set(SHUFFLE_PARTITIONS, str(tasks))
    (keys,) = distribute(spark, shards, {}).values()
    rows = spark.createDataFrame([(key,) for key in keys], "key INT").repartition(tasks, "key")
    found = rows.selectExpr("spark_partition_id() AS task").groupBy("task").count().collect()
    assert max(count for _, count in found) == -(-shards // tasks)
    assert len(found) == min(shards, tasks)
    assert shard_keys(spark, shards) == keys


def test_a_checkpoint_keeps_its_keys(spark: SparkSession) -> None:
    assert distribute(spark, 2, {SHARD_KEYS: [0, 2]}) == {SHARD_KEYS: [0, 2]}
    assert shard_keys(spark, 2) == [0, 2]
