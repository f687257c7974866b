"""A system that runs for the pictures: a Kafka, jobs in one session, and the events of the scenario on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from kafka import KafkaAdminClient

from ackstream.client import Ack, Command, Publisher, Reply, Requester, Responder, SampleReader, WriterQos
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.settings import Settings, load
from docs.pictures.drawing import Event, Picture, Tone
from tests.demo.broker import Broker
from tests.harness.lake import rows
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.waiting import eventually

SYSTEM = "ackstream"
"""The lane of broker and jobs."""
TOPICS = ("orders", "tables", "telemetry", "answers")
"""Topics of applications."""

CONF = """
[kafka]
bootstrap = "localhost:{port}"
[local]
data = "{directory}"
port = {port}
controller_port = {controller_port}
[metrics]
port = {metrics_port}
[lake]
path = "{directory}/lake"
checkpoints = "{directory}/checkpoints"
[correlate]
request_topics = ["orders", "tables"]
[[persist.entitlements]]
clients = ["*"]
topics = ["orders*"]
[[queues]]
name = "orders"
topics = ["orders/*"]
backoff = {{ initial = "1s", max = "1m" }}
[[connections]]
id = "plant"
type = "kafka"
[[connections.sources]]
addresses = ["telemetry"]
qos = 1
start = "earliest"
acknowledgement_requests = {{ includes = ["fleet:stored"] }}
reply_target = {{ address = "answers", expected = ["response", "error"] }}
"""


@dataclass
class Run:
    """A running system, and the events of the scenario that it carries out."""

    settings: Settings
    directory: Path
    events: list[Event] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        """The broker of the system."""
        return self.settings.kafka.bootstrap

    def again(self) -> Run:
        """Return the same system without the events."""
        return Run(self.settings, self.directory)

    @contextmanager
    def program(self, name: str, **more: str) -> Iterator[str]:
        """Run a program of the product with further variables; give the address of its HTTP server."""
        port, metrics_port = free_ports(2)
        own = {
            "CONF": str(self.directory / "ackstream.toml"),
            "METRICS_PORT": str(metrics_port),
            "GATEWAY_PORT": str(port),
        }
        own = {f"ACKSTREAM_{key}": value for key, value in own.items()} | more
        program = Program(name, [name], self.settings, self.directory, own)
        try:
            eventually(lambda: _ready(program, port if name == "gateway" else metrics_port), name)
            yield f"http://127.0.0.1:{port}"
        finally:
            program.terminate()
            eventually(lambda: program.ended, f"the end of {name}")

    def note(self, source: str, target: str, text: str, tone: Tone = "plain", *, at: Any = None) -> None:
        """Remember an arrow, or with one lane a note; ``at`` is a time of a table, now by default."""
        self.events.append(Event(_seconds(at), source, text, target if target != source else "", tone))

    def bar(self, lane: str, text: str, begin: Any, end: Any, tone: Tone) -> None:
        """Remember a bar on a time axis, without an end a dot."""
        self.events.append(Event(_seconds(begin), lane, text, "", tone, None if end is None else _seconds(end)))

    def table(self, name: str, count: int, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows of a table with these values, once there are as many as the scenario makes."""

        def found() -> list[dict[str, Any]]:
            every = rows(self.settings.lake, name)
            chosen = [row for row in every if all(row[column] == value for column, value in wanted.items())]
            return chosen if len(chosen) >= count else []

        return eventually(found, f"{count} rows of {name} with {wanted}")

    def acknowledged(self, correlation_id: str, count: int, parties: dict[str, str]) -> None:
        """Remember the acknowledgements of a request as the table has them."""
        for row in self.table("acknowledgements", count, correlation_id=correlation_id):
            counts = row["disposition"] == "accepted"
            tone: Tone = "faint" if not counts else "good" if is_success(row["status"]) else "bad"
            text = f"{row['label']}: {row['status']}" + (", weak" if row["weak"] else "")
            text += "" if counts else f", {row['disposition']}"
            self.note(parties[row["label"]], SYSTEM, text, tone, at=row["received_at"])

    def replied(self, requester: str, reply: Reply) -> None:
        """Remember that a requester has its reply."""
        missing = f"\nmissing: {', '.join(reply.missing)}" if reply.missing else ""
        tone: Tone = "good" if reply.ok else "bad"
        self.note(SYSTEM, requester, f"reply: {reply.status}, {reply.completed_by}{missing}", tone)

    def picture(self, form: Any, title: str, about: str, *lanes: str) -> Picture:
        """Return the picture of all events, in the order of their times."""
        events = sorted(self.events, key=lambda event: event.at)
        begin = events[0].at
        for event in events:
            event.at = round(event.at - begin, 2)
            event.until = None if event.until is None else round(event.until - begin, 2)
        return Picture(form, title, about, list(lanes), events)


def _seconds(moment: Any) -> float:
    return time.time() if moment is None else moment if isinstance(moment, float) else moment.timestamp()


@contextmanager
def running(jobs: tuple[str, ...]) -> Iterator[Run]:
    """Run a system with these jobs, which have processed requests or messages; without jobs there is none."""
    if not jobs:
        yield Run(Settings(), Path())
        return
    with TemporaryDirectory(prefix="ackstream-pictures-") as name:
        port, controller_port, metrics_port = free_ports(3)
        directory, conf = Path(name), Path(name, "ackstream.toml")
        ports = {"port": port, "controller_port": controller_port, "metrics_port": metrics_port}
        conf.write_text(CONF.format(directory=name, **ports), "utf-8")
        settings = load(conf, {})
        broker = Broker(settings)
        broker.start()
        try:
            ensure_topics(settings)
            with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
                admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in TOPICS})
            own = {"ACKSTREAM_CONF": str(conf)}
            program = Program("jobs", ["run", *jobs], settings, directory, own)
            try:
                eventually(lambda: _ready(program, metrics_port), "the jobs")
                run = Run(settings, directory)
                _warm_up(run, jobs)
                yield run
            finally:
                program.terminate()
                with suppress(AssertionError):
                    eventually(lambda: program.ended, "the end of the jobs")
                program.kill()
        finally:
            broker.stop()


def _ready(program: Program, port: int) -> bool:
    program.check()
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=5).is_success
    return False


def _warm_up(run: Run, jobs: tuple[str, ...]) -> None:
    """Let the jobs compile what they run: their first batches take seconds."""
    if "correlate" in jobs:
        command = Command.modify_attribute("org.acme:warm", "/up", 1)
        with (
            Responder(run.bootstrap, handler=lambda _: Ack(), labels=["warm:up"]),
            Requester(run.bootstrap) as requester,
        ):
            for _ in range(3):
                requester.request(command, acks=["warm:up"])
    if "settle" in jobs:
        options = {"name": "warm-up", "writers": ["warm-up"], "handler": lambda _: None}
        with (
            SampleReader(run.bootstrap, **options),
            Publisher(run.bootstrap, name="warm-up", writer_qos=WriterQos()) as publisher,
        ):
            for _ in range(3):
                publisher.publish(b"1", topic="orders")
                publisher.wait_for_acknowledgments(max_wait=60)
