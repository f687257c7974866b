"""Replication: what persist tells while destinations lag, and what their mirrors copy."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from delta.tables import DeltaTable
from kafka import KafkaProducer

from ackstream.client.publishing.publisher import Publisher
from ackstream.errors import StartError
from ackstream.jobs.mirror import job
from ackstream.jobs.mirror.job import Mirror
from ackstream.jobs.persist import job as persist_job
from ackstream.jobs.persist.state import StoredStates
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol import messages
from ackstream.protocol.messages import CommandAck, StoredRange, decode_ack
from ackstream.settings import Destination, Kafka, Lake, Persist, PublishRule, Settings
from tests.harness.calls import spark_jobs
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

INTERVAL_MS, AGE_MS = 300, 1500


@pytest.fixture
def settings(kafka: Kafka, tmp_path: Path) -> Settings:
    made = Settings(
        kafka=kafka,
        lake=Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")),
        persist=Persist(interval="100ms", entitlements=(PublishRule(clients=("*",), topics=("open",)),)),  # type: ignore[arg-type]
        destinations=(
            _destination(tmp_path, "standby", type="sync", ack_conflation_interval=f"{INTERVAL_MS}ms"),
            _destination(tmp_path, "far", type="async"),
        ),
    )
    ensure_topics(made, persist_job.JOB.topics)
    return made


def _destination(place: Path, name: str, **rules: str) -> Destination:
    return Destination.model_validate({"path": str(place / name), "name": name, **rules})


def _ruled(settings: Settings, **rules: Any) -> Settings:
    """Give the sync destination rules; durations are in milliseconds here."""
    standby, far = settings.destinations
    return settings.model_copy(update={"destinations": (standby.model_copy(update=rules), far)})


@contextmanager
def _persisting(spark: SparkSession, settings: Settings) -> Iterator[Any]:
    started = persist_job.JOB.start(spark, settings)
    try:
        yield started
        assert started.exception() is None
    finally:
        started.stop()


def _patient_publisher(settings: Settings, **options: Any) -> Publisher:
    """Return a publisher that sends nothing twice: a duplicate has a persisted ack of its own, and is urgent."""
    return Publisher(settings.kafka, name="p1", ack_timeout=PATIENCE_SECONDS, logon_timeout=PATIENCE_SECONDS, **options)


@contextmanager
def _mirroring(spark: SparkSession, settings: Settings) -> Iterator[None]:
    """Run the mirror of the first destination."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            job.run(spark, settings, settings.destinations[0], stop)
        except Exception as error:  # noqa: BLE001 - for the test's own thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def _decided(settings: Settings) -> int:
    """Return the number up to which everything is decided and in the table."""
    return max((_read(record).last for record in records(settings.kafka, "stored")), default=0)


def _told(settings: Settings) -> list[CommandAck]:
    return [decode_ack(record.value) for record in records(settings.kafka, "publisher-acks")]


def _persisted(settings: Settings) -> list[tuple[int, str | None]]:
    return [(ack.seq, ack.reason) for ack in _told(settings) if ack.ack_type == "persisted" and ack.seq is not None]


def _rows(lake: Lake) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(lake.table("messages")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=itemgetter("partition", "offset"))


def _there(settings: Settings) -> Lake:
    return settings.lake.model_copy(update={"path": settings.destinations[0].path})


def _changes(settings: Settings) -> list[tuple[str, str, str]]:
    rows = deltalake.DeltaTable(settings.lake.table("destinations")).to_pyarrow_table().to_pylist()
    rows.sort(key=itemgetter("changed_at"))
    return [(row["destination"], row["mode"], row["cause"]) for row in rows]


