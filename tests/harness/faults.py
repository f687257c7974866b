"""What may befall the programs of a storm and its brokers, and the supervisor that starts again what has ended."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import psutil
from kafka import KafkaProducer
from kafka.errors import KafkaError

from ackstream.errors import AckstreamError
from ackstream.kafka.clients import close_producer, connect_admin, connect_producer
from ackstream.local.submit import QUICK_START
from tests.harness.kafka import committed, records, send_bombs
from tests.harness.processes import NOT_COMPILED, Program
from tests.harness.storm import QUEUE, Storm, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from ackstream.settings import Kafka
    from tests.harness.cluster import Cluster
    from tests.harness.disks import Disk, Machine

DISKS = {"lake": 768, "checkpoints": 768, "store": 48}
"""Their sizes in MB; the store is the publisher's."""
POWER = {"jobs": ("lake", "checkpoints"), "publisher": ("store",)}
"""What a machine that loses its power has: the disks."""
LEASE, MAX_DELIVERIES = "150s", 3
"""Of the queue, for what a handler has: longer than any other fault than the job's absence."""
FORGERS = (b"clock", b"claim", b"0", b"\x00")
FORGED = (b"", b"0", b"-1", b"x", b"9" * 30, b"4102444800000", b"1e3", b"\xff", None)
AGAIN_SECONDS = 5.0
BOMB_MB = 300
"""The size of a record once decompressed, of 9 kB with zstd: more than the job that copies it a few times has."""
"""After which a program that has ended by itself is started again."""

AWAY = (KafkaError, AckstreamError, OSError)
INBOUND = "inbound"
BROUGHT_PER_SECOND = 1
LOG_BYTES, REASON_CHARACTERS = 2_000, 300


