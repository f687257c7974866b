"""Maintenance of the tables: compaction, removal of old rows and files, properties brought up to the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from ackstream.errors import SettingsError
from ackstream.lake import messages, tables
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
    if name == messages.TABLE:
        messages.prune(spark, lake)
    table.optimize().executeCompaction()
    table.vacuum()
    files_after, bytes_after = _size(table)
    return TableReport(name, files_before, files_after, bytes_before, bytes_after)


def _size(table: DeltaTable) -> tuple[int, int]:
    files, size = table.detail().select("numFiles", "sizeInBytes").collect()[0]
    return files, size
