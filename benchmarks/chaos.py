"""Faults at random points of a seeded schedule, under load on every plane; the guarantees are checked from outside.

``python -m benchmarks.chaos`` runs every job and client as a program of its own, first on one broker, then on three
with every record on each of them. It kills, pauses and cuts off programs and brokers, keeps the queues job away for
longer than leases, kills workers in the middle of tasks, and sends forged ticks. It fills the disks of tables,
checkpoints and a publisher's store, cuts their power, and takes hard links from them; it sets the brokers' clocks ahead
and back, and lets a consumer bind that cannot read the messages. After fifteen faults every program must go on before
the next ones; at the end topics, tables and the clients' notes must show that nothing is lost, doubled or reported too
early.
``results/chaos.json`` has the seeds, the faults and the violations; the logs, topics and tables of a run with
violations are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from ackstream.kafka.topics import TOPICS
from ackstream.local.submit import archive_classes
from benchmarks.pages import RESULTS
from tests.harness.cluster import Cluster
from tests.harness.disks import Disk, Machine
from tests.harness.faults import DISKS, POWER, REASON_CHARACTERS, Faults, SupervisedStorm, dump
from tests.harness.invariants import broken, missing
from tests.harness.kafka import CODECS
from tests.harness.storm import CLIENTS

FAULTS = {1: 220, 3: 80}
"""Number of faults by the number of brokers."""
ROUND = 15
"""After this number of faults, every program must make progress before the next."""
PATIENCE_SECONDS = 600.0
"""How long that may take: many JVMs start on few cores."""
POLL_SECONDS, SAID_SECONDS = 3.0, 60.0
"""The intervals of checks for pending work, and of its reports."""
PAUSE_SECONDS = (1.0, 10.0)
SPANS = {
    "pause": (5.0, 40.0),
    "broker-kill": (0.0, 15.0),
    "broker-pause": (5.0, 40.0),
    "network": (5.0, 30.0),
    "network-cut": (5.0, 30.0),
    "disk": (5.0, 20.0),
    "links": (5.0, 20.0),
    "step": (20.0, 100.0),
    "task": (90.0, 90.0),
    "away": (160.0, 180.0),
}
WEIGHTS = {
    "kill": 40,
    "pause": 25,
    "broker-kill": 8,
    "broker-pause": 7,
    "network": 6,
    "network-cut": 5,
    "clock": 6,
    "disk": 4,
    "power": 6,
    "links": 3,
    "step": 5,
    "task": 8,
    "bomb": 4,
    "away": 2,
}
JOBS = {name: ["submit", name] for name in ("correlate", "archive", "twin", "persist", "settle", "queues", "query")}
JOBS["mirror"] = ["submit", "mirror", "standby"]
WORKED = ("correlate", "archive", "twin", "settle", "queues")
"""Jobs with Python workers; the others fold batches in the driver."""
PROGRAMS = (*JOBS, *CLIENTS, "connector")
CLOCKS = ("clock", "settle-clock", "queue-clock", "correlate-lease", "settle-lease", "queues-lease")
LED = ("signals-0", "acks-0", "twin-acks-0", "clock-0", "messages-0", "app-acks-0")
"""Partitions whose leaders are chosen where there are several brokers."""
STEPS = ("120", "-120")
"""Seconds by which all brokers' clocks are ahead for a while: twice as long as one must be steady to be believed."""
UNABLE = {"disks": {"disk", "power"}, "machine": {"links", "step"}}
"""The faults that need file systems to mount, and those that need a compiler of C."""


class Fault(NamedTuple):
    """One fault.

    :ivar target: a program, a broker or the partition that it leads, a topic, a disk
    :ivar after: seconds since the fault before
    :ivar lasts: seconds, if it is not over at once
    """

    kind: str
    target: str
    after: float
    lasts: float


def targets(brokers: int, kinds: Collection[str] = tuple(WEIGHTS)) -> dict[str, tuple[str, ...]]:
    """Return the possible targets of each kind of fault."""
    nodes = LED if brokers > 1 else ("broker-1",)
    found: dict[str, tuple[str, ...]] = dict.fromkeys(WEIGHTS, nodes) | {
        "kill": PROGRAMS,
        "pause": PROGRAMS,
        "clock": CLOCKS,
        "disk": tuple(DISKS),
        "power": tuple(POWER),
        "links": ("tables and checkpoints",),
        "step": STEPS,
        "task": WORKED,
        "bomb": CODECS,
        "away": ("queues",),
    }
    return {kind: names for kind, names in found.items() if kind in kinds}


def schedule(seed: int, count: int, possible: Mapping[str, tuple[str, ...]]) -> list[Fault]:
    """Return the faults: each kind for each target at least once, if there are enough; the rest by :data:`WEIGHTS`."""
    chance = random.Random(seed)
    kinds = list(possible)
    all_of_them = [(kind, target) for kind in kinds for target in possible[kind]]
    chance.shuffle(all_of_them)
    chosen = all_of_them[:count]
    for kind in chance.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=max(0, count - len(chosen))):
        chosen.append((kind, chance.choice(possible[kind])))
    chance.shuffle(chosen)

    def seconds(span: tuple[float, float]) -> float:
        return round(chance.uniform(*span), 1)

    return [Fault(kind, name, seconds(PAUSE_SECONDS), seconds(SPANS.get(kind, (0, 0)))) for kind, name in chosen]


