"""The work of correlate's driver itself, with few partitions and shards and with many: milliseconds by part."""

from __future__ import annotations

import json
import pickle
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from kafka import TopicPartition

from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.observe.metrics import Tally
from ackstream.settings import Correlate
from ackstream.spark.clock import QueryClock, Watched
from ackstream.spark.operator import Told, _Latest
from ackstream.spark.progress import _partitions, lags, lost_records
from ackstream.testing.system import process
from benchmarks.progress import seconds
from benchmarks.workload import Workload

READ = ("signals", "acks", "twin-acks")
REPEATS = 20
LAGGING_MS, LATER_MS = 5_000, 60_000


@dataclass(frozen=True)
class Width:
    """How wide a system is; ``tasks`` are those of a stage with state."""

    name: str
    partitions: int
    shards: int
    tasks: int


NARROW = Width("2 cores", 12, 6, 2)
WIDE = Width("100 cores", 1_000, 400, 100)
SMALL = Width("small", 60, 24, 6)


class _StillLease:
    """A lease whose topic answers at once with a time."""

    run = "1"

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def sign(self, _log: Any) -> int:
        return int(self.now * 1000)


class _StillBroker:
    """A broker that answers at once."""

    lease = None

    def __init__(self, ends: Mapping[Any, int]) -> None:
        self._ends = ends
        self.ticks: list[int] = []

    def ends(self) -> tuple[dict[Any, int], bool]:
        return dict(self._ends), False

    def tick(self, _key: bytes, time_ms: int) -> int:
        self.ticks.append(time_ms)
        return time_ms

    def timestamp_at(self, _partition: Any, _offset: int, _end: int) -> int:
        return 1


def decisions(width: Width) -> dict[str, float]:
    """Measure the clock's decisions: with nothing due, when a deadline has come, and while all partitions lag."""
    ends = {TopicPartition(name, number): 1_000 for name in READ for number in range(width.partitions // len(READ))}
    behind = dict.fromkeys(ends, 500)
    return {
        "clock: nothing is due": _steps(width, ends, ends, due=False),
        "clock: a tick": _steps(width, ends, ends, due=True),
        "clock: decide while all partitions lag": _steps(width, ends, behind, due=True),
    }


def _steps(width: Width, ends: Mapping[Any, int], read: Mapping[Any, int], *, due: bool) -> float:
    lease, own = _StillLease(), _StillBroker(ends)
    clock: Any = QueryClock(lease, 0, 1.0)  # type: ignore[arg-type]
    said = Told()
    clock.follow(Watched(lambda: read, lambda: said), lambda: None)
    found = []
    with patch("ackstream.spark.clock.passing", lambda: lease.now):
        for _ in range(2 * REPEATS):
            lease.now += 1 if due else 0.05
            # a deadline that came just now, or one that has been held up
            at = (
                int(lease.now * 1000) - (10 if read is ends else LAGGING_MS)
                if due
                else int(lease.now * 1000) + LATER_MS
            )
            said = Told(dict.fromkeys(range(width.shards), at), {0: 1})
            began = time.perf_counter()
            clock.step(own)
            found.append(time.perf_counter() - began)
    if due and read is ends and len(own.ticks) < REPEATS:
        raise RuntimeError(f"{len(own.ticks)} ticks of {2 * REPEATS} looks")
    return statistics.median(found[REPEATS:]) * 1e3


def reports(width: Width) -> dict[str, float]:
    """Measure the reports of a batch's shards to the driver: the accumulator as Spark merges it, a task at a time."""
    writer = Writer(CorrelateTopics(), "query", 1)
    shard = CorrelateShard(Correlate(), CorrelateTopics(), writer)
    process(shard, Workload(200).records())
    tally = Tally()
    shard.measure(tally)
    gauges, tally.gauges = tally.gauges, {}
    merge = _Latest().addInPlace
    of_tasks = []
    for task in range(width.tasks):
        own = range(task, width.shards, width.tasks)
        told = Told(dict.fromkeys(own, 2), dict.fromkeys(own, 1), dict.fromkeys(own, gauges), tally)
        of_tasks.append(pickle.dumps(told))

    def batch() -> Told:
        value = Told()
        for update in of_tasks:
            value = merge(value, pickle.loads(update))
        return value

    whole = batch()
    return {
        "reports of a batch: merge": seconds(batch, REPEATS) * 1e3,
        "reports: figures for a scrape": seconds(whole.figures, REPEATS) * 1e3,
    }


def offsets(width: Width) -> dict[str, float]:
    """Measure the work on the offsets of a batch."""
    each = range(width.partitions // len(READ))
    text = json.dumps({name: {str(number): 1_000_000 + number for number in each} for name in READ})
    offsets = _partitions(text)
    ends = {partition: offset + 5 for partition, offset in offsets.items()}
    return {
        "offsets of a batch: parse": seconds(lambda: _partitions(text), REPEATS) * 1e3,
        "offsets: lag and losses": seconds(lambda: (lags(offsets, ends), lost_records(offsets, ends, offsets)), REPEATS)
        * 1e3,
    }
