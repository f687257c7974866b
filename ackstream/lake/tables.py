"""The tables where they lie: made on first start, checked on every other, read by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException

from ackstream.errors import StartError
from ackstream.lake.schemas import (
    ALL_TABLES,
    INDEXED_COLUMNS,
    PUBLISHER_TABLES,
    QUERY_TABLES,
    QUEUE_TABLES,
    REPLICATION_TABLES,
    SETTLE_TABLES,
    TABLES,
    TWIN_TABLES,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake


ATTEMPTS = 5
_WRITERS = {
    "twin": TWIN_TABLES,
    "persist": {**PUBLISHER_TABLES, **REPLICATION_TABLES},
    "settle": SETTLE_TABLES,
    "query": QUERY_TABLES,
    "queues": QUEUE_TABLES,
}


def location(lake: Lake, name: str) -> str:
    """Return where a table lies: a URL, or an absolute path (Spark's SQL does not take a relative one)."""
    place = lake.table(name)
    return place if ":" in place.partition("/")[0] else str(Path(place).absolute())


def properties(lake: Lake) -> dict[str, str]:
    """Return the Delta properties of every table.

    Nothing beyond reader version 1 and writer version 2: delta-rs, DuckDB and Trino read and compact such tables.
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
    """Make the tables that are not there, and bring the properties of the others up to the settings.

    :raises StartError: where a table has other columns, or a directory holds something else
    """
    for name in names:
        table, place = ALL_TABLES[name], location(lake, name)
        if DeltaTable.isDeltaTable(spark, place):
            _check(spark, table, place)
            _adjust(spark, place, properties(lake))
        else:
            _create(spark, table, place, properties(lake))


def read(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """Return a table's rows as they are now.

    :raises StartError: where the table is not there yet
    """
    place = location(lake, name)
    if not DeltaTable.isDeltaTable(spark, place):
        job = next((job for job, names in _WRITERS.items() if name in names), "archive")
        raise StartError(f"There is no table {name} at {place}; start the {job} job, or correct lake.path.")
    return spark.read.format("delta").load(place)


def append(rows: DataFrame, lake: Lake, name: str, application: str, version: int) -> None:
    """Append rows to a table; those of a version that it has already stay out, whatever they are.

    :param application: who counts the versions, such as a query: each table counts for itself
    """
    (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", f"{application}/{name}")
        .option("txnVersion", version)
        .save(location(lake, name))
    )


def retried(merge: Callable[[], None]) -> None:
    """Do a merge, and again where it met another commit, such as a compaction's.

    :raises DeltaConcurrentModificationException: it met one each time
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            merge()
        except DeltaConcurrentModificationException:
            if attempt == ATTEMPTS:
                raise
        else:
            return


def _create(spark: SparkSession, table: Table, place: str, wanted: dict[str, str]) -> None:
    builder = DeltaTable.createIfNotExists(spark).location(place).comment(table.comment)
    builder = builder.addColumns(table.schema)
    if table.partition is not None:
        builder = builder.partitionedBy(table.partition)
    for key, value in wanted.items():
        builder = builder.property(key, value)
    try:
        builder.execute()
    except AnalysisException as error:
        raise StartError(
            f"The table {table.name} cannot be made at {place}: {str(error).splitlines()[0]} Empty the directory, or"
            f" point lake.path to another one."
        ) from None


def _check(spark: SparkSession, table: Table, place: str) -> None:
    found = {field.name: field.dataType.simpleString() for field in DeltaTable.forPath(spark, place).toDF().schema}
    wanted = {field.name: field.dataType.simpleString() for field in table.schema}
    for column in {**wanted, **found}:
        if found.get(column) != wanted.get(column):
            raise StartError(
                f"The table {table.name} at {place} has {_described(column, found)} where this version writes"
                f" {_described(column, wanted)}; move the table away, or point lake.path to another directory."
            )


def _described(column: str, types: dict[str, str]) -> str:
    return f"a column {column} of type {types[column]}" if column in types else f"no column {column}"


def _adjust(spark: SparkSession, place: str, wanted: dict[str, str]) -> None:
    found = DeltaTable.forPath(spark, place).detail().select("properties").first()[0]
    # protocol versions are no properties of a table once it is there
    changed = {key: value for key, value in wanted.items() if not key.endswith("Version") and found.get(key) != value}
    if changed:
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in changed.items())
        spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ({listed})")
