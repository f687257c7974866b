from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake import files, messages, tables
from ackstream.lake.messages import TABLE, Tail
from ackstream.lake.schemas import ALL_TABLES
from tests.harness.calls import spark_jobs
from tests.lake import empty

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake

COLUMNS = ALL_TABLES[TABLE].arrow
TIME = datetime(2026, 11, 21, 23, 59, 59, 999_999, timezone.utc)
HEADERS = [[("colour", b"red"), ("none", None)], [], None]


def rows(batch: int, *values: bytes | None) -> pa.Table:
    """Return a message of two days for each value."""
    columns = {name: [] for name in COLUMNS.names}
    for number, value in enumerate(values):
        at = TIME.replace(day=21 + number % 2)
        row = {
            "client": f"p{number}", "received_at": at, "batch": batch, "seq": 10 * batch + number, "query_id": "q",
            "subject": "orders", "value": value, "headers": HEADERS[number % 3], "topic": "messages", "partition": 0,
            "offset": 10 * batch + number, "day": at.date(),
        }  # fmt: skip
        for name, column in columns.items():
            column.append(row.get(name))
    return pa.table(columns, schema=COLUMNS)


def put(spark: SparkSession, lake: Lake, batch: int, *values: bytes | None) -> None:
    tables.append_rows(spark, rows(batch, *values), lake, TABLE, "q", batch)


def put_by_spark(spark: SparkSession, lake: Lake, batch: int, *values: bytes | None) -> None:
    tables.append(spark.createDataFrame(rows(batch, *values)), lake, TABLE, "q", batch)


def put_without_headers(spark: SparkSession, lake: Lake, batch: int) -> None:
    """Write a file that has only the columns that every row has, as an earlier release could have."""
    one = spark.createDataFrame(rows(batch, b"lost")).drop("client", "seq", "value", "headers", "key")
    one.write.format("delta").mode("append").save(tables.location(lake, TABLE))


def ordered(found: pa.Table | None) -> list[dict[str, Any]]:
    assert found is not None
    assert found.schema == COLUMNS
    return sorted(found.to_pylist(), key=lambda row: (row["batch"], row["offset"]))


def in_table(spark: SparkSession, lake: Lake, after: int) -> list[dict[str, Any]]:
    known = COLUMNS
    return ordered(
        tables.read(spark, lake, TABLE).where(F.col("batch") > after).select(known.names).toArrow().cast(known)
    )


def following(spark: SparkSession, lake: Lake) -> Tail:
    """Make the table with a batch 0; return a tail that has looked at it."""
    empty.create(spark, lake, [TABLE])
    put(spark, lake, 0, b"old", b"older")
    found = Tail(spark, lake)
    assert ordered(found.advance(0)) == []
    return found


def test_clients_that_begin_at_one_batch_share_a_frame(spark: SparkSession, lake: Lake) -> None:
    found = following(spark, lake)
    put(spark, lake, 1, b"a")
    first = found.frame(0)
    assert found.frame(0) is first
    assert first.count() == 1
    assert found.frame(1).count() == 0
    put(spark, lake, 2, b"b")
    assert found.frame(1).count() == 1


def test_files_of_old_batches_alone_are_not_read(spark: SparkSession, lake: Lake) -> None:
    found = following(spark, lake)
    # what a deletion leaves of batch 0 is a new file
    DeltaTable.forPath(spark, tables.location(lake, TABLE)).delete("value = 'old'")
    put(spark, lake, 1, b"a")
    with patch.object(files, "read", wraps=files.read) as read:
        assert [row["value"] for row in ordered(found.advance(0))] == [b"a"]
    assert read.call_count == 1


