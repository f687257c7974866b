"""Persist queries with rules of their own, records as any client could write them, and what is answered."""

from __future__ import annotations

import os
import threading
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from deltalake import DeltaTable
from kafka import KafkaProducer

from ackstream.jobs.persist import job
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.messages import CommandAck, decode_ack
from ackstream.settings import Kafka, Lake, Persist, Settings
from ackstream.settings.jobs import QueueSettings
from tests.harness.kafka import Observer
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


Message: TypeAlias = "tuple[Mapping[str, Any], bytes]"
"""Headers besides the client's name, and the value."""

_numbers = count()


class Persistence:
    """Topics, tables and a running query; safe to use from several threads."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, path: Path, queues: Sequence[Any] = (), **rules: Any
    ) -> None:
        number = next(_numbers)
        place = path / f"persistence-{number}"
        self.kafka = Kafka(bootstrap=bootstrap, topic_prefix=f"t{os.getpid()}-persistence-{number}-", partitions=2)
        self.settings = Settings(
            kafka=self.kafka,
            lake=Lake(path=str(place / "lake"), checkpoints=str(place / "checkpoints")),
            persist=Persist.model_validate(rules),
            queues=tuple(map(QueueSettings.model_validate, queues)),
        )
        ensure_topics(self.settings, job.JOB.topics)
        # several queries of one name need sessions of their own
        self._spark = spark.newSession()
        self._messages = self.kafka.topic("messages")
        # only a flush sends: what is sent together arrives in one piece
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=60_000)
        self._sending = threading.Lock()
        self._recorder = Observer(self.kafka, "messages", "publisher-acks")
        self.start()

    def close(self) -> None:
        self.stop()
        self._producer.close()
        self._recorder.close()

    def start(self) -> None:
        self._query = job.JOB.start(self._spark, self.settings)

    def stop(self) -> None:
        self._query.stop()

    def send(self, client: str, *messages: Message) -> None:
        """Write records in one piece: one batch of the query has them all."""
        with self._sending:
            for headers, value in messages:
                encoded = [("client", client.encode()), *((name, str(text).encode()) for name, text in headers.items())]
                self._producer.send(self._messages, value, client.encode(), encoded)
            self._producer.flush()

    def wait_for(self, client: str, cid: str) -> CommandAck:
        """Wait for the answer to a command."""
        found: list[CommandAck] = eventually(
            lambda: [ack for ack, _ in self.acks(client) if ack.cid == cid], f"the answer to {cid}", self._query
        )
        return found[0]

    def acks(self, client: str) -> list[tuple[CommandAck, int]]:
        """Return what the client was told, and when: the broker's time."""
        return [(decode_ack(record.value), record.timestamp) for record in self._read("publisher-acks", client)]

    def messages(self, client: str) -> list[tuple[dict[str, str], int]]:
        """Return the headers of what was written under the client's name, and when: the broker's time."""
        return [
            ({name: value.decode() for name, value in record.headers}, record.timestamp)
            for record in self._read("messages", client)
        ]

    def rows(self, client: str) -> list[tuple[int, str | None]]:
        """Return numbers and reasons in the table."""
        table = DeltaTable(self.settings.lake.table("messages")).to_pyarrow_table(columns=["client", "seq", "reason"])
        return [(row["seq"], row["reason"]) for row in table.to_pylist() if row["client"] == client]

    def _read(self, topic: str, client: str) -> list[Any]:
        return [record for record in self._recorder.read(topic) if record.key == client.encode()]


class Silence:
    """For the time of the block nobody answers; it begins and ends when all who want it have come so far."""

    def __init__(self, persistence: Persistence, parties: int) -> None:
        self._begin = threading.Barrier(parties, persistence.stop, PATIENCE_SECONDS)
        self._end = threading.Barrier(parties, persistence.start, PATIENCE_SECONDS)

    def __enter__(self) -> None:
        self._begin.wait()

    def __exit__(self, *_: object) -> None:
        self._end.wait()
