from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
from pyspark.errors.exceptions import captured

from ackstream.errors import StartError
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.lake import commits, schemas, tables, things
from ackstream.settings import Lake, Settings
from tests.lake import changes, empty, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _created_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "create", empty.as_a_job_does)


def version(lake: Lake, name: str) -> int:
    return deltalake.DeltaTable(lake.table(name)).version()


def test_a_first_start_makes_tables_that_every_delta_reader_understands(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake)
    for name, table in schemas.TABLES.items():
        found = deltalake.DeltaTable(lake.table(name))
        protocol = found.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        assert found.metadata().partition_columns == [schemas.PARTITION]
        assert found.metadata().configuration == {
            "delta.enableDeletionVectors": "false",
            "delta.checkpointInterval": "100",
            "delta.dataSkippingNumIndexedCols": "4",
            "delta.deletedFileRetentionDuration": "interval 604800000 milliseconds",
            "delta.logRetentionDuration": "interval 604800000 milliseconds",
        }
        comments = {field.name: field.metadata["comment"] for field in found.schema().fields}
        assert comments == {field.name: field.metadata["comment"] for field in table.schema}


def test_a_table_that_rows_are_merged_into_has_deletion_vectors_and_keeps_removed_files_for_a_day_only() -> None:
    lake = Lake(retention="7d")
    derived = tables.properties(lake, schemas.ALL_TABLES["things"])
    assert derived["delta.enableDeletionVectors"] == "true"
    assert derived["delta.deletedFileRetentionDuration"] == "interval 86400000 milliseconds"
    assert not [key for key in derived if key.endswith("Version")]
    assert [table.name for table in schemas.ALL_TABLES.values() if table.derived] == ["things", "things_search"]


@pytest.mark.parametrize("table", schemas.ALL_TABLES.values(), ids=schemas.ALL_TABLES)
def test_commits_are_kept_as_long_as_removed_files_not_for_a_month(table: schemas.Table) -> None:
    found = tables.properties(Lake(retention="2d"), table)
    assert found["delta.logRetentionDuration"] == found["delta.deletedFileRetentionDuration"]


def test_a_merged_table_of_an_earlier_release_gets_deletion_vectors_and_other_programs_read_it(
    spark: SparkSession, lake: Lake
) -> None:
    old = replace(schemas.ALL_TABLES["things"], derived=False)
    tables._prepare(spark, old, lake.table("things"), tables.properties(lake, old))
    tables.create(spark, lake, ["things"])
    for number in range(2):
        things.merge(spark, lake, spark.createDataFrame(changed(number)).selectExpr("*", f"{number}L AS batch"))
    found = deltalake.DeltaTable(lake.table("things"))
    assert "deletionVectors" in (found.protocol().reader_features or [])
    rows = found.scan(columns=["thing_id", "revision"])  # noqa: F841 - DuckDB's by name
    assert dict(duckdb.sql("SELECT * FROM rows").fetchall()) == {f"a:{at}": 2 if at < 5 else 1 for at in range(50)}
    # the second merge has written the five rows that it changed and copied none, into however many files
    assert sum(pa.table(found.get_add_actions(flatten=True))["num_records"].to_pylist()) == 55


def changed(number: int) -> pa.Table:
    return changes.table(*[changes.change(f"a:{at}", number + 1, {"n": number}) for at in range(5 if number else 50)])


def test_a_second_start_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake, ["outcomes"])
    tables.create(spark, lake, ["outcomes"])
    assert version(lake, "outcomes") == 0


def test_changed_settings_reach_a_table_at_the_next_start(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake, ["outcomes"])
    tables.create(spark, Lake(path=lake.path, checkpoint_interval=7), ["outcomes"])
    configuration = deltalake.DeltaTable(lake.table("outcomes")).metadata().configuration
    assert configuration["delta.checkpointInterval"] == "7"
    assert version(lake, "outcomes") == 1


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("'x' AS correlation_id", "no column started_at where this version writes a column started_at"),
        (
            "1 AS correlation_id",
            "a column correlation_id of type int where this version writes a column correlation_id",
        ),
    ],
)
def test_a_table_with_other_columns_is_refused(spark: SparkSession, lake: Lake, columns: str, complaint: str) -> None:
    spark.sql(f"SELECT {columns}").write.format("delta").save(lake.table("outcomes"))
    with pytest.raises(StartError, match=complaint):
        tables.create(spark, lake, ["outcomes"])


def types(name: str) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schemas.ALL_TABLES[name].schema}


