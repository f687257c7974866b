"""Messages a second from Kafka to Kafka: correlate, quixstreams, a state a correlation-id, and a plain copy."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.jobs.correlate import job
from benchmarks import broker, common
from benchmarks.common import ROUNDS, Bench
from benchmarks.contenders import copy, per_key
from benchmarks.contenders.programs import CONTENDERS, Contender, Place
from benchmarks.contenders.running import Running
from benchmarks.progress import WARM_UP, batches, medians, rows_read, typical, wait, warm
from benchmarks.replies import Verdicts, slope
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

TIMEOUT = "2s"
AFTER_ALL = 2.5
"""Seconds after which every request is due."""
PATIENCE = 600.0
METHOD = (
    "Messages are requests and acknowledgements read. All are in Kafka before a contender starts; each round starts "
    "with an empty state and from the topics' beginning; the contenders take turns. "
    "Spark: one session for all; six runs of correlate and of the copy, in which the JVM compiles, do not count; "
    "warm rate = rows / triggerExecution of all full batches but the first two; whole-run "
    "rate = all rows / time from the query's start to the end of the batch that read the last. "
    "quixstreams: processes of their own; warm rate by the broker's times of the replies to complete requests, the "
    "same share of them left out at the beginning: the slope by least squares; whole-run rate = all rows / time from "
    "the start of the process to the last such reply. The last record of each partition only tells the time."
)


@dataclass(frozen=True)
class Size:
    """How much data: requests for all but the slow contender, its own, and those of a batch; uncounted runs.

    After these the JVM hardly compiles any more, as in a job that has run for minutes.
    """

    requests: int
    batch: int
    slow_requests: int
    slow_batch: int
    rounds: int
    warm_ups: int


FULL = Size(requests=242_000, batch=100_000, slow_requests=4_000, slow_batch=2_400, rounds=ROUNDS, warm_ups=6)
SMALL = Size(requests=7_000, batch=4_000, slow_requests=1_000, slow_batch=600, rounds=2, warm_ups=1)


def measure(bench: Bench) -> dict[str, Any]:
    """Let the contenders take turns on the same data."""
    size = SMALL if bench.small else FULL
    workload = Workload(size.requests, timeout=TIMEOUT)
    slow = Workload(size.slow_requests, timeout=TIMEOUT, first=size.requests)
    data, slow_data = bench.settings("fast"), bench.settings("slow")
    seconds = fill(bench, data, workload)
    broker.produce(bench.base.kafka.bootstrap, slow.kafka(slow_data.kafka.topic_prefix))
    began = time.monotonic()
    bench.say(f"They came in {seconds:.1f} s. Starting {bench.spark.version}")
    session_seconds = time.monotonic() - began
    bench.say(f"{size.warm_ups} runs of correlate and of the copy, in which the JVM compiles, do not count")
    warming = []
    for _ in range(size.warm_ups):
        warming.append(_correlate(bench, data, workload, size.batch)["rates"])
        _copy(bench, data, workload, size.batch)
    bench.say(f"correlate meanwhile: {json.dumps(common.rounded(warming))}")
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(size.rounds):
        for name, contender in (
            ("correlate", lambda: _correlate(bench, data, workload, size.batch)),
            ("copy", lambda: _copy(bench, data, workload, size.batch)),
            *(
                (peer.name, partial(program, bench, data, workload, size.batch, peer))
                for peer in CONTENDERS
                if peer.name.startswith("quixstreams")
            ),
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
        "warming": warming,
        "messages_a_second": rates,
        "correlate_is_times": against,
        "rounds": found,
    }


# -- Spark ------------------------------------------------------------------------------------------------------------


@contextmanager
def answered(bench: Bench, data: Settings, workload: Workload, batch: int) -> Iterator[tuple[StreamingQuery, float]]:
    """Let correlate answer everything, with an empty state; give the query, which still runs, and when it began."""
    settings = bench.settings("fast", prefix=data.kafka.topic_prefix, correlate={"max_offsets_per_trigger": batch})
    replies = settings.kafka.topic("replies")
    bench.offsets.truncate(*map(settings.kafka.topic, ("replies", "ledger")))
    began = time.time()
    with job.JOB.running(bench.spark, settings) as query:
        wait(query, lambda: bench.offsets.count(replies) >= workload.requests, PATIENCE)
        yield query, began


def _correlate(bench: Bench, data: Settings, workload: Workload, batch: int) -> dict[str, Any]:
    replies = data.kafka.topic("replies")
    with answered(bench, data, workload, batch) as (query, began):
        result = _rates(query, workload.messages, batch, began)
    completed = Counter(dict(message.headers())["completed-by"].decode() for message in bench.offsets.read(replies))
    result["replies"] = dict(completed)
    result["ledger_records"] = bench.offsets.count(data.kafka.topic("ledger"))
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
    measured = warm(found, batch)
    read = 0
    end = began
    for entry in found:
        read += entry.rows
        end = entry.end
        if read >= messages:
            break
    return {
        "rates": {
            "warm": sum(e.rows for e in measured) / sum(e.seconds for e in measured),
            "whole": messages / (end - began),
        },
        "durations": typical(measured),
        "warm_batches": len(measured),
        "batches": [[entry.rows, entry.seconds] for entry in found],
    }


# -- programs of their own --------------------------------------------------------------------------------------------


def fill(bench: Bench, data: Settings, workload: Workload) -> float:
    """Write the messages, then records with a time at which every request is due; return the messages' seconds."""
    bench.say(f"Writing {workload.messages:,} messages of {workload.requests:,} requests")
    seconds = broker.produce(bench.base.kafka.bootstrap, workload.kafka(data.kafka.topic_prefix))
    time.sleep(AFTER_ALL)
    topics = [data.kafka.topic(name) for name in ("signals", "acks")]
    target = broker.producer(bench.base.kafka.bootstrap)
    broker.heartbeat(target, [(topic, partition) for topic in topics for partition in bench.offsets.ends(topic)])
    target.flush()
    return seconds


