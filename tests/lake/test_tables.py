from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from ackstream.errors import StartError
from ackstream.lake import columns, schemas, tables
from ackstream.settings import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def version(lake: Lake, name: str) -> int:
    return deltalake.DeltaTable(lake.table(name)).version()


def test_a_first_start_makes_tables_that_every_delta_reader_understands(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake)
    for name, table in schemas.TABLES.items():
        found = deltalake.DeltaTable(lake.table(name))
        protocol = found.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        assert found.metadata().partition_columns == [columns.PARTITION]
        assert found.metadata().configuration == {
            "delta.enableDeletionVectors": "false",
            "delta.checkpointInterval": "100",
            "delta.dataSkippingNumIndexedCols": "4",
            "delta.deletedFileRetentionDuration": "interval 604800000 milliseconds",
        }
        comments = {field.name: field.metadata["comment"] for field in found.schema().fields}
        assert comments == {field.name: field.metadata["comment"] for field in table.schema}


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
        ("'x' AS correlation_id", "no column decided_at"),
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


def test_a_table_with_a_column_more_is_refused(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake, ["outcomes"])
    spark.sql(f"ALTER TABLE delta.`{lake.table('outcomes')}` ADD COLUMN shade STRING")
    with pytest.raises(StartError, match="a column shade of type string where this version writes no column shade"):
        tables.create(spark, lake, ["outcomes"])


def test_a_directory_with_something_else_is_refused(spark: SparkSession, lake: Lake) -> None:
    place = Path(lake.table("outcomes"))
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("mine")
    with pytest.raises(StartError, match=r"cannot be created at .* is not a Delta table. Empty the directory"):
        tables.create(spark, lake, ["outcomes"])


def test_reading_a_table_that_is_not_there_is_one_sentence(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(StartError, match=r"There is no table outcomes at .*; start the archive job"):
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
