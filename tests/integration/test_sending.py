"""Records that a job has on its driver reach Kafka the same, whoever writes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError

from ackstream.kafka import clients
from ackstream.kafka.connection import Outbox
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from ackstream.spark import kafka as spark_kafka
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def _sent(spark: SparkSession, kafka: Kafka) -> dict[str, list[Any]]:
    """Send records; return them by topic, those of a partition in order. One without a key goes anywhere."""
    ensure_topics(Settings(kafka=kafka), ["events", "stored"])
    events, stored = kafka.topic("events"), kafka.topic("stored")
    outgoing: list[Any] = [
        (events, f"key {number % 7}", str(number).encode(), [("n", str(number)), ("odd", b"\xff\x00"), ("n", "again")])
        for number in range(40)
    ]
    outgoing += [(stored, b"\xff\xfe", b"", []), (stored, "grün", None, ()), (events, None, b"no key", [("empty", "")])]
    spark_kafka.send(spark, outgoing, kafka, "test")
    found = {
        name: [(record.partition if record.key else -1, record.offset, record) for record in records(kafka, name)]
        for name in ("events", "stored")
    }
    return {
        name: [(partition, one.key, one.value, list(one.headers)) for partition, _, one in sorted(of)]
        for name, of in found.items()
    }


def test_few_records_are_what_spark_would_have_written(
    spark: SparkSession, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_driver = _sent(spark, kafka)
    assert [len(found) for found in by_driver.values()] == [41, 2]
    monkeypatch.setattr(spark_kafka, "FEW", 0)
    assert _sent(spark, kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}spark-"})) == by_driver


def test_what_the_broker_refuses_is_an_error_and_the_next_records_go_out(kafka: Kafka) -> None:
    ensure_topics(Settings(kafka=kafka), ["events"])
    outbox = Outbox(kafka)
    topic = kafka.topic("events")
    with pytest.raises(MessageSizeTooLargeError):
        outbox.send([(topic, "a", b"x" * 11_000_000, ())])
    outbox.send([(topic, "a", b"fine", ())])
    outbox.close()
    assert [record.value for record in records(kafka, "events")] == [b"fine"]


def test_a_topic_that_the_broker_does_not_tell_yet_is_waited_for(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []
    send = KafkaProducer.send

    def counted(producer: Any, topic: str, **record: Any) -> Any:
        attempts.append(topic)
        return send(producer, topic, **record)

    monkeypatch.setattr(KafkaProducer, "send", counted)
    monkeypatch.setattr(clients, "RECONNECT_MS", 50)
    with closing(Outbox(kafka)) as outbox, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(outbox.send, [(kafka.topic("events"), "a", b"late", ())])
        eventually(lambda: len(attempts) > 2, "several attempts")
        ensure_topics(Settings(kafka=kafka), ["events"])
        sending.result(PATIENCE_SECONDS)
    assert [record.value for record in records(kafka, "events")] == [b"late"]
