"""Where correlate's time goes: processor time per message of a backlog by part, and the parts of a small batch."""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
import time
from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.jobs.correlate import job
from ackstream.lake.commits import java
from benchmarks import common
from benchmarks.contenders.running import TICKS_A_SECOND, descendants, listener, processor
from benchmarks.latency import load
from benchmarks.progress import Batch, batches, typical, wait, warm
from benchmarks.sampling import KINDS, OTHER_KINDS, parts
from benchmarks.throughput import FULL, PATIENCE, SMALL, TIMEOUT, answered, fill
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from ackstream.settings import Settings
    from benchmarks.common import Bench

RATE, WARM_UP_SECONDS, SECONDS = 500, 20.0, 40.0
SAMPLE_SECONDS = 0.1
PERIOD_MS = 10
METHOD = (
    "Backlog: that of the benchmark throughput, read by correlate as the product runs it, after six runs in which the "
    "JVM compiles. Processor seconds of the warm batches by process and, in the JVM, by kind of thread, divided by "
    "their messages. The time of the threads that carry out tasks is divided as the samples of the flight recorder are "
    f"in a run of its own (each {PERIOD_MS} ms; the innermost frame that belongs to a part decides; native code is in "
    "no sample). What the shard itself takes in Python is in the benchmark pure; the rest of the worker is its input "
    f"and output. Small batches: {RATE} requests/s as in the benchmark latency; medians of what Spark's progress and "
    "its stages tell, in milliseconds."
)


@dataclass(frozen=True)
class Used:
    """Processor seconds used by process and kind of thread, at a time."""

    time: float
    seconds: Mapping[str, float]


def measure(bench: Bench) -> dict[str, Any]:
    """Measure a backlog, then small batches; then take samples of the backlog."""
    size = SMALL if bench.small else FULL
    workload = Workload(size.requests, timeout=TIMEOUT)
    data = bench.settings("profile")
    fill(bench, data, workload)
    for _ in range(size.warm_ups):
        _run(bench, data, workload, size.batch)
    found, used = _run(bench, data, workload, size.batch)
    small = _small(bench)
    record = bench.directory / "profile.jfr"
    # last: the JVM compiles much anew once the recorder begins
    with recorded(bench.spark, record):
        _run(bench, data, workload, size.batch)
    backlog = _backlog(found, used, size.batch, parts(samples(bench.spark, record)))
    bench.table("µs of processor per message", ("where", "µs"), backlog["microseconds"].items())
    bench.table("A small batch", ("part", "ms"), small["milliseconds"].items())
    bench.table(f"Parts of a core at {RATE} requests/s", ("where", "cores"), small["cores"].items())
    return {"method": METHOD, "backlog": backlog, "small": small}


# -- a backlog --------------------------------------------------------------------------------------------------------


def _backlog(found: Sequence[Batch], used: Sequence[Used], limit: int, samples: Counter[str]) -> dict[str, Any]:
    """Divide the use of the warm batches; the time of tasks as the samples are."""
    full = warm(found, limit)
    messages = sum(batch.rows for batch in full)
    each = {where: found / messages * 1e6 for where, found in _between(used, full[0].start, full[-1].end).items()}
    tasks = each.pop("tasks")
    return {
        "messages": messages,
        "seconds": full[-1].end - full[0].start,
        "microseconds": {
            **{f"JVM: {part}": tasks * count / sum(samples.values()) for part, count in samples.most_common()},
            **each,
        },
        "samples": dict(samples),
    }


def _run(bench: Bench, data: Settings, workload: Workload, batch: int) -> tuple[Sequence[Batch], Sequence[Used]]:
    """Let correlate answer everything; return its batches, and the use meanwhile."""
    with watched(bench) as used, answered(bench, data, workload, batch) as (query, _):
        return batches(query), used


@contextmanager
def watched(bench: Bench) -> Iterator[list[Used]]:
    """Measure repeatedly the use of the JVM, Python and the broker."""
    jvm = int(java(bench.spark, "java.lang.ProcessHandle").current().pid())
    kafka = listener(bench.base.kafka.bootstrap)
    found: list[Used] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(SAMPLE_SECONDS):
            own = time.process_time()
            used = {
                "Python worker": sum(map(processor, descendants(jvm))),
                "broker": processor(kafka),
                "driver in Python, this benchmark": own,
            }
            found.append(Used(time.time(), _threads(jvm) | used))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _between(used: Sequence[Used], start: float, end: float) -> dict[str, float]:
    """Return the processor seconds between two times."""
    times = [one.time for one in used]
    first, last = (used[min(bisect_left(times, moment), len(used) - 1)].seconds for moment in (start, end))
    return {where: last[where] - first[where] for where in last}


