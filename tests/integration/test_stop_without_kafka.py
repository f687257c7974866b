"""SIGTERM while Kafka is away ends each program in order, well within the time that its supervisor gives it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
from kafka import KafkaAdminClient

from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Local, Settings
from tests.demo.broker import Broker
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.system import System
from tests.harness.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.long]

REQUESTS = 200
END_SECONDS = 20.0
"""The shortest limit of a supervisor, among those of ``deploy/``, is 30 s."""
TRACES = ("Traceback", "\tat ", "Py4J")
LOST = re.compile(r"^\S+ \w+ \S+ kafka\.net\..*\n(?:  .*\n)*", re.MULTILINE)
"""The entries by which kafka-python reports lost connections, with their stacks: the broker was killed just before."""
PROGRAMS = {
    "correlate": ["submit", "correlate"],
    "correlate-and-twin": ["run", "correlate", "twin"],
    "gateway": ["gateway"],
    "connect": ["connect"],
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    port, controller_port = free_ports(2)
    broker = Broker(Settings(local=Local(data=tmp_path / "data", port=port, controller_port=controller_port)))
    broker.start()
    yield broker
    broker.stop()


def _works(name: str, program: Program, system: System) -> bool:
    program.check()
    signs = {"gateway": "The gateway is at", "connect": "The connection c is open."}
    if name in signs:
        return signs[name] in program.log.read_text("utf-8")
    jobs = PROGRAMS[name][1:]
    return all(_signs(job, system) > 5 for job in jobs)


def _signs(job: str, system: System) -> int:
    """Return how often a job has shown that it runs since its query was started."""
    started = Path(system.settings.lake.checkpoint(job), "metadata").exists()
    return max((record.offset for record in system.records(f"{job}-lease")), default=0) if started else 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_sigterm_while_kafka_is_away_ends_a_program_in_order(broker: Broker, tmp_path: Path, name: str) -> None:
    kafka = Kafka(bootstrap=broker.bootstrap, partitions=2)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    connection = {
        "id": "c",
        "type": "kafka",
        "sources": [{"addresses": ["outside"]}],
        "targets": [{"address": "out", "topics": ["_/_/things/twin/events"]}],
    }
    options = {
        "ACKSTREAM_GATEWAY_PORT": str(port),
        "ACKSTREAM_LOG_LEVEL": "info",
        "ACKSTREAM_CONNECTIONS": json.dumps([connection]),
        "ACKSTREAM_QUEUES": json.dumps([{"name": "q", "topics": ["q"]}]),
    }
    with closing(System(kafka, tmp_path)) as system:
        ensure_topics(system.settings)
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
            admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in ("outside", "out")})
        program = Program(name, PROGRAMS[name], system.settings, tmp_path, options)
        try:
            eventually(lambda: _works(name, program, system), f"{name} to work")
            for topic in ("signals", "outside"):
                for number in range(REQUESTS):
                    value = system.command_json(f"{topic}-{number}", requested_acks=["a-ack"], timeout="2s")
                    system.producer.send(topic, json.dumps(value).encode())
            system.producer.flush()
            os.kill(broker.pid() or 0, signal.SIGKILL)
            eventually(lambda: "ECONNREFUSED" in program.log.read_text("utf-8"), "the program to notice")
            if name == "gateway":
                # a record that its producer holds
                with suppress(httpx.HTTPError):
                    httpx.put(f"{url}/api/2/things/a:b/attributes/x?response-required=false", json=1, timeout=1)
            before, sent = len(program.log.read_bytes()), time.monotonic()
            program.terminate()
            eventually(lambda: program.ended and not program.exists, f"{name} to end")
            seconds = time.monotonic() - sent
            log = LOST.sub("", program.log.read_bytes()[before:].decode())
            assert (program.status, [text for text in TRACES if text in log]) == (0, []), log[-3_000:]
            assert seconds < END_SECONDS
            print(f"{name} ended after {seconds:.1f} s")  # noqa: T201 - shown by -s
            if name == "correlate":
                broker.start()
                program.start()
                eventually(lambda: program.check() is None and len(system.replies()) == REQUESTS, "all replies")
                replies = {(each.key, each.value, *each.headers) for each in system.records("replies")}
                assert len(replies) == REQUESTS
        finally:
            program.kill()
