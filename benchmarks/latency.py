"""How long a requester waits for the answer: correlate alone at three rates, and with other jobs in its session."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ackstream.jobs.archive import job as archive
from ackstream.jobs.correlate import job
from ackstream.jobs.twin import job as twin
from benchmarks import common
from benchmarks.progress import Batch, batches, medians, percentiles, rows_read, typical, wait
from benchmarks.twin_load import create, produce
from benchmarks.workload import THINGS, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ackstream.settings import Settings
    from ackstream.spark.job import Job
    from benchmarks.common import Bench

TIMEOUT = 5.0
WINDOWS = 3
METHOD = (
    "Open loop from another process on the same machine: a request's time is the moment it was due; its two "
    "acknowledgements follow after 20 to 200 ms, 5 % of them never. The warm-up does not count; the rest is cut in "
    "three windows, each figure is the median of the windows'. 'reply': request due to reply received, for requests "
    "whose acknowledgements all came; 'last_ack': from the sending of the last acknowledgement to the reply; 'late': "
    "what a request that timed out (after 5 s) waited beyond its deadline. Topics, state and checkpoint start empty; "
    "where the twin runs beside it has the things of the commands, so that each command changes one."
)


@dataclass(frozen=True)
class Case:
    """A rate in requests/s, its seconds, and those of warm-up before them; further jobs of the session."""

    name: str
    rate: int
    warm_up: float
    seconds: float
    beside: tuple[Job, ...] = ()


ARCHIVE = (archive.JOB,)
DEMO = (archive.JOB, twin.JOB, twin.INDEX)
"""The jobs that the demo runs beside correlate."""
FULL = (
    # the JVM compiles for minutes, at a low rate for longer
    Case("100/s", 100, 120, 30),
    Case("500/s", 500, 60, 60),
    Case("2,000/s", 2000, 30, 30),
    Case("500/s + archive", 500, 30, 60, ARCHIVE),
    Case("50/s + archive, twin, index", 50, 60, 60, DEMO),
)
SMALL = (Case("50/s", 50, 2, 3), Case("50/s + archive, twin, index", 50, 2, 3, DEMO))


def measure(bench: Bench) -> dict[str, Any]:
    """Measure each case with a query of its own in one session."""
    figures = {}
    for case in SMALL if bench.small else FULL:
        figures[case.name] = found = _case(bench, case)
        shown = {name: found[name] for name in ("reply", "last_ack", "late", "counts")}
        bench.say(f"{case.name}: {json.dumps(common.rounded(shown))}")
    bench.table(
        "Latency in seconds",
        ("requests", "reply p50", "p95", "p99", "last ack p50", "p95", "p99", "late p50", "p95", "batch", "unanswered"),
        [
            (
                name,
                *found["reply"].values(), *found["last_ack"].values(),
                found["late"]["p50"], found["late"]["p95"],
                found["batch_seconds"]["p50"], found["counts"]["unanswered"],
            )
            for name, found in figures.items()
        ],
    )  # fmt: skip
    return {"method": METHOD, "cases": figures}


def _case(bench: Bench, case: Case) -> dict[str, Any]:
    settings = bench.settings("latency")
    out = bench.directory / "load.json"
    spark = bench.spark
    with ExitStack() as stack:
        query = stack.enter_context(job.JOB.running(spark, settings))
        others = {beside.name: stack.enter_context(beside.running(spark, settings)) for beside in case.beside}
        keeping = others.get(twin.JOB.name)
        if keeping is not None:
            things = min(THINGS, round(case.rate * (case.warm_up + case.seconds)))
            produce(settings, (create(number, digits=5) for number in map(Workload(0).thing, range(things))))
            wait(keeping, lambda: rows_read(keeping) >= things, 120)
        # the first tick: classes are loaded, Python has started
        wait(query, lambda: bool(batches(query)), 120)
        subprocess.run(load(settings, out, case.rate, case.warm_up + case.seconds), cwd=common.ROOT, check=True)
        found = batches(query)
        beside = {name: batches(other) for name, other in others.items()}
    return evaluate(json.loads(out.read_text("utf-8")), case, found) | {
        "beside": {name: {"batches": len(done), "durations": typical(done)} for name, done in beside.items()}
    }


def load(settings: Settings, out: Path, rate: float, seconds: float, *, heartbeats: bool = False) -> list[str]:
    """Return the command that sends requests and acknowledgements, and writes the file with their outcomes."""
    return [
        sys.executable, "-m", "benchmarks.load", "--bootstrap", settings.kafka.bootstrap,
        "--prefix", settings.kafka.topic_prefix, "--out", str(out), "--rate", str(rate),
        "--seconds", str(seconds), "--timeout", str(TIMEOUT), *(["--heartbeats"] if heartbeats else []),
    ]  # fmt: skip


def evaluate(report: dict[str, Any], case: Case, found: Sequence[Batch] = ()) -> dict[str, Any]:
    """Return the figures of a case from the file of the load."""
    requests = list(zip(*(report[name] for name in ("sent", "last_ack", "replied", "completed_by")), strict=True))
    # the first has waited until there was someone to answer it
    began = requests[1][0] + case.warm_up
    windows: list[dict[str, list[float]]] = [{"reply": [], "last_ack": [], "late": []} for _ in range(WINDOWS)]
    for sent, last_ack, replied, completed_by in requests:
        window = int((sent - began) // (case.seconds / WINDOWS))
        if sent < began or window >= WINDOWS or not replied:
            continue
        if completed_by == "acknowledgements":
            windows[window]["reply"].append(replied - sent)
            windows[window]["last_ack"].append(replied - last_ack)
        elif completed_by == "timeout":
            windows[window]["late"].append(replied - sent - TIMEOUT)
    measured = [batch for batch in found if began <= batch.start <= began + case.seconds]
    completed = [completed_by for *_, completed_by in requests]
    return {
        **{name: medians([percentiles(window[name]) for window in windows]) for name in windows[0]},
        "windows": [{name: percentiles(values) for name, values in window.items()} for window in windows],
        "batch_seconds": percentiles([batch.seconds for batch in measured]),
        "batches": len(measured),
        "durations": typical(measured) if measured else {},
        "counts": {
            "requests": len(requests),
            "unanswered": completed.count(None),
            "repeated": 0,
            **report["verdicts"],
        },
    }


if __name__ == "__main__":
    common.main("latency", measure)
