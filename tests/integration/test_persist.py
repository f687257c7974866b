"""Publishers, Kafka, the persist query and its tables together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from ackstream.client.errors import NotEntitledError
from ackstream.client.publisher import Publisher
from ackstream.jobs.persist import job
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.protocol import messages
from ackstream.settings import Kafka, Lake, Persist, PublishRule, Settings
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ackstream.protocol.messages import CommandAck

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Kafka, tmp_path: Path) -> Settings:
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    rules = Persist(interval="100ms", entitlements=(PublishRule(clients=("*",), topics=("open",)),))  # type: ignore[arg-type]
    made = Settings(kafka=kafka, lake=lake, persist=rules)
    ensure_topics(made, job.JOB.topics)
    return made


@pytest.fixture
def running(spark: SparkSession, settings: Settings) -> Iterator[Any]:
    started = job.JOB.start(spark, settings)
    yield started
    started.stop()


def _rows(spark: SparkSession, settings: Settings) -> list[tuple[Any, ...]]:
    rows = tables.read(spark, settings.lake, "messages").orderBy("client", "seq")
    return [(row.client, row.seq, row.reason, bytes(row.value)) for row in rows.collect()]


def test_the_example_of_the_document_on_the_running_system(
    spark: SparkSession, settings: Settings, running: Any
) -> None:
    acks: list[CommandAck] = []
    with Publisher(settings.kafka, client="p1", on_ack=acks.append, conflation_ms=10) as publisher:
        assert publisher.effective_conflation_ms == 100
        futures = [publisher.publish(b"%d" % seq, topic="secret" if seq == 3 else "open") for seq in range(1, 6)]
        with pytest.raises(NotEntitledError):
            futures[2].result(PATIENCE_SECONDS)
        assert [futures[index].result(PATIENCE_SECONDS).seq for index in (0, 1, 3, 4)] == [1, 2, 4, 5]
        assert publisher.unpersisted_count == 0
    persisted = [ack for ack in acks if ack.ack_type == "persisted"]
    assert all(ack.cid is None and ack.ack_id for ack in persisted)
    merged = {(ack.seq, ack.reason) for ack in persisted}
    assert {(3, "not entitled"), (5, None)} <= merged
    assert _rows(spark, settings) == [
        ("p1", seq, "not entitled" if seq == 3 else None, b"%d" % seq) for seq in range(1, 6)
    ]
    eventually(lambda: _relied_on(settings) == (5, [(3, 3)]), "all five on the topic stored", running)
    # a second session goes on where the first was
    with Publisher(settings.kafka, client="p1") as publisher:
        assert publisher.publish_await_acknowledgement(b"6", PATIENCE_SECONDS, topic="open").seq == 6
    assert running.exception() is None


def _relied_on(settings: Settings) -> tuple[int, list[tuple[int, int]]]:
    """Return up to where the records on ``stored`` go, without a gap, and which runs of them are not there."""
    found = [messages.read_stored(record.value) for record in records(settings.kafka, "stored")]
    assert [record.first for record in found] == [1, *[record.last + 1 for record in found]][: len(found)]
    return found[-1].last if found else 0, [run for record in found for run in record.refused]


def test_a_new_checkpoint_reads_everything_again_and_stores_nothing_twice(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    with Publisher(settings.kafka, client="p1", stage="accepted") as publisher:
        for number in range(50):
            publisher.publish(b"%d" % number, topic="open", key=b"k", headers=[("colour", b"red")])
        publisher.publish_flush(PATIENCE_SECONDS)
    job.JOB.start(spark, settings, available_now=True).awaitTermination()
    first = _rows(spark, settings)
    assert [value for *_, value in first] == [b"%d" % number for number in range(50)]
    answers = len(records(settings.kafka, "publisher-acks"))
    again = settings.model_copy(
        update={"lake": settings.lake.model_copy(update={"checkpoints": str(tmp_path / "others")})}
    )
    job.JOB.start(spark, again, available_now=True).awaitTermination()
    assert _rows(spark, settings) == first
    assert len(records(settings.kafka, "publisher-acks")) == answers
    row = tables.read(spark, settings.lake, "messages").first()
    assert (row.subject, bytes(row.key), row.headers[0].name, bytes(row.headers[0].value)) == (
        "open", b"k", "colour", b"red",
    )  # fmt: skip


def test_a_checkpoint_that_ended_with_ledgers_alone_loses_no_message(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(value: bytes) -> None:
        with Publisher(settings.kafka, client="p1", stage="accepted") as publisher:
            publisher.publish(value).result(PATIENCE_SECONDS)

    publish(b"first")
    job.JOB.start(spark, settings, available_now=True).awaitTermination()
    publish(b"second")
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise RuntimeError("the moment before the messages are committed")

        patch.setattr(job.PersistFold, "_append_messages", die)
        with pytest.raises(StreamingQueryException):
            job.JOB.start(spark, settings, available_now=True).awaitTermination()
    assert tables.read(spark, settings.lake, "publishers").agg({"batch": "max"}).first()[0] == 1
    again = settings.model_copy(
        update={"lake": settings.lake.model_copy(update={"checkpoints": str(tmp_path / "others")})}
    )
    job.JOB.start(spark, again, available_now=True).awaitTermination()
    assert [value for *_, value in _rows(spark, settings)] == [b"first", b"second"]
