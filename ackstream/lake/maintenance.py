"""Maintenance of the tables: compaction, removal of old rows and files, properties brought up to the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.window import Window

from ackstream.errors import SettingsError
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake, Settings

MILLISECONDS_AN_HOUR = 3_600_000

SHORTEST_RETENTION_HOURS = 24
"""Longer than any query or transaction should run."""


@dataclass(frozen=True)
class TableReport:
    """The result of maintaining a table; files and bytes are those of its current version."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


def maintain(spark: SparkSession, settings: Settings, names: Sequence[str] | None = None) -> list[TableReport]:
    """Compact tables and remove files that no version within ``lake.retention`` needs; jobs may run meanwhile.

    :param names: some of the tables; ``None``: those of archive, and the existing ones of other jobs
    :raises SettingsError: if the retention is dangerously short, or a name is unknown; nothing is done then
    :raises StartError: if a table does not exist yet, or has other columns than this version writes
    """
    lake = settings.lake
    if lake.retention < SHORTEST_RETENTION_HOURS * MILLISECONDS_AN_HOUR:
        raise SettingsError(
            f"lake.retention is {lake.retention / MILLISECONDS_AN_HOUR:g} h: removing files so young can break queries"
            f" and jobs that still read or write them; set it to {SHORTEST_RETENTION_HOURS}h or more."
        )
    unknown = sorted(set(names or ()) - ALL_TABLES.keys())
    if unknown:
        raise SettingsError(f"There is no table {unknown[0]}; the tables are {', '.join(ALL_TABLES)}.")
    apart = spark.newSession()
    # VACUUM lists a table with this many tasks; the default of 10,000 takes half a minute
    apart.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", apart.sparkContext.defaultParallelism)
    if not names:
        others = [name for name in ALL_TABLES if name not in TABLES]
        names = [*TABLES, *[name for name in others if DeltaTable.isDeltaTable(apart, tables.location(lake, name))]]
    return [_maintain(apart, lake, name) for name in names]


def _maintain(spark: SparkSession, lake: Lake, name: str) -> TableReport:
    tables.read(spark, lake, name)
    # the properties first: Delta takes the retention from them
    tables.create(spark, lake, [name])
    table = DeltaTable.forPath(spark, tables.location(lake, name))
    files_before, bytes_before = _size(table)
    if name == "publishers":
        prune(spark, lake)
    table.optimize().executeCompaction()
    table.vacuum()
    files_after, bytes_after = _size(table)
    return TableReport(name, files_before, files_after, bytes_before, bytes_after)


def _size(table: DeltaTable) -> tuple[int, int]:
    files, size = table.detail().select("numFiles", "sizeInBytes").collect()[0]
    return files, size


def prune(spark: SparkSession, lake: Lake) -> None:
    """Remove the rows of ``publishers`` that persist never restores from again; the job may run meanwhile.

    The table grows by a row per client and batch. The newest batch may be replayed: it starts from the newest row of
    each client before it. The first and the last row of each query mark where its batches begin and end, and acks that
    wait for destinations have yet to be sent.
    """
    rows = tables.read(spark, lake, "publishers")
    newest, told = rows.agg(F.max("batch"), F.max("told")).collect()[0]
    if newest is None:
        return
    by_client, by_query = (Window.partitionBy(column) for column in ("client", "query_id"))
    old = (
        rows.where(F.col("batch") < newest)
        .withColumn("later", F.max("batch").over(by_client))
        .withColumn("begin", F.min("batch").over(by_query))
        .withColumn("end", F.max("batch").over(by_query))
        .where((F.col("batch") < F.col("later")) & (F.col("batch") > F.col("begin")) & (F.col("batch") < F.col("end")))
        .where(F.col("acks").isNull() | (F.col("batch") <= F.lit(told)))
        .select("client", "batch")
    )
    table = DeltaTable.forPath(spark, tables.location(lake, "publishers")).alias("row")
    same = "row.client = old.client AND row.batch = old.batch"
    tables.retried(lambda: table.merge(old.alias("old"), same).whenMatchedDelete().execute())
