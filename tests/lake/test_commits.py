from __future__ import annotations

import json
import stat
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from ackstream.errors import StartError, StoppedError
from ackstream.lake import commits, files, schemas, tables
from tests.harness.calls import spark_jobs
from tests.harness.local_files import recorded
from tests.harness.power import after, survivors
from tests.harness.waiting import eventually
from tests.lake import empty
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake

    Check = Callable[[Mapping[str, int]], None] | None

JOURNAL = "thing_events"
LONG = "a:" + "z" * 40


def rows() -> pa.Table:
    """Return changes of two days; one thing has a name that is longer than what statistics hold."""
    found = table(change("a:1", 1, {"n": 1}), change(LONG, 2, deleted=True), change("a:2", 3, {"n": 2}))
    times = [datetime(2026, 1, day, 12, 0, 0, 999_000, timezone.utc) for day in (1, 1, 2)]
    at = found.column_names.index("modified_at")
    return found.set_column(at, "modified_at", pa.array(times, pa.timestamp("ms", "UTC")))


def append(spark: SparkSession, lake: Lake, version: int = 7, application: str = "q", check: Check = None) -> None:
    found = rows()
    for column, value in (("query_id", "q"), ("batch", 7)):
        found = found.append_column(column, pa.array([value] * found.num_rows))
    tables.append_rows(spark, found, lake, JOURNAL, application, version, check=check)


def by_spark(spark: SparkSession) -> DataFrame:
    own = {"query_id": "'q'", "batch": "7L", "day": "to_date(modified_at)"}
    frame = spark.createDataFrame(rows()).selectExpr("*", *[f"{value} AS {name}" for name, value in own.items()])
    return frame.select(*schemas.ALL_TABLES["thing_events"].names)


