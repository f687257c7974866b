"""All jobs and clients under one load, to be killed, paused and cut off: what runs, what it does, how far it is."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import httpx

from ackstream.client import Publisher, QueryClient, QueueConsumer
from ackstream.client.errors import FlushTimeout
from ackstream.kafka.topics import ensure_topics
from tests.harness import programs
from tests.harness.kafka import committed
from tests.harness.lake import count, rows
from tests.harness.ports import free_ports
from tests.harness.processes import NOT_COMPILED, Program, alive
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ackstream.settings import Kafka

CLIENTS = ("gateway", "subscriber", "publisher", "reader")
THINGS = 5
REQUESTS_PER_SECOND = 3
QUEUE_MESSAGES_PER_SECOND = 2
MESSAGES_PER_SECOND = 20
HEARTBEAT_SECONDS = 300.0
"""Of the query client here, which stays: a session that ends because Kafka was away is the business of other tests."""

LABEL = "app:seen"
TOPIC, QUEUE = "samples", "work"


class Storm:
    """Everything that runs, and what it has done so far.

    :cvar window: how many messages a publisher sends ahead
    :cvar interval: between two batches of a job, but for correlate
    :cvar mirror_interval: between two looks of the mirror
    """

    window = 50
    interval, mirror_interval = "1s", "500ms"
    stores = ""
    """The directory of the publishers' stores, if not that of everything."""

    def __init__(
        self,
        kafka: Kafka,
        directory: Path,
        stack: ExitStack,
        jobs: Mapping[str, list[str]] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Start all programs.

        :param jobs: the arguments of the programs that run the jobs; one runs all by default
        :param options: variables of the environment, which win over those of the storm
        """
        jobs = {"jobs": ["-c", programs.JOBS]} if jobs is None else jobs
        self.system = stack.enter_context(closing(System(kafka, directory)))
        self.lake = self.system.settings.lake
        self.standby = self.lake.model_copy(update={"path": str(directory / "standby")})
        self.notes = {name: directory / f"{name}.notes" for name in ("subscriber", "publisher", "reader")}
        for path in self.notes.values():
            path.touch()
        self.stop, self.rate = directory / "stop", directory / "rate"
        self.rate.write_text(str(MESSAGES_PER_SECOND), "utf-8")
        (self.port,) = free_ports(1)
        ensure_topics(self.system.settings)
        self.environment = self._environment() | dict(options or {})
        self.programs: dict[str, Program] = {}
        stack.callback(self._kill_all)
        for name, arguments in (jobs | self._clients()).items():
            self.add(name, arguments, directory)
        self.asked = 0
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.received: list[int] = []
        self.handed: list[tuple[str, int]] = []
        self.accepted: list[int] = []
        self.queued: int | None = None
        """How many messages the queue got, once it gets no more."""
        self.committed: list[tuple[float, dict[tuple[str, int], int]]] = []
        """Offsets that the subscriber had committed, each with a time after that."""
        self.stopped = threading.Event()
        self.failed = threading.Event()

    def add(self, name: str, arguments: list[str], directory: Path, **options: str) -> None:
        """Start one more program."""
        self.programs[name] = Program(name, arguments, self.system.settings, directory, self.environment | options)

    def _kill_all(self) -> None:
        for program in self.programs.values():
            program.kill()

    def _clients(self) -> dict[str, list[str]]:
        notes = {name: str(path) for name, path in self.notes.items()}
        return {
            "gateway": ["gateway"],
            "subscriber": ["-c", programs.SUBSCRIBER, notes["subscriber"]],
            "publisher": self.publishing("p1", self.notes["publisher"], TOPIC, self.window),
            "reader": ["-c", programs.READER, "P1", "Processor", notes["reader"]],
        }

    def publishing(self, client: str, notes: Path, topic: str, window: int) -> list[str]:
        """Return what a publisher of consecutive numbers is started with."""
        places = notes.parent / self.stores / f"{client}.db", notes, self.stop
        return ["-c", programs.PUBLISHER, client, *map(str, places), topic, str(self.rate), str(window)]

    def _environment(self) -> dict[str, str]:
        destination = {"name": "standby", "path": self.standby.path, "type": "sync"}
        destination["ack_conflation_interval"] = self.mirror_interval
        queue = {"name": QUEUE, "topics": [QUEUE], "max_backlog": 200, "backoff": {"initial": "200ms"}}
        return {
            "ACKSTREAM_GATEWAY_PORT": str(self.port),
            "ACKSTREAM_DESTINATIONS": json.dumps([destination]),
            "ACKSTREAM_SETTLE_REQUIRED": json.dumps([{"role": "Processor", "quorum": 1}]),
            "ACKSTREAM_QUEUES": json.dumps([queue]),
            "ACKSTREAM_QUEUE_SESSION": "300s",
            # messages may be stored before the job's first start
            "ACKSTREAM_QUEUE_STARTING": "earliest",
            "ACKSTREAM_SPARK_DRIVER_MEMORY": "2g",
            "ACKSTREAM_SPARK_CONF": json.dumps(NOT_COMPILED),
            # nine queries share the machine: a batch has much rather than many batches little
            "ACKSTREAM_CLOCK_INTERVAL": "3s",
            "ACKSTREAM_CORRELATE_TRIGGER": "1s",
            "ACKSTREAM_TWIN_TRIGGER": self.interval,
            "ACKSTREAM_PERSIST_INTERVAL": self.interval,
            "ACKSTREAM_SETTLE_INTERVAL": self.interval,
            "ACKSTREAM_QUEUE_INTERVAL": self.interval,
            "ACKSTREAM_QUERY_INTERVAL": self.interval,
        }

    # -- the load ------------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Look whether the gateway answers."""
        self.tend()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/api/2/things?ids=", timeout=5).status_code > 0
        except httpx.TransportError:
            return False

    def request(self) -> None:
        """Put values at a steady rate until the storm is over; a gateway that is away is no news."""
        asyncio.run(self._request())

    async def _request(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        base = f"http://127.0.0.1:{self.port}/api/2/things/org.acme:lamp-"
        tasks = []
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=limits) as client:

            async def put(number: int) -> None:
                try:
                    found = await client.put(
                        f"{base}{number % THINGS}",
                        params={"requested-acks": f"twin-persisted,{LABEL}", "timeout": "55s"},
                        headers={"correlation-id": f"put-{number}"},
                        json={"attributes": {"n": number}},
                    )
                    self.answers[f"put-{number}"] = found.status_code, found.content
                except httpx.TransportError as error:
                    self.answers[f"put-{number}"] = 0, repr(error).encode()

            number = 0
            while not self.stopped.is_set():
                tasks.append(asyncio.create_task(put(number)))
                self.asked = number = number + 1
                await asyncio.sleep(1 / REQUESTS_PER_SECOND)
            await asyncio.gather(*tasks)

    def work(self, name: str) -> None:
        """Take messages of the queue until all are settled; every seventh fails the first time."""
        with QueueConsumer(
            self.system.settings.kafka, queue=QUEUE, name=name, outcomes=("failed",), ack_batch=5, ack_timeout=0.1,
            bind_timeout=PATIENCE_SECONDS,
        ) as consumer:  # fmt: skip
            while not self.failed.is_set() and (self.queued is None or len(self.accepted) < self.queued):
                message = consumer.receive(0.2)
                if message is None:
                    continue
                number = int(message.value or b"-1")
                self.handed.append((message.id, message.count))
                if number % 7 == 0 and message.count == 1:
                    message.settle("failed")
                else:
                    message.settle()
                    self.accepted.append(number)
            assert consumer.statistics.lost == 0, "a session of 300 s expired"

    def fill_the_queue(self) -> None:
        """Publish one message after the other until the storm is over: whatever ends before it cannot go on after."""
        with Publisher(self.system.settings.kafka, name="p2", ack_timeout=60, logon_timeout=PATIENCE_SECONDS) as p2:
            number = 0
            while not self.stopped.wait(1 / QUEUE_MESSAGES_PER_SECOND):
                p2.publish(b"%d" % number, topic=QUEUE)
                number += 1
            while not self.failed.is_set() and self.queued is None:
                with suppress(FlushTimeout):
                    p2.publish_flush(1.0)
                    self.queued = number

    def follow(self) -> None:
        """Subscribe to all messages of the publisher, by the query job."""
        with QueryClient(
            self.system.settings.kafka, name="q1", timeout=PATIENCE_SECONDS, heartbeat=HEARTBEAT_SECONDS
        ) as client:
            stream = client.subscribe(TOPIC, bookmark="EPOCH")
            while not self.failed.is_set() and ((last := self.last()) is None or len(self.received) < last):
                message = stream.receive(1.0)
                if message is not None:
                    self.received.append(int(message.value or b"0"))

    def tend(self) -> bool:
        """Look whether all programs run.

        :raises AssertionError: one ended by itself
        """
        return alive(self.programs.values())

    # -- what has happened ---------------------------------------------------------------------------------------------

    def last(self) -> int | None:
        """Return the number of the publisher's last message, once all are stored."""
        ends = [line for line in lines(self.notes["publisher"]) if line.startswith("end,")]
        return int(ends[0].partition(",")[2]) if ends else None

    def progress(self) -> dict[str, int]:
        """Return how far every job has come: what only it can make more of."""
        self.tend()
        return {
            "twin": count(self.lake, "thing_events"),
            "correlate": self.system.end("replies"),
            "archive": count(self.lake, "outcomes"),
            "persist": count(self.lake, "messages"),
            "mirror": count(self.standby, "messages"),
            "settle": count(self.lake, "deliveries"),
            "queues": len(self.accepted),
            "query": len(self.received),
        }

    def has_gone_on(self, before: dict[str, int]) -> bool:
        """Look whether every job has done something since."""
        now = self.progress()
        return all(now[name] > before[name] for name in before)

    def kill(self, name: str) -> None:
        if name == "subscriber":
            eventually(self.note_commits, "a commit of the subscriber")
        self.programs[name].kill()
        self.programs[name].start()

    def note_commits(self) -> bool:
        """Note what the subscriber has committed, if it has: from now on that must not be handled again."""
        kafka = self.system.settings.kafka
        found = committed(kafka, kafka.group("app"), "events")
        if found:
            self.committed.append((time.time(), found))
        return bool(found)

    def check_replication(self) -> None:
        """What the publisher was told is stored is at the destination that it waits for."""
        told = [int(line.split(",")[1]) for line in lines(self.notes["publisher"])]
        there = {row["seq"] for row in rows(self.standby, "messages", "seq", "client") if row["client"] == "p1"}
        lost = set(range(1, max(told, default=0) + 1)) - there
        assert not lost, f"The publisher was told that {sorted(lost)[:20]} are stored, but standby does not have them."


def lines(note: Path) -> list[str]:
    """Return the whole lines of notes that are being written."""
    return note.read_text("utf-8").rpartition("\n")[0].splitlines()
