"""Faults at random points of a seeded schedule, under load on every plane; what holds is checked from outside.

``python -m benchmarks.chaos`` runs a Kafka of its own, all jobs and clients, and kills, pauses and cuts them off, fills
the disk of the tables, and sends forged ticks. Afterwards topics, tables and the clients' notes must show that nothing
is lost, doubled or reported too early. ``results/chaos.json`` has the seed, every fault and every violation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError
from rich.console import Console

from ackstream.kafka.clients import connect_admin
from ackstream.local.broker import Broker
from ackstream.settings import Kafka, Local, Settings
from tests.harness.invariants import CHECKS, complete
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.storm import CLIENTS, Storm
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RESULTS = Path(__file__).resolve().parent / "results"
FAULTS = 200
ROUND = 10
"""After so many faults, every job must go on before the next."""
PAUSE_SECONDS, STOP_SECONDS = (0.5, 15.0), (5.0, 40.0)
DISK_BYTES = 1024**3
FULL_SECONDS = (5.0, 20.0)
CLOCKS = ("clock", "settle-clock", "queue-clock")
FORGED = (b"", b"0", b"-1", b"x", b"9" * 30, b"4102444800000", b"1e3", b"\xff", None)
WEIGHTS = {"kill": 40, "pause": 25, "broker-kill": 8, "broker-pause": 7, "clock": 12, "disk": 8}
DRIVERS = {
    1: {"jobs": ()},
    3: {
        "requests": ("correlate", "archive", "twin", "twin-index"),
        "messages": ("persist", "settle", "queues"),
        "copies": ("query", "mirror"),
    },
    8: {
        "twin": ("twin", "twin-index"),
        **{name: (name,) for name in ("correlate", "archive", "persist", "settle", "queues", "query", "mirror")},
    },
}
"""Which jobs share a program, by the number of programs: each takes about a gigabyte."""


class Fault(NamedTuple):
    """One fault.

    :ivar target: a program, a topic, or nothing
    :ivar after: seconds since the fault before
    :ivar lasts: seconds, if it is not over at once
    """

    kind: str
    target: str
    after: float
    lasts: float


def schedule(seed: int, count: int, programs: Sequence[str], kinds: Sequence[str]) -> list[Fault]:
    """Return the faults: each kind for each target at least once, if there are enough; the rest by :data:`WEIGHTS`."""
    chance = random.Random(seed)
    targets = {"kill": programs, "pause": programs, "clock": CLOCKS, "disk": ("lake", "checkpoints")}
    all_of_them = [(kind, target) for kind in kinds for target in targets.get(kind, ("",))]
    chance.shuffle(all_of_them)
    chosen = all_of_them[:count]
    for kind in chance.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=max(0, count - len(chosen))):
        chosen.append((kind, chance.choice(targets.get(kind, ("",)))))
    chance.shuffle(chosen)
    spans = {"pause": STOP_SECONDS, "broker-pause": STOP_SECONDS, "disk": FULL_SECONDS}

    def seconds(span: tuple[float, float]) -> float:
        return round(chance.uniform(*span), 1)

    return [Fault(kind, target, seconds(PAUSE_SECONDS), seconds(spans.get(kind, (0, 0)))) for kind, target in chosen]


class SupervisedStorm(Storm):
    """Starts a program again that has ended by itself, as a supervisor does; that is no violation, but is counted."""

    def __init__(self, kafka: Kafka, directory: Path, stack: ExitStack, **options: Any) -> None:
        self.lock = threading.RLock()
        self.ended: Counter[str] = Counter()
        self.sent: list[str] = []
        super().__init__(kafka, directory, stack, **options)
        self.inbound = kafka.topic("inbound")
        with connect_admin(kafka) as admin:
            admin.create_topics({self.inbound: {"num_partitions": 2, "replication_factor": 1}})
        asks = {"includes": ["twin-persisted"]}
        source = {"addresses": [self.inbound], "qos": 1, "start": "earliest", "acknowledgement_requests": asks}
        connections = json.dumps([{"id": "outside", "type": "kafka", "sources": [source]}])
        own = {"ACKSTREAM_CONNECTIONS": connections}
        self.programs["connector"] = Program("connector", ["connect"], self.system.settings, directory, own)
        stack.callback(self.programs["connector"].kill)

    def bring(self) -> None:
        """Give commands to the connector as another system does: until Kafka has them."""
        producer = KafkaProducer(bootstrap_servers=self.system.settings.kafka.bootstrap, acks="all")
        while not self.stopped.wait(0.5):
            key = f"in-{len(self.sent)}"
            command = self.system.command_json(key) | {"topic": "org.acme/lamp-0/things/twin/commands/modify"}
            with contextlib.suppress(KafkaError):
                producer.send(self.inbound, json.dumps(command).encode()).get(60)
                self.sent.append(key)
        producer.close(timeout=5)

    def brought(self) -> bool:
        """Look whether all of them are signals: the connector adds to their ids."""
        signals = self.system.records("signals")
        found = {dict(record.headers)["correlation-id"].decode().partition("#")[0] for record in signals}
        return found >= set(self.sent)

    def tend(self) -> bool:
        with self.lock:
            for name, program in self.programs.items():
                if program.ended:
                    self.ended[name] += 1
                    program.start()
        return True

    def kill(self, name: str) -> None:
        with self.lock:
            super().kill(name)


class Chaos:
    """What the faults do."""

    def __init__(self, storm: SupervisedStorm, broker: Broker, directory: Path) -> None:
        self._storm, self._broker, self._directory = storm, broker, directory

    def do(self, fault: Fault) -> None:
        """Cause a fault, and end it."""
        getattr(self, "_" + fault.kind.replace("-", "_"))(fault)

    def _kill(self, fault: Fault) -> None:
        self._storm.kill(fault.target)

    def _pause(self, fault: Fault) -> None:
        program = self._storm.programs[fault.target]
        program.pause()
        time.sleep(fault.lasts)
        program.resume()

    def _broker_kill(self, _: Fault) -> None:
        pid = self._broker.pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._broker.start()

    def _broker_pause(self, fault: Fault) -> None:
        pid = self._broker.pid()
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(fault.lasts)
            os.kill(pid, signal.SIGCONT)

    def _clock(self, fault: Fault) -> None:
        kafka = self._storm.system.settings.kafka
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        with contextlib.suppress(KafkaError):
            for key in (b"clock", None, b"\x00"):
                for value in FORGED:
                    producer.send(kafka.topic(fault.target), key=key, value=value)
            producer.flush(30)
        producer.close(timeout=5)

    def _disk(self, fault: Fault) -> None:
        ballast = self._directory / fault.target / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(1024**2)):
                    pass
            time.sleep(fault.lasts)
        finally:
            ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def quota(directory: Path) -> Iterator[bool]:
    """Give tables and checkpoints file systems of their own that can be filled; whether this machine lets us."""
    with ExitStack() as stack:
        for name in ("lake", "checkpoints"):
            place = directory / name
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
            if subprocess.run(command, check=False, capture_output=True).returncode != 0:
                yield False
                return
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        yield True


def run(seed: int, count: int, drivers: int, console: Console) -> dict[str, Any]:
    """Run the schedule; return the report."""
    began = time.monotonic()
    done: list[dict[str, Any]] = []
    violations: list[str] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ackstream-chaos-")))
        can_fill = stack.enter_context(quota(directory))
        port, controller_port = free_ports(2)
        broker = Broker(Settings(local=Local(data=directory / "broker", port=port, controller_port=controller_port)))
        broker.start(console)
        stack.callback(broker.stop)
        kafka = Kafka(bootstrap=broker.bootstrap, topic_prefix="chaos-")
        storm = SupervisedStorm(kafka, directory, stack, drivers=DRIVERS[drivers])
        kinds = [kind for kind in WEIGHTS if kind != "disk" or can_fill]
        chaos = Chaos(storm, broker, directory)
        eventually(storm.is_ready, "the gateway")
        pool = stack.enter_context(ThreadPoolExecutor(8))
        stack.callback(storm.failed.set)
        stack.callback(storm.stopped.set)
        workers = (lambda: storm.work("A"), lambda: storm.work("B"))
        load = [
            pool.submit(task) for task in (storm.fill_the_queue, storm.request, storm.follow, storm.bring, *workers)
        ]
        try:
            for number, fault in enumerate(schedule(seed, count, [*DRIVERS[drivers], *CLIENTS, "connector"], kinds)):
                if number % ROUND == 0:
                    before = storm.progress()
                    eventually(lambda: storm.has_gone_on(before), f"every job to go on: {before}")  # noqa: B023
                    storm.check_replication()
                time.sleep(fault.after)
                console.print(f"{time.strftime('%X')} {number + 1}/{count} {fault}", highlight=False)
                chaos.do(fault)
                done.append({"at": round(time.monotonic() - began, 1), **fault._asdict()})
            storm.stop.touch()
            storm.stopped.set()
            eventually(lambda: storm.tend() and all(task.done() for task in load), "the end of the load")
            eventually(lambda: storm.tend() and storm.brought() and complete(storm), "everything to be complete")
        except Exception:  # noqa: BLE001 - reported with the seed
            violations.append(traceback.format_exc(limit=-4))
        finally:
            storm.stop.touch()
            storm.stopped.set()
            storm.failed.set()
        violations += [repr(error) for task in load if (error := task.exception()) is not None]
        for program in storm.programs.values():
            program.kill()
        for check in CHECKS:
            try:
                check(storm)
            except AssertionError:
                violations.append(f"{check.__name__}: {traceback.format_exc(limit=-2)}"[:4_000])
        return {
            "benchmark": "chaos",
            "seed": seed,
            "seconds": round(time.monotonic() - began),
            "cores": os.cpu_count(),
            "programs": {name: list(jobs) for name, jobs in DRIVERS[drivers].items()},
            "load": {
                "requests": len(storm.answers),
                "brought": len(storm.sent),
                "messages": storm.last(),
                "queued": storm.queued,
            },
            "faults": len(done),
            "by_kind": Counter(fault["kind"] for fault in done),
            "ended_by_themselves": storm.ended,
            "violations": violations,
            "schedule": done,
        }


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--drivers", type=int, choices=sorted(DRIVERS), default=3, help="programs that share the jobs")
    parser.add_argument("--results", type=Path, help=f"where chaos.json goes; {RESULTS} for {FAULTS} faults or more")
    arguments = parser.parse_args()
    report = run(arguments.seed, arguments.faults, arguments.drivers, Console(stderr=True))
    text = json.dumps(report, indent=2)
    print(text)
    place = arguments.results or (RESULTS if arguments.faults >= FAULTS else None)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "chaos.json").write_text(text + "\n", "utf-8")
    sys.exit(1 if report["violations"] else 0)


if __name__ == "__main__":
    main()
