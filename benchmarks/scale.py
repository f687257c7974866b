"""How correlate grows: executors on a cluster, skew, and the work of its driver with many partitions and shards."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.structs import OffsetAndMetadata

from ackstream.jobs.correlate import job
from ackstream.kafka.clients import connect_consumer
from ackstream.spark.clock import ClockBroker
from ackstream.spark.lease import LeaseLog
from ackstream.spark.progress import consumed_offsets, planned_offsets
from benchmarks import broker, common, driving, throughput
from benchmarks.common import ROUNDS, Bench
from benchmarks.contenders.programs import Contender, Place
from benchmarks.progress import batches, medians, seconds, typical, wait
from benchmarks.throughput import TIMEOUT
from benchmarks.workload import EVERY, PADDING, HeavyThing, HotThing, Workload
from tests.harness.standalone import Standalone

if TYPE_CHECKING:
    from ackstream.settings import Settings

PARTITIONS, SHARDS = 4, 6
"""Partitions of each topic, and of the state, for each executor."""
MEMORY = "768m"
PATIENCE = 300.0
METHOD = (
    "A standalone cluster on this machine: a master, two workers, executors of one core each; the driver is a program "
    "of its own, as `ackstream submit correlate --master` starts it. All messages wait in Kafka; each round starts "
    "with an empty state. Rate = messages, by the broker's times of the replies to complete requests, without the "
    "first batches (as quixstreams in throughput). Driver: its processor time, without executors. Hot: half of all "
    "messages are one thing's, so in one partition. Heavy: "
    f"every {EVERY}th request is one thing's, and {PADDING:,} bytes longer."
)
DRIVER = (
    "The driver's own code at given numbers of partitions (over the three topics that correlate reads), shards and "
    "tasks. decide, look while nothing is due, merge, parse: alone, in this process, median of 20; Kafka: the clock's "
    "and the committer's questions to a broker with so many partitions; batches: correlate in this session on these "
    "topics, a few messages every batch, medians by Spark's progress; task: an empty job of 1,000 tasks / 1,000."
)

WORKLOADS: dict[str, type[Workload]] = {"even": Workload, "hot thing": HotThing, "heavy thing": HeavyThing}


def measure(bench: Bench) -> dict[str, Any]:
    """Measure the cluster, then the driver's part."""
    return {"method": METHOD, "cluster": _cluster(bench), "driver": _driver(bench)}


def _cluster(bench: Bench) -> list[dict[str, Any]]:
    requests, batch, rounds = (4_000, 3_000, 1) if bench.small else (120_000, 50_000, ROUNDS)
    cases = [(executors, "even") for executors in ((1, 2) if bench.small else (1, 2, 4))]
    cases += [(2, name) for name in WORKLOADS if name != "even"]
    found = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ackstream-bench-cluster-")))
        cluster = Standalone(directory, stack)
        for executors, name in cases:
            workload = WORKLOADS[name](requests, timeout=TIMEOUT)
            data = bench.settings("cluster", kafka={"partitions": PARTITIONS * executors})
            throughput.fill(bench, data, workload)
            contender = Contender(f"{executors}-{name}", partial(_submit, cluster.url, executors, batch), False)  # noqa: FBT003
            results = [throughput.program(bench, data, workload, batch, contender) for _ in range(rounds)]
            bench.say(f"{executors} executors, {name}: {json.dumps(common.rounded([one['rates'] for one in results]))}")
            figures = ("processor_microseconds", "first_reply_after_seconds")
            found.append(
                {
                    "executors": executors,
                    "messages_are": name,
                    "partitions": PARTITIONS * executors,
                    "shards": SHARDS * executors,
                    **medians([one["rates"] for one in results]),
                    "driver_microseconds": medians([{key: one[key] for key in figures} for one in results])[figures[0]],
                    "as_expected": all(one["as_expected"] for one in results),
                }
            )
    bench.table(
        f"correlate on a cluster, messages a second, {requests:,} requests, median of {rounds}",
        ("executors", "messages", "partitions", "shards", "warm", "whole run", "driver, µs a message", "as expected"),
        [tuple(entry.values()) for entry in found],
    )
    return found


