"""The tables in the lake: created on the first start, checked on every other, read and appended to by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.errors import StartError
from ackstream.lake.columns import INDEXED_COLUMNS, PARTITION, Table
from ackstream.lake.schemas import ALL_TABLES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake


ATTEMPTS = 5
ROWS_PER_FILE = 100_000
"""The rows of an append go to one file, unless there are more than this."""


def location(lake: Lake, name: str) -> str:
    """Return the location of a table: a URL, or an absolute path (Spark's SQL does not accept a relative one)."""
    path = lake.table(name)
    return path if ":" in path.partition("/")[0] else str(Path(path).absolute())


def properties(lake: Lake) -> dict[str, str]:
    """Return the Delta properties of every table.

    Reader version 1 and writer version 2 are enough: delta-rs, DuckDB and Trino read and compact such tables.
    """
    return {
        "delta.minReaderVersion": "1",
        "delta.minWriterVersion": "2",
        "delta.enableDeletionVectors": "false",
        # each costs 1.5 s, a commit 1 s
        "delta.checkpointInterval": str(lake.checkpoint_interval),
        "delta.dataSkippingNumIndexedCols": str(INDEXED_COLUMNS),
        # one value for every tool that vacuums
        "delta.deletedFileRetentionDuration": f"interval {lake.retention} milliseconds",
    }


def create(spark: SparkSession, lake: Lake, names: Iterable[str] = TABLES) -> None:
    """Create the missing tables, and bring the properties of the others up to the settings.

    :raises StartError: if a table has other columns, or a directory holds something else
    """
    for name in names:
        table, path = ALL_TABLES[name], location(lake, name)
        if DeltaTable.isDeltaTable(spark, path):
            _check(spark, table, path)
            _adjust(spark, path, properties(lake))
        else:
            _create(spark, table, path, properties(lake))


def read(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """Return a table's rows as they are now.

    :raises StartError: if the table does not exist yet
    """
    path = location(lake, name)
    if not DeltaTable.isDeltaTable(spark, path):
        job = ALL_TABLES[name].writer
        raise StartError(f"There is no table {name} at {path}; start the {job} job, or correct lake.path.")
    return spark.read.format("delta").load(path)


def newest_batch(rows: DataFrame, column: str = "batch") -> int:
    """Return the highest number of a batch among rows; -1 if there are none."""
    newest = rows.agg(F.max(column)).collect()[0][0]
    return -1 if newest is None else int(newest)


def append(rows: DataFrame, lake: Lake, name: str, application: str, version: int, count: int = 1) -> None:
    """Append rows to a table, unless it already has rows of this version.

    :param application: who counts the versions, such as a query; each table counts for itself
    :param count: the number of rows, if they may need more than one file
    """
    (
        rows.coalesce(-(-count // ROWS_PER_FILE))
        .write.format("delta")
        .mode("append")
        .option("txnAppId", f"{application}/{name}")
        .option("txnVersion", version)
        .save(location(lake, name))
    )


def retried(merge: Callable[[], None]) -> None:
    """Run a merge; retry it if another commit, such as a compaction, conflicts with it.

    :raises DeltaConcurrentModificationException: if each attempt conflicts
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            merge()
        except DeltaConcurrentModificationException:
            if attempt == ATTEMPTS:
                raise
        else:
            return


def _create(spark: SparkSession, table: Table, path: str, wanted: dict[str, str]) -> None:
    builder = DeltaTable.createIfNotExists(spark).location(path).comment(table.comment)
    builder = builder.addColumns(table.schema)
    if PARTITION in table.schema.fieldNames():
        builder = builder.partitionedBy(PARTITION)
    for key, value in wanted.items():
        builder = builder.property(key, value)
    try:
        builder.execute()
    except AnalysisException as error:
        raise StartError(
            f"The table {table.name} cannot be created at {path}: {str(error).splitlines()[0]} Empty the directory, or"
            f" point lake.path to another one."
        ) from None


def _check(spark: SparkSession, table: Table, path: str) -> None:
    found = {field.name: field.dataType.simpleString() for field in DeltaTable.forPath(spark, path).toDF().schema}
    wanted = {field.name: field.dataType.simpleString() for field in table.schema}
    for column in {**wanted, **found}:
        if found.get(column) != wanted.get(column):
            raise StartError(
                f"The table {table.name} at {path} has {_described(column, found)} where this version writes"
                f" {_described(column, wanted)}; move the table away, or point lake.path to another directory."
            )


def _described(column: str, types: dict[str, str]) -> str:
    return f"a column {column} of type {types[column]}" if column in types else f"no column {column}"


def _adjust(spark: SparkSession, path: str, wanted: dict[str, str]) -> None:
    found = DeltaTable.forPath(spark, path).detail().select("properties").first()[0]
    # the protocol versions of an existing table are not among its properties
    changed = {key: value for key, value in wanted.items() if not key.endswith("Version") and found.get(key) != value}
    if changed:
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in changed.items())
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({listed})")