@pytest.mark.parametrize("name", schemas.ALL_TABLES)
def test_a_table_of_an_earlier_release_gets_the_columns_that_it_lacks(name: str) -> None:
    table, found = schemas.ALL_TABLES[name], types(name)
    assert tables.new_columns(table, found, "/lake") == []
    for column in table.schema:
        fewer = {key: kind for key, kind in found.items() if key != column.name}
        if column.nullable:
            assert tables.new_columns(table, fewer, "/lake") == [column]
        else:
            with pytest.raises(StartError, match=f"has no column {column.name} where this version writes a column"):
                tables.new_columns(table, fewer, "/lake")
        with pytest.raises(StartError, match=f"has a column {column.name} of type void where"):
            tables.new_columns(table, {**found, column.name: "void"}, "/lake")


GOLDEN = json.loads((Path(__file__).parents[1] / "vectors" / "tables.json").read_text("utf-8"))
"""The columns that the tables on disks have: a new one is added here, none is changed or removed."""


@pytest.mark.parametrize("name", schemas.ALL_TABLES)
def test_a_table_on_disk_is_opened_with_the_columns_it_was_written_with(name: str) -> None:
    written = {column: kind.removesuffix(" not null") for column, kind in GOLDEN[name].items()}
    assert tables.new_columns(schemas.ALL_TABLES[name], written, "/lake") == []
    columns_now = {
        field.name: field.dataType.simpleString() + ("" if field.nullable else " not null")
        for field in schemas.ALL_TABLES[name].schema
    }
    assert columns_now == GOLDEN[name]


def test_a_column_that_someone_has_added_stays() -> None:
    assert tables.new_columns(schemas.ALL_TABLES["outcomes"], {**types("outcomes"), "shade": "string"}, "/lake") == []


def test_a_job_adds_a_column_and_writes_beside_one_that_it_does_not_know(spark: SparkSession, lake: Lake) -> None:
    older = [column for column in schemas.ALL_TABLES["outcomes"].columns if column.name != "reply_topic"]
    shade = schemas.Column("shade", schemas.TEXT, "someone's own", nullable=True)
    old = replace(schemas.ALL_TABLES["outcomes"], columns=(*older, shade))
    tables._prepare(spark, old, lake.table("outcomes"), tables.properties(lake, old))
    tables.create(spark, lake)
    ArchiveFold(lake).write(records.frame(spark, [records.outcome(1)]), 0, "query")
    found = deltalake.DeltaTable(lake.table("outcomes"))
    assert {field.name: field.metadata["comment"] for field in found.schema().fields}["reply_topic"] == (
        "Kafka topic of the reply; null if none was requested"
    )
    (row,) = found.to_pyarrow_table(columns=["reply_topic", "shade"]).to_pylist()
    assert row == {"reply_topic": "replies", "shade": None}


# -- two writers -------------------------------------------------------------------------------------------------------

STORE = "spark.delta.logStore.s3a.impl"
OWN = {"spark.delta.logStore.file.impl": "ackstream.LocalLog"}


@pytest.mark.parametrize(
    ("path", "conf"),
    [
        ("file:/lake", OWN),
        ("hdfs://namenode/lake", {}),
        ("gs://bucket/lake", {}),
        ("abfss://c@a.dfs.core.windows.net/lake", {}),
        ("s3a://bucket/lake", {STORE: "io.delta.storage.S3DynamoDBLogStore"}),
        ("s3a://bucket/lake", {"spark.delta.logStore.class": "com.example.Store"}),
    ],
)
def test_a_table_may_have_two_writers_where_delta_keeps_them_apart(path: str, conf: dict[str, str]) -> None:
    tables.refuse_writer(conf.get, path)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "oss", "cosn", "obs"])
def test_a_second_writer_is_refused_where_a_commits_name_may_be_given_twice(scheme: str) -> None:
    with pytest.raises(StartError, match=f"one process only.* Set spark.delta.logStore.{scheme}.impl in .spark.conf. "):
        tables.refuse_writer({}.get, f"{scheme}://bucket/lake")
    with pytest.raises(StartError, match=r"\. Or do it by hand\.$"):
        tables.refuse_writer({}.get, f"{scheme}://bucket/lake", " Or do it by hand.")


class Cluster:
    """A session without a log store of its own, and its JVM, whose default file system is given."""

    def __init__(self, default: str) -> None:
        self.sparkContext = SimpleNamespace(getConf=dict[str, str])
        self._jsc, self._jvm = SimpleNamespace(hadoopConfiguration=lambda: None), self
        files = SimpleNamespace(makeQualified=lambda path: path.text if ":" in path.text else f"{default}{path.text}")
        path = lambda text: SimpleNamespace(text=text, getFileSystem=lambda _: files)  # noqa: E731
        setattr(self, "org.apache.hadoop.fs.Path", path)