def log(lake: Lake) -> list[dict[str, Any]]:
    """Return the actions of the newest commit that add files, by their day."""
    newest = max((Path(lake.table(JOURNAL)) / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    found = [action["add"] for action in actions if "add" in action]
    return sorted(found, key=lambda add: str(add["partitionValues"]))


def test_rows_of_the_driver_are_stored_as_spark_stores_them(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake)
    ours = [(add["partitionValues"], json.loads(add["stats"])) for add in log(lake)]
    first = tables.read(spark, lake, JOURNAL).orderBy("revision").collect()
    tables.append(by_spark(spark), lake, JOURNAL, "other", 0)
    theirs = [(add["partitionValues"], json.loads(add["stats"])) for add in log(lake)]
    assert [values for values, _ in ours] == [{"day": "2026-01-01"}, {"day": "2026-01-02"}]
    for (_, own), (_, their) in zip(ours, theirs, strict=True):
        their.pop("tightBounds", None)
        assert {**own, "maxValues": None} == {**their, "maxValues": None}
        own["maxValues"].pop("thing_id"), their["maxValues"].pop("thing_id")
        assert own["maxValues"] == their["maxValues"]
    assert tables.read(spark, lake, JOURNAL).orderBy("revision").collect() == [row for row in first for _ in range(2)]
    assert tables.read(spark, lake, JOURNAL).where("thing_id >= 'a:zz'").count() == 2
    other_reader = deltalake.DeltaTable(lake.table(JOURNAL)).to_pyarrow_table(filters=[("thing_id", "=", LONG)])
    assert other_reader.num_rows == 2


def test_an_append_of_rows_of_the_driver_starts_no_spark_job(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [JOURNAL])
    # the table's first look at the log may be one
    append(spark, lake, 1)
    with spark_jobs(spark, "append") as started:
        append(spark, lake, 2)
        assert tables.transactions(spark, lake, JOURNAL) == {"q": 2}
        assert started() == []
    assert tables.read(spark, lake, JOURNAL).count() == 6


def test_after_a_power_failure_a_commit_has_all_its_data_and_one_that_was_made_is_there(
    spark: SparkSession, lake: Lake
) -> None:
    tables.create(spark, lake, [JOURNAL])
    append(spark, lake, 1)
    append(spark, lake, 2)
    directory = Path(lake.table(JOURNAL))
    with recorded(spark._jvm, spark._jsc.hadoopConfiguration(), directory) as moments:
        append(spark, lake, 3)
    newest = max((directory / "_delta_log").glob("*.json")).relative_to(directory).as_posix()
    for left in survivors(moments):
        actions = [json.loads(line) for line in left.get(newest, b"").splitlines()]
        adds = [action["add"] for action in actions if "add" in action]
        assert [len(left[add["path"]]) for add in adds] == [add["size"] for add in adds]
    assert {len(left[newest].splitlines()) > 2 for left in after(moments)} == {True}


@pytest.mark.parametrize("left", [0, 40])
def test_a_checksum_that_a_power_failure_has_cut_off_is_ignored(spark: SparkSession, lake: Lake, left: int) -> None:
    tables.create(spark, lake, [JOURNAL])
    append(spark, lake, 1)
    newest = max((Path(lake.table(JOURNAL)) / "_delta_log").glob("*.crc"))
    newest.write_bytes(newest.read_bytes()[:left])
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert tables.transactions(spark, lake, JOURNAL) == {"q": 1}
    append(spark, lake, 1)
    append(spark, lake, 2)
    assert tables.read(spark, lake, JOURNAL).count() == 6


def test_an_empty_newest_commit_is_refused_at_the_start(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake, [JOURNAL])
    append(spark, lake)
    newest = max((Path(lake.table(JOURNAL)) / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(StartError, match=f"commit of the table {JOURNAL}, file:{newest}, is empty: the power"):
        tables.create(spark, lake, [JOURNAL])
    newest.unlink()
    newest.with_suffix(".crc").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    # the batch is repeated then
    tables.create(spark, lake, [JOURNAL])
    append(spark, lake)
    assert tables.read(spark, lake, JOURNAL).count() == 3


def test_what_the_driver_writes_can_be_read_by_its_owner_alone(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake)
    written = [place for place in Path(lake.table(JOURNAL)).rglob("*") if "_delta_log" not in str(place)]
    assert len(written) >= 4
    assert {stat.S_IMODE(place.stat().st_mode) & 0o077 for place in written} == {0}


@pytest.mark.parametrize("change", ["ADD CONSTRAINT whole CHECK (revision < 3)", "SET TBLPROPERTIES ({mapping})"])
def test_a_table_that_asks_for_more_than_a_file_is_left_to_spark(spark: SparkSession, lake: Lake, change: str) -> None:
    empty.create(spark, lake, [JOURNAL])
    mapping = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    spark.sql(f"ALTER TABLE delta.`{tables.location(lake, JOURNAL)}` {change.format(mapping=mapping)}")
    if "CHECK" in change:
        with pytest.raises(Exception, match=r"CHECK constraint whole .* violated"):
            append(spark, lake)
        assert tables.read(spark, lake, JOURNAL).count() == 0
        return
    spark.sql(f"ALTER TABLE delta.`{tables.location(lake, JOURNAL)}` RENAME COLUMN value TO content")
    spark.sql(f"ALTER TABLE delta.`{tables.location(lake, JOURNAL)}` RENAME COLUMN content TO value")
    append(spark, lake)
    assert {row.value for row in tables.read(spark, lake, JOURNAL).collect()} == {*rows().column("value").to_pylist()}


def test_a_null_where_the_table_has_none_is_refused(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [JOURNAL])
    found = rows()
    found = found.append_column("query_id", pa.nulls(found.num_rows))
    with pytest.raises(ValueError, match="null"):
        tables.append_rows(spark, found, lake, JOURNAL, "q", 7)


def test_two_writers_of_one_version_leave_its_rows_once(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake, 1)
    real, others = files.write, [2, 3]

    def overtaken(*arguments: Any) -> Any:
        found = real(*arguments)
        if others:
            monkeypatch.setattr(files, "write", real)
            append(spark, lake, others.pop(0))
            monkeypatch.setattr(files, "write", overtaken)
        return found

    monkeypatch.setattr(files, "write", overtaken)
    append(spark, lake, 2)
    assert tables.read(spark, lake, JOURNAL).count() == 6
    # one of another application is in nobody's way
    append(spark, lake, 3, "other")
    assert tables.transactions(spark, lake, JOURNAL) == {"q": 3, "other": 3}
    assert tables.read(spark, lake, JOURNAL).count() == 12


def test_no_other_append_with_a_check_comes_between_a_check_and_its_commit(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create(spark, lake, [JOURNAL])
    real = files.write

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(files, "write", real)
        append(spark, lake, 0, "other", lambda _: None)
        return real(*arguments)

    def alone(found: Mapping[str, int]) -> None:
        if "other" in found:
            raise StoppedError("another one")

    monkeypatch.setattr(files, "write", overtaken)
    with pytest.raises(StoppedError, match="another one"):
        append(spark, lake, 0, "q", alone)
    assert tables.transactions(spark, lake, JOURNAL) == {"other": 0}
    assert tables.read(spark, lake, JOURNAL).count() == 3


def test_a_table_without_a_checksum_still_knows_its_versions(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake, 1)
    elsewhere = deltalake.DeltaTable(lake.table(JOURNAL))
    deltalake.write_deltalake(elsewhere, elsewhere.to_pyarrow_table(), mode="append")
    snapshot = commits.log_and_snapshot(spark, tables.location(lake, JOURNAL))[1]
    assert not snapshot.checksumOpt().isDefined()
    append(spark, lake, 1)
    assert tables.read(spark, lake, JOURNAL).count() == 6


def test_a_commit_does_not_wait_for_the_checkpoint_that_is_due_after_it(spark: SparkSession, lake: Lake) -> None:
    few = lake.model_copy(update={"checkpoint_interval": 3})
    empty.create(spark, few, [JOURNAL])
    place = tables.location(few, JOURNAL)

    def pending() -> int:
        found: int = commits.known_snapshot(spark, place).logSegment().deltas().size()
        return found

    busy = threading.Event()
    commits._CHECKPOINTS.submit(busy.wait, 60)
    try:
        for version in range(5):
            append(spark, few, version)
        assert pending() == 6
        assert list((Path(few.table(JOURNAL)) / "_delta_log").glob("*.checkpoint.parquet")) == []
    finally:
        busy.set()
    # the process that made it takes it up, and reads no more than it has to
    eventually(lambda: pending() < 3, "the checkpoint")
    assert tables.read(spark, few, JOURNAL).count() == 15
    assert deltalake.DeltaTable(few.table(JOURNAL)).to_pyarrow_table().num_rows == 15


def test_checkpoints_that_another_process_makes_are_taken_up_later(spark: SparkSession, lake: Lake) -> None:
    few = lake.model_copy(update={"checkpoint_interval": 3})
    empty.create(spark, few, [JOURNAL])
    for version in range(7):
        append(spark, few, version)
        deltalake.DeltaTable(few.table(JOURNAL)).create_checkpoint()
        assert commits.known_snapshot(spark, tables.location(few, JOURNAL)).logSegment().deltas().size() <= 6
    assert tables.read(spark, few, JOURNAL).count() == 21


def test_a_checkpoint_that_cannot_be_made_is_said_and_the_next_one_is_made(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = lake.model_copy(update={"checkpoint_interval": 2})
    empty.create(spark, few, [JOURNAL])
    append(spark, few, 0)

    def refuse(*_: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(commits, "log_and_snapshot", refuse)
    append(spark, few, 1)
    eventually(lambda: "There is no new checkpoint of the log of" in caplog.text, "what is said")
    assert "no space left on device" in caplog.text
    monkeypatch.undo()
    for version in (2, 3):
        append(spark, few, version)
    eventually((Path(few.table(JOURNAL)) / "_delta_log" / "_last_checkpoint").exists, "the next checkpoint")
    assert tables.read(spark, few, JOURNAL).count() == 12


def by_another_process(lake: Lake, application: str, version: int) -> deltalake.DeltaTable:
    """Append a row as a version of an application, unknown to this JVM."""
    path = lake.table(JOURNAL)
    own = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(f"{application}/{JOURNAL}", version)])
    first = deltalake.DeltaTable(path).to_pyarrow_table().slice(0, 1)
    deltalake.write_deltalake(path, first, mode="append", commit_properties=own)
    return deltalake.DeltaTable(path)


def test_a_version_that_another_process_has_appended_is_not_appended_again(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake, 7)
    by_another_process(lake, "q", 8)
    append(spark, lake, 8)
    assert tables.read(spark, lake, JOURNAL).count() == 4


def test_what_is_appended_is_in_the_table_although_its_log_was_cleaned_up_meanwhile(
    spark: SparkSession, lake: Lake
) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake, 7)
    # a suspended machine goes on after the retention of the log
    by_another_process(lake, "other", 1)
    other = by_another_process(lake, "other", 2)
    other.create_checkpoint()
    for file in (Path(lake.table(JOURNAL)) / "_delta_log").glob("*.json"):
        if int(file.stem) < other.version():
            file.unlink()
    append(spark, lake, 8)
    assert deltalake.DeltaTable(lake.table(JOURNAL)).to_pyarrow_table().num_rows == 8
    assert tables.read(spark, lake, JOURNAL).count() == 8


def test_what_is_appended_is_in_the_table_although_unknown_commits_are_cleaned_up_meanwhile(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create(spark, lake, [JOURNAL])
    append(spark, lake, 7)
    by_another_process(lake, "other", 1)
    other = by_another_process(lake, "other", 2)
    real = commits.versions

    def overtaken(*arguments: Any) -> Any:
        # after the look at the log
        monkeypatch.setattr(commits, "versions", real)
        other.create_checkpoint()
        for file in (Path(lake.table(JOURNAL)) / "_delta_log").glob("*.json"):
            if int(file.stem) < other.version():
                file.unlink()
        return real(*arguments)

    monkeypatch.setattr(commits, "versions", overtaken)
    append(spark, lake, 8)
    assert deltalake.DeltaTable(lake.table(JOURNAL)).to_pyarrow_table().num_rows == 8


def test_statistics_have_bounds_that_hold() -> None:
    top = files.LAST_CHARACTER * 40
    times = [datetime(2026, 1, 1, 0, 0, 0, 1_001, timezone.utc), None]
    found = files.statistics(
        pa.table(
            {
                "name": pa.array([LONG, "b"]),
                "top": pa.array([top, "b"]),
                "at": pa.array(times, pa.timestamp("us", "UTC")),
                "none": pa.array([None, None], pa.int64()),
                "fifth": pa.array([1, 2]),
            }
        )
    )
    assert found == {
        "numRecords": 2,
        "minValues": {"name": LONG[:32], "top": "b", "at": "2026-01-01T00:00:00.001Z"},
        "maxValues": {"name": "b", "at": "2026-01-01T00:00:00.002Z"},
        "nullCount": {"name": 0, "top": 0, "at": 1, "none": 2},
    }


def test_a_value_that_python_cannot_hold_has_no_bound() -> None:
    column = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    found = files.statistics(pa.table({"at": column, "n": pa.array([1])}))
    assert (found["minValues"], found["nullCount"]) == ({"n": 1}, {"at": 0, "n": 0})