def program(bench: Bench, data: Settings, workload: Workload, batch: int, contender: Contender) -> dict[str, Any]:
    """Let a contender answer everything, and look at its replies."""
    settings = bench.settings("fast", prefix=data.kafka.topic_prefix)
    replies = settings.kafka.topic("replies")
    bench.offsets.truncate(*map(settings.kafka.topic, ("replies", "ledger", "dead-letters")))
    name = f"peer-{time.monotonic_ns()}"
    began = time.time()
    deadline = time.monotonic() + PATIENCE
    place = Place(settings, name, bench.directory / name, bench.directory / "classes")
    with closing(Running(contender, place)) as running:
        looked = workload.requests - 1
        while True:
            running.check()
            running.sample()
            if looked < (count := bench.offsets.count(replies)) or time.monotonic() > deadline:
                # reading them takes seconds, without a sample
                running.sample()
                # where a contender uses transactions, some offsets are theirs
                verdicts, times = _replies(bench, replies, workload)
                looked = count
                if verdicts.answered == workload.requests or time.monotonic() > deadline:
                    break
            time.sleep(0.25)
    # the first of them leave room for the warm-up, as the first batches of Spark do
    counted = times[len(times) * WARM_UP * batch // workload.messages :]
    rate = workload.messages / workload.complete * slope(counted)
    first, last = running.between(counted[0], counted[-1])
    handled = rate * (last.time - first.time)
    return {
        "rates": {"warm": rate, "whole": workload.messages / (times[-1] - began)},
        "replies": dict(verdicts.counts),
        "as_expected": verdicts.right,
        "first_reply_after_seconds": times[0] - began,
        "processor_microseconds": (last.processor - first.processor) / handled * 1e6,
        "broker_microseconds": (last.broker - first.broker) / handled * 1e6,
        "memory_bytes": max(usage.memory for usage in running.used),
    }


def _replies(bench: Bench, topic: str, workload: Workload) -> tuple[Verdicts, list[float]]:
    """Return the verdicts, and when the replies to complete requests were written."""
    verdicts = Verdicts(workload)
    times = []
    for message in bench.offsets.read(topic):
        completed_by = dict(message.headers())["completed-by"]
        verdicts.take(message.key(), completed_by, message.value())
        if completed_by == b"acknowledgements":
            times.append(message.timestamp()[1] / 1000)
    return verdicts, sorted(times)


if __name__ == "__main__":
    common.main("throughput", measure)
