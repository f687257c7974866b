"""How long a publisher waits for each stage of its messages, beside persist, at several rates."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ackstream.jobs.persist import job
from benchmarks import acks_load, common
from benchmarks.progress import batches, medians, percentiles, typical

if TYPE_CHECKING:
    from benchmarks.common import Bench

WINDOWS = 3
STAGES = ("accepted", "received", "processed", "merged", "single", "flush")
PERCENTS = (50, 95)
METHOD = (
    f"Open loop from another process on the same machine: {acks_load.CLIENTS} clients publish {len(acks_load.VALUE)} "
    "bytes each, and a time begins when the message was due. 'accepted': Kafka has it; 'received' and 'processed': the "
    f"acks with the command's id, asked for with every {acks_load.DETAILED_EVERY}th message; 'merged': the persisted "
    "ack that is about the message, with its run; 'single': the same for a client that sends one message a second; "
    "'flush': the ack of a flush, sent once a second by each client. The warm-up does not count; the rest is cut in "
    "three windows, each figure is the median of the windows'. persist.interval is the default; topics, tables and "
    "checkpoint start empty."
)


@dataclass(frozen=True)
class Case:
    """A rate in messages/s, its seconds, and the seconds of warm-up before them."""

    rate: int
    warm_up: float
    seconds: float


FULL = (Case(100, 20, 30), Case(1000, 20, 30), Case(5000, 20, 30))
SMALL = (Case(50, 4, 3),)


def measure(bench: Bench) -> dict[str, Any]:
    """Measure each case with a query and tables of its own in one session."""
    figures = {}
    for case in SMALL if bench.small else FULL:
        figures[f"{case.rate:,}/s"] = found = _case(bench, case)
        bench.say(f"{case.rate:,}/s: {json.dumps(common.rounded(found['stages']))}")
    columns = [column for name in figures for column in (f"{name} p50", "p95")]
    stages = {stage: [found["stages"][stage] for found in figures.values()] for stage in STAGES}
    stages["batch"] = [found["batch_seconds"] for found in figures.values()]
    bench.table(
        "Latency in seconds",
        ("stage", *columns),
        [(stage, *(value for entry in found for value in entry.values())) for stage, found in stages.items()],
    )
    return {"method": METHOD, "cases": figures}


def _case(bench: Bench, case: Case) -> dict[str, Any]:
    settings = bench.settings("acks")
    out = bench.directory / "acks.json"
    running = job.JOB.start(bench.spark, settings)
    try:
        subprocess.run(
            [
                sys.executable, "-m", "benchmarks.acks_load", "--bootstrap", settings.kafka.bootstrap,
                "--prefix", settings.kafka.topic_prefix, "--out", str(out), "--rate", str(case.rate),
                "--seconds", str(case.warm_up + case.seconds),
            ],
            cwd=common.ROOT, check=True,
        )  # fmt: skip
        found = batches(running)
    finally:
        running.stop()
    report = json.loads(out.read_text("utf-8"))
    began = min(due for due, _ in report["took"]["accepted"]) + case.warm_up
    measured = [batch for batch in found if began <= batch.start <= began + case.seconds]
    return {
        "stages": {stage: _figures(report["took"][stage], began, case.seconds / WINDOWS) for stage in STAGES},
        "missing": report["missing"],
        "batches": len(measured),
        "batch_seconds": percentiles([batch.seconds for batch in measured], PERCENTS),
        "durations": typical(measured) if measured else {},
    }


def _figures(took: list[tuple[float, float]], began: float, seconds: float) -> dict[str, float | None]:
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    for due, duration in took:
        window = int((due - began) // seconds)
        if 0 <= window < WINDOWS:
            windows[window].append(duration)
    return medians([percentiles(window, PERCENTS) for window in windows])


if __name__ == "__main__":
    common.main("acks", measure)