class SupervisedStorm(Storm):
    """Starts a program again that has ended by itself; that is no violation, but is counted.

    :ivar ended: how often, by program and by the last line of its log
    """

    stores = "store"

    def __init__(
        self,
        kafka: Kafka,
        directory: Path,
        stack: ExitStack,
        jobs: Mapping[str, list[str]],
        options: Mapping[str, str],
    ) -> None:
        self.lock = threading.RLock()
        self.jobs = tuple(jobs)
        self.away: set[str] = set()
        self.ended: dict[str, Counter[str]] = defaultdict(Counter)
        self.sent: list[str] = []
        temporary = directory / "temporary"
        temporary.mkdir()
        (directory / self.stores).mkdir(exist_ok=True)
        limits = {"max_backlog": 200, "lease": LEASE, "max_deliveries": MAX_DELIVERIES}
        queue = {"name": QUEUE, "topics": [QUEUE], "backoff": {"initial": "200ms"}}
        standby = {"name": "standby", "path": str(directory / "standby"), "type": "sync"}
        options = dict(options) | {
            # a task that ends with its worker is executed again
            "ACKSTREAM_SPARK_MASTER": "local[2,4]",
            "ACKSTREAM_QUEUES": json.dumps([queue | limits]),
            # a JVM per job, and few cores: a batch has much rather than many batches little
            "ACKSTREAM_SPARK_DRIVER_MEMORY": "640m",
            "ACKSTREAM_SPARK_CONF": json.dumps(NOT_COMPILED),
            "ACKSTREAM_DESTINATIONS": json.dumps([standby | {"ack_conflation_interval": "5s"}]),
            "ACKSTREAM_CLOCK_INTERVAL": "3s",
            "ACKSTREAM_CORRELATE_TRIGGER": "6s",
            "ACKSTREAM_ARCHIVE_TRIGGER": "30s",
            "ACKSTREAM_TWIN_TRIGGER": "6s",
            "ACKSTREAM_TWIN_INDEX_TRIGGER": "60s",
            "ACKSTREAM_PERSIST_INTERVAL": "10s",
            "ACKSTREAM_SETTLE_INTERVAL": "10s",
            "ACKSTREAM_QUEUE_INTERVAL": "10s",
            "ACKSTREAM_QUERY_INTERVAL": "10s",
            "JDK_JAVA_OPTIONS": f"{QUICK_START} -XX:-UsePerfData -Djava.io.tmpdir={temporary}",
            "SPARK_LOCAL_DIRS": str(temporary),
            "TMPDIR": str(temporary),
        }
        super().__init__(kafka, directory, stack, jobs, options)
        self.inbound = kafka.topic(INBOUND)
        with connect_admin(kafka) as admin:
            admin.create_topics({self.inbound: {"num_partitions": 2, "replication_factor": kafka.replication}})
        asks = {"includes": ["twin-persisted"]}
        source = {"addresses": [self.inbound], "qos": 1, "start": "earliest", "acknowledgement_requests": asks}
        connections = json.dumps([{"id": "outside", "type": "kafka", "sources": [source]}])
        self.add("connector", ["connect"], directory, ACKSTREAM_CONNECTIONS=connections)

    def load(self) -> dict[str, Callable[[], None]]:
        """Return the clients that stay."""
        return {
            "requests": self.request,
            "commands of another system": self.bring,
            "publisher of the queue": self.fill_the_queue,
            "consumer A": lambda: self.work("A"),
            "consumer B": lambda: self.work("B"),
            "query client": self.follow,
        }

    def bring(self) -> None:
        """Give commands to the connector as another system does: until Kafka has them."""
        producer = connect_producer(self.system.settings.kafka, self.inbound)
        number = 0
        while not self.stopped.wait(1 / BROUGHT_PER_SECOND):
            key = f"in-{number}"
            number += 1
            command = self.system.command_json(key) | {"topic": "org.acme/lamp-0/things/twin/commands/modify"}
            with contextlib.suppress(KafkaError, ValueError):
                producer.send(self.inbound, json.dumps(command).encode()).get(60)
                self.sent.append(key)
        close_producer(producer)

    def not_brought(self) -> list[str]:
        """Say which of them are no signals: the connector adds to the ids of those that it reads again."""
        signals = self.system.records("signals")
        found = {dict(record.headers)["correlation-id"].decode().partition("#")[0] for record in signals}
        lost = set(self.sent) - found
        return [f"connector has not sent {len(lost)}: {sorted(lost)[:10]}"] if lost else []

    def progress(self) -> dict[str, int]:
        kafka = self.system.settings.kafka
        return super().progress() | {
            # the number of the newest request that was answered as it should be
            "gateway": max(
                (int(key[4:]) for key, (status, _) in list(self.answers.items()) if status == 200), default=0
            ),
            "connector": sum(committed(kafka, kafka.group("ackstream-source-outside"), INBOUND).values()),
            **{name: len(lines(note)) for name, note in self.notes.items()},
        }

    def tend(self) -> bool:
        return True

    def supervise(self) -> None:
        """Start again what has ended by itself, until the storm is over."""
        due: dict[str, float] = {}
        while not self.failed.wait(1.0):
            with self.lock:
                for name, program in self.programs.items():
                    if not program.ended or name in self.away:
                        due.pop(name, None)
                    elif name not in due:
                        self.ended[name][self.last_line(program)] += 1
                        due[name] = time.monotonic() + AGAIN_SECONDS
                    elif time.monotonic() >= due[name]:
                        del due[name]
                        program.start()

    def kill(self, name: str) -> None:
        if name == "subscriber":
            with contextlib.suppress(*AWAY):
                self.note_commits()
        self.interrupt([name])

    def interrupt(self, names: Iterable[str], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Kill programs, and start those again that are not to stay away."""
        with self.lock:
            for name in names:
                self.programs[name].kill()
            meanwhile()
            for name in set(names) - self.away:
                self.programs[name].start()

    def end(self) -> None:
        """End everything that is not Kafka."""
        for event in (self.stopped, self.failed):
            event.set()
        with self.lock:
            self._kill_all()

    def explain(self, names: Iterable[str]) -> str:
        """Return how often programs have ended by themselves, and the ends of their logs."""
        return "".join(
            f"\n-- {name} ended by itself {sum(self.ended[name].values())} times; "
            f"its log ends: {_tail(self.programs[name])}"
            for name in sorted(names)
            if name in self.programs
        )

    def last_line(self, program: Program) -> str:
        """Return the last line of a program's log."""
        found = [line for line in _tail(program).splitlines() if line.strip()]
        # where a run keeps its files is not worth keeping
        return found[-1].replace(f"{self.stop.parent}/", "")[:REASON_CHARACTERS] if found else ""


def _tail(program: Program) -> str:
    return program.log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")


class Faults:
    """What the faults do. Those of brokers, disks, the clock and consumers come one after the other in each group."""

    def __init__(
        self, storm: SupervisedStorm, cluster: Cluster, directory: Path, disks: Mapping[str, Disk], machine: Machine
    ) -> None:
        self._storm, self._cluster, self._directory = storm, cluster, directory
        self._all_disks, self._machine = disks, machine
        self._brokers, self._disks, self._clocks = (threading.Lock() for _ in range(3))

    def do(self, kind: str, target: str, lasts: float, entry: dict[str, Any]) -> None:
        """Cause a fault, and end it.

        :param entry: of the report, which gets what was not known before
        """
        if kind in ("kill", "pause"):
            self._program(kind, target, lasts)
        elif kind == "clock":
            self._clock(target)
        elif kind == "away":
            self._away(target, lasts)
        elif kind == "task":
            entry["killed"] = self._task(target, lasts)
        elif kind in ("disk", "links", "power"):
            with self._disks:
                getattr(self, f"_{kind}")(target, lasts)
        elif kind == "step":
            with self._clocks:
                self._step(int(target), lasts)
        elif kind == "bomb":
            entry["refused"] = self._bomb(target)
        else:
            with self._brokers:
                entry["node"] = number = self._node(target)
                self._broker(kind, number, lasts)

    def _program(self, kind: str, name: str, lasts: float) -> None:
        if kind == "kill":
            self._storm.kill(name)
            return
        program = self._storm.programs[name]
        program.pause()
        self._storm.failed.wait(lasts)
        # if it was killed meanwhile, the new one does not mind
        program.resume()

    def _node(self, target: str) -> int:
        name, _, number = target.rpartition("-")
        if name == "broker":
            return int(number)
        kafka = self._storm.system.settings.kafka
        return self._again(lambda: self._cluster.leader(kafka, target), lambda found: found > 0)

    def _again(self, look: Callable[[], int], good: Callable[[int], bool]) -> int:
        """Look until Kafka answers."""
        while True:
            with contextlib.suppress(*AWAY):
                if good(found := look()):
                    return found
            if self._storm.failed.wait(1.0):
                raise AssertionError("Kafka did not answer before the storm was over")

    def _broker(self, kind: str, number: int, lasts: float) -> None:
        node, proxy = self._cluster.nodes[number - 1], self._cluster.proxies[number - 1]
        wait = self._storm.failed.wait
        if kind == "broker-kill":
            node.signal(signal.SIGKILL)
            wait(lasts)
            node.start()
        elif kind == "broker-pause":
            node.signal(signal.SIGSTOP)
            wait(lasts)
            node.signal(signal.SIGCONT)
        else:
            # clients' bytes are held, and their connections are neither refused nor accepted
            proxy.pause()
            wait(lasts)
            if kind == "network":
                proxy.resume()
            else:
                proxy.kill()
                proxy.start()

    def _clock(self, topic: str) -> None:
        kafka = self._storm.system.settings.kafka

        def forge() -> int:
            producer = KafkaProducer(bootstrap_servers=kafka.bootstrap.split(","))
            try:
                sent = [producer.send(kafka.topic(topic), key=key, value=value) for key in FORGERS for value in FORGED]
                return sum(each.get(30) is not None for each in sent)
            finally:
                producer.close(timeout=5)

        self._again(forge, lambda found: found == len(FORGERS) * len(FORGED))

    def _away(self, name: str, lasts: float) -> None:
        self._storm.away.add(name)
        self._storm.kill(name)
        self._storm.failed.wait(lasts)
        self._storm.away.discard(name)
        self._storm.kill(name)

    def _task(self, name: str, lasts: float) -> bool:
        """Kill a Python worker once it works: its task is executed again. Return whether one has worked."""
        before: dict[int, float] = {}
        until = time.monotonic() + lasts
        while time.monotonic() < until and not self._storm.failed.wait(0.02):
            with contextlib.suppress(psutil.NoSuchProcess):
                for worker in _workers(self._storm.programs[name].session):
                    used = worker.cpu_times().user
                    if used > before.setdefault(worker.pid, used):
                        worker.kill()
                        return True
        return False

    def _step(self, seconds: int, lasts: float) -> None:
        self._machine.set_clock(seconds)
        self._storm.failed.wait(lasts)
        self._machine.set_clock(0)

    def _bomb(self, codec: str) -> list[str]:
        """Send a record of :data:`BOMB_MB` to each topic that clients write; return the answers of the brokers."""
        answers = send_bombs(self._storm.system.settings.kafka, codec, BOMB_MB)
        if any(answer.startswith("stored") for answer in answers):
            raise AssertionError(f"a record of {BOMB_MB} MB was not refused: {answers}")
        return answers

    def _disk(self, name: str, lasts: float) -> None:
        disk = self._all_disks[name]
        try:
            disk.fill()
            self._storm.failed.wait(lasts)
        finally:
            disk.empty()

    def _links(self, _target: str, lasts: float) -> None:
        self._machine.allow_links(allowed=False)
        self._storm.failed.wait(lasts)
        self._machine.allow_links(allowed=True)

    def _power(self, machine: str, _lasts: float) -> None:
        disks = [self._all_disks[name] for name in POWER[machine]]

        def restore() -> None:
            for disk in disks:
                disk.restore()

        # nothing is started on what is off
        with self._storm.lock:
            for disk in disks:
                disk.cut()
            self._storm.interrupt(self._storm.jobs if machine == "jobs" else [machine], restore)


def _workers(pid: int) -> list[psutil.Process]:
    """Return the Python workers of a job, which are what a daemon of the same command has forked."""
    daemons = [child for child in psutil.Process(pid).children(recursive=True) if "pyspark.daemon" in child.cmdline()]
    known = {daemon.pid for daemon in daemons}
    return [daemon for daemon in daemons if daemon.ppid() in known]


def dump(kafka: Kafka, topics: Iterable[str], directory: Path) -> None:
    """Write the records of topics as lines of JSON, for people."""
    directory.mkdir(parents=True, exist_ok=True)
    for topic in topics:
        with (
            contextlib.suppress(*AWAY, AssertionError),
            (directory / f"{topic}.jsonl").open("w", encoding="utf-8") as file,
        ):
            for record in sorted(records(kafka, topic), key=lambda each: (each.timestamp, each.partition, each.offset)):
                row = {
                    name: _text(getattr(record, name)) for name in ("timestamp", "partition", "offset", "key", "value")
                }
                headers = {name: _text(value) for name, value in record.headers}
                file.write(json.dumps(row | {"headers": headers}) + "\n")


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
