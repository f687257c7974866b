"""The system under test: real broker, real query, and a clock that the test itself publishes.

A tick counts for at most its own append time, and a job refuses a topic whose records carry their producer's clock. So
the topic of the ticks is given the test's clock once the query runs.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from ackstream.jobs.correlate.job import JOB
from ackstream.jobs.twin import job as twin
from ackstream.kafka.topics import TIMESTAMP_TYPE, ensure_topics
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Correlate, Kafka, Lake, Settings
from ackstream.spark.kafka import ANY_RUN
from tests.harness.kafka import end, records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

THING = "org.acme:lamp"


def _correlation_id(record: Any) -> str:
    own = dict(record.headers).get("correlation-id", b"").decode()
    return own or json.loads(record.value)["headers"]["correlation-id"]


class System:
    """Topics of its own on the broker, a lake and a checkpoint of its own.

    :cvar options: settings of correlate, for all systems that do not say otherwise
    """

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, kafka: Kafka, path: Path, *, clock: bool = False, **correlate: Any) -> None:
        self.settings = Settings(
            kafka=kafka,
            correlate=Correlate(**(self.options | correlate)),
            lake=Lake(path=str(path / "lake"), checkpoints=str(path / "checkpoints")),
        )
        self._has_clock = clock
        ensure_topics(self.settings, JOB.topics)
        self.producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", max_request_size=8_000_000)

    def close(self) -> None:
        self.producer.close()

    @contextmanager
    def correlate(self, spark: SparkSession) -> Iterator[StreamingQuery]:
        with JOB.running(spark, self.settings, ticks=self._has_clock) as query:
            if not self._has_clock:
                self._stamp_ticks("CreateTime")
            try:
                yield query
            finally:
                self._stamp_ticks("LogAppendTime")

    @contextmanager
    def twin(self, spark: SparkSession) -> Iterator[tuple[StreamingQuery, StreamingQuery]]:
        """Run the twin and its index."""
        with twin.JOB.running(spark, self.settings) as keeping, twin.INDEX.running(spark, self.settings) as indexing:
            yield keeping, indexing

    def _stamp_ticks(self, timestamp_type: str) -> None:
        config = {TIMESTAMP_TYPE: timestamp_type}
        with KafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.settings.kafka.topic("clock"), config)])

    # -- what is sent --------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, headers: dict[str, bytes] | None = None, key: str = THING) -> int:
        """Send a record, JSON unless it is bytes; return the broker's time of it."""
        data = value if isinstance(value, (bytes, type(None))) else json.dumps(value).encode()
        sent = self.producer.send(
            self.settings.kafka.topic(topic), key=key.encode(), value=data, headers=list((headers or {}).items())
        )
        return int(sent.get(timeout=PATIENCE_SECONDS).timestamp)

    def post(self, topic: str, value: Any, partition: int | None = None) -> None:
        """Send a record without waiting for the broker."""
        name, data = self.settings.kafka.topic(topic), json.dumps(value).encode()
        self.producer.send(name, key=THING.encode(), value=data, partition=partition)

    def command(
        self, correlation_id: str | None, record_headers: dict[str, bytes] | None = None, **headers: Any
    ) -> int:
        return self.send("signals", self.command_json(correlation_id, **headers), record_headers)

    @staticmethod
    def command_json(correlation_id: str | None, **headers: Any) -> dict[str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if correlation_id is not None:
            named["correlation-id"] = correlation_id
        topic = "org.acme/lamp/things/twin/commands/modify"
        return {"topic": topic, "headers": named, "path": "/attributes/x", "value": 1}

    def ack(self, correlation_id: str, label: str, status: int = 200) -> int:
        return self.send("acks", self.ack_json(correlation_id, label, status))

    @staticmethod
    def ack_json(correlation_id: str, label: str, status: int = 200) -> dict[str, Any]:
        topic = f"org.acme/lamp/things/twin/acks/{label}"
        return {"topic": topic, "headers": {"correlation-id": correlation_id}, "path": "/", "status": status}

    def answer(self, correlation_id: str, value: Any) -> int:
        """Send what the twin answers to the first signal of a correlation-id, once it is there; return the time."""

        def asking() -> Any:
            return next((each for each in self.records("signals") if _correlation_id(each) == correlation_id), None)

        asked = eventually(asking, f"a signal {correlation_id}")
        identity = reply_id(correlation_id, asked.topic, asked.partition, asked.offset)
        return self.send("twin-acks", value, {"reply-id": identity.encode()})

    def tick(self, query: StreamingQuery, time_ms: int) -> None:
        """Let event time pass: tick until a batch has run with that watermark."""

        def passed() -> bool:
            topic, value = self.settings.kafka.topic("clock"), str(time_ms).encode()
            self.producer.send(topic, key=ANY_RUN.encode(), value=value, timestamp_ms=time_ms).get(
                timeout=PATIENCE_SECONDS
            )
            progress = query.lastProgress
            watermark = progress.eventTime.get("watermark") if progress is not None else None
            if watermark is None:
                return False
            # it is in whole seconds
            return datetime.fromisoformat(watermark.replace("Z", "+00:00")).timestamp() >= time_ms // 1000

        eventually(passed, f"the watermark {time_ms}", query)

    # -- what came out -------------------------------------------------------------------------------------------------

    def end(self, topic: str) -> int:
        """How many records a topic has."""
        return end(self.settings.kafka, topic)

    def records(self, topic: str) -> list[Any]:
        """All records of a topic up to now."""
        return records(self.settings.kafka, topic)

    def replies(self, topic: str = "replies") -> dict[str, dict[str, Any]]:
        """All replies by correlation-id: the JSON, with the record headers under ``record``."""
        return {
            record.key.decode(): {**json.loads(record.value), "record": dict(record.headers)}
            for record in self.records(topic)
        }

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in self.records("ledger")]

    def reasons(self) -> list[str]:
        return [record["dead_letter"]["reason"] for record in self.ledger() if "dead_letter" in record]