def test_the_rows_of_later_batches_are_those_of_the_table_whatever_is_done_to_it(
    spark: SparkSession, lake: Lake
) -> None:
    found = following(spark, lake)
    place = tables.location(lake, TABLE)
    table = DeltaTable.forPath(spark, place)
    steps = [
        lambda: put(spark, lake, 1, b"a", None, b"c"),
        lambda: put_by_spark(spark, lake, 2, b"d", b"e", None),
        # all files into one a day, with the rows of batch 0
        lambda: table.optimize().executeCompaction(),
        lambda: put(spark, lake, 3, b"f"),
        # erased: the rest of its file is written anew
        lambda: table.delete("value = CAST('d' AS BINARY)"),
        lambda: spark.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS (mine STRING)"),
        lambda: put_by_spark(spark, lake, 4, b"g", b"h"),
        lambda: put_without_headers(spark, lake, 6),
        lambda: table.delete("batch = 3"),
        # what no version has in the end, and a version that is as an earlier one
        lambda: [
            table.optimize().executeCompaction(),
            put(spark, lake, 5, b"i"),
            table.delete("batch = 4 OR batch = 5"),
        ],
        lambda: table.restoreToVersion(table.history(2).orderBy("version").first().version),
    ]
    for step in steps:
        step()
        own = in_table(spark, lake, 0)
        assert ordered(found.advance(0)) == own
    assert {row["batch"] for row in own} == {1, 2, 4, 5, 6}
    assert ordered(found.advance(4)) == in_table(spark, lake, 4)
    # those are gone from here
    assert found.advance(3) is None
    assert found.frame(3).where("batch > 3").count() == 4
    assert ordered(found.frame(4).toArrow().cast(COLUMNS)) == in_table(spark, lake, 4)
    none = found.frame(6)
    assert (none.columns, none.count()) == (COLUMNS.names, 0)


def test_a_table_is_followed_without_a_spark_job(spark: SparkSession, lake: Lake) -> None:
    found = following(spark, lake)
    with spark_jobs(spark, "follow") as started:
        for batch in (1, 2):
            put(spark, lake, batch, b"new", b"newer")
            assert len(ordered(found.advance(batch - 1))) == 2
        assert started() == []


def test_rows_that_take_too_much_memory_are_left_to_the_table(spark: SparkSession, lake: Lake) -> None:
    found = following(spark, lake)
    # in the file they are one value
    put(spark, lake, 1, *[b"x" * 100_000] * 200)
    put(spark, lake, 2, b"small")
    assert found.advance(0) is None
    assert found.frame(0).where("batch > 0").count() == 201
    assert [row["value"] for row in ordered(found.advance(1))] == [b"small"]
    put(spark, lake, 3, *[b"%06d" % number * 10_000 for number in range(200)])
    assert found.advance(2) is None
    put(spark, lake, 4, b"small again")
    assert [row["value"] for row in ordered(found.advance(3))] == [b"small again"]


def test_a_tail_that_was_away_for_long_begins_again(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MOST_COMMITS", 2)
    found = following(spark, lake)
    for batch in (1, 2, 3):
        put(spark, lake, batch, b"new")
    assert found.advance(0) is None
    put(spark, lake, 4, b"newer")
    assert [row["value"] for row in ordered(found.advance(3))] == [b"newer"]


@pytest.mark.parametrize(
    "changed",
    [
        "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'",
        "'delta.enableDeletionVectors' = 'true'",
    ],
    ids=["column mapping", "deletion vectors"],
)
def test_a_table_whose_files_are_not_what_it_shows_is_left_to_spark(
    spark: SparkSession, lake: Lake, changed: str
) -> None:
    found = following(spark, lake)
    spark.sql(f"ALTER TABLE delta.`{tables.location(lake, TABLE)}` SET TBLPROPERTIES ({changed})")
    put(spark, lake, 1, b"new")
    assert found.advance(0) is None
    assert found.frame(0).where("batch > 0").count() == 1


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def hollow(file: Path) -> None:
    file.write_bytes(b"PAR1 and nothing else")


@pytest.mark.parametrize("harm", [cut, hollow, Path.unlink])
def test_a_file_that_cannot_be_read_is_left_to_spark(
    spark: SparkSession, lake: Lake, harm: Callable[[Path], None]
) -> None:
    found = following(spark, lake)
    put(spark, lake, 1, b"new")
    for file in Path(lake.table(TABLE)).rglob("*.parquet"):
        # the checksum beside it would be for the other content
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        harm(file)
    assert found.advance(0) is None
    put(spark, lake, 2, b"newer")
    assert [row["value"] for row in ordered(found.advance(1))] == [b"newer"]


def test_what_was_returned_takes_no_room_from_what_comes(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MOST_BYTES", 30_000)
    found = following(spark, lake)
    for batch in range(1, 4):
        put(spark, lake, batch, b"%05d" % batch * 5_000)
        assert [row["batch"] for row in ordered(found.advance(batch - 1))] == [batch]
