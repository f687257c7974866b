from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaOptimizeBuilder

from ackstream.errors import InputError, SettingsError, StartError
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.lake import maintenance, tables, things
from ackstream.settings import Lake, Settings
from tests.lake import empty, records
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_small_files_become_one_and_no_row_is_lost(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake)
    running = ArchiveFold(lake)
    for batch in range(3):
        running.write(records.frame(spark, [records.outcome(batch, batch)], batch), batch, "query")
    version = deltalake.DeltaTable(lake.table("outcomes")).version()
    before = spark.read.format("delta").option("versionAsOf", version).load(tables.location(lake, "outcomes"))
    (report,) = maintenance.maintain(spark, Settings(lake=lake), ["outcomes"])
    assert (report.table, report.files_before, report.files_after) == ("outcomes", 3, 1)
    assert 0 < report.bytes_after < report.bytes_before
    assert before.count() == 3
    assert_df_equality(tables.read(spark, lake, "outcomes"), before, ignore_row_order=True)
    # the query goes on beside it: a copy is found in the compacted file
    running.write(records.frame(spark, [records.outcome(2, 2), records.outcome(3, 2)], 3), 3, "query")
    assert deltalake.DeltaTable(lake.table("outcomes")).to_pyarrow_table().num_rows == 4
    # files younger than the retention stay for those who read an older version
    assert len(list(Path(lake.table("outcomes")).rglob("*.parquet"))) == 5


DAY_MS = 86_400_000


def test_a_day_that_is_over_is_put_in_order_once_and_the_newest_day_is_compacted(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ROW_GROUP_BYTES", 1024)
    empty.create(spark, lake)
    running, settings = ArchiveFold(lake), Settings(lake=lake)

    def append(batch: int, numbers: range, *days: int) -> None:
        rows = [(1000 * day + number, records.START + DAY_MS * day) for day in days for number in numbers]
        signals = [records.signal_row(number, received_at=time) for number, time in rows]
        values = [records.outcome(one.offset, batch, signal=one, acks=[], outcome=None) for one in signals]
        running.write(records.frame(spark, values, 1000 * batch), batch, "query")

    def maintained() -> list[tuple[str, str, str]]:
        before = deltalake.DeltaTable(lake.table("signals")).version()
        (report,) = maintenance.maintain(spark, settings, ["signals"])
        assert report.failure == ""
        found = deltalake.DeltaTable(lake.table("signals"))
        commits = [one for one in found.history() if one["version"] > before and one["operation"] == "OPTIMIZE"]
        files = ("numRemovedFiles", "numAddedFiles")
        return [(one["operationParameters"]["zOrderBy"], *map(one["operationMetrics"].get, files)) for one in commits]

    append(0, range(0, 600, 2), 0, 1)
    append(1, range(1, 600, 2), 0, 1)
    compacted, ordered = ("[]", "2", "1"), ('["correlation_id"]', "2", "1")
    assert maintained() == [compacted, ordered]
    assert maintained() == []
    (file,) = [file for file in deltalake.DeltaTable(lake.table("signals")).file_uris() if "day=2026-11-18" in file]
    metadata = pq.read_metadata(file)
    spans = [metadata.row_group(at).column(0).statistics for at in range(metadata.num_row_groups)]
    assert len(spans) > 1
    assert all(one.max <= other.min for one, other in itertools.pairwise(spans))
    # an archive that was behind
    append(2, range(600, 601), 0)
    assert maintained() == [ordered]
    assert tables.read(spark, lake, "signals").count() == 1201


def test_all_tables_are_maintained_with_the_settings_of_now_and_the_failure_of_one_is_reported(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create(spark, lake)
    attempts: list[DeltaOptimizeBuilder] = []
    real = DeltaOptimizeBuilder.executeCompaction

    def conflicting(compaction: DeltaOptimizeBuilder) -> DataFrame:
        attempts.append(compaction)
        # the second table conflicts each time, the third one once
        if 2 <= len(attempts) <= maintenance.COMPACTION_ATTEMPTS + 2:
            raise DeltaConcurrentModificationException("a file was removed")
        return real(compaction)

    monkeypatch.setattr(DeltaOptimizeBuilder, "executeCompaction", conflicting)
    day = Lake(path=lake.path, retention="24h")
    reports = maintenance.maintain(spark, Settings(lake=day))
    assert [(report.table, report.files_after, report.failure) for report in reports] == [
        ("signals", 0, ""),
        ("acknowledgements", 0, "a file was removed"),
        ("outcomes", 0, ""),
        ("dead_letters", 0, ""),
        ("audit", 0, ""),
    ]
    assert len(attempts) == 1 + maintenance.COMPACTION_ATTEMPTS + 2 + 1 + 1
    configuration = deltalake.DeltaTable(lake.table("signals")).metadata().configuration
    assert configuration["delta.deletedFileRetentionDuration"] == "interval 86400000 milliseconds"


def test_maintenance_beside_a_job_loses_nothing_and_stops_neither(spark: SparkSession, lake: Lake) -> None:
    names = ["thing_events", "things", "things_search"]
    empty.create(spark, lake, names)
    batches = 2

    def work() -> None:
        for batch in range(batches):
            rows = table(*[change(f"a:{at}", batch + 1, {"n": batch}) for at in range(3)])
            things.append(spark, lake, rows, "query", batch)
            events = tables.read(spark, lake, things.JOURNAL).where(f"batch = {batch}")
            things.merge(spark, lake, events)
            things.merge_values(spark, lake, events)
            things.remember_merged(spark, lake, batch)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        for _ in range(batches):
            # where merges follow each other without a pause, a compaction may find no gap
            maintenance.maintain(spark, Settings(lake=lake), names, journal_ms=1)
        running.result()
    reports = maintenance.maintain(spark, Settings(lake=lake), names)
    assert [(report.failure, report.files_after) for report in reports[1:]] == [("", 1), ("", 1)]
    found = tables.read(spark, lake, "things").select("thing_id", "revision", "batch").collect()
    assert sorted(map(tuple, found)) == [(f"a:{at}", batches, batches - 1) for at in range(3)]
    assert tables.read(spark, lake, "things_search").where("path = 'n'").count() == 3


def test_a_dangerous_retention_is_refused(spark: SparkSession) -> None:
    settings = Settings(lake=Lake(retention="90m"))
    with pytest.raises(SettingsError, match=r"^lake.retention is 1.5 h: removing files so young .* set it to 24h or"):
        maintenance.maintain(spark, settings)


def test_an_unknown_table_is_refused(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(InputError, match="There is no table signal; the tables are signals, "):
        maintenance.maintain(spark, Settings(lake=lake), ["signal"])


def test_a_table_that_is_not_there_is_not_made(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(StartError, match="The table outcomes does not exist"):
        maintenance.maintain(spark, Settings(lake=lake), ["outcomes"])
    assert not Path(lake.table("outcomes")).exists()
