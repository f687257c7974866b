"""Messages a second from Kafka to Kafka: correlate, quixstreams, a state a correlation-id, and a plain copy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ackstream.jobs.correlate import job
from benchmarks import broker, common
from benchmarks.common import ROUNDS
from benchmarks.contenders import copy, per_key
from benchmarks.progress import batches, medians, rows_read, typical, wait
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings
    from benchmarks.common import Bench
    from benchmarks.progress import Batch

WARM_UP = 2
"""The first batches of a query start Python and fill caches: they do not count."""
TIMEOUT = "2s"
PATIENCE = 600.0
METHOD = (
    "Messages are requests and acknowledgements read. All are in Kafka before a contender starts; each round starts "
    "with an empty state and from the topics' beginning; the contenders take turns. "
    "Spark: one session for all; a first run of correlate and of the copy, in which the JVM compiles, does not count; "
    "warm rate = rows / triggerExecution of all full batches but the first two; whole-run "
    "rate = all rows / time from the query's start to the end of the batch that read the last. "
    "quixstreams: processes of their own; warm rate by the broker's times of the replies, the same share of them left "
    "out at the beginning, up to the last reply; whole-run rate = all rows / time from the start of the process to the "
    "last reply. Its reply comes with the message that completes it, so replies are as evenly spread as messages."
)


@dataclass(frozen=True)
class Size:
    """How much data: requests for all but the slow contender, its own, and what a batch takes."""

    requests: int
    batch: int
    slow_requests: int
    slow_batch: int
    rounds: int


FULL = Size(requests=242_000, batch=100_000, slow_requests=4_000, slow_batch=2_400, rounds=ROUNDS)
SMALL = Size(requests=7_000, batch=4_000, slow_requests=1_000, slow_batch=600, rounds=2)


def measure(bench: Bench) -> dict[str, Any]:
    """Let the contenders take turns on the same data."""
    size = SMALL if bench.small else FULL
    workload = Workload(size.requests, timeout=TIMEOUT)
    slow = Workload(size.slow_requests, timeout=TIMEOUT, first=size.requests)
    data, slow_data = bench.settings("fast"), bench.settings("slow")
    bench.say(f"Writing {workload.messages:,} messages of {workload.requests:,} requests")
    seconds = broker.produce(bench.base.kafka.bootstrap, workload.kafka(data.kafka.topic_prefix))
    broker.produce(bench.base.kafka.bootstrap, slow.kafka(slow_data.kafka.topic_prefix))
    began = time.monotonic()
    bench.say(f"They came in {seconds:.1f} s. Starting {bench.spark.version}")
    session_seconds = time.monotonic() - began
    bench.say("A first run of correlate and of the copy, in which the JVM compiles, does not count")
    _correlate(bench, data, workload, size.batch)
    _copy(bench, data, workload, size.batch)
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(size.rounds):
        for name, contender in (
            ("correlate", lambda: _correlate(bench, data, workload, size.batch)),
            ("copy", lambda: _copy(bench, data, workload, size.batch)),
            ("quixstreams, 1 process", lambda: _quix(bench, data, workload, size.batch, 1)),
            ("quixstreams, 2 processes", lambda: _quix(bench, data, workload, size.batch, 2)),
            ("state a correlation-id", lambda: _per_key(bench, slow_data, slow, size.slow_batch)),
        ):
            result = contender()
            found.setdefault(name, []).append(result)
            bench.say(f"Round {number + 1}, {name}: {json.dumps(common.rounded(result['rates']))}")
    rates = {name: medians([entry["rates"] for entry in entries]) for name, entries in found.items()}
    against = {name: rates["correlate"]["warm"] / rate["warm"] for name, rate in rates.items()}
    bench.table(
        f"Messages a second, Kafka to Kafka, {workload.messages:,} messages, median of {size.rounds}",
        ("contender", "warm", "whole run", "correlate is … times that"),
        [(name, rate["warm"], rate["whole"], against[name]) for name, rate in rates.items()],
    )
    parts = ("triggerExecution", "addBatch", "queryPlanning", "latestOffset", "walCommit", "commitOffsets")
    bench.table(
        "Where a warm batch's time goes, in ms, median of the last round",
        ("query", "whole", "work", "planning", "find offsets", "offset log", "commit log"),
        [
            (name, *(entries[-1]["durations"].get(part) for part in parts))
            for name, entries in found.items()
            if "durations" in entries[-1]
        ],
    )
    return {
        "method": METHOD,
        "messages": workload.messages,
        "requests": workload.requests,
        "complete": workload.complete,
        "messages_of_state_a_correlation_id": slow.messages,
        "max_offsets_per_trigger": size.batch,
        "produced_in_seconds": seconds,
        "session_start_seconds": session_seconds,
        "messages_a_second": rates,
        "correlate_is_times": against,
        "rounds": found,
    }


# -- Spark ------------------------------------------------------------------------------------------------------------


def _correlate(bench: Bench, data: Settings, workload: Workload, batch: int) -> dict[str, Any]:
    settings = bench.settings("fast", prefix=data.kafka.topic_prefix, correlate={"max_offsets_per_trigger": batch})
    replies = settings.kafka.topic("replies")
    bench.offsets.truncate(*map(settings.kafka.topic, ("replies", "ledger")))
    began = time.time()
    with job.JOB.running(bench.spark, settings) as query:
        wait(query, lambda: bench.offsets.count(replies) >= workload.requests, PATIENCE)
        result = _rates(query, workload.messages, batch, began)
    completed = Counter(dict(message.headers())["completed-by"].decode() for message in bench.offsets.read(replies))
    result["replies"] = dict(completed)
    result["ledger_records"] = bench.offsets.count(settings.kafka.topic("ledger"))
    result["as_expected"] = completed == {
        "acknowledgements": workload.complete,
        "timeout": workload.requests - workload.complete,
    }
    if not result["as_expected"]:
        bench.say(f"[red]Not the replies that were expected: {dict(completed)}[/red]")
    return result


def _copy(bench: Bench, data: Settings, workload: Workload, batch: int) -> dict[str, Any]:
    settings = bench.settings("fast", prefix=data.kafka.topic_prefix)
    # any topic of the right shape will do
    target = settings.kafka.topic("events")
    bench.offsets.truncate(target)
    began = time.time()
    query = copy.start(bench.spark, settings, target, batch)
    try:
        wait(query, lambda: rows_read(query) >= workload.messages, PATIENCE)
        result = _rates(query, workload.messages, batch, began)
    finally:
        query.stop()
    bench.offsets.truncate(target)
    return result


def _per_key(bench: Bench, data: Settings, workload: Workload, batch: int) -> dict[str, Any]:
    settings = bench.settings("slow", prefix=data.kafka.topic_prefix)
    target = settings.kafka.topic("events")
    bench.offsets.truncate(target)
    began = time.time()
    query = per_key.start(bench.spark, settings, target, batch)
    try:
        wait(query, lambda: rows_read(query) >= workload.messages, PATIENCE)
        result = _rates(query, workload.messages, batch, began)
    finally:
        query.stop()
    result["replies"] = bench.offsets.count(target)
    return result


def _rates(query: StreamingQuery, messages: int, batch: int, began: float) -> dict[str, Any]:
    found = batches(query)
    warm = _warm(found, batch)
    read = 0
    end = began
    for entry in found:
        read += entry.rows
        end = entry.end
        if read >= messages:
            break
    return {
        "rates": {"warm": sum(e.rows for e in warm) / sum(e.seconds for e in warm), "whole": messages / (end - began)},
        "durations": typical(warm),
        "warm_batches": len(warm),
        "batches": [[entry.rows, entry.seconds] for entry in found],
    }


def _warm(found: Sequence[Batch], batch: int) -> Sequence[Batch]:
    # the limit is divided over the partitions, each part rounded down
    return [entry for entry in found if entry.rows >= 0.9 * batch][WARM_UP:]


# -- quixstreams ------------------------------------------------------------------------------------------------------


def _quix(bench: Bench, data: Settings, workload: Workload, batch: int, processes: int) -> dict[str, Any]:
    kafka, name = data.kafka, f"quix-{time.monotonic_ns()}"
    target = f"{kafka.topic_prefix}{name}"
    bench.offsets.create(target, kafka.partitions)
    log = bench.directory / f"{name}.log"
    began = time.time()
    with log.open("w") as output, ExitStack() as stack:
        started = []
        for number in range(processes):
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "benchmarks.contenders.quix", "--bootstrap", kafka.bootstrap,
                    "--prefix", kafka.topic_prefix, "--target", target, "--group", name,
                    "--state", str(bench.directory / f"{name}-{number}"),
                ],
                cwd=common.ROOT, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            started.append(process)
            stack.callback(_end, process)
        deadline = time.monotonic() + PATIENCE
        while bench.offsets.count(target) < workload.complete:
            if time.monotonic() > deadline or any(process.poll() is not None for process in started):
                raise RuntimeError(f"quixstreams did not come to its end: {log.read_text()[-2000:]}")
            time.sleep(0.25)
    times = sorted(message.timestamp()[1] / 1000 for message in bench.offsets.read(target))
    skipped = len(times) * WARM_UP * batch // workload.messages
    return {
        "rates": {
            "warm": workload.messages * (1 - skipped / len(times)) / (times[-1] - times[skipped]),
            "whole": workload.messages / (times[-1] - began),
        },
        "replies": len(times),
        "first_reply_after_seconds": times[0] - began,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    common.main("throughput", measure)
