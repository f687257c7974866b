"""The persist and settle queries together, and what is said between readers, settle and writers."""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from ackstream.jobs.persist import job
from ackstream.jobs.settle import job as settle_service
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol import readers
from ackstream.settings import Kafka, Lake, Settings, Settle
from tests.harness.kafka import Observer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ackstream.protocol.readers import Answer, ConsumerRecord

_numbers = count()


class Settlement:
    """Topics, tables and the two running queries; safe to use from several threads."""

    def __init__(self, spark: SparkSession, bootstrap: str, path: Path, required: list[dict[str, Any]]) -> None:
        self.kafka = Kafka(
            bootstrap=bootstrap, topic_prefix=f"t{os.getpid()}-settlement-{next(_numbers)}-", partitions=2
        )
        self.settings = Settings(
            kafka=self.kafka,
            lake=Lake(path=str(path / "lake"), checkpoints=str(path / "checkpoints")),
            settle=Settle.model_validate({"required": required}),
        )
        ensure_topics(self.settings)
        with ExitStack() as stack:
            self._recorder = Observer(self.kafka, "app-acks", "publisher-acks")
            stack.callback(self._recorder.close)
            session = spark.newSession()
            stack.callback(job.JOB.start(session, self.settings).stop)
            self._query = stack.enter_context(settle_service.JOB.running(session, self.settings))
            self._running = stack.pop_all()

    def close(self) -> None:
        self._running.close()

    def reports(self) -> list[tuple[ConsumerRecord, int]]:
        """Return what readers and writers have said, and when: the broker's time."""
        return [(readers.read(record.value), record.timestamp) for record in self._recorder.read("app-acks")]

    def answers(self) -> list[tuple[Answer, int]]:
        """Return what settle has said, and when: the broker's time."""
        read = (
            (readers.read_answer(record.value), record.timestamp) for record in self._recorder.read("publisher-acks")
        )
        return [(answer, at) for answer, at in read if answer is not None]

    def deliveries(self, writer: str) -> list[dict[str, Any]]:
        """Return the rows of a writer's samples: runs that a reader has acknowledged."""
        table = DeltaTable(self.settings.lake.table("deliveries"))
        columns = ["writer", "reader", "role", "first", "last", "auto"]
        return [row for row in table.to_pyarrow_table(columns=columns).to_pylist() if row["writer"] == writer]

    def automatic(self, writer: str) -> list[dict[str, Any]]:
        """Return the samples that no code saw, and why they are acknowledged, as the table has it."""
        return [
            {"sn": seq, "why": row["auto"]}
            for row in self.deliveries(writer)
            if row["auto"] is not None
            for seq in range(row["first"], row["last"] + 1)
        ]
