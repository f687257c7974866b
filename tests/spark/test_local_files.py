"""Local files as Spark, Delta and checkpoints write them: without processes, and a name is given once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from ackstream.local.submit import LOCAL_FILES, LOCAL_LOG, LOCAL_TABLES
from ackstream.spark.session import locate
from tests.harness import local_files
from tests.harness.local_files import UNLINKED, recorded
from tests.harness.power import after, survivors

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_java_itself_handles_local_files(spark: SparkSession, tmp_path: Path) -> None:
    files, path = locate(spark, f"{tmp_path}/file")
    assert files.getClass().getName() == LOCAL_TABLES
    assert _context(spark, path).getDefaultFileSystem().getClass().getName() == LOCAL_FILES


def test_the_classes_are_those_of_their_sources(spark: SparkSession) -> None:
    made = local_files.compiled(spark._jvm)
    assert local_files.packed() == made, "`python -m tests.harness.local_files` writes it anew"


def test_a_listing_of_a_log_has_no_gaps_and_nothing_of_what_is_being_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    others = ["_last_checkpoint", "00000000000000000003.checkpoint.parquet", "00000000000000000007.crc"]
    for name in (*others, *(f"{version:020}.json" for version in (1, 2, 5, 6, 7)), ".x.crc", ".y.tmp"):
        (log / name).write_text(name)
    (log / "_sidecars").mkdir()
    files, path = locate(spark, str(log))
    found = {status.getPath().getName(): status for status in files.listStatus(path)}
    # 3 and 4 are gone, and 1 and 2 are next
    kept = [f"{version:020}.json" for version in (5, 6, 7)]
    assert found.keys() == {*others, *kept, ".y.tmp", "_sidecars"}
    for name in (*others, *kept):
        status, real = found[name], (log / name).stat()
        assert (status.getLen(), status.isDirectory(), status.isFile()) == (real.st_size, False, True)
        assert status.getModificationTime() == real.st_mtime_ns // 1_000_000
        assert str(status.getPath()) == f"file:{log / name}"
    assert found["_sidecars"].isDirectory()


def test_a_listing_sees_each_commit_before_the_ones_that_it_sees(spark: SparkSession, tmp_path: Path) -> None:
    log, done = tmp_path / "table" / "_delta_log", threading.Event()
    log.mkdir(parents=True)

    def commit() -> None:
        for version in range(1_000):
            (log / f"{version:020}.json").touch()
            if done.wait(0.0001):
                return

    files, path = locate(spark, str(log))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(commit)
        try:
            for _ in range(8):
                versions = sorted(int(status.getPath().getName()[:20]) for status in files.listStatus(path))
                assert versions == list(range(len(versions)))
        finally:
            done.set()
        writing.result()


def test_of_many_who_give_files_one_name_at_once_one_succeeds(spark: SparkSession, tmp_path: Path) -> None:
    refused = "org.apache.hadoop.fs.FileAlreadyExistsException"

    def take(number: int) -> bool:
        (tmp_path / f"own-{number}").write_text(str(number))
        source, target = _paths(spark, tmp_path, number)
        try:
            _context(spark, target).rename(source, target, _options(spark, "NONE"))
        except Py4JJavaError as error:
            assert error.java_exception.getClass().getName() == refused  # noqa: PT017 - what Java says
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        took = list(pool.map(take, range(40)))
    assert took.count(True) == 1
    assert (tmp_path / "name").read_text() == str(took.index(True))
    assert not (tmp_path / f"own-{took.index(True)}").exists()


def test_a_file_replaces_another_one_with_its_checksum(spark: SparkSession, tmp_path: Path) -> None:
    files, name = locate(spark, f"{tmp_path}/name")
    stream = files.create(name)
    stream.write(1)
    stream.close()
    # of an earlier release: a power failure could leave one that does not belong to its file
    assert not (tmp_path / ".name.crc").exists()
    (tmp_path / ".name.crc").write_bytes(b"of the former content")
    (tmp_path / "own-0").write_bytes(b"another")
    source, target = _paths(spark, tmp_path, 0)
    _context(spark, target).rename(source, target, _options(spark, "OVERWRITE"))
    assert files.open(name).read() == ord("a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name"]


def test_after_a_power_failure_a_commit_is_missing_or_whole_and_it_is_there_once_it_was_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    conf = spark._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    store, line = getattr(spark._jvm, LOCAL_LOG)(conf), '{"commitInfo":{}}'
    with recorded(spark._jvm, conf, tmp_path) as moments:
        _, path = locate(spark, f"file:{tmp_path}/table/_delta_log/{0:020}.json")
        path.getFileSystem(conf).mkdirs(path.getParent())
        store.write(path, spark._jvm.java.util.Collections.singletonList(line).iterator(), False, conf)  # noqa: FBT003
    name, whole = f"table/_delta_log/{0:020}.json", f"{line}\n".encode()
    assert {files.get(name) for files in survivors(moments)} == {None, whole}
    assert {files.get(name) for files in after(moments)} == {whole}


def test_a_data_file_is_on_the_disk_once_it_is_closed(spark: SparkSession, tmp_path: Path) -> None:
    conf = spark._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    with recorded(spark._jvm, conf, tmp_path) as moments:
        _, path = locate(spark, f"file:{tmp_path}/table/day=2026-01-01/part.parquet")
        stream = path.getFileSystem(conf).create(path)
        stream.write(b"rows" * 100)
        stream.close()
    assert {files.get("table/day=2026-01-01/part.parquet") for files in after(moments)} == {b"rows" * 100}


def test_syncing_can_be_switched_off(spark: SparkSession, tmp_path: Path) -> None:
    conf = spark._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    conf.set("ackstream.sync", "false")
    with recorded(spark._jvm, conf, tmp_path) as moments:
        _, path = locate(spark, f"file:{tmp_path}/in/part.parquet")
        path.getFileSystem(conf).create(path).close()
    assert len(moments) == 2


def test_on_a_disk_without_hard_links_no_commit_is_made_that_another_one_could_replace(
    spark: SparkSession, tmp_path: Path
) -> None:
    conf = spark._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    store = getattr(spark._jvm, LOCAL_LOG)(conf)
    lines = spark._jvm.java.util.Collections.singletonList("{}")
    with recorded(spark._jvm, conf, tmp_path, UNLINKED):
        _, path = locate(spark, f"file:{tmp_path}/{0:020}.json")
        with pytest.raises(Py4JJavaError, match="Operation not permitted"):
            store.write(path, lines.iterator(), False, conf)  # noqa: FBT003 - Java's signature
    assert not (tmp_path / f"{0:020}.json").exists()


def test_a_directory_is_renamed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "own-0" / "in").mkdir(parents=True)
    source, target = _paths(spark, tmp_path, 0)
    _context(spark, target).rename(source, target, _options(spark, "NONE"))
    assert (tmp_path / "name" / "in").is_dir()


def _context(spark: SparkSession, path: Any) -> Any:
    context = spark._jvm.org.apache.hadoop.fs.FileContext
    return context.getFileContext(path.toUri(), spark._jsc.hadoopConfiguration())


def _paths(spark: SparkSession, directory: Path, number: int) -> list[Any]:
    return [locate(spark, f"file:{directory}/{name}")[1] for name in (f"own-{number}", "name")]


def _options(spark: SparkSession, name: str) -> Any:
    rename = getattr(spark._jvm.org.apache.hadoop.fs, "Options$Rename")
    found = spark.sparkContext._gateway.new_array(rename, 1)
    found[0] = rename.valueOf(name)
    return found


def test_what_is_new_in_a_log_is_found_without_reading_all_of_its_names(spark: SparkSession, tmp_path: Path) -> None:
    table, log = str(tmp_path / "table"), tmp_path / "table" / "_delta_log"
    spark.range(1).write.format("delta").option("delta.checkpointInterval", "3").save(table)
    for _ in range(7):
        spark.range(1).write.format("delta").mode("append").save(table)
    configuration = spark._jsc.hadoopConfiguration()
    own = getattr(spark._jvm, LOCAL_LOG)(configuration)
    plain = getattr(spark._jvm, "io.delta.storage.HDFSLogStore")(configuration)

    def listed(store: Any, name: str) -> list[tuple[str, int, int]]:
        found, files = [], store.listFrom(locate(spark, f"file:{log}/{name}")[1], configuration)
        while files.hasNext():
            status = files.next()
            found.append((str(status.getPath()), status.getLen(), status.getModificationTime()))
        return [entry for entry in found if not entry[0].rpartition("/")[2].startswith("_")]

    names = [f"{version:020}{end}" for version in (0, 1, 3, 6, 7, 8, 9) for end in (".", ".crc", ".json")]
    for name in names:
        assert listed(own, name) == listed(plain, name)
    # as Delta cleans up: the beginning is gone
    for version in range(3):
        for end in ("json", "crc"):
            (log / f"{version:020}.{end}").unlink()
    for name in names:
        assert listed(own, name) == listed(plain, name)
    assert spark.read.format("delta").load(table).count() == 8
    assert spark.conf.get("spark.delta.logStore.file.impl") == LOCAL_LOG
