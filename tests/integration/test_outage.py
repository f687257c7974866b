"""Kafka away for a minute as the jobs see it, with the shipped defaults; the test publishes their clocks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from ackstream.client.publishing.publisher import Publisher
from ackstream.jobs.persist.job import JOB as PERSIST
from ackstream.jobs.queues.job import JOB as QUEUES
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.kafka.topics import TIMESTAMP_TYPE, ensure_topics
from ackstream.lake import tables
from ackstream.protocol import queues, readers
from ackstream.protocol.queues import Alive, Bind, MessageDelivered, Unbound
from ackstream.protocol.readers import ReaderStart, ReaderState, SamplesDone, WriterState, WriterStateRequest
from ackstream.settings import Kafka, Lake, Settings
from ackstream.settings.jobs import QueueSettings
from ackstream.spark.kafka import ANY_RUN
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


pytestmark = pytest.mark.integration


class System:
    """The jobs, and a reader and a consumer that send what the test wants."""

    def __init__(self, spark: SparkSession, settings: Settings, stack: ExitStack) -> None:
        self.kafka = settings.kafka
        self._producer = KafkaProducer(bootstrap_servers=self.kafka.bootstrap)
        stack.callback(self._producer.close)
        stack.enter_context(PERSIST.running(spark, settings))
        self._queries = {
            job.ticks: stack.enter_context(job.running(spark, settings, ticks=False)) for job in (SETTLE, QUEUES)
        }
        stack.enter_context(self._own_time())

    @contextmanager
    def _own_time(self) -> Iterator[None]:
        """Give the topics of the ticks the test's clock, which no job accepts at its start."""
        try:
            self._stamp("CreateTime")
            yield
        finally:
            self._stamp("LogAppendTime")

    def _stamp(self, kind: str) -> None:
        with KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap) as admin:
            admin.alter_configs(
                [
                    ConfigResource(ConfigResourceType.TOPIC, self.kafka.topic(topic or ""), {TIMESTAMP_TYPE: kind})
                    for topic in self._queries
                ]
            )

    def tick(self, time_ms: int) -> None:
        """Let event time pass: tick until each job has run a batch with that watermark."""
        for topic, query in self._queries.items():
            eventually(lambda: self._ticked(topic or "", query, time_ms), f"the watermark {time_ms}", query)  # noqa: B023 - it is called at once

    def _ticked(self, topic: str, query: StreamingQuery, time_ms: int) -> bool:
        value = str(time_ms).encode()
        self._producer.send(self.kafka.topic(topic), value, ANY_RUN.encode(), timestamp_ms=time_ms).get(30)
        event_time = {} if query.lastProgress is None else query.lastProgress.eventTime
        watermark = event_time.get("watermark", "1970-01-01T00:00:00Z").replace("Z", "+00:00")
        # it is in whole seconds
        return datetime.fromisoformat(watermark).timestamp() >= time_ms // 1000

    def say(self, value: bytes, key: bytes) -> int:
        """Send a record of a reader, writer or consumer; return the broker's time of it."""
        return int(self._producer.send(self.kafka.topic("app-acks"), value, key).get(PATIENCE_SECONDS).timestamp)

    def answers(self, kind: type[Any]) -> list[Any]:
        topic, read = (
            ("queue-deliveries", queues.read_answer) if kind in ANSWERS else ("publisher-acks", readers.read_answer)
        )
        return [answer for record in records(self.kafka, topic) if isinstance(answer := read(record.value), kind)]


ANSWERS = (MessageDelivered, Unbound)


def test_while_kafka_is_away_for_a_minute_a_consumer_keeps_its_lease_and_a_reader_its_session(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    queue = QueueSettings(name="orders", topics=("orders/*",), lease="60s", max_deliveries=5)  # type: ignore[arg-type]
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    settings = Settings(kafka=kafka, lake=lake, queues=(queue,))
    ensure_topics(settings, (*PERSIST.topics, *SETTLE.topics, *QUEUES.topics))
    with ExitStack() as stack:
        system = System(spark, settings, stack)
        system.say(readers.write(ReaderStart("R", 1, writers=("p",))), b"R")
        eventually(lambda: len(system.answers(ReaderState)) == settings.settle.shards, "the state of the reader")
        with Publisher(kafka, name="p") as publisher:
            publisher.publish(b"1", topic="orders/x")
            publisher.publish_flush(PATIENCE_SECONDS)

        def delivered() -> list[MessageDelivered]:
            system.say(queues.write(Bind("orders", "C", 1)), b"C")
            return system.answers(MessageDelivered)

        number = eventually(delivered, "the delivery")[0].number
        received = system.say(queues.write(Alive("orders", "C", 1, number, handed_out=number)), b"C")
        system.tick(received + 10_000)
        # neither records nor ticks for 65 s
        system.tick(received + 75_000)
        known = len(system.answers(WriterState))
        system.say(readers.write(WriterStateRequest("p")), b"p")
        eventually(lambda: len(system.answers(WriterState)) > known, "the state of the writer")
        assert system.answers(WriterState)[-1].waiting_for == ("R",)
        assert system.answers(Unbound) == []
        events = tables.read(spark, lake, "queue_events")
        assert "returned" not in [row.event for row in events.collect()]
        # silence while others could have written
        for later in range(90_000, 130_000, 15_000):
            system.tick(received + later)
        eventually(lambda: system.answers(SamplesDone), "the end of the reader's lease")
        eventually(lambda: [one.reason for one in system.answers(Unbound)] == ["lost"], "the end of the session")