class StalledError(AssertionError):
    """Something does not happen."""


class Run:
    """One run: a cluster, a storm, a schedule."""

    def __init__(self, brokers: int, seed: int, count: int, kinds: Collection[str], keep: Path | None) -> None:
        self._brokers, self._seed, self._count, self._kinds, self._keep = brokers, seed, count, set(kinds), keep
        self._began = time.monotonic()
        self._done: list[dict[str, Any]] = []
        self._violations: list[str] = []
        self._load: dict[str, Any] = {}

    def report(self) -> dict[str, Any]:
        """Run the schedule; return the report."""
        base = self._keep or Path(tempfile.gettempdir())
        base.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"ackstream-chaos-{self._brokers}-", dir=base))
        kept = self._keep is not None
        try:
            with ExitStack() as stack:
                report = self._run(directory, stack)
                if self._violations or kept:
                    kept = True
                    self._say(f"the logs, topics and tables are kept in {directory}")
                    for name in DISKS:
                        shutil.copytree(directory / name, directory / "kept" / name, dirs_exist_ok=True)
                    report["kept"] = str(directory)
                return report
        except BaseException:
            # only the output of the programs is left to explain it
            kept = True
            self._say(f"everything is kept in {directory}")
            raise
        finally:
            if not kept:
                shutil.rmtree(directory, ignore_errors=True)

    def _say(self, text: str) -> None:
        seconds = round(time.monotonic() - self._began)
        print(f"{time.strftime('%X')} +{seconds // 60:02}:{seconds % 60:02} {text}", file=sys.stderr, flush=True)

    def _run(self, directory: Path, stack: ExitStack) -> dict[str, Any]:
        disks = {name: Disk(directory / name, size * 1024**2) for name, size in DISKS.items()}
        for disk in disks.values():
            stack.callback(disk.remove)
        machine = Machine(directory)
        able = {"disks": all(disk.made for disk in disks.values()), "machine": machine.made}
        for what, kinds in UNABLE.items():
            if not able[what]:
                self._kinds -= kinds
        self._say(f"{self._brokers} broker(s), seed {self._seed}, {self._count} faults, in {directory}")
        stack.enter_context(mock.patch.dict(os.environ, machine.brokers))
        cluster = Cluster(directory, self._brokers, stack)
        storm = SupervisedStorm(cluster.settings("chaos-"), directory, stack, JOBS, machine.programs)
        faults = Faults(storm, cluster, directory, disks, machine)
        pool = ThreadPoolExecutor(32)
        # first of all when this ends, however it ends; clients that wait for an answer are not waited for
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        stack.callback(storm.end)
        pool.submit(storm.supervise)
        self._until(lambda: [] if storm.is_ready() else ["it does not answer"], "the gateway", storm)
        self._load = {name: pool.submit(task) for name, task in storm.load().items()}
        try:
            self._cause(faults, storm, pool, schedule(self._seed, self._count, targets(self._brokers, self._kinds)))
        except StalledError as error:
            self._violations.append(str(error))
        storm.stop.touch()
        storm.stopped.set()
        try:
            self._until(
                lambda: [name for name, task in self._load.items() if not task.done()], "the load to end", storm
            )
            self._until(lambda: [*missing(storm), *storm.not_brought()], "everything to be complete", storm)
        except StalledError as error:
            self._violations.append(f"{error}; what holds at the end was not checked")
        else:
            storm.end()
            self._say("everything is complete; checking what holds")
            self._violations += broken(storm)
        storm.end()
        if self._violations or self._keep:
            for sentence in self._violations:
                self._say(f"VIOLATION {sentence}")
            dump(storm.system.settings.kafka, [*TOPICS, "inbound"], directory / "kept" / "topics")
        return self._summary(storm)

    def _cause(self, faults: Faults, storm: SupervisedStorm, pool: ThreadPoolExecutor, plan: list[Fault]) -> None:
        """Cause all faults, and let every program go on after each round of them."""
        lasting: list[Any] = []
        for number, fault in enumerate(plan):
            if number % ROUND == 0:
                self._go_on(storm, lasting)
            time.sleep(fault.after)
            self._say(f"{number + 1}/{len(plan)} {fault.kind} {fault.target} {fault.lasts or ''}")
            entry = {"at": round(time.monotonic() - self._began, 1), **fault._asdict()}
            lasting.append(pool.submit(faults.do, fault.kind, fault.target, fault.lasts, entry))
            self._done.append(entry)
        self._go_on(storm, lasting)

    def _go_on(self, storm: SupervisedStorm, lasting: list[Any]) -> None:
        while lasting:
            error = lasting.pop().exception()
            if error is not None:
                self._violations.append(f"a fault could not be caused: {error!r}")
        began = time.monotonic()
        before = {}

        def noted() -> list[str]:
            # only a request from now on shows that the gateway goes on
            before.update(storm.progress() | {"gateway": storm.asked})
            storm.note_commits()
            return []

        def waiting() -> list[str]:
            now = storm.progress()
            return [f"{name} (still at {now[name]})" for name in before if now[name] <= before[name]]

        self._until(noted, "Kafka and the tables to be readable", storm)
        after = ", ".join(f"{each['kind']} {each['target']}" for each in self._done[-ROUND:]) or "the start"
        self._until(waiting, f"every program to go on after {after}", storm)
        try:
            storm.check_replication()
        except AssertionError as error:
            self._violations.append(str(error))
        ended = {name: sum(reasons.values()) for name, reasons in storm.ended.items()}
        self._say(f"all go on after {time.monotonic() - began:.0f} s: {storm.progress()}; ended by themselves: {ended}")

    def _until(self, look: Callable[[], list[str]], what: str, storm: SupervisedStorm) -> None:
        """Wait until no work is pending.

        :raises StalledError: naming what it is, and why it may be
        """
        said = time.monotonic()
        limit = said + PATIENCE_SECONDS
        found, error = [], ""
        while time.monotonic() < limit:
            try:
                found, error = look(), ""
            except Exception:  # noqa: BLE001 - Kafka or a table that cannot be read now can be in a moment
                found, error = ["it cannot be looked at"], traceback.format_exc(limit=-2)
            if not found:
                return
            died = {name: task for name, task in self._load.items() if task.done() and task.exception() is not None}
            if died:
                text = "; ".join(f"{name}: {task.exception()!r}" for name, task in died.items())
                self._load = {name: task for name, task in self._load.items() if name not in died}
                raise StalledError(f"a client of the load died: {text}")
            if time.monotonic() > said + SAID_SECONDS:
                said = time.monotonic()
                self._say(f"waiting for {what}: {'; '.join(found)} {error[-REASON_CHARACTERS:]}")
            time.sleep(POLL_SECONDS)
        names = {sentence.split()[0] for sentence in found}
        raise StalledError(
            f"not within {PATIENCE_SECONDS:g} s: {what}: {'; '.join(found)} {error}{storm.explain(names)}"
        )

    def _summary(self, storm: SupervisedStorm) -> dict[str, Any]:
        return {
            "brokers": self._brokers,
            "seed": self._seed,
            "seconds": round(time.monotonic() - self._began),
            "faults": len(self._done),
            "by_kind": Counter(fault["kind"] for fault in self._done),
            "violations": self._violations,
            "load": {
                "requests": len(storm.answers),
                "by_status": Counter(str(status) for status, _ in storm.answers.values()),
                "brought": len(storm.sent),
                "messages": storm.last(),
                "queued": storm.queued,
            },
            "ended_by_themselves": storm.ended,
            "schedule": self._done,
        }


