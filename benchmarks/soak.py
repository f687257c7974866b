"""Hours of steady load on every plane, at half of this machine's capacity: which series grow, and must they?

``python -m benchmarks.soak`` runs a Kafka of its own, all jobs and clients, and the tables' maintenance. It finds the
rate that no plane falls behind at, goes on at half of it, and measures every minute from outside: processes, disk,
batches, backlogs, latency; a rate that is given is doubled at the end instead, to see whether it is at most half of the
capacity. ``results/soak.json`` has the samples and, per series, the expectation and the verdict; ``soak.png`` shows
them. The present samples are in ``.ackstream/soak/soak.json``: ``--judge FILE`` makes both of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ackstream.settings import Kafka, Local
from benchmarks.node import running
from benchmarks.pages import RESULTS
from benchmarks.progress import percentiles
from benchmarks.soaking import probe
from benchmarks.soaking.load import ANSWERS, Requests
from benchmarks.soaking.probe import Probe
from benchmarks.soaking.series import Sample, growing, judge, plot, read, rounded, write
from tests.harness import programs
from tests.harness.processes import Program
from tests.harness.storm import LABEL, QUEUE, TOPIC, Storm, lines
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.demo.broker import Broker

LOGS = Path(".ackstream", "soak")
"""Where the logs of the programs go, and the results of a shorter run."""
MINUTES, WARM_UP = 120.0, 20.0
MINUTE = 60.0
FIRST_RATE, FASTER, SLOWEST = 10.0, 2.0, 0.5
"""Of the calibration: commands, samples and messages of the queue per second, each; and the factor between steps."""
START_SECONDS, STEP_SECONDS = 240.0, 90.0
"""The first step is long: Java compiles the code of nine queries for minutes."""
BEHIND_SECONDS, BEHIND_BATCHES = 60.0, 3.0
"""A plane that has more than this before it at the end of a step falls behind, unless it is a few of its batches."""
SLOW_SECONDS = 5.0
"""Nor is a rate carried at which half of the clients wait longer for their reply."""
DRAIN_SECONDS = 300.0
HISTOGRAM_MINUTES, TOP = 10, 12
"""How often live objects are counted: by a full collection, as Spark itself requests every 30 minutes."""
MAINTENANCES = 6
"""How often the tables are maintained in the whole run: a day's growth, and its maintenance, in small."""
DRIVERS = {
    "jobs": ("correlate", "archive", "twin", "twin-index", "persist", "settle", "queues", "query", "mirror"),
}
"""Which jobs share a driver: on a small machine all of them, or each JVM compiles the same code."""
DRIVER_MEMORY = "4g"
INTERVAL, REQUESTS_INTERVAL, FOLLOWED_INTERVAL, INDEX_INTERVAL = "5s", "2s", "10s", "30s"
"""Between two batches. Nine queries share the machine, and each batch of theirs costs it the more the fewer records it
has: with batches each second both cores of a small one are busy at any rate, and half of it is unknown."""


