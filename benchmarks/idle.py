"""The cost of idle jobs: their processor time without records, each alone and all in one session."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import ends, replicas
from ackstream.lake import tables
from benchmarks import common, starting
from benchmarks.contenders.running import listener, members, processor
from benchmarks.goals import ALL_JOBS, JOBS
from tests.harness import programs
from tests.harness.processes import Program, alive
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from ackstream.settings import Settings
    from benchmarks.common import Bench

WARM_UP, SECONDS = 60.0, 60.0
QUEUES = json.dumps([{"name": "q", "topics": ["q"]}])
METHOD = (
    "Empty topics and tables, default settings; each job is a driver of its own, as `ackstream submit` starts it, the "
    "last case is one driver with all of them. From 60 s after the job is seen to run: processor time of the job (its "
    "driver and Python workers) and of the broker in 60 s, as parts of a core; batches by the checkpoints in that time."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Measure each job, then all of them, one after the other."""
    figures = {}
    for name in JOBS[:1] if bench.small else (*JOBS, ALL_JOBS):
        figures[name] = _case(bench, name)
        bench.say(f"{name}: {json.dumps(common.rounded(figures[name]))}")
    columns = ("job", "broker", "batches")
    rows = [(name, *(found[column] for column in columns)) for name, found in figures.items()]
    bench.table("Parts of a core, and batches a second", ("", *columns), rows)
    return {"method": METHOD, "jobs": figures}


def _case(bench: Bench, name: str) -> dict[str, float]:
    settings = bench.settings("idle")
    # topics that other jobs would have created
    tables.create(bench.spark, settings.lake, ["messages"])
    warm_up, seconds = (5.0, 5.0) if bench.small else (WARM_UP, SECONDS)
    arguments = ["-c", programs.JOBS, *JOBS, "twin-index"] if name == ALL_JOBS else ["submit", name]
    label = name.replace(" ", "-")
    with starting.running(bench, label, arguments, settings, ACKSTREAM_QUEUES=QUEUES) as program:
        _wait(program, settings, JOBS if name == ALL_JOBS else (name,))
        time.sleep(warm_up)
        broker = listener(settings.kafka.bootstrap)
        before, done, began = _used(program, broker), _batches(settings), time.monotonic()
        time.sleep(seconds)
        after, lasted = _used(program, broker), time.monotonic() - began
        program.check()
        # a process that has ended meanwhile takes its figure along: PySpark's daemon does not count its idle workers
        spent = {pid: max(0.0, used - before.get(pid, 0.0)) for pid, used in after.items()}
        return {
            "broker": spent.pop(broker) / lasted,
            "job": sum(spent.values()) / lasted,
            "batches": (_batches(settings) - done) / lasted,
        }


def _wait(program: Program, settings: Settings, names: tuple[str, ...]) -> None:
    """Wait until jobs give signs of life, which they do from before their first batch on."""
    with connect_admin(settings.kafka) as admin:
        leases = replicas(admin, [settings.kafka.topic(f"{name}-lease") for name in names])
        eventually(lambda: alive([program]) and min(ends(admin, leases).values()) > 1, f"{program.name} to run")


def _used(program: Program, broker: int) -> dict[int, float]:
    """Return the processor seconds used by the processes of a job and by the broker."""
    return {pid: processor(pid) for pid in (*members({program.session}), broker)}


def _batches(settings: Settings) -> int:
    """Return the present number of batches."""
    places = Path(settings.lake.checkpoints).glob("*/commits")
    # older ones are deleted
    return sum(max((int(path.name) for path in place.iterdir() if path.name.isdigit()), default=-1) for place in places)


if __name__ == "__main__":
    common.main("idle", measure)