def test_amps_14_15_a_silent_destination_is_waited_for_no_longer_and_again_when_it_has_caught_up(
    spark: SparkSession, settings: Settings
) -> None:
    ruled = _ruled(settings, check_interval=100, downgrade_age=AGE_MS, upgrade_age=AGE_MS // 2)
    with _persisting(spark, ruled) as running, _patient_publisher(settings) as publisher:

        def publish(*numbers: int) -> list[Any]:
            return [publisher.publish(b"%d" % seq, topic="open") for seq in numbers]

        # AMPS-14
        assert not wait(publish(*range(1, 11)), PATIENCE_SECONDS).not_done
        (stored_at, *_) = [record.timestamp for record in records(settings.kafka, "stored")]
        (told_at, *_) = [
            record.timestamp
            for record in records(settings.kafka, "publisher-acks")
            if decode_ack(record.value).ack_type == "persisted"
        ]
        assert told_at - stored_at >= AGE_MS
        assert _persisted(settings)[-1] == (10, None)
        assert _changes(settings) == [("standby", "async", "downgrade")]
        publish(11)[0].result(PATIENCE_SECONDS)
        with _mirroring(spark, settings):
            both = [("standby", "async", "downgrade"), ("standby", "sync", "upgrade")]
            eventually(lambda: _changes(settings)[:2] == both, "it to be waited for again", running)
            assert publish(12)[0].result(PATIENCE_SECONDS).seq == 12
            eventually(lambda: _rows(_there(settings)) == _rows(settings.lake), "everything to be there", running)
    # AMPS-15: the interval of the destination is one of its own
    reports = [
        record
        for record in records(settings.kafka, "destinations")
        if messages.read_replicated(record.value).batch >= 0
    ]
    times = [record.timestamp for record in reports]
    assert all(later - earlier >= INTERVAL_MS for earlier, later in pairwise(times))


def test_the_interval_of_a_publisher_begins_when_the_destinations_have_its_messages(
    spark: SparkSession, settings: Settings
) -> None:
    interval_ms = 5_000
    with (
        _persisting(spark, settings),
        _mirroring(spark, settings),
        _patient_publisher(settings, conflation_ms=interval_ms) as publisher,
    ):
        assert publisher.effective_conflation_ms is None
        assert publisher.publish(b"1", topic="open").result(PATIENCE_SECONDS).seq == 1
    (batch,) = {row["batch"] for row in _rows(settings.lake)}
    reported_at = next(
        record.timestamp
        for record in records(settings.kafka, "destinations")
        if messages.read_replicated(record.value).batch >= batch
    )
    (told_at,) = [
        record.timestamp
        for record in records(settings.kafka, "publisher-acks")
        if decode_ack(record.value).ack_type == "persisted"
    ]
    assert told_at - reported_at >= interval_ms


def _read(record: Any) -> StoredRange:
    return messages.read_stored(record.value)


def _send(settings: Settings, *commands: dict[str, Any]) -> None:
    """Send records of a client as any program could write them."""
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, acks="all")
    for command in commands:
        headers = [(name, str(value).encode()) for name, value in {"client": "p1", **command}.items()]
        producer.send(settings.kafka.topic("messages"), b"x", b"p1", headers)
    producer.close()


def test_amps_12_13_what_waits_for_a_destination_is_told_in_its_order_also_after_restarts_with_the_same_ids(
    spark: SparkSession, settings: Settings
) -> None:
    asked = {"ack": "received,processed,persisted", "topic": "open"}
    waiting = [
        ("persisted", None, 1, None), ("persisted", None, 2, "not entitled"), ("persisted", None, 3, None),
        ("persisted", "f", None, None), ("processed", "l", 3, None),
    ]  # fmt: skip

    def told() -> list[tuple[str, str | None, int | None, str | None]]:
        return [(ack.ack_type, ack.cid, ack.seq, ack.reason) for ack in _told(settings)]

    with _persisting(spark, settings) as running:
        _send(
            settings,
            {"seq": 1, "cid": "c", **asked},
            {"seq": 2, "ack": "persisted", "topic": "secret"},
            {"seq": 3, "ack": "persisted", "topic": "open"},
            {"command": "flush", "cid": "f"},
        )
        eventually(lambda: _decided(settings) == 3, "the messages to be stored", running)
        # AMPS-12: what waits for a destination is overtaken by what does not
        _send(settings, {"command": "logon", "cid": "l"}, {"command": "dance", "cid": "d"})
        eventually(lambda: len(told()) == 3, "what waits for nobody to be told", running)
        assert [entry[:2] for entry in told()] == [("received", "c"), ("processed", "c"), ("processed", "d")]
    _downgrade(spark, settings)
    # AMPS-13: nobody waits for the async one, which nobody mirrors
    with _mirroring(spark, settings):
        for count in (1, 2):
            # without a new message in between it cannot know that it has told everything
            with _persisting(spark, settings) as running:
                again = waiting * count
                eventually(lambda: _only(waiting, told()) == again, "the rest to be told", running)  # noqa: B023
    assert len({ack.ack_id for ack in _told(settings)}) == 3 + len(waiting)
    assert _changes(settings)[1] == ("standby", "sync", "start")


def _only(wanted: list[Any], found: list[Any]) -> list[Any]:
    return [entry for entry in found if entry in wanted]


def _downgrade(spark: SparkSession, settings: Settings) -> None:
    """Note that the destination was not waited for in the end."""
    row = ("standby", datetime(2000, 1, 1, tzinfo=timezone.utc), -1, "async", "downgrade", 60_000)
    place = tables.location(settings.lake, "destinations")
    spark.createDataFrame([row], ALL_TABLES["destinations"].schema).write.format("delta").mode("append").save(place)