def write(report: dict[str, Any], place: Path) -> None:
    """Add a run to ``chaos.json``; it takes the place of an earlier one with as many brokers."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "chaos.json"
    runs = json.loads(path.read_text("utf-8"))["runs"] if path.exists() else []
    runs = sorted([run for run in runs if run["brokers"] != report["brokers"]] + [report], key=lambda r: r["brokers"])
    totals = {
        "benchmark": "chaos",
        "cores": os.cpu_count(),
        "faults": sum(run["faults"] for run in runs),
        "violations": sum(len(run["violations"]) for run in runs),
        "runs": runs,
    }
    path.write_text(json.dumps(totals, indent=1) + "\n", "utf-8")


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--brokers", type=int, choices=FAULTS, help="one of the runs alone")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--faults", type=int, help=f"{FAULTS} by the number of brokers")
    parser.add_argument("--kinds", nargs="+", choices=WEIGHTS, default=tuple(WEIGHTS), help="of faults")
    parser.add_argument("--results", type=Path, help=f"where chaos.json goes; {RESULTS} unless there are fewer faults")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep logs, topics and tables there anyway")
    arguments = parser.parse_args()
    # kill ends this as Ctrl-C does, with all its processes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    archive_classes()
    status = 130
    try:
        status = run_all(arguments)
    except KeyboardInterrupt:
        pass
    except BaseException:  # noqa: BLE001 - the process ends below, whatever it was
        traceback.print_exc()
        status = 1
    # threads of clients that wait for ended programs
    sys.stdout.flush()
    os._exit(status)


def run_all(arguments: argparse.Namespace) -> int:
    """Run by the command line; return 1 if a guarantee was broken."""
    bad = 0
    for brokers in (arguments.brokers,) if arguments.brokers else FAULTS:
        count = arguments.faults or FAULTS[brokers]
        report = Run(brokers, arguments.seed, count, arguments.kinds, arguments.keep).report()
        bad += len(report["violations"])
        print(json.dumps({key: value for key, value in report.items() if key != "schedule"}, indent=1), flush=True)
        place = arguments.results or (RESULTS if count >= FAULTS[brokers] else None)
        if place is not None:
            write(report, place)
    return 1 if bad else 0


if __name__ == "__main__":
    main()