def test_a_second_writer_on_a_disk_is_refused_beside_drivers_of_a_cluster() -> None:
    cluster: Any = Cluster("file:")
    with pytest.raises(StartError, match=r"at file:/lake/things .* Run all jobs with spark.master = local\[…\], or"):
        tables.check_log_store(cluster, "/lake/things")


def test_a_path_without_a_scheme_may_have_two_writers_where_hdfs_is_the_default() -> None:
    cluster: Any = Cluster("hdfs://namenode")
    tables.check_log_store(cluster, "/lake/things")


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "first", "newest"),
    [
        ({}, 0, -1),
        ({"q": 7}, 0, 7),
        ({"old": 3, "older": 1}, 4, -1),
        ({"old": 3, "q": 9, "q+1": 8}, 4, 9),
        ({"old+2": 3, "q": 4, "q+1": 6}, 4, 6),
    ],
)
def test_batches_are_numbered_across_queries(versions: dict[str, int], first: int, newest: int) -> None:
    assert tables.first_and_newest(versions, "q") == (first, newest)


def test_a_table_knows_the_newest_batch_of_each_query(spark: SparkSession, lake: Lake) -> None:
    assert tables.transactions(spark, lake, "publishers") == {}
    tables.create(spark, lake, ["publishers", "messages"])
    rows = spark.createDataFrame([], schemas.ALL_TABLES["publishers"].schema)
    for query, version in (("old", 3), ("q", 4), ("q", 6)):
        tables.append(rows, lake, "publishers", query, version)
    assert tables.transactions(spark, lake, "publishers") == {"old": 3, "q": 6}
    settings = Settings(lake=lake)
    assert tables.newest_batch_of(["publishers"], spark, settings, "q") == 6
    # as the query itself counts them
    assert tables.newest_own_batch(["publishers", "messages"], spark, settings, "q") == 2
    assert tables.newest_own_batch(["publishers", "messages"], spark, settings, "new") == -1


def test_a_table_that_another_job_is_creating_is_waited_for(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Lake(path=str(tmp_path / "ready"))
    tables.create(spark, ready, ["outcomes"])
    place = Path(lake.table("outcomes"))
    (place / "_delta_log").mkdir(parents=True)

    def commit(_seconds: float) -> None:
        shutil.copytree(ready.table("outcomes"), place, dirs_exist_ok=True)

    monkeypatch.setattr(tables, "time", SimpleNamespace(sleep=commit, monotonic=time.monotonic))
    tables.create(spark, lake, ["outcomes"])
    assert tables.read(spark, lake, "outcomes").count() == 0


def test_jobs_that_start_together_create_their_tables_together(spark: SparkSession, lake: Lake) -> None:
    names, ready = ["messages", "publishers", "things"], Barrier(3)

    def start(own: SparkSession) -> None:
        ready.wait()
        tables.create(own, lake, names)

    with ThreadPoolExecutor(3) as jobs:
        list(jobs.map(start, [spark.newSession() for _ in range(3)]))
    assert [version(lake, name) for name in names] == [0, 0, 0]


@pytest.mark.parametrize(
    "name",
    [
        "ConcurrentAppend", "ConcurrentDeleteDelete", "ConcurrentDeleteRead", "ConcurrentTransaction",
        "ConcurrentWrite", "MetadataChanged", "ProtocolChanged",
    ],
)  # fmt: skip
def test_a_commit_that_conflicts_with_another_one_is_retried(spark: SparkSession, name: str) -> None:
    raised = captured.convert_exception(getattr(spark._jvm.io.delta.exceptions, f"{name}Exception")("another commit"))
    errors: list[Exception] = [raised, raised]

    def commit() -> None:
        if errors:
            raise errors.pop()

    commits.retried(commit, 3)
    errors = [raised] * 3
    with pytest.raises(type(raised)):
        commits.retried(commit, 3)


def test_a_directory_with_something_else_is_refused(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CREATION_SECONDS", 0.0)
    place = Path(lake.table("outcomes"))
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("mine")
    with pytest.raises(StartError, match=r"cannot be created at .* is not a Delta table. Empty the directory"):
        tables.create(spark, lake, ["outcomes"])


def test_reading_a_table_that_is_not_there_is_one_sentence(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(StartError, match=r"The table outcomes does not exist at .*; start the archive job"):
        tables.read(spark, lake, "outcomes")


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("lake", str(Path("lake/outcomes").absolute())),
        ("/data/lake/", "/data/lake/outcomes"),
        ("s3a://bucket/lake", "s3a://bucket/lake/outcomes"),
    ],
)
def test_a_location_is_absolute(path: str, location: str) -> None:
    assert tables.location(Lake(path=path), "outcomes") == location
