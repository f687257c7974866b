"""What was stored and what readers say, Kafka, the settle query and its tables together."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from kafka import KafkaConsumer, KafkaProducer

from ackstream.errors import StartError
from ackstream.jobs.settle.job import JOB
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol import messages, readers
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import (
    AckInterval,
    AppAck,
    AppAckConf,
    ApplicationAcknowledged,
    KnownReaders,
    KnownWriter,
    ReaderAlive,
    ReaderRemoved,
    ReadersRequest,
    ReaderStart,
    ReaderState,
    ReaderStop,
    SamplesDone,
    WriterState,
    WriterStateRequest,
    read_answer,
)
from ackstream.settings import Clock, Kafka, Lake, RequiredRole, Settings, Settle
from ackstream.settings.loading import with_values
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.migration import migrate
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

TINY = "100ms"


class System:
    """Says what persist, readers and writers say, and collects what they hear."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        kafka = settings.kafka
        self._producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=0)
        self._consumer = KafkaConsumer(
            kafka.topic("publisher-acks"), bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest"
        )
        self.heard: list[tuple[str, Any]] = []

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def stored(self, writer: str, first: int, last: int, *refused: tuple[int, int]) -> None:
        self._send("stored", writer, messages.write_stored(StoredRange(writer, first, last, 0, refused)))

    def say(self, *records: Any) -> None:
        for record in records:
            by = getattr(record, "reader", None) or getattr(record, "writer", "ops")
            self._send("app-acks", by, readers.write(record))

    def raw(self, key: str, value: bytes | None, topic: str = "app-acks") -> None:
        self._send(topic, key, value)

    def _send(self, topic: str, key: str, value: bytes | None) -> None:
        self._producer.send(self.settings.kafka.topic(topic), value, key.encode()).get(PATIENCE_SECONDS)

    def wait(self, enough: Callable[[], Any]) -> Any:
        """Return what ``enough`` gives as soon as it gives something, after each answer that is heard."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not (found := enough()):
            assert time.monotonic() < until, f"heard only {self.heard}"
            for records in self._consumer.poll(200).values():
                self.heard += [(record.key.decode(), read_answer(record.value)) for record in records]
        return found

    def all(self, kind: type[Any], key: str) -> list[Any]:
        return [answer for heard, answer in self.heard if heard == key and isinstance(answer, kind)]

    def confs(self, reader: str) -> list[tuple[str, int]]:
        return [(conf.writer, conf.count) for conf in self.all(AppAckConf, reader)]

    def done(self, writer: str) -> set[int]:
        runs = [run for told in self.all(SamplesDone, writer) for run in told.intervals]
        return {number for first, last in runs for number in range(first, last + 1)}

    def asked(self, writer: str) -> WriterState:
        before = len(self.all(WriterState, writer))
        self.say(WriterStateRequest(writer))
        self.wait(lambda: len(self.all(WriterState, writer)) > before)
        state: WriterState = self.all(WriterState, writer)[-1]
        return state

    def rows(self, table: str, **where: str) -> list[dict[str, Any]]:
        found = DeltaTable(self.settings.lake.table(table)).to_pyarrow_table().to_pylist()
        order = "first" if table == "deliveries" else "id"
        chosen = (row for row in found if all(row[name] == value for name, value in where.items()))
        return sorted(chosen, key=lambda row: (row["offset"], row[order]))


def _ack(reader: str, writer: str, count: int, *runs: Any, epoch: int = 1, role: str | None = None) -> AppAck:
    return AppAck(reader, writer, epoch, count, tuple(AckInterval(*run) for run in runs), role)


def _settings(broker: str, prefix: str, path: Path, **settle: Any) -> Settings:
    kafka = Kafka(bootstrap=broker, topic_prefix=f"t{os.getpid()}-{prefix}-", partitions=2)
    lake = Lake(path=str(path / "lake"), checkpoints=str(path / "checkpoints"))
    made = Settings(
        kafka=kafka, lake=lake, clock=Clock(interval=TINY), settle=Settle(interval=TINY, shards=2, **settle)
    )
    ensure_topics(made, JOB.topics)
    return made


@contextmanager
def _system(spark: SparkSession, settings: Settings) -> Iterator[System]:
    with JOB.running(spark, settings) as query, closing(System(settings)) as system:
        yield system
        # a batch that is cut off would run again and say its answers again
        query.processAllAvailable()
        assert query.exception() is None


@pytest.fixture(scope="module")
def system(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    path = tmp_path_factory.mktemp("settle")
    required = (
        RequiredRole(role="Logger", quorum=2, writers=("q-*",)),
        RequiredRole(role="Processor", quorum=1, writers=("q-*",)),
        RequiredRole(role="Nobody", quorum=1, writers=("nobody-*",)),
    )
    settings = _settings(broker, "settle", path, required=required, max_holes=3, reader_lease="3s", durable_lease="6s")
    with _system(spark, settings) as started:
        yield started


def test_a_confirmation_echoes_the_count_when_the_rows_are_in_the_table(system: System) -> None:
    system.stored("w1", 100, 104)
    system.say(_ack("A", "w1", 7, (100, 101, b"\xfa"), (103, 103, None, "filtered")))
    system.wait(lambda: system.confs("A"))
    rows = system.rows("deliveries", writer="w1")
    assert [(row["id"], row["last"], row["response"], row["auto"], row["role"]) for row in rows] == [
        ("w1/A/100", 101, b"\xfa", None, None),
        ("w1/A/103", 103, None, "filtered", None),
    ]
    assert system.all(AppAckConf, "A") == [AppAckConf("A", "w1", 1, 7)]


def test_there_is_one_event_and_one_row_though_the_report_comes_twice(system: System) -> None:
    system.stored("w2", 1, 5)
    system.say(_ack("B", "w2", 1, (1, 2)), _ack("B", "w2", 1, (1, 2)), _ack("B", "w2", 2, (1, 3)))
    system.wait(lambda: len(system.confs("B")) == 3)
    events = [(event.first, event.last) for event in system.all(ApplicationAcknowledged, "w2")]
    assert events == [(1, 2), (3, 3)]
    assert [(row["first"], row["last"]) for row in system.rows("deliveries", writer="w2")] == events


def test_a_sample_is_done_when_each_role_has_its_quorum_of_different_readers_and_not_before(system: System) -> None:
    system.stored("q-1", 1, 2, (2, 2))
    assert system.asked("q-1") == WriterState("q-1", 2, 0, ((2, 2),), ("Logger", "Processor"))
    logger, processor = {"role": "Logger"}, {"role": "Processor"}
    system.say(_ack("L1", "q-1", 1, (1, 1), **logger), _ack("L1", "q-1", 2, (1, 1), **logger))
    system.say(_ack("P1", "q-1", 1, (1, 1), **processor))
    system.wait(lambda: len(system.confs("L1")) == 2 and system.confs("P1"))
    assert system.asked("q-1").waiting_for == ("Logger",)
    assert system.done("q-1") == {2}, "refused is done at once, and holds nothing back"
    system.say(_ack("L2", "q-1", 1, (1, 1), **logger))
    system.wait(lambda: system.done("q-1") == {1, 2})
    assert system.asked("q-1") == WriterState("q-1", 2, 2)


def test_a_role_that_nobody_fills_keeps_the_samples_and_is_named(system: System) -> None:
    system.stored("nobody-1", 1, 3)
    system.say(_ack("C", "nobody-1", 1, (1, 3)))
    system.wait(lambda: system.confs("C"))
    assert system.asked("nobody-1") == WriterState("nobody-1", 3, 0, (), ("Nobody",))


def test_what_is_not_used_is_a_row_with_its_reason_and_moves_nothing(system: System) -> None:
    writer, kept = "q-2", {"role": "Logger"}
    system.stored(writer, 1, 20)
    system.say(
        _ack("D", writer, 5, (1, 2), (2, 3), epoch=2, **kept),
        _ack("D", writer, 4, (4, 9), epoch=2, **kept),
        _ack("D", writer, 9, (4, 9), epoch=1, **kept),
        _ack("D", writer, 6, (9, 8), (4, 4, b"x" * 32_769), epoch=2, **kept),
        _ack("D", writer, 7, (6, 6), (8, 8), (10, 10), (12, 12), epoch=2, **kept),
        _ack("D", writer, 8, (20, 21), epoch=2, **kept),
    )
    system.raw("D", b"no JSON")
    system.raw("D", None)
    system.raw("D", b'{"type": "reader_start", "reader": "D"}')
    system.raw("D", b'{"type": "queue_bind", "queue": "q", "consumer": "D", "session": 1}')
    for tick in (None, b"no time", b"9223372036854775807"):
        system.raw("clock", tick, "settle-clock")
    wanted = [
        ("stale-count", None, None), ("stale-epoch", None, None), ("reversed", 9, 8), ("response-too-long", 4, 4),
        ("too-many-holes", 12, 12), ("never-delivered", 20, 21),
    ]  # fmt: skip

    system.wait(lambda: len(system.rows("ignored_reports", reader="D")) == len(wanted))
    found = [(row["reason"], row["first"], row["last"]) for row in system.rows("ignored_reports", reader="D")]
    assert found == wanted
    assert [row["value"] for row in system.rows("ignored_reports", reason="unreadable")] == [
        b"no JSON", None, b'{"type": "reader_start", "reader": "D"}'
    ]  # fmt: skip
    assert system.confs("D") == [(writer, 5)]
    assert [(row["first"], row["last"]) for row in system.rows("deliveries", writer=writer)] == [
        (1, 2), (3, 3), (4, 4), (6, 6), (8, 8), (10, 10),
    ]  # fmt: skip
    assert system.asked(writer).released == 0


def test_a_reader_that_begins_again_hears_exactly_what_is_left(system: System) -> None:
    system.stored("q-3", 1, 9, (4, 4))
    system.say(_ack("L3", "q-3", 1, (1, 2), (6, 6), role="Logger"), ReaderStart("L3", 2, "Logger", writers=("q-3",)))
    states = system.wait(lambda: len(found := system.all(ReaderState, "L3")) == 2 and found)
    assert {(state.shard, state.shards, state.epoch) for state in states} == {(0, 2, 2), (1, 2, 2)}
    known = KnownWriter("q-3", 1, 9, ((1, 2), (4, 4), (6, 6)), ((3, 3), (5, 5), (7, 9)))
    assert [writer for state in states for writer in state.writers if writer.writer == "q-3"] == [known]


def test_a_plain_reader_is_waited_for_while_it_is_there(system: System) -> None:
    system.say(ReaderStart("E", 1, writers=("p-*",)), ReaderStart("F", 1, writers=("p-*",)))
    system.wait(lambda: len(system.all(ReaderState, "E")) == len(system.all(ReaderState, "F")) == 2)
    system.stored("p-1", 1, 2)
    assert system.asked("p-1").waiting_for == ("E", "F")
    system.say(ReaderStop("F", 1), ReaderAlive("E", 1))
    # E says nothing more: its lease ends by the clock alone
    system.wait(lambda: system.done("p-1") == {1, 2})


def test_a_durable_reader_is_removed_after_its_lease_and_the_table_records_it(system: System) -> None:
    system.say(ReaderStart("G", 1, durable=True, writers=("g-*",)))
    system.wait(lambda: len(system.all(ReaderState, "G")) == 2)
    system.stored("g-1", 1, 2)
    # the clock alone: nobody speaks
    system.wait(lambda: len(system.all(ReaderRemoved, "G")) == 2)
    system.wait(lambda: system.done("g-1") == {1, 2})
    assert [(row["reason"], row["offset"]) for row in system.rows("ignored_reports", reader="G")] == [
        ("reader-expired", -1)
    ]


def test_a_writer_requires_roles_of_its_own(system: System) -> None:
    system.say(WriterStateRequest("own-1", {"Auditor": 1}))
    system.wait(lambda: system.all(WriterState, "own-1"))
    system.stored("own-1", 1, 2)
    assert system.asked("own-1").waiting_for == ("Auditor",)
    system.say(_ack("H", "own-1", 1, (1, 2), role="Auditor"))
    system.wait(lambda: system.done("own-1") == {1, 2})


def test_the_readers_are_listed_by_every_shard(system: System) -> None:
    system.stored("q-listed", 1, 5)
    system.asked("q-listed")
    system.say(ReaderStart("I", 1, durable=True, writers=("q-listed",)))
    system.wait(lambda: len(system.all(ReaderState, "I")) == 2)
    system.say(ReadersRequest("ops"))
    answers = system.wait(lambda: len(found := system.all(KnownReaders, "ops")) == 2 and found)
    assert {answer.shard for answer in answers} == {0, 1}
    found = [reader for answer in answers for reader in answer.readers if reader.reader == "I"]
    assert (len(found), sum(reader.unacknowledged for reader in found)) == (2, 5)


def test_partitions_that_are_added_while_it_runs_are_read(broker: str, spark: SparkSession, tmp_path: Path) -> None:
    settings = _settings(broker, "settle-grown", tmp_path)
    writers = [f"w{number}" for number in range(16)]
    with _system(spark, settings) as system:
        system.stored("w0", 1, 2)
        assert system.asked("w0").written == 2
        with connect_admin(settings.kafka) as admin:
            for name in ("stored", "app-acks"):
                admin.create_partitions({settings.kafka.topic(name): 8})
        with closing(System(settings)) as grown:
            for writer in writers:
                first = 1 + 2 * (writer == "w0")
                grown.stored(writer, first, first + 1)
                grown.say(_ack(f"A-{writer}", writer, 1, (first, first + 1)))
            for writer in writers:
                grown.wait(lambda writer=writer: grown.confs(f"A-{writer}") == [(writer, 1)])  # type: ignore[misc]
        assert len(system.rows("deliveries")) == len(writers)


def test_with_more_tasks_it_knows_what_is_acknowledged(broker: str, spark: SparkSession, tmp_path: Path) -> None:
    settings = _settings(broker, "settle-migrated", tmp_path)
    with _system(spark, settings) as system:
        system.stored("w1", 1, 5)
        system.say(_ack("A", "w1", 1, (1, 2)))
        system.wait(lambda: system.confs("A"))
    settings = with_values(settings, {"settle.shuffle_partitions": 3})
    assert migrate(spark, settings, JOB) is not None
    with _system(spark, settings) as system:
        system.say(_ack("A", "w1", 2, (1, 4)))
        system.wait(lambda: ("w1", 2) in system.confs("A"))
        assert [(row["first"], row["last"]) for row in system.rows("deliveries")] == [(1, 2), (3, 4)]


def test_after_a_crash_between_commit_and_answer_the_answers_come_and_no_row_comes_twice(
    broker: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(broker, "settle-crash", tmp_path)
    with _system(spark, settings) as system:
        system.stored("w1", 1, 5)
        system.say(_ack("A", "w1", 1, (1, 2)))
        system.wait(lambda: system.confs("A"))
    before = system.rows("deliveries")

    def fail(*_: Any) -> None:
        raise ConnectionError("the broker is away")

    with closing(System(settings)) as system:
        system.say(_ack("A", "w1", 2, (1, 4)), _ack("A", "w1", 1, (1, 1)))
        with monkeypatch.context() as patched, JOB.running(spark, settings) as query:
            patched.setattr(spark_kafka, "send", fail)
            with pytest.raises(Exception, match="the broker is away"):
                query.awaitTermination(PATIENCE_SECONDS)
        committed = system.rows("deliveries")
        ignored = system.rows("ignored_reports")
        assert [(row["first"], row["last"]) for row in committed] == [(1, 2), (3, 4)]
        with JOB.running(spark, settings) as query:
            system.wait(lambda: ("w1", 2) in system.confs("A"))
            assert query.exception() is None
        assert system.rows("deliveries") == committed
        assert system.rows("ignored_reports") == ignored
        assert committed[:1] == before
        events = [(event.first, event.last) for event in system.all(ApplicationAcknowledged, "w1")]
        assert events == [(1, 2), (3, 4)]
    other = settings.model_copy(update={"settle": settings.settle.model_copy(update={"shards": 3})})
    with pytest.raises(StartError, match=r"was made with settle\.shards = 2, the settings say 3"):
        JOB.start(spark, other)
    lost = settings.model_copy(update={"lake": settings.lake.model_copy(update={"checkpoints": str(tmp_path / "x")})})
    with pytest.raises(StartError, match="has rows of a checkpoint that is not at "):
        JOB.start(spark, lost)
