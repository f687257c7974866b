"""Maintenance of the tables: compaction, removal of old rows and files, properties brought up to the settings."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from ackstream.errors import InputError, SettingsError
from ackstream.lake import commits, tables, things
from ackstream.lake.schemas import ALL_TABLES, TABLES
from ackstream.lake.tables import MILLISECONDS_AN_HOUR, SHORTEST_RETENTION_HOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake, Settings

log = logging.getLogger(__name__)

COMPACTION_ATTEMPTS = 5


@dataclass(frozen=True)
class TableReport:
    """The result of maintaining a table; files and bytes are those of its current version.

    :ivar failure: why the table was not maintained, or not completely; empty if it was
    """

    table: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    failure: str = ""


def check(lake: Lake, names: Sequence[str] | None) -> None:
    """Check what needs no Spark.

    :raises SettingsError: the retention is dangerously short
    :raises InputError: a name is unknown
    """
    if lake.retention < SHORTEST_RETENTION_HOURS * MILLISECONDS_AN_HOUR:
        raise SettingsError(
            f"lake.retention is {lake.retention / MILLISECONDS_AN_HOUR:g} h: removing files so young can break queries"
            f" and jobs that still read or write them; set it to {SHORTEST_RETENTION_HOURS}h or more."
        )
    unknown = sorted(set(names or ()) - ALL_TABLES.keys())
    if unknown:
        raise InputError(f"There is no table {unknown[0]}; the tables are {', '.join(ALL_TABLES)}.")


def maintain(
    spark: SparkSession, settings: Settings, names: Sequence[str] | None = None, *, journal_ms: int | None = None
) -> list[TableReport]:
    """Compact tables and remove files that no version within ``lake.retention`` needs; jobs may run meanwhile.

    A failure of one table, such as a conflict with a job in each attempt, is reported, and the others are maintained.

    :param names: some of the tables; ``None``: all that exist
    :param journal_ms: how old a change in the journal of things may become, in milliseconds; ``None``: any age
    :raises SettingsError: if the retention is dangerously short; nothing is done then
    :raises InputError: if a name is unknown; nothing is done then
    :raises StartError: if a named table does not exist, or none does; or in S3, where only the jobs themselves may
        write; nothing is done then
    """
    lake = settings.lake
    check(lake, names)
    existing = [name for name in ALL_TABLES if DeltaTable.isDeltaTable(spark, tables.location(lake, name))]
    for name in names or existing or TABLES:
        tables.read(spark, lake, name)
        tables.check_log_store(spark, lake, name)
    apart = spark.newSession()
    # VACUUM lists a table with this many tasks; the default of 10,000 takes half a minute
    apart.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", apart.sparkContext.defaultParallelism)
    before_ms = None if journal_ms is None else time.time_ns() // 1_000_000 - journal_ms
    return [_maintain(apart, lake, name, before_ms) for name in names or existing]


def _maintain(spark: SparkSession, lake: Lake, name: str, before_ms: int | None) -> TableReport:
    report = TableReport(name)
    try:
        # the properties first: Delta takes the retention from them
        tables.create(spark, lake, [name])
        table = DeltaTable.forPath(spark, tables.location(lake, name))
        files, size = _size(table)
        report = replace(report, files_before=files, bytes_before=size, files_after=files, bytes_after=size)
        if name == things.JOURNAL and before_ms is not None:
            things.prune(spark, lake, before_ms)
        commits.retried(partial(_compact, table), COMPACTION_ATTEMPTS)
        table.vacuum()
        files, size = _size(table)
        return replace(report, files_after=files, bytes_after=size)
    except Exception as error:
        # whatever it is, the other tables do not depend on it
        log.info("The table %s was not maintained", name, exc_info=True)
        return replace(report, failure=str(error).partition("\n")[0])


def _compact(table: DeltaTable) -> None:
    table.optimize().executeCompaction()


def _size(table: DeltaTable) -> tuple[int, int]:
    files, size = table.detail().select("numFiles", "sizeInBytes").collect()[0]
    return files, size
