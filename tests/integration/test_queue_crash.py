"""The job of the work queues killed in the middle, as an operator runs it: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import Publisher, QueueConsumer, QueueMessage
from ackstream.jobs.persist import job as persist
from ackstream.jobs.queues.job import JOB
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.settings import Kafka, Lake, Persist, Settings
from tests.harness.processes import Program
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.integration, pytest.mark.long]

MESSAGES = 600
KILLED_AFTER = (50, 300)
"""Numbers of settled messages at which the job is killed."""

FAILING = 7
"""Every so many messages fail the first time."""

QUEUE = {"name": "work", "topics": ["*"], "max_backlog": 40, "backoff": {"initial": "200ms"}}


class Worker:
    """A consumer that notes what it was handed."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.handed: list[tuple[str, int]] = []
        self.accepted: list[int] = []
        self._consumer = QueueConsumer(
            kafka, queue="work", name=name, outcomes=("failed",), ack_batch=5, ack_timeout=0.1, bind_timeout=120.0
        )

    def work(self, done: threading.Event) -> None:
        while not done.is_set():
            message = self._consumer.receive(0.2)
            if message is not None:
                self._take(message)

    def _take(self, message: QueueMessage) -> None:
        number = int(message.value or b"-1")
        self.handed.append((message.id, message.count))
        if number % FAILING == 0 and message.count == 1:
            message.settle("failed")
        else:
            message.settle()
            self.accepted.append(number)

    def close(self) -> None:
        self._consumer.close()
        assert self._consumer.statistics.lost == 0


def test_a_job_that_is_killed_loses_nothing_and_delivers_nothing_twice(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    settings = Settings(
        kafka=kafka,
        lake=Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")),
        persist=Persist(interval="100ms"),  # type: ignore[arg-type]
    )
    ensure_topics(settings, (*persist.JOB.topics, *JOB.topics))
    persisting = persist.JOB.start(spark, settings)
    more = {
        "ACKSTREAM_QUEUES": json.dumps([QUEUE]),
        "ACKSTREAM_QUEUE_SESSION": "120s",
        "ACKSTREAM_QUEUE_INTERVAL": "100ms",
        "ACKSTREAM_CLOCK_INTERVAL": "300ms",
    }
    job = Program("queues", ["submit", "queues"], settings, tmp_path, more)
    done = threading.Event()
    with Publisher(kafka, name="p") as publisher, ThreadPoolExecutor(2) as pool:
        workers = list(pool.map(lambda name: Worker(kafka, name), "AB"))
        for number in range(MESSAGES):
            publisher.publish(b"%d" % number)
        working = [pool.submit(worker.work, done) for worker in workers]

        def settled() -> int:
            job.check()
            return sum(len(worker.accepted) for worker in workers)

        try:
            for number in KILLED_AFTER:
                eventually(lambda number=number: settled() >= number, "the messages to be settled")
                job.kill()
                job.start()
            eventually(lambda: settled() >= MESSAGES, "the messages to be settled")
            events: list[Any] = []
            eventually(lambda: _exits(events, spark, settings) >= MESSAGES, "all exits")
        finally:
            done.set()
            job.kill()
        for future in working:
            future.result()
        for worker in workers:
            worker.close()
    persisting.stop()
    handed = Counter(entry for worker in workers for entry in worker.handed)
    assert set(handed.values()) == {1}
    assert sorted(number for worker in workers for number in worker.accepted) == list(range(MESSAGES))
    rows = {kind: Counter((row.message, row["count"]) for row in events if row.event == kind) for kind in _KINDS}
    assert rows["delivered"] == handed
    assert rows["left"] == Counter(
        {(message, count) for message, count in handed if (message, count + 1) not in handed}
    )
    assert set(rows["returned"].values()) == {1}
    assert {row.reason for row in events if row.event == "returned"} == {"failed"}


_KINDS = ("delivered", "returned", "left")


def _exits(events: list[Any], spark: SparkSession, settings: Settings) -> int:
    events[:] = tables.read(spark, settings.lake, "queue_events").collect()
    return sum(row.event == "left" for row in events)