def _threads(pid: int) -> dict[str, float]:
    """Return the processor seconds of a JVM by kind of thread."""
    found: dict[str, float] = dict.fromkeys((*KINDS, OTHER_KINDS), 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, _, rest = task.joinpath("stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
        except OSError:
            continue
        kind = next((kind for kind, starts in KINDS.items() if name.startswith(starts)), OTHER_KINDS)
        found[kind] += sum(map(int, rest.split()[11:13])) / TICKS_A_SECOND
    return found


@contextmanager
def recorded(spark: SparkSession, path: Path) -> Iterator[None]:
    """Have the JVM's flight recorder sample the running methods."""
    recording = java(spark, "jdk.jfr.Recording")()
    recording.enable("jdk.ExecutionSample").withPeriod(java(spark, "java.time.Duration").ofMillis(PERIOD_MS))
    recording.start()
    try:
        yield
    finally:
        recording.stop()
        recording.dump(java(spark, "java.io.File")(str(path)).toPath())
        recording.close()


def samples(spark: SparkSession, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Read the samples: the thread's name and its frames, as ``class.method``, the innermost first."""
    home = java(spark, "java.lang.System").getProperty("java.home")
    options = ["--json", "--stack-depth", "64", "--events", "jdk.ExecutionSample"]
    command = [f"{home}/bin/jfr", "print", *options, str(path)]
    printed = subprocess.run(command, capture_output=True, check=True)
    for event in json.loads(printed.stdout)["recording"]["events"]:
        values = event["values"]
        if values.get("sampledThread") and values.get("stackTrace"):
            frames = [frame["method"] for frame in values["stackTrace"]["frames"]]
            name = values["sampledThread"]["javaName"] or ""
            yield name, [f"{method['type']['name'].replace('/', '.')}.{method['name']}" for method in frames]


# -- small batches ----------------------------------------------------------------------------------------------------


def _small(bench: Bench) -> dict[str, Any]:
    warm_up, seconds = (3.0, 4.0) if bench.small else (WARM_UP_SECONDS, SECONDS)
    settings = bench.settings("profile-small")
    with job.JOB.running(bench.spark, settings) as query, watched(bench) as used:
        wait(query, lambda: bool(batches(query)), PATIENCE)
        command = load(settings, bench.directory / "load.json", RATE, warm_up + seconds)
        subprocess.run(command, cwd=common.ROOT, check=True)
        found = batches(query)
    ended = found[-1].end
    measured = [batch for batch in found if ended - seconds <= batch.start]
    stages = _stages(bench.spark)
    split = [one for batch in measured if (one := _split(batch, stages)) is not None]
    durations = typical(measured)
    medians = {name: statistics.median(one[name] for one in split) for name in split[0]}
    spent = _between(used, measured[0].start, ended)
    return {
        "rate": RATE,
        "batches": len(measured),
        "messages_a_batch": statistics.median(batch.rows for batch in measured),
        "milliseconds": {
            "find offsets": durations["latestOffset"],
            "offset log": durations["walCommit"],
            "planning": durations["queryPlanning"],
            **medians,
            "commit log": durations["commitOffsets"],
            "whole batch": durations["triggerExecution"],
        },
        "cores": {where: found / (ended - measured[0].start) for where, found in spent.items()},
    }


def _split(batch: Batch, stages: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Divide the work of a batch by its two stages; None where it had others."""
    own = [stage for stage in stages if batch.start <= stage[0] < batch.end]
    if len(own) != 2:
        return None
    source, stateful = own
    work = batch.durations["addBatch"]
    first, second = (end - start for start, end in own)
    between = (stateful[0] - source[1]) * 1000
    return {
        "source and shuffle (first stage)": first * 1000,
        "between the stages": between,
        "shard in Python, state, sink (second stage)": second * 1000,
        "rest of the work: job, tasks, results": work - first * 1000 - second * 1000 - between,
    }


def _stages(spark: SparkSession) -> list[tuple[float, float]]:
    """Return begin and end of the stages that Spark remembers, in epoch seconds, in order."""
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - there is no public way
    none = spark.sparkContext._gateway.new_array(java(spark, "double"), 0)  # noqa: SLF001
    # of any status, without details and summaries
    listed = context.statusStore().stageList(None, False, False, none, java(spark, "java.util.ArrayList")())  # noqa: FBT003 - Scala's
    spans = []
    for number in range(listed.size()):
        stage = listed.apply(number)
        if stage.submissionTime().isDefined() and stage.completionTime().isDefined():
            begin, end = stage.submissionTime().get().getTime(), stage.completionTime().get().getTime()
            spans.append((begin / 1000, end / 1000))
    return sorted(spans)


if __name__ == "__main__":
    common.main("profile", measure)