class Soak(Storm):
    """All planes, run as a user runs them: code is compiled, and queues have their default limits."""

    window = 5_000
    interval = mirror_interval = INTERVAL

    def __init__(self, kafka: Kafka, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        temporary = directory / "spark"
        temporary.mkdir()
        options = {
            "JDK_JAVA_OPTIONS": "",
            "ACKSTREAM_SPARK_CONF": "{}",
            "ACKSTREAM_SPARK_DRIVER_MEMORY": DRIVER_MEMORY,
            "ACKSTREAM_QUEUES": json.dumps([{"name": QUEUE, "topics": [QUEUE], "backoff": {"initial": "200ms"}}]),
            "SPARK_LOCAL_DIRS": str(temporary),
            "ACKSTREAM_CORRELATE_TRIGGER": REQUESTS_INTERVAL,
            "ACKSTREAM_ARCHIVE_TRIGGER": FOLLOWED_INTERVAL,
            "ACKSTREAM_TWIN_INDEX_TRIGGER": INDEX_INTERVAL,
        }
        jobs = {name: ["-c", programs.JOBS, *names] for name, names in DRIVERS.items()}
        super().__init__(kafka, directory, stack, jobs, options)
        stack.callback(self._end_maintenance)
        self.notes |= {name: directory / f"{name}.notes" for name in ("p2", "consumer", "follower")}
        for path in self.notes.values():
            path.touch()
        self.add("queue-publisher", self.publishing("p2", self.notes["p2"], QUEUE, self.window), directory)
        self.add("consumer", ["-c", programs.CONSUMER, QUEUE, "A", str(self.notes["consumer"])], directory)
        self.add("follower", ["-c", programs.FOLLOWER, TOPIC, str(self.notes["follower"])], directory)
        self.ended: Counter[str] = Counter()
        self.maintenance: list[dict[str, Any]] = []
        self._maintaining: Program | None = None
        self._due: list[tuple[int, str]] = []

    def progress(self) -> dict[str, int]:
        notes = {"queues": "consumer", "query": "follower", "reader": "reader"}
        return super().progress() | {name: len(lines(self.notes[note])) for name, note in notes.items()}

    def _end_maintenance(self) -> None:
        if self._maintaining is not None:
            self._maintaining.kill()

    def pace(self, requests: Requests, rate: float) -> None:
        """Change the rate of all load."""
        requests.rate = rate
        part = self.rate.with_suffix(".new")
        part.write_text(str(rate), "utf-8")
        part.replace(self.rate)

    def supervise(self) -> None:
        """Restart and count programs that have ended; note the end of a maintenance, and begin the next."""
        for name, program in self.programs.items():
            if program.ended:
                self.ended[name] += 1
                program.start()
        if self._maintaining is not None and self._maintaining.ended:
            seconds = round(time.monotonic() - self.maintenance[-1].pop("began"))
            self.maintenance[-1] |= {"seconds": seconds, "status": self._maintaining.status}
            self._maintaining = None
        if self._maintaining is None and self._due:
            minute, lake = self._due.pop(0)
            self.maintenance.append({"minute": minute, "lake": Path(lake).name, "began": time.monotonic()})
            own = {"ACKSTREAM_LAKE_PATH": lake, "ACKSTREAM_LOCAL_DATA": str(self.directory / "maintain")}
            # a destination that is maintained has no destination itself
            own["ACKSTREAM_DESTINATIONS"] = "[]"
            self._maintaining = Program(
                "maintain", ["maintain"], self.system.settings, self.directory, self.environment | own
            )

    def maintain(self, minute: int, *lakes: str) -> None:
        """Have the tables of lakes maintained, one after the other, as an operator's scheduler does."""
        self._due = [(minute, lake) for lake in lakes]
        self.supervise()


class Run:
    """One soak: calibration, samples, report."""

    def __init__(self, soak: Soak, requests: Requests, measured: Probe, broker: Broker, console: Console) -> None:
        self._soak, self._requests, self._probe, self._broker = soak, requests, measured, broker
        self._console = console
        self._began = time.monotonic()
        self._errors: Counter[str] = Counter()
        self._live: list[tuple[int, dict[str, Counter[str]]]] = []
        self.steps: list[dict[str, Any]] = []
        self.samples: list[Sample] = []
        self.rate = 0.0

    def calibrate(self) -> float:
        """Return the highest rate at which no plane falls behind; the steps go down if the first is too fast."""
        rate, carried = FIRST_RATE, 0.0
        while True:
            self._soak.pace(self._requests, rate)
            self._wait(STEP_SECONDS if carried else START_SECONDS)
            late = self._late(rate)
            if not late and rate < FIRST_RATE:
                return rate
            if late:
                if carried or rate < SLOWEST:
                    return carried or rate
                rate /= FASTER**2
            else:
                carried, rate = rate, rate * FASTER

    def double(self) -> None:
        """See whether no plane falls behind at twice the rate."""
        self._soak.pace(self._requests, FASTER * self.rate)
        self._wait(STEP_SECONDS)
        self._late(FASTER * self.rate)

    def settle(self, rate: float) -> None:
        """Go on at the steady rate, and wait until nothing waits any more."""
        self.rate = rate
        self._soak.pace(self._requests, rate)
        until = time.monotonic() + DRAIN_SECONDS
        self._behind()
        while True:
            self._wait(30)
            if not self._late(rate) or time.monotonic() > until:
                break
        self._requests.take()
        self._probe.batches()
        self._began = time.monotonic()

    def minute(self, number: int, *, count_objects: bool) -> None:
        """Wait for the end of a minute, and take a sample."""
        self._wait(self._began + number * MINUTE - time.monotonic())
        values = self._measure()
        if count_objects:
            found = probe.live(self._sessions())
            self._live.append((number, found))
            values |= {f"heap/{name}": float(sum(sizes.values())) for name, sizes in found.items()}
        self.samples.append({"minute": round((time.monotonic() - self._began) / MINUTE, 2), "values": rounded(values)})

    def report(self, minutes: float, warm_up: float) -> dict[str, Any]:
        """Return the report on the present samples, without the verdicts."""
        warm = [found for minute, found in self._live if minute >= warm_up]
        first, last = (warm[0], warm[-1]) if warm else ({}, {})
        grown = {name: (found - first.get(name, Counter())).most_common(TOP) for name, found in last.items()}
        return {
            "benchmark": "soak",
            "complete": len(self.samples) >= minutes,
            "minutes": minutes,
            "warm_up": warm_up,
            "rate": self.rate,
            "calibration": self.steps,
            "cores": os.cpu_count(),
            "memory_gb": round(probe.PAGE * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "programs": {name: list(jobs) for name, jobs in DRIVERS.items()},
            "environment": {key: text for key, text in self._soak.environment.items() if key.startswith("ACKSTREAM_")},
            "commands": self._requests.sent,
            "ended_by_themselves": self._soak.ended,
            "maintenance": [{k: v for k, v in entry.items() if k != "began"} for entry in self._soak.maintenance],
            "errors": self._errors,
            "grown_objects": grown,
            "samples": self.samples,
        }

    def _measure(self) -> dict[str, float]:
        values: dict[str, float] = {}

        def add(measure: Any, *arguments: Any) -> dict[str, float]:
            try:
                found: dict[str, float] = measure(*arguments)
            except Exception as error:  # noqa: BLE001 - a minute without a few of its values is no reason to end
                self._errors[f"{measure.__name__}: {error!r}"[:300]] += 1
                return {}
            values.update(found)
            return found

        add(lambda: probe.memory(self._sessions()))
        tables = add(self._probe.tables)
        add(self._probe.backlogs, tables)
        add(self._probe.batches)
        add(self._probe.directories)
        add(self._client)
        return values

    def _client(self) -> dict[str, float]:
        directory = self._soak.directory
        latencies, statuses, unexpected = self._requests.take()
        values = {f"latency/{key}": value for key, value in percentiles(latencies, (50, 95)).items() if value}
        temporary, files = probe.usage(directory / "spark")
        self._errors.update({f"HTTP {status}": count for status, count in statuses.items() if status not in ANSWERS})
        return values | {
            "open/gateway": float(self._requests.open),
            "failed/gateway": float(unexpected),
            "temporary/spark": float(temporary),
            "temporary-files/spark": float(files),
            "notes/standard error": float(sum(path.stat().st_size for path in directory.glob("*.log"))),
            "store/p1": float(sum(path.stat().st_size for path in directory.glob("p1.db*"))),
        }

    def _sessions(self) -> Mapping[str, int]:
        pid = self._broker.pid()
        own = {} if pid is None else {"broker": pid}
        return {name: program.session for name, program in self._soak.programs.items()} | own

    def _late(self, rate: float) -> bool:
        """Report the plane furthest behind, by its own measure; return whether that is too far, or replies slow."""
        behind, batches = self._behind(), self._probe.batches()
        limits = {name: max(BEHIND_SECONDS, BEHIND_BATCHES * batches.get(f"batch/{name} p50", 0.0)) for name in behind}
        worst = max(behind, key=lambda name: behind[name] / limits[name])
        latencies, _, _ = self._requests.take()
        reply = statistics.median(latencies) if latencies else None
        self.steps.append(
            {"rate": rate, "worst": worst, "behind": behind[worst], "limit": limits[worst], "reply": reply}
        )
        self._console.print(
            f"{time.strftime('%X')} {rate:.1f}/s: {worst} is {behind[worst]:.1f} s behind, of {limits[worst]:.0f} s; "
            f"{'no replies' if reply is None else f'replies after {reply:.1f} s'}",
            highlight=False,
        )
        return behind[worst] > limits[worst] or reply is None or reply > SLOW_SECONDS

    def _behind(self) -> dict[str, float]:
        found = self._probe.backlogs(self._probe.tables()).items()
        return {name.partition("/")[2]: seconds for name, seconds in found if name.startswith("backlog/")}

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._soak.supervise()
            time.sleep(min(left, 1.0))


def run(minutes: float, rate: float | None, console: Console) -> dict[str, Any]:
    """Run the soak, and write the samples every minute, to where its logs go."""
    warm_up = min(WARM_UP, minutes / 6)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ackstream-soak-")))
        broker = stack.enter_context(running(Local(), console))
        soak = Soak(Kafka(bootstrap=broker.bootstrap, topic_prefix="soak-"), directory, stack)
        # only the output of the programs is left to explain an end
        LOGS.mkdir(parents=True, exist_ok=True)
        stack.callback(lambda: [shutil.copy(log, LOGS) for log in directory.glob("*.log")])
        eventually(soak.is_ready, "the gateway")
        requests = stack.enter_context(closing(Requests(soak.port, LABEL)))
        notes = soak.notes | {"p1": soak.notes["publisher"]}
        measured = stack.enter_context(closing(Probe(soak.system.settings, soak.standby, broker.data, notes)))
        one = Run(soak, requests, measured, broker, console)
        soak.pace(requests, rate or FIRST_RATE)
        eventually(lambda: min(soak.progress().values()) > 0, "every job to have begun")
        one.settle(one.calibrate() / 2 if rate is None else rate)
        every = max(4, round(minutes / MAINTENANCES))
        for number in range(1, round(minutes) + 1):
            last = number == round(minutes)
            one.minute(number, count_objects=number % min(HISTOGRAM_MINUTES, every) == 0 or last)
            if number % every == every // 2:
                soak.maintain(number, soak.lake.path, soak.standby.path)
            # the last complete run is kept until this one is complete
            write(one.report(minutes, warm_up), LOGS)
        if rate is not None:
            one.double()
    return one.report(minutes, warm_up)


def conclude(report: dict[str, Any], place: Path, console: Console) -> bool:
    """Add the verdicts, draw the plot; return whether nothing grows and nothing ended by itself."""
    verdicts = judge(report["samples"], report["warm_up"])
    report |= {"grows": growing(verdicts), "series": verdicts}
    write(report, place)
    title = f"{report['minutes']:g} minutes at {report['rate']:.1f} commands, samples and queued messages/s each"
    plot(report["samples"], verdicts, title, place / "soak.png")
    for name in report["grows"]:
        told = verdicts[name]
        console.print(f"{name}: {told['slope']:+.3g} {told['unit']} per hour, level {told['level']:.3g}")
    console.print(f"{len(verdicts)} series, {len(report['grows'])} grow; written: {place / 'soak.json'}")
    return not report["grows"] and not report["ended_by_themselves"]


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--rate", type=float, help="per second and kind of load; half of what is carried by default")
    parser.add_argument("--results", type=Path, help=f"where to write; {RESULTS} for {MINUTES:.0f} minutes or more")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="only judge and draw the samples of a run")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    # any end of this ends the programs, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Terminated; --judge draws what was measured."))
    place = arguments.results or (RESULTS if arguments.minutes >= MINUTES else LOGS)
    if arguments.judge:
        place, report = arguments.judge.parent, read(arguments.judge)
    else:
        place.mkdir(parents=True, exist_ok=True)
        report = run(arguments.minutes, arguments.rate, console)
    sys.exit(0 if conclude(report, place, console) else 1)


if __name__ == "__main__":
    main()
