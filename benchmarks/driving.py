"""What the driver of correlate does itself, with few partitions and shards and with many: milliseconds by part."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.jobs.correlate import job
from ackstream.jobs.correlate.emissions import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.kafka.clients import connect_consumer
from ackstream.settings import Correlate
from ackstream.spark.clock import ClockBroker, QueryClock, Watched
from ackstream.spark.lease import LeaseLog
from ackstream.spark.operator import Told, _Latest
from ackstream.spark.progress import _partitions, consumed_offsets, lags, lost_records, planned_offsets
from ackstream.telemetry.figures import Tally
from benchmarks import broker
from benchmarks.common import seconds
from benchmarks.progress import batches, typical, wait
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.settings import Settings
    from benchmarks.common import Bench

READ = ("signals", "acks", "twin-acks")
REPEATS = 20
LAGGING_MS, LATER_MS = 5_000, 60_000
PATIENCE = 300.0
METHOD = (
    "The driver's own code at given numbers of partitions (over the three topics that correlate reads), shards and "
    "tasks. decide, look while nothing is due, merge, parse: alone, in this process, median of 20; Kafka: the clock's "
    "and the committer's questions to a broker with so many partitions; batches: correlate in this session on these "
    "topics, a few messages every batch, medians by Spark's progress; task: an empty job of 1,000 tasks / 1,000."
)


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


def measure(bench: Bench) -> dict[str, Any]:
    """Measure the parts, narrow and wide."""
    widths = (NARROW, SMALL) if bench.small else (NARROW, WIDE)
    found = {width.name: _measure(bench, width) for width in widths}
    names = [f"{width.partitions:,} partitions, {width.shards} shards" for width in widths]
    rows = [(part, *(found[width.name].get(part) for width in widths)) for part in found[widths[0].name]]
    bench.table("The driver of correlate, ms", ("what", *names), rows)
    return {"method": METHOD, "widths": [vars(width) for width in widths], "milliseconds": found}


def _measure(bench: Bench, width: Width) -> dict[str, float]:
    settings = _topics(bench, width)
    return {
        **decisions(width),
        **reports(width),
        **offsets(width),
        **_kafka(settings),
        **_batches(bench, settings),
        "empty task": _task(bench),
    }


def _topics(bench: Bench, width: Width) -> Settings:
    """Create the topics that correlate reads with so many partitions, and the others as they are by default."""
    prefix = f"bench-{os.getpid()}-wide-{width.partitions}-"
    for name in READ:
        bench.offsets.create(prefix + name, width.partitions // len(READ))
    correlate = {
        "shards": width.shards,
        "shuffle_partitions": min(width.tasks, bench.spark.sparkContext.defaultParallelism),
    }
    return bench.settings("wide", prefix=prefix, correlate=correlate)


# -- alone -------------------------------------------------------------------------------------------------------------


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

    def tick(self, _key: bytes, time_ms: int) -> None:
        self.ticks.append(time_ms)

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
            said = Told(dict.fromkeys(range(width.shards), at), asked=True)
            began = time.perf_counter()
            clock.step(own)
            found.append(time.perf_counter() - began)
    if due and read is ends and len(own.ticks) < REPEATS:
        raise RuntimeError(f"{len(own.ticks)} ticks of {2 * REPEATS} looks")
    return statistics.median(found[REPEATS:]) * 1e3


def reports(width: Width) -> dict[str, float]:
    """Measure what the shards of a batch report to the driver: the accumulator as Spark merges it, a task at a time."""
    writer = Writer(CorrelateTopics(), "query", 1)
    shard = CorrelateShard(Correlate(), CorrelateTopics(), writer)
    shard.process(Workload(200).records(), 0)
    tally = Tally()
    shard.measure(tally)
    gauges, tally.gauges = tally.gauges, {}
    merge = _Latest().addInPlace
    of_tasks = []
    for task in range(width.tasks):
        own = range(task, width.shards, width.tasks)
        of_tasks.append(pickle.dumps(Told(dict.fromkeys(own, 1), True, dict.fromkeys(own, gauges), tally)))  # noqa: FBT003

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
    """Measure what is done with the offsets of a batch."""
    each = range(width.partitions // len(READ))
    text = json.dumps({name: {str(number): 1_000_000 + number for number in each} for name in READ})
    offsets = _partitions(text)
    ends = {partition: offset + 5 for partition, offset in offsets.items()}
    return {
        "offsets of a batch: parse": seconds(lambda: _partitions(text), REPEATS) * 1e3,
        "offsets: lag and losses": seconds(
            lambda: (lags(offsets, ends, lambda one: one.topic), lost_records(offsets, ends, offsets)), REPEATS
        )
        * 1e3,
    }


# -- on Kafka ----------------------------------------------------------------------------------------------------------


def _kafka(settings: Settings) -> dict[str, float]:
    with ExitStack() as stack:
        lease = LeaseLog(stack, settings.kafka, settings.kafka.topic("correlate-lease"))
        own = ClockBroker(lease, settings, "clock", READ)
        consumer = connect_consumer(settings.kafka, "bench-driving")
        stack.callback(consumer.close)
        ends, _ = own.ends()
        partitions = list(ends)
        filled = [one for one in partitions if one.topic == settings.kafka.topic("signals")]
        target = broker.producer(settings.kafka.bootstrap)
        broker.heartbeat(target, filled)
        target.flush()
        lagging = itertools.cycle(filled)
        committed = {one: OffsetAndMetadata(0, "", -1) for one in partitions}

        return {
            "Kafka: ends for a tick": seconds(own.ends, REPEATS) * 1e3,
            "Kafka: the oldest unread record of a partition": seconds(
                lambda: own.timestamp_at(next(lagging), 0, 1), REPEATS
            )
            * 1e3,
            "Kafka: commit the offsets": seconds(lambda: consumer.commit(committed), REPEATS) * 1e3,
            "Kafka: ends for the lag": seconds(lambda: consumer.end_offsets(partitions), REPEATS) * 1e3,
        }


# -- in Spark ----------------------------------------------------------------------------------------------------------


def _batches(bench: Bench, settings: Settings) -> dict[str, float]:
    """Run correlate on these topics with little to do; return what Spark reports of a batch."""
    rounds, warm = (6, 3) if bench.small else (15, 5)
    workload = Workload(20 * rounds, timeout="1s")
    messages = workload.kafka(settings.kafka.topic_prefix)
    with job.JOB.running(bench.spark, settings) as query:
        for number in range(rounds):
            broker.produce(settings.kafka.bootstrap, itertools.islice(messages, 40))
            wait(query, lambda number=number: len(batches(query)) > number, PATIENCE, pause=0.05)
        found = typical(batches(query)[warm:])
        asked = seconds(lambda: planned_offsets(query), REPEATS), seconds(lambda: consumed_offsets(query), REPEATS)
    names = {
        "latestOffset": "find offsets", "queryPlanning": "planning", "walCommit": "offset log",
        "commitOffsets": "commit log", "addBatch": "work on two cores", "triggerExecution": "whole",
    }  # fmt: skip
    return {
        "offsets: ask Spark what is planned": asked[0] * 1e3,
        "offsets: ask Spark what is consumed": asked[1] * 1e3,
        **{f"batch: {name}": found.get(part, 0.0) for part, name in names.items()},
    }


def _task(bench: Bench) -> float:
    """Measure an empty task: the driver's work for each, while two cores run them."""
    count = 1_000
    frame = bench.spark.range(0, count, 1, count)

    def run() -> None:
        frame.write.format("noop").mode("overwrite").save()

    run()
    return seconds(run, 3) / count * 1e3
