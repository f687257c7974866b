"""Publishers, Kafka, the persist query and its tables together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaTimeoutError
from pyspark.errors import StreamingQueryException

from ackstream.client.errors import NotEntitledError
from ackstream.client.publishing.publisher import Publisher
from ackstream.jobs.persist import job
from ackstream.jobs.persist.deferred_acks import DeferredAcks
from ackstream.kafka import clients
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.protocol import messages
from ackstream.protocol.messages import CommandAck, decode_ack
from ackstream.settings import Kafka, Lake, Persist, PublishRule, Settings
from tests.harness.calls import count_calls
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Kafka, tmp_path: Path) -> Settings:
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    rules = Persist(entitlements=(PublishRule(clients=("*",), topics=("open",)),))
    made = Settings(kafka=kafka, lake=lake, persist=rules)
    ensure_topics(made, job.JOB.topics)
    return made


@pytest.fixture
def running(spark: SparkSession, settings: Settings) -> Iterator[Any]:
    started = job.JOB.start(spark, settings)
    yield started
    started.stop()


def _publisher(settings: Settings, **options: Any) -> Publisher:
    """Return a publisher that waits for the first batch of the job, however busy the machine is."""
    return Publisher(settings.kafka, name="p1", logon_timeout=PATIENCE_SECONDS, **options)


def _rows(spark: SparkSession, settings: Settings) -> list[tuple[Any, ...]]:
    rows = tables.read(spark, settings.lake, "messages").orderBy("client", "seq")
    return [(row.client, row.seq, row.reason, bytes(row.value)) for row in rows.collect()]


def test_the_example_of_the_document_on_the_running_system(
    spark: SparkSession, settings: Settings, running: Any
) -> None:
    acks: list[CommandAck] = []
    with _publisher(settings, on_ack=acks.append, conflation_ms=10) as publisher:
        assert publisher.effective_conflation_ms == 500
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
    with _publisher(settings) as publisher:
        assert publisher.publish_await_acknowledgement(b"6", PATIENCE_SECONDS, topic="open").seq == 6
    assert running.exception() is None


def _relied_on(settings: Settings) -> tuple[int, list[tuple[int, int]]]:
    """Return up to where the records on ``stored`` go, without a gap, and which runs of them are not there."""
    found = [messages.read_stored(record.value) for record in records(settings.kafka, "stored")]
    assert [record.first for record in found] == [1, *[record.last + 1 for record in found]][: len(found)]
    return found[-1].last if found else 0, [run for record in found for run in record.refused]


def test_single_messages_have_acks_of_their_own(settings: Settings, running: Any) -> None:
    acks: list[CommandAck] = []
    asked = ("received", "processed", "persisted", "completed")
    with _publisher(settings, on_ack=acks.append) as publisher:
        publisher.publish(b"1", topic="open", acks=asked, cid="first")
        publisher.publish(b"2", topic="secret", acks=asked)
        publisher.publish(b"3", topic="open", acks=("stats",), cid="third")
        publisher.publish_flush(PATIENCE_SECONDS)
        single = {
            (ack.cid, ack.ack_type, ack.reason)
            for ack in acks
            if ack.cid and not ack.cid.startswith(("logon-", "flush-"))
        }
    assert single == {
        *[("first", kind, None) for kind in ("received", "processed", "completed")],
        ("2", "received", None),
        ("2", "processed", "not entitled"),
        # a publish has none
        ("third", "processed", "not supported"),
    }
    merged = [(ack.seq, ack.reason) for ack in acks if ack.ack_type == "persisted" and ack.cid is None]
    assert merged == [(1, None), (2, "not entitled"), (3, None)]
    assert running.exception() is None


def test_merged_acks_wait_for_the_interval_of_their_publisher_unless_someone_waits(
    settings: Settings, running: Any
) -> None:
    with _publisher(settings, conflation_ms=60_000) as publisher:
        assert publisher.effective_conflation_ms is None
        waiting = publisher.publish(b"1", topic="open")
        publisher.publish(b"2", topic="open", ack_immediately=True).result(PATIENCE_SECONDS)
        assert waiting.result(0).seq == 1
        assert publisher.statistics.resent == 0
    with _publisher(settings, conflation_ms=10_000) as publisher:
        began = time.monotonic()
        waiting = publisher.publish(b"3", topic="open")
        eventually(lambda: _relied_on(settings)[0] == 3, "the message to be stored", running)
        assert not waiting.done()
        waiting.result(PATIENCE_SECONDS)
        assert time.monotonic() - began >= 10
        assert publisher.statistics.resent == 0


def test_states_that_no_batch_starts_from_are_removed_while_messages_arrive(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PRUNED_EVERY", 5)
    running = job.JOB.start(spark, settings)
    try:
        with _publisher(settings) as publisher:
            for number in range(12):
                publisher.publish_await_acknowledgement(b"%d" % number, PATIENCE_SECONDS, topic="open")
            numbers = [row.batch for row in tables.read(spark, settings.lake, "publishers").collect()]
            # each message had a batch of its own; the first row marks the begin, the last five are not looked at yet
            assert max(numbers) >= 11
            assert len(numbers) <= 8
    finally:
        running.stop()
    assert running.exception() is None


def test_with_its_defaults_a_healthy_system_is_sent_nothing_twice(settings: Settings, running: Any) -> None:
    with _publisher(settings) as publisher:
        for number in range(8):
            publisher.publish(b"%d" % number, topic="open").result(PATIENCE_SECONDS)
        assert publisher.statistics.resent == 0
    assert running.exception() is None


@pytest.mark.usefixtures("running")
def test_a_batch_is_few_calls_to_the_jvm(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with _publisher(settings, conflation_ms=10) as publisher:
        # the first batch loads what later ones have
        publisher.publish(b"first", topic="open").result(PATIENCE_SECONDS)
        calls = count_calls(monkeypatch, job.NAME)
        for seq in range(3):
            publisher.publish(b"%d" % seq, topic="open").result(PATIENCE_SECONDS)
    # 2,000 where each batch builds the columns of its records
    assert 0 < max(calls.values()) < 400


def test_a_topic_without_a_log_is_acknowledged_message_by_message_and_has_no_rows(
    spark: SparkSession, settings: Settings
) -> None:
    rules = settings.persist.model_copy(update={"unlogged": ("open",)})
    running = job.JOB.start(spark, settings.model_copy(update={"persist": rules}))
    acks: list[CommandAck] = []
    with _publisher(settings, on_ack=acks.append) as publisher:
        futures = [publisher.publish(b"x", topic="open", cid=f"c{number}") for number in (1, 2, 3)]
        assert [future.result(PATIENCE_SECONDS).seq for future in futures] == [1, 2, 3]
    assert [(ack.cid, ack.seq) for ack in acks if ack.ack_type == "persisted"] == [("c1", 1), ("c2", 2), ("c3", 3)]
    assert _rows(spark, settings) == []
    assert _relied_on(settings) == (3, [(1, 3)])
    running.stop()


def _write(settings: Settings, client: str, *numbers: int) -> None:
    """Publish without a logon, as a client that is not ackstream's."""
    for seq in numbers:
        _send(settings, client, [("seq", b"%d" % seq), ("ack", b"persisted"), ("topic", b"open")], b"%d" % seq)


