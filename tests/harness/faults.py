"""What may befall the programs of a storm and its brokers, and the supervisor that starts again what has ended."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from ackstream.errors import AckstreamError
from ackstream.kafka.clients import close_producer, connect_admin, connect_producer
from ackstream.spark.session import QUICK_START
from tests.harness.kafka import committed, records
from tests.harness.storm import NOT_COMPILED, Storm, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from ackstream.settings import Kafka
    from tests.harness.cluster import Cluster

DISKS = ("lake", "checkpoints")
FORGERS = (b"clock", b"claim", b"0", b"\x00")
FORGED = (b"", b"0", b"-1", b"x", b"9" * 30, b"4102444800000", b"1e3", b"\xff", None)
AGAIN_SECONDS = 5.0
"""After which a program that has ended by itself is started again."""

AWAY = (KafkaError, AckstreamError, OSError)
INBOUND = "inbound"
BROUGHT_PER_SECOND = 1
LOG_BYTES, REASON_CHARACTERS = 2_000, 300


class SupervisedStorm(Storm):
    """Starts a program again that has ended by itself; that is no violation, but is counted.

    :ivar ended: how often, by program and by the last line of its log
    """

    def __init__(self, kafka: Kafka, directory: Path, stack: ExitStack, jobs: Mapping[str, list[str]]) -> None:
        self.lock = threading.RLock()
        self.ended: dict[str, Counter[str]] = defaultdict(Counter)
        self.sent: list[str] = []
        temporary = directory / "temporary"
        temporary.mkdir()
        standby = {"name": "standby", "path": str(directory / "standby"), "type": "sync"}
        options = {
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
                    if not program.ended:
                        due.pop(name, None)
                    elif name not in due:
                        self.ended[name][self._last_line(name)] += 1
                        due[name] = time.monotonic() + AGAIN_SECONDS
                    elif time.monotonic() >= due[name]:
                        del due[name]
                        program.start()

    def kill(self, name: str) -> None:
        if name == "subscriber":
            with contextlib.suppress(*AWAY):
                self.note_commits()
        with self.lock:
            self.programs[name].kill()
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
            f"\n-- {name} ended by itself {sum(self.ended[name].values())} times; its log ends: {self._tail(name)}"
            for name in sorted(names)
            if name in self.programs
        )

    def _tail(self, name: str) -> str:
        data = self.programs[name].log.read_bytes()
        return data[-LOG_BYTES:].decode("utf-8", "replace")

    def _last_line(self, name: str) -> str:
        found = [line for line in self._tail(name).splitlines() if line.strip()]
        # where a run keeps its files is not worth keeping
        return found[-1].replace(f"{self.stop.parent}/", "")[:REASON_CHARACTERS] if found else ""


class Faults:
    """What the faults do. Those of brokers come one after the other, and so do those of disks; the others overlap."""

    def __init__(self, storm: SupervisedStorm, cluster: Cluster, directory: Path) -> None:
        self._storm, self._cluster, self._directory = storm, cluster, directory
        self._brokers, self._disks = threading.Lock(), threading.Lock()

    def do(self, kind: str, target: str, lasts: float, entry: dict[str, Any]) -> None:
        """Cause a fault, and end it.

        :param entry: of the report, which gets what was not known before
        """
        if kind in ("kill", "pause"):
            self._program(kind, target, lasts)
        elif kind == "clock":
            self._clock(target)
        elif kind == "disk":
            with self._disks:
                self._disk(target, lasts)
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

    def _disk(self, name: str, lasts: float) -> None:
        ballast = self._directory / name / "ballast"
        try:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(1024**2)):
                    pass
            self._storm.failed.wait(lasts)
        finally:
            ballast.unlink(missing_ok=True)


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
