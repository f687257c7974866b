"""`ackstream migrate`: other shards, tasks and state store, with open requests, and acknowledgements meanwhile."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from ackstream.cli.main import app
from ackstream.errors import StartError
from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.jobs.correlate.job import JOB, inflight
from ackstream.kafka.topics import ensure_topics
from ackstream.settings.loading import with_values
from ackstream.spark import migration
from ackstream.spark.migration import migrate
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka, Settings

pytestmark = pytest.mark.integration

NEW = {"correlate.shards": 15, "correlate.shuffle_partitions": 3, "correlate.state_store": "rocksdb"}
DECIDED, EARLY, SILENT = range(1_000), range(1_000, 2_000), range(2_000, 2_100)
"""Requests that are decided before, whose second acknowledgement comes before and after, and that never get one."""


def _rows(settings: Settings, table: str, *columns: str) -> Counter[tuple[object, ...]]:
    rows = DeltaTable(settings.lake.table(table)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return Counter(tuple(row[column] for column in columns) for row in rows)


def _acknowledge(system: System, label: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        system.post("acks", system.ack_json(f"id-{number}", label))
    system.producer.flush()


@pytest.mark.parametrize("requests", [7_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_every_open_request_is_decided_once_and_right(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, requests: int
) -> None:
    third, half = requests // 3, requests // 2
    with closing(System(kafka, tmp_path, orphan_hold="1h")) as system:
        ensure_topics(system.settings)
        # deadlines are soon only where nobody acknowledges: time passes when the test says so
        commands = [
            system.command_json(
                f"id-{number}", requested_acks=["a-ack", "b-ack"], timeout="1s" if number in SILENT else "1h"
            )
            for number in range(requests)
        ]
        with system.correlate(spark) as query:
            for command in commands:
                system.post("signals", command)
            _acknowledge(system, "a-ack", (*DECIDED, *EARLY))
            _acknowledge(system, "b-ack", DECIDED)
            # held, because its request comes later
            system.post("acks", system.ack_json("later", "a-ack"))
            system.producer.flush()
            query.processAllAvailable()
            now = system.command("last", requested_acks=["a-ack"], timeout="1h")
            # a batch may be half done when the query is stopped
            _acknowledge(system, "a-ack", range(third, half))
        assert system.end("replies") >= len(DECIDED)
        # while nothing runs
        _acknowledge(system, "a-ack", range(half, requests))
        system.post("signals", system.command_json("later", requested_acks=["a-ack"], timeout="1h"))
        # a repeated request that is decided, and one that is open
        for again in (commands[0], commands[half]):
            system.post("signals", again)
        system.producer.flush()
        system.settings = with_values(system.settings, NEW)
        with pytest.raises(StartError, match=r"stop the job and run `ackstream migrate correlate`"):
            JOB.start(spark, system.settings)
        done = migrate(spark, system.settings, JOB)
        assert done
        assert done.changed == {"correlate.shards": (2, 15), "correlate.shuffle_partitions": (2, 3),
                                "correlate.state_store": ("hdfs", "rocksdb")}  # fmt: skip
        # the former checkpoint is whole
        assert Path(done.former, "commits").is_dir()
        assert migrate(spark, system.settings, JOB) is None
        assert len(inflight(spark, system.settings)) >= requests - len(DECIDED)
        with system.correlate(spark) as query:
            _acknowledge(system, "a-ack", range(2_100, third))
            _acknowledge(system, "b-ack", (*EARLY, *range(2_100, requests)))
            system.ack("last", "a-ack")
            query.processAllAvailable()
            assert len(inflight(spark, system.settings)) == len(SILENT)
            system.tick(query, now + 2_000)
            query.processAllAvailable()
        replies = system.replies()
        ARCHIVE.start(spark, system.settings, available_now=True).awaitTermination()
        outcomes = _rows(system.settings, "outcomes", "correlation_id", "completed_by")
        acks = _rows(system.settings, "acknowledgements", "correlation_id", "label", "disposition")
        signals = _rows(system.settings, "signals", "correlation_id")
        reasons = system.reasons()

    silent = {f"id-{number}" for number in SILENT}
    assert set(outcomes.values()) == set(acks.values()) == set(signals.values()) == {1}
    assert replies.keys() == {key for key, _ in outcomes} == {key for (key,) in signals}
    assert len(replies) == requests + 2
    assert {key for key, completed in outcomes if completed == "timeout"} == silent
    assert {disposition for *_, disposition in acks} == {"accepted"}
    assert len(acks) == 2 * (requests - len(SILENT)) + 2
    assert {key for key, reply in replies.items() if reply["status"] == 200} == replies.keys() - silent
    assert len(reasons) == 2


def test_a_migration_that_is_interrupted_is_finished_and_none_is_made_beside_the_running_job(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(System(kafka, tmp_path, clock=True)) as system:
        old = system.settings
        system.settings = with_values(old, NEW)
        with pytest.raises(StartError, match=r"There is no checkpoint at .*correlate: start the correlate job"):
            migrate(spark, system.settings, JOB)
        system.settings = old
        with system.correlate(spark) as query:
            system.command("open", requested_acks=["a-ack"], timeout="1h")
            eventually(lambda: system.end("ledger"), "the signal's row", query)
            with pytest.raises(StartError, match=r"Another process .* runs this job on the same system"):
                migrate(spark, with_values(old, NEW), JOB)
        system.settings = with_values(old, NEW)
        move, moves = migration.Checkpoint.move, []

        def interrupted(checkpoint: migration.Checkpoint, location: str) -> None:
            moves.append(location)
            if len(moves) == 2:
                raise KeyboardInterrupt
            move(checkpoint, location)

        with monkeypatch.context() as patched:
            patched.setattr(migration.Checkpoint, "move", interrupted)
            with pytest.raises(KeyboardInterrupt):
                migrate(spark, system.settings, JOB)
        # nobody has read it yet
        system.ack("open", "a-ack")
        with pytest.raises(StartError, match=r"The migration of the checkpoint .* was interrupted"):
            JOB.start(spark, system.settings)
        monkeypatch.chdir(tmp_path)
        own = {
            "lake.checkpoints": old.lake.checkpoints,
            "kafka.bootstrap": kafka.bootstrap,
            "kafka.topic_prefix": kafka.topic_prefix,
        }
        for key, value in {**NEW, **own}.items():
            monkeypatch.setenv(f"ACKSTREAM_{key.upper().replace('.', '_')}", str(value))
        result = CliRunner().invoke(app, ["migrate", "correlate"])
        assert result.exit_code == 0, result.output
        assert "correlate.shards = 15" in result.stdout
        with system.correlate(spark) as query:
            eventually(lambda: "open" in system.replies(), "the reply", query)
        assert system.replies()["open"]["status"] == 200