def test_a_destination_gets_every_row_once_whatever_happens_to_its_mirror(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = settings.destinations[0]
    with pytest.raises(StartError, match="start the persist job"):
        Mirror(spark, settings, destination)
    tables.create(spark, settings.lake, ["messages"])
    _put(spark, settings, (0, 2), (1, 1), (2, 3))
    monkeypatch.setattr(job, "ROWS_AT_ONCE", 3)
    one, other = Mirror(spark, settings, destination), Mirror(spark, settings, destination)
    assert (one.copy(), one.last) == (True, 1)
    # it was to write the same, under the same name
    assert (other.copy(), other.last) == (True, 1)
    assert (one.copy(), one.last) == (False, 2)
    assert _rows(_there(settings)) == _rows(settings.lake)
    # what is compacted is not new
    DeltaTable.forPath(spark, tables.location(settings.lake, "messages")).optimize().executeCompaction()
    again = Mirror(spark, settings, destination)
    assert (again.last, again.copy()) == (2, False)
    # nor is a column of the owner's own copied
    source = tables.location(settings.lake, "messages")
    spark.sql(f"ALTER TABLE delta.`{source}` ADD COLUMNS (mine STRING)")
    _put(spark, settings, (3, 1))
    assert (again.copy(), again.last) == (False, 3)
    assert [(other.copy(), other.last) for _ in range(2)] == [(True, 3), (False, 3)]
    own = [{name: value for name, value in row.items() if name != "mine"} for row in _rows(settings.lake)]
    assert _rows(_there(settings)) == own
    elsewhere = settings.model_copy(
        update={"lake": settings.lake.model_copy(update={"path": f"{settings.lake.path}-2"})}
    )
    tables.create(spark, elsewhere.lake, ["messages"])
    with pytest.raises(StartError, match="messages of another lake"):
        Mirror(spark, elsewhere, destination)


def test_a_few_messages_are_mirrored_without_a_spark_job(spark: SparkSession, settings: Settings) -> None:
    tables.create(spark, settings.lake, ["messages"])
    _put(spark, settings, (0, 2))
    mirror = Mirror(spark, settings, settings.destinations[0])
    assert (mirror.copy(), mirror.last) == (False, 0)
    for batch in (1, 2):
        _put(spark, settings, (batch, 3))
        with spark_jobs(spark, f"copy {batch}") as started:
            assert (mirror.copy(), mirror.last) == (False, batch)
            assert (mirror.copy(), mirror.last) == (False, batch)
    # the first look at a log may be one
    assert started() == []
    assert _rows(_there(settings)) == _rows(settings.lake)


def test_batches_are_counted_on_where_the_destination_takes_over(spark: SparkSession, settings: Settings) -> None:
    tables.create(spark, settings.lake, ["messages"])
    _put(spark, settings, (0, 2), (7, 1))
    mirror = Mirror(spark, settings, settings.destinations[0])
    mirror.copy()
    versions = tables.transactions(spark, _there(settings), "messages")
    assert versions == {mirror.source: 7}
    assert tables.first_and_newest(versions, "of a persist there") == (8, -1)
    # what is erased there is not copied again, and its numbers are not given again
    DeltaTable.forPath(spark, tables.location(_there(settings), "messages")).delete("batch = 7")
    again = Mirror(spark, settings, settings.destinations[0])
    assert (again.last, again.copy()) == (7, False)
    tables.create(spark, _there(settings), ["publishers"])
    taken_over = settings.model_copy(update={"lake": _there(settings)})
    assert StoredStates(spark, taken_over, "of a persist there").first == 8


def test_a_destination_that_was_restored_is_refused_since_it_lacks_what_was_reported(
    spark: SparkSession, settings: Settings
) -> None:
    tables.create(spark, settings.lake, ["messages"])
    mirror = Mirror(spark, settings, settings.destinations[0])
    for batch in (0, 1):
        _put(spark, settings, (batch, 2))
        mirror.copy()
    path = tables.location(_there(settings), "messages")
    newest = DeltaTable.forPath(spark, path).history(1).collect()[0].version
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {newest - 1}")
    with pytest.raises(StartError, match=r"was restored .* lacks batches 1 to 1, .* empty the directory"):
        Mirror(spark, settings, settings.destinations[0])
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {newest}")
    assert Mirror(spark, settings, settings.destinations[0]).last == 1


def _put(spark: SparkSession, settings: Settings, *batches: tuple[int, int]) -> None:
    """Write so many rows of each batch."""
    numbers = [(batch, 10 * batch + number) for batch, count in batches for number in range(count)]
    rows = spark.createDataFrame(numbers, "batch long, seq long").selectExpr(
        "'p1' AS client", "timestamp'2026-11-21 12:00:00' AS received_at", "batch", "seq", "'q' AS query_id",
        "encode('x', 'UTF-8') AS value", "'t' AS topic", "0 AS partition", "seq AS offset", "date'2026-11-21' AS day",
    )  # fmt: skip
    rows.coalesce(1).write.format("delta").mode("append").save(tables.location(settings.lake, "messages"))
