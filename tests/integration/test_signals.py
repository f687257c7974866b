"""SIGTERM and Ctrl-C end each job of ``ackstream submit`` in order, at any time."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.jobs.correlate.job import JOB as CORRELATE
from ackstream.jobs.persist.job import JOB as PERSIST
from ackstream.jobs.query.job import JOB as QUERY
from ackstream.jobs.queues.job import JOB as QUEUES
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.jobs.twin.job import JOB as TWIN
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.spark.lease import living
from tests.harness.processes import Program
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.long]

JOBS = {job.name: job for job in (ARCHIVE, CORRELATE, PERSIST, QUERY, QUEUES, SETTLE, TWIN)}
END_SECONDS = 60
"""A job ends within seconds; a loaded machine takes some more."""

TRACES = ("Traceback", "\tat ", "Py4J")


@pytest.fixture
def system(kafka: Kafka, tmp_path: Path) -> Iterator[System]:
    with closing(System(kafka, tmp_path)) as system:
        yield system


def _program(name: str, system: System, directory: Path) -> Program:
    options = {
        "ACKSTREAM_QUEUES": json.dumps([{"name": "q", "topics": ["q"]}]),
        "ACKSTREAM_DESTINATIONS": json.dumps([{"name": "standby", "path": str(directory / "standby"), "type": "sync"}]),
    }
    arguments = ["submit", name, *(["standby"] if name == "mirror" else [])]
    return Program(name, arguments, system.settings, directory, options)


def _ended(program: Program, send: Callable[[], None]) -> str:
    """Send a signal; return what the program has printed, once it and all that it started have ended."""
    sent = time.monotonic()
    send()
    eventually(lambda: program.ended and not program.exists, f"{program.name} to end")
    assert time.monotonic() - sent < END_SECONDS
    return program.log.read_text("utf-8")


def _load(system: System) -> None:
    for number in range(500):
        system.post("signals", system.command_json(f"r-{time.monotonic_ns()}-{number}", requested_acks=["a-ack"]))
    system.producer.flush()


@pytest.mark.parametrize("name", [*JOBS, "mirror"])
def test_a_job_ends_in_order_and_its_successor_starts_at_once(
    spark: SparkSession, system: System, tmp_path: Path, name: str
) -> None:
    ensure_topics(system.settings)
    # what other jobs would have made
    tables.create(spark, system.settings.lake, ["messages"])
    program = _program(name, system, tmp_path)
    try:
        for send in (program.terminate, program.interrupt):
            before = _signs(system, name)
            eventually(lambda: program.check() is None and _signs(system, name) > before + 3, f"{name} to run")  # noqa: B023
            _load(system)
            log = _ended(program, send)
            assert not [text for text in TRACES if text in log], log[-3_000:]
            assert program.status == 0, log[-3_000:]
            if name in JOBS:
                # the lease was given back: nobody waits for it
                assert living(system.records(_lease(name)), -1) == {}
            program.start()
    finally:
        program.kill()


def _lease(name: str) -> str:
    return JOBS[name].lease or ""


def _signs(system: System, name: str) -> int:
    """Return how often a job has shown that it runs; a mirror shows it once, by the table it has made."""
    if name in JOBS:
        started = Path(system.settings.lake.checkpoint(name), "metadata").exists()
        return max((record.offset for record in system.records(_lease(name))), default=0) if started else 0
    return 10 * len(system.records("destinations"))


@pytest.mark.parametrize("send", ["terminate", "interrupt"])
def test_a_job_that_has_only_begun_to_start_ends_without_a_stack_trace(
    system: System, tmp_path: Path, send: str
) -> None:
    program = _program("correlate", system, tmp_path)
    try:
        eventually(lambda: "Starting correlate" in program.log.read_text("utf-8"), "its start")
        log = _ended(program, getattr(program, send))
    finally:
        program.kill()
    assert not [text for text in TRACES if text in log], log[-3_000:]
