"""The archive query on the real broker, stopped, failed and killed at bad moments."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from kafka import KafkaProducer
from pyspark.errors import StreamingQueryException

from ackstream.errors import StartError
from ackstream.jobs.archive import job
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.kafka.topics import ensure_topics
from ackstream.lake.schemas import TABLES
from ackstream.settings import Archive as ArchiveSettings
from ackstream.settings import Kafka, Lake, Settings
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.lake import records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

REQUESTS = 120
BATCH = 20
"""Requests that one batch of correlate decides."""


@pytest.fixture
def settings(kafka: Kafka, tmp_path: Path) -> Settings:
    settings = Settings(
        kafka=kafka,
        archive=ArchiveSettings(trigger="0s", max_offsets_per_trigger=75),
        lake=Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")),
    )
    ensure_topics(settings, ["ledger", "audit"])
    return settings


def produce(settings: Settings, entries: Iterable[tuple[str, bytes]]) -> None:
    # copies of a record have one key, and so one partition
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, acks="all")
    try:
        for key, value in entries:
            producer.send(settings.kafka.topic("ledger"), key=key.encode(), value=value)
        producer.flush(timeout=PATIENCE_SECONDS)
    finally:
        producer.close()


def entries() -> Iterator[tuple[str, bytes]]:
    """Yield keys and values as correlate writes them when it dies in every third batch and does it again."""
    for batch in range(REQUESTS // BATCH):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        decided = [(f"c-{number}", records.outcome(number, batch)) for number in numbers]
        yield from decided[: BATCH // 2] if batch % 3 == 0 else []
        yield from decided
        yield "garbage", b"garbage"


def check(settings: Settings) -> None:
    """Each request and each acknowledgement is there once."""
    found = {name: rows(settings, name) for name in TABLES}
    requests = sorted(map(records.reply_id, range(REQUESTS)))
    assert found["outcomes"] == requests
    assert found["signals"] == requests
    assert found["acknowledgements"] == sorted(f"acks-0-{at}-{index}" for at in range(REQUESTS) for index in (0, 1))
    assert len(found["dead_letters"]) == len(set(found["dead_letters"])) == REQUESTS // BATCH


def rows(settings: Settings, name: str) -> list[Any]:
    table = deltalake.DeltaTable(settings.lake.table(name))
    return sorted(table.to_pyarrow_table(columns=["id"])["id"].to_pylist())


def finish(spark: SparkSession, settings: Settings) -> None:
    job.JOB.start(spark, settings, available_now=True).awaitTermination(PATIENCE_SECONDS)


def test_a_checkpoint_from_before_is_refused_and_a_new_one_adds_what_is_missing(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    written = list(entries())
    produce(settings, written[:40])
    finish(spark, settings)
    first = rows(settings, "outcomes")
    assert 0 < len(first) <= 40
    checkpoint, copy = settings.lake.checkpoint(job.NAME), tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    produce(settings, written[40:100])
    # started again, the query goes on where it was
    finish(spark, settings)
    assert set(first) < set(rows(settings, "outcomes"))
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    produce(settings, written[100:])
    with pytest.raises(
        StartError, match=r"/archive is older than the tables: it ends with batch 0, they have batch \d"
    ):
        finish(spark, settings)
    shutil.rmtree(checkpoint)
    finish(spark, settings)
    check(settings)


def test_of_two_archives_that_start_at_once_one_is_refused_and_may_follow_the_other(
    spark: SparkSession, settings: Settings
) -> None:
    produce(settings, entries())
    elsewhere = settings.lake.model_copy(update={"checkpoints": f"{settings.lake.checkpoints}-2"})
    both = [settings, settings.model_copy(update={"lake": elsewhere})]
    with ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:
            starts = [pool.submit(stack.enter_context, job.JOB.running(spark, own)) for own in both]
        errors = [start.exception() for start in starts]
        (refused,) = filter(None, errors)
        assert isinstance(refused, StartError)
        assert "runs this job on the same system: it shows signs of life on the topic" in str(refused)
        starts[errors.index(None)].result().processAllAvailable()
    check(settings)
    with job.JOB.running(spark, both[errors.index(refused)]) as query:
        query.processAllAvailable()
    check(settings)


def test_a_crash_between_the_commits_of_two_tables_leaves_no_gap_and_no_copy(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(settings, entries())
    real = ArchiveFold._append
    left = {"outcomes": 1, "acknowledgements": 2}

    def failing(self: ArchiveFold, table: str, *args: Any, **kwargs: Any) -> None:
        if table in left:
            left[table] -= 1
            if left[table] < 0:
                del left[table]
                raise OSError(f"the store of {table} is away")
        real(self, table, *args, **kwargs)

    monkeypatch.setattr(ArchiveFold, "_append", failing)
    for table in ("outcomes", "acknowledgements"):
        with pytest.raises(StreamingQueryException, match=f"the store of {table} is away"):
            finish(spark, settings)
    finish(spark, settings)
    check(settings)


@pytest.mark.long
def test_replies_go_on_while_the_tables_are_away_and_what_is_missing_is_added_afterwards(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path)) as system, system.correlate(spark) as query:
        lake, away = Path(system.settings.lake.path), tmp_path / "away"

        def ask(*keys: str) -> None:
            for key in keys:
                system.command(key, requested_acks=["a-ack"])
                system.ack(key, "a-ack")
            eventually(lambda: system.replies().keys() >= set(keys), f"the replies to {keys}", query)

        def archived(count: int) -> bool:
            return len(rows(system.settings, "outcomes")) == count

        with job.JOB.running(spark, system.settings) as archive:
            ask("before-1", "before-2")
            eventually(lambda: archived(2), "the outcomes", archive)
            # what is there instead is no directory: nothing can be read or written
            lake.rename(away)
            lake.touch()
            ask("meanwhile-1", "meanwhile-2")
            eventually(lambda: not archive.isActive, "the archive to fail")
        ask("meanwhile-3")
        with (
            pytest.raises(Exception),  # noqa: B017 - Spark's, for a file that is no directory
            job.JOB.running(spark, system.settings) as archive,
        ):
            archive.awaitTermination(PATIENCE_SECONDS)
        ask("meanwhile-4")
        lake.unlink()
        away.rename(lake)
        with job.JOB.running(spark, system.settings) as archive:
            ask("after")
            eventually(lambda: archived(7), "all outcomes", archive)
        for name in ("outcomes", "signals", "acknowledgements"):
            found = rows(system.settings, name)
            assert (len(found), len(set(found))) == (7, 7)
        assert query.isActive