def _send(settings: Settings, client: str, headers: list[tuple[str, bytes]], value: bytes = b"") -> None:
    topic = settings.kafka.topic("messages")
    producer = clients.connect_producer(settings.kafka, topic, delivery_timeout=PATIENCE_SECONDS)
    producer.send(topic, value, client.encode(), [("client", client.encode()), *headers]).get(PATIENCE_SECONDS)
    clients.close_producer(producer)


def test_acks_that_were_not_sent_are_sent_by_the_next_start(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(settings, "p1", 1, 2, 3)
    # more than 32 bits, as any client may say: it must not end the acks of all
    _send(settings, "p2", [("command", b"logon"), ("cid", b"c"), ("publish-window", b"9223372036854775807")])
    with monkeypatch.context() as patch:

        def lose(*_: object) -> None:
            raise KafkaTimeoutError("the broker is away")

        patch.setattr(DeferredAcks, "_release", lose)
        patch.setattr(DeferredAcks, "follow", lambda *_: None)
        job.JOB.start(spark, settings, available_now=True).awaitTermination()
    assert [value for *_, value in _rows(spark, settings)] == [b"1", b"2", b"3"]
    assert records(settings.kafka, "publisher-acks") == []
    _write(settings, "p1", 4)
    running = job.JOB.start(spark, settings)
    found: dict[str | None, tuple[int | None, int | None]] = {}

    def told() -> bool:
        all_acks = [decode_ack(record.value) for record in records(settings.kafka, "publisher-acks")]
        acks = [ack for ack in all_acks if ack.client == "p1"]
        found.update({ack.ack_id: (ack.first, ack.seq) for ack in acks})
        return any(seq == 4 for _, seq in found.values())

    eventually(told, "the acks of both starts", running)
    running.stop()
    assert sorted(found.values()) in ([(1, 3), (4, 4)], [(1, 4)])


def test_a_new_checkpoint_reads_everything_again_and_stores_nothing_twice(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    with _publisher(settings, stage="accepted") as publisher:
        for number in range(50):
            publisher.publish(b"%d" % number, topic="open", key=b"k", headers=[("colour", b"red")])
        publisher.publish_flush(PATIENCE_SECONDS)
    job.JOB.start(spark, settings, available_now=True).awaitTermination()
    first = _rows(spark, settings)
    assert [value for *_, value in first] == [b"%d" % number for number in range(50)]
    again = settings.model_copy(
        update={"lake": settings.lake.model_copy(update={"checkpoints": str(tmp_path / "others")})}
    )
    job.JOB.start(spark, again, available_now=True).awaitTermination()
    assert _rows(spark, settings) == first
    # the next start sends those again whose sending it does not know of: the same bytes
    told = {record.value for record in records(settings.kafka, "publisher-acks")}
    assert len({decode_ack(value).ack_id for value in told}) == len(told) > 0
    row = tables.read(spark, settings.lake, "messages").first()
    assert (row.subject, bytes(row.key), row.headers[0].name, bytes(row.headers[0].value)) == (
        "open", b"k", "colour", b"red",
    )  # fmt: skip


def test_a_checkpoint_that_ended_with_ledgers_alone_loses_no_message(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(value: bytes) -> None:
        with _publisher(settings, stage="accepted") as publisher:
            publisher.publish(value).result(PATIENCE_SECONDS)

    publish(b"first")
    job.JOB.start(spark, settings, available_now=True).awaitTermination()
    publish(b"second")
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise RuntimeError("the moment before the messages are committed")

        patch.setattr(job.wire, "message_rows", die)
        with pytest.raises(StreamingQueryException):
            job.JOB.start(spark, settings, available_now=True).awaitTermination()
    assert tables.read(spark, settings.lake, "publishers").agg({"batch": "max"}).first()[0] == 1
    again = settings.model_copy(
        update={"lake": settings.lake.model_copy(update={"checkpoints": str(tmp_path / "others")})}
    )
    job.JOB.start(spark, again, available_now=True).awaitTermination()
    assert [value for *_, value in _rows(spark, settings)] == [b"first", b"second"]