def _submit(master: str, executors: int, batch: int, _place: Place) -> list[list[str]]:
    """Return the command of a driver whose executors have one core each."""
    environment = {
        "ACKSTREAM_KAFKA_PARTITIONS": PARTITIONS * executors,
        "ACKSTREAM_CORRELATE_SHARDS": SHARDS * executors,
        "ACKSTREAM_CORRELATE_SHUFFLE_PARTITIONS": executors,
        "ACKSTREAM_CORRELATE_MAX_OFFSETS_PER_TRIGGER": batch,
        "ACKSTREAM_SPARK_DRIVER_MEMORY": "1g",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    conf = {"spark.executor.cores": 1, "spark.executor.memory": MEMORY, "spark.cores.max": executors}
    return [
        [
            "env", *(f"{name}={value}" for name, value in environment.items()),
            sys.executable, "-c", "from ackstream.cli.main import app; app()",
            "submit", "correlate", "--master", master,
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        ]
    ]  # fmt: skip


# -- the driver --------------------------------------------------------------------------------------------------------


def _driver(bench: Bench) -> dict[str, Any]:
    """Measure the parts of the driver's work, narrow and wide."""
    widths = (driving.NARROW, driving.SMALL) if bench.small else (driving.NARROW, driving.WIDE)
    found = {width.name: _width(bench, width) for width in widths}
    names = [f"{width.partitions:,} partitions, {width.shards} shards" for width in widths]
    rows = [(part, *(found[width.name].get(part) for width in widths)) for part in found[widths[0].name]]
    bench.table("The driver of correlate, ms", ("what", *names), rows)
    return {"method": DRIVER, "widths": [vars(width) for width in widths], "milliseconds": found}


def _width(bench: Bench, width: driving.Width) -> dict[str, float]:
    settings = _topics(bench, width)
    return {
        **driving.decisions(width),
        **driving.reports(width),
        **driving.offsets(width),
        **_kafka(settings),
        **_batches(bench, settings),
        "empty task": _task(bench),
    }


def _topics(bench: Bench, width: driving.Width) -> Settings:
    """Create the topics that correlate reads with this number of partitions, and the others as they are by default."""
    prefix = f"bench-{os.getpid()}-wide-{width.partitions}-"
    for name in driving.READ:
        bench.offsets.create(prefix + name, width.partitions // len(driving.READ))
    correlate = {
        "shards": width.shards,
        "shuffle_partitions": min(width.tasks, bench.spark.sparkContext.defaultParallelism),
    }
    return bench.settings("wide", prefix=prefix, correlate=correlate)


def _kafka(settings: Settings) -> dict[str, float]:
    with ExitStack() as stack:
        lease = LeaseLog(stack, settings.kafka, settings.kafka.topic("correlate-lease"))
        own = ClockBroker(lease, settings, "clock", driving.READ)
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
            "Kafka: ends for a tick": seconds(own.ends, driving.REPEATS) * 1e3,
            "Kafka: the oldest unread record of a partition": seconds(
                lambda: own.timestamp_at(next(lagging), 0, 1), driving.REPEATS
            )
            * 1e3,
            "Kafka: commit the offsets": seconds(lambda: consumer.commit(committed), driving.REPEATS) * 1e3,
            "Kafka: ends for the lag": seconds(lambda: consumer.end_offsets(partitions), driving.REPEATS) * 1e3,
        }


def _batches(bench: Bench, settings: Settings) -> dict[str, float]:
    """Run correlate on these topics with little to do; return Spark's report of a batch."""
    rounds, warm = (6, 3) if bench.small else (15, 5)
    workload = Workload(20 * rounds, timeout="1s")
    messages = workload.kafka(settings.kafka.topic_prefix)
    with job.JOB.running(bench.spark, settings) as query:
        for number in range(rounds):
            broker.produce(settings.kafka.bootstrap, itertools.islice(messages, 40))
            wait(query, lambda number=number: len(batches(query)) > number, PATIENCE, pause=0.05)
        found = typical(batches(query)[warm:])
        asked = (
            seconds(planned_offsets(query), driving.REPEATS),
            seconds(lambda: consumed_offsets(query), driving.REPEATS),
        )
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


if __name__ == "__main__":
    common.main("scale", measure)
