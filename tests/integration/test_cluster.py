"""A cluster of Spark's own kind: executors run on its workers; these are killed, and nothing is lost."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from tests.harness.invariants import Answered, check_answers, check_deadlines
from tests.harness.lake import count, rows
from tests.harness.object_store import ObjectStore
from tests.harness.processes import Program, alive
from tests.harness.standalone import Standalone
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ackstream.settings import Kafka, Settings

pytestmark = [pytest.mark.integration, pytest.mark.cluster]

CORES = {"correlate": 2, "archive": 1}
"""Of two workers with two each: an executor of correlate on each. One worker alone has too few for all three."""

CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    # the machines of this cluster are one small one: its tables are read, and their rows sorted, in a few tasks
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}
RATE, SILENT_EVERY = 20, 10
PAUSE_SECONDS = 5
"""Of load after a fault, so that there is always some to lose."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _settings_file(path: Path, entries: Mapping[str, str]) -> Path:
    """Write the settings that travel by ``--settings``; where Kafka and the tables are is in the environment."""
    # strings of JSON are strings of TOML
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in entries.items()]
    file = path / "cluster.toml"
    file.write_text("\n".join(['[archive]\ntrigger = "2s"', "[spark.conf]", *lines, ""]), "utf-8")
    return file


def _submit(job: str, cluster: Standalone, settings: Settings, path: Path, file: Path) -> Program:
    """Run ``ackstream submit`` on the cluster, whose workers are to run this Python."""
    entries = CONF | {"spark.cores.max": str(CORES[job])}
    conf = [word for key, value in entries.items() for word in ("--conf", f"{key}={value}")]
    arguments = ["--settings", str(file), "submit", job, "--master", cluster.url, *conf]
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "ACKSTREAM_LOCAL_DATA": str(path / "local"),
    }
    return Program(job, arguments, settings, path, environment)


def _runs_everywhere(cluster: Standalone) -> bool:
    """Look whether each worker is alive, and runs an executor."""
    used = cluster.used()
    return len(used) == len(cluster.workers) and all(used.values()) and all(one.executors() for one in cluster.workers)


def test_executors_on_two_workers_answer_requests_and_timeouts(kafka: Kafka, tmp_path: Path, stack: ExitStack) -> None:
    cluster = Standalone(tmp_path, stack)
    system = stack.enter_context(closing(System(kafka, tmp_path)))
    program = _submit("correlate", cluster, system.settings, tmp_path, _settings_file(tmp_path, {}))
    stack.callback(program.kill)
    for number in range(20):
        system.command(f"answered-{number}", requested_acks=["a-ack"], timeout="300s")
        system.ack(f"answered-{number}", "a-ack")
    system.command("silent", requested_acks=["a-ack"], timeout="2s")
    eventually(lambda: program.check() or len(system.replies()) == 21, "all replies")
    assert {key: reply["status"] for key, reply in system.replies().items()} == {
        **{f"answered-{number}": 200 for number in range(20)}, "silent": 408,
    }  # fmt: skip
    # the driver had no part in it but to plan
    overview = cluster.overview()
    assert overview is not None
    (application,) = overview.applications
    assert "correlate" in application
    assert _runs_everywhere(cluster)


class Load:
    """Requests at a steady rate, each with its acknowledgement unless it is a silent one."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        system, topic = self._system, self._system.settings.kafka.topic
        while not self._stop.wait(1 / RATE):
            key = f"request-{self.sent}"
            record = [("correlation-id", key.encode())]
            value = json.dumps(system.command_json(key, requested_acks=["a-ack"], timeout="10s")).encode()
            system.producer.send(topic("signals"), key=b"lamp", value=value, headers=record)
            if self.sent % SILENT_EVERY:
                system.post("acks", system.ack_json(key, "a-ack"))
            self.sent += 1
        system.producer.flush()

    def stop(self) -> None:
        """End it: everything that was sent is in Kafka."""
        self._stop.set()
        self._thread.join()

    def silent(self) -> set[str]:
        return {f"request-{number}" for number in range(0, self.sent, SILENT_EVERY)}


def test_killed_workers_and_executors_lose_nothing_that_is_kept_in_an_object_store(
    kafka: Kafka, tmp_path: Path, stack: ExitStack
) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    store = ObjectStore(tmp_path, stack)
    cluster = Standalone(tmp_path, stack)
    system = stack.enter_context(closing(System(kafka, tmp_path)))
    lake = store.lake()
    settings = system.settings.model_copy(update={"lake": lake})
    file = _settings_file(tmp_path, store.entries())
    programs = [_submit(job, cluster, settings, tmp_path, file) for job in CORES]
    for program in programs:
        stack.callback(program.kill)
    load = Load(system)
    stack.callback(load.stop)

    def goes_on(what: str) -> None:
        """Wait until all run everywhere, and requests of now have reached their rows."""
        eventually(lambda: alive(programs) and _runs_everywhere(cluster), f"executors on both workers {what}")
        mark = load.sent
        eventually(lambda: alive(programs) and count(lake, "outcomes") >= mark, f"outcomes in the store {what}")

    goes_on("at the start")
    for worker in chance.sample(cluster.workers, 2):
        worker.kill()
        time.sleep(chance.uniform(0, PAUSE_SECONDS))
        worker.start()
        goes_on("after the death of a worker")
        other = chance.choice(cluster.workers)
        victim = other.kill_executor()
        eventually(lambda gone=victim, of=other: gone not in of.executors(), "the end of the executor")
        time.sleep(chance.uniform(0, PAUSE_SECONDS))
        goes_on("after the death of an executor")
    load.stop()
    acknowledged = load.sent - len(load.silent())
    # the tables are committed one by one
    wanted = {"outcomes": load.sent, "signals": load.sent, "acknowledgements": acknowledged}
    eventually(lambda: alive(programs) and all(count(lake, table) >= n for table, n in wanted.items()), "all rows")
    for program in programs:
        program.kill()

    answered = Answered(system, lake)
    assert [*check_answers(answered), *check_deadlines(answered)] == []
    outcomes = rows(lake, "outcomes", "correlation_id", "status")
    assert len(outcomes) == load.sent
    # the acknowledgement of each was sent right after it, so no death of a process may have timed it out
    assert {row["correlation_id"] for row in outcomes if row["status"] != 200} == load.silent()
    acknowledgements = rows(lake, "acknowledgements", "disposition")
    assert [row["disposition"] for row in acknowledgements] == ["accepted"] * acknowledged
    # both jobs kept everything there, and nothing here
    assert not (tmp_path / "lake").exists()
    assert not (tmp_path / "checkpoints").exists()
