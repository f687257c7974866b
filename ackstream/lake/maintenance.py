"""Maintenance of the tables: compaction, removal of old files and changes, update of properties to the settings."""

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.window import Window

from ackstream.errors import InputError, SettingsError, StartError, cause
from ackstream.lake import commits, tables, things
from ackstream.lake.reading import VIEWS
from ackstream.lake.schemas import ALL_TABLES, PARTITION, TABLES
from ackstream.lake.tables import MILLISECONDS_AN_HOUR, SHORTEST_RETENTION_HOURS
from ackstream.settings import Lake, Settings

log = logging.getLogger(__name__)

COMPACTION_ATTEMPTS = 5
ROW_GROUP_BYTES = 8 * 1024 * 1024
"""The least that is read of a file for one value of its first column, if it is in that order."""
ORDERED_BYTES = 256 * 1024 * 1024
"""A smaller file beside others was added after the rows of its day were put in order, which gives Delta's largest."""


@dataclass(frozen=True)
class TableReport:
    """The result of maintaining a table; files and bytes: of its current version; ``failure``: empty if complete."""

    table: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    failure: str = ""


def check(lake: Lake, names: Sequence[str] | None) -> None:
    """Check the arguments, without Spark; the errors are those of :func:`maintain`."""
    if lake.retention < SHORTEST_RETENTION_HOURS * MILLISECONDS_AN_HOUR:
        raise SettingsError(
            f"lake.retention is {lake.retention / MILLISECONDS_AN_HOUR:g} h: removing files so young can break queries"
            f" and jobs that still read or write them; set it to {SHORTEST_RETENTION_HOURS}h or more."
        )
    if unknown := sorted(set(names or ()) - ALL_TABLES.keys()):
        raise InputError(f"There is no table {unknown[0]}; the tables are {', '.join(ALL_TABLES)}.")


def maintain(
    spark: SparkSession, settings: Settings, names: Sequence[str] | None = None, *, journal_ms: int | None = None
) -> list[TableReport]:
    """Compact tables and remove files that no version within ``lake.retention`` needs; jobs may run meanwhile.

    The rows of a day that is over are put in the order of the first column, once: readers skip most of its files.

    A failure of one table, such as a conflict with a job in each attempt, is reported, and the others are maintained.

    :param names: some of the tables; ``None``: all existing ones
    :param journal_ms: the highest age of a change in the journal of things, in milliseconds; ``None``: any age
    :raises SettingsError: the retention is dangerously short; no table is changed, as with each of these errors
    :raises InputError: a name is unknown
    :raises StartError: a named table, or every table, is missing; or only the jobs may write
    """
    lake = settings.lake
    check(lake, names)
    existing = [name for name in ALL_TABLES if DeltaTable.isDeltaTable(spark, tables.location(lake, name))]
    for name in names or existing or TABLES:
        tables.read(spark, lake, name)
        tables.check_log_store(spark, tables.location(lake, name))
    apart = spark.newSession()
    # VACUUM lists a table with this many tasks; the default of 10,000 takes half a minute
    apart.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", apart.sparkContext.defaultParallelism)
    apart.conf.set("spark.databricks.io.skipping.mdc.sortWithinFiles", value=True)
    apart.conf.set("parquet.block.size", ROW_GROUP_BYTES)
    before_ms = None if journal_ms is None else time.time_ns() // 1_000_000 - journal_ms
    return [_maintain(apart, lake, name, before_ms) for name in names or existing]


def register(spark: SparkSession, lake: Lake) -> tuple[int, int]:
    """Register the existing tables, and the questions about them as views, in ``lake.catalog``; return their numbers.

    Repeated, it adds new tables and replaces the views. A catalog without views gets only the tables.

    :raises StartError: the schema would end with the session, or the catalog refuses, or has another table of a name
    """
    schema, present, views = lake.catalog, [name for name in ALL_TABLES if tables.exists(spark, lake, name)], 0
    if "." not in schema and spark.conf.get("spark.sql.catalogImplementation") != "hive":
        raise StartError(
            f"lake.catalog = {schema!r} is not a permanent schema: set it to one such as unity.ack, or to one of a"
            ' Hive metastore, such as ack, with "spark.sql.catalogImplementation" = "hive" in [spark.conf].'
        )
    try:
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for name in present:
            place = tables.location(lake, name)
            spark.sql(f"CREATE TABLE IF NOT EXISTS {schema}.{name} USING DELTA LOCATION {tables.quoted(place)}")
            # of a name, Delta's own method would look in the session's catalog
            found = spark.sql(f"DESCRIBE DETAIL {schema}.{name}"), DeltaTable.forPath(spark, place).detail()
            if len({detail.select("id").collect()[0] for detail in found}) > 1:
                raise StartError(
                    f"{schema}.{name} is not the table at {place}: drop it from the catalog, which keeps its files, or"
                    " set lake.catalog to another schema."
                )
        for question in VIEWS.values():
            # it may need a table that no job has created yet
            with suppress(StartError):
                text = question.view(present, lake, f"{schema}.")
                columns = [f"{name} COMMENT {tables.quoted(about)}" for name, about in question.columns.items()]
                view = f"VIEW {schema}.{question.name} ({', '.join(columns)}) AS {text}"
                try:
                    spark.sql(f"CREATE OR REPLACE {view}")
                except UnsupportedOperationException:  # of Unity Catalog
                    spark.sql(f"DROP VIEW IF EXISTS {schema}.{question.name}")
                    spark.sql(f"CREATE {view}")
                views += 1
    except (PySparkException, Py4JJavaError) as error:
        if "[MISSING_CATALOG_ABILITY" not in str(error):
            remedy = "Correct the name, or the entries of the catalog in [spark.conf]."
            raise StartError(f"lake.catalog = {schema} cannot be used: {cause(error)}. {remedy}") from error
    return len(present), views


def _maintain(spark: SparkSession, lake: Lake, name: str, before_ms: int | None) -> TableReport:
    report = TableReport(name)
    try:
        # the properties first: they have Delta's retention
        tables.create(spark, lake, [name])
        table = DeltaTable.forPath(spark, tables.location(lake, name))
        files, size = _size(table)
        report = replace(report, files_before=files, bytes_before=size, files_after=files, bytes_after=size)
        if name == things.JOURNAL and before_ms is not None:
            prune(spark, lake, before_ms)
        for day in _unordered(spark, tables.location(lake, name)):
            rows, key = table.optimize().where(f"{PARTITION} = DATE'{day}'"), ALL_TABLES[name].names[0]
            commits.retried(partial(rows.executeZOrderBy, key), COMPACTION_ATTEMPTS)
        commits.retried(lambda: table.optimize().executeCompaction(), COMPACTION_ATTEMPTS)
        table.vacuum()
        files, size = _size(table)
        return replace(report, files_after=files, bytes_after=size)
    except Exception as error:
        # the other tables do not depend on it
        log.info("The table %s was not maintained", name, exc_info=True)
        return replace(report, failure=cause(error))


def _unordered(spark: SparkSession, path: str) -> list[str]:
    """Return the days of a table, but for its newest, that have got files since they were put in order."""
    files = DataFrame(commits.log_and_snapshot(spark, path)[1].allFiles().toDF(), spark)
    # a table without days has one group
    days = files.groupBy(F.col("partitionValues")[PARTITION].alias("day"))
    found = days.agg(F.count("*").alias("files"), F.min("size").alias("least")).sort("day").collect()
    return [one.day for one in found[:-1] if one.files > 1 and one.least < ORDERED_BYTES]


def _size(table: DeltaTable) -> tuple[int, int]:
    files, size = table.detail().select("numFiles", "sizeInBytes").collect()[0]
    return files, size


def prune(spark: SparkSession, lake: Lake, before_ms: int) -> None:
    """Remove changes from the journal that are older than a time (epoch milliseconds); the jobs may run meanwhile."""
    # Rows from which things are restored stay: the last state of each thing, and rows that are not merged or may be
    # replayed; likewise the last command of each partition, after which a new checkpoint starts.
    events = tables.read(spark, lake, things.JOURNAL).where(F.col("batch") < things.merged(spark, lake))
    state = F.max(F.when(F.col("last"), F.col("revision"))).over(Window.partitionBy("thing_id"))
    old = events.withColumn("state", state).where(F.col("revision") < F.col("state"))
    old = old.where(F.col("modified_at") < F.timestamp_millis(F.lit(before_ms)))
    _remove(spark, lake, old.join(_ends(events), ["topic", "partition", "offset"], "left_anti"))


def erase(spark: SparkSession, lake: Lake, thing_id: str) -> None:
    """Remove all changes of a deleted thing except its deletion, which has no content; the jobs may run meanwhile.

    :raises StartError: the thing exists, or its deletion may still be replayed; or only the job may write
    """
    tables.check_log_store(spark, tables.location(lake, things.JOURNAL))
    own = F.col("thing_id") == thing_id
    found = tables.read(spark, lake, "things").where(own).select("deleted", "batch", "revision").collect()
    if not found:
        raise StartError(f"There is no thing {thing_id} in the table things; correct the id, or wait for its index.")
    deleted, batch, revision = found[0]
    if not deleted:
        raise StartError(f"The thing {thing_id} exists: delete it first by a command, then erase it.")
    events = tables.read(spark, lake, things.JOURNAL)
    if batch >= tables.newest_batch(events):
        raise StartError(f"The deletion of {thing_id} is in the newest batch: erase it once another thing has changed.")
    old = events.where(own & (F.col("revision") < revision))
    last = old.join(_ends(events), ["topic", "partition", "offset"], "left_semi").select("revision").collect()
    try:
        _remove(spark, lake, old, emptied=[row.revision for row in last])
    except commits.CONFLICTS as error:
        raise StartError(
            f"The twin changes things without a pause, so that the changes of {thing_id} of today could not be erased;"
            " those of earlier days are. Erase it again tomorrow, or while the twin is stopped."
        ) from error


def _ends(events: DataFrame) -> DataFrame:
    """Return the coordinates of the last command of each partition, after which a new checkpoint starts."""
    return events.groupBy("topic", "partition").agg(F.max("offset").alias("offset"))


def _remove(spark: SparkSession, lake: Lake, rows: DataFrame, emptied: Collection[int] = ()) -> None:
    """Remove rows of the journal, which the index query ignores; those of some revisions only lose their content."""
    old = rows.select("thing_id", "revision", "day").localCheckpoint()
    days = sorted(f"DATE'{day}'" for (day,) in old.select("day").distinct().collect())
    content = {"path": "'/'", "value": "NULL", "thing": "NULL"}

    def attempt(part: list[str]) -> None:
        # no other day is read
        same = f"row.day IN ({', '.join(part)}) AND row.thing_id = old.thing_id AND row.revision = old.revision"
        table = DeltaTable.forPath(spark, tables.location(lake, things.JOURNAL)).alias("row")
        journal = table.merge(old.alias("old"), same)
        if emptied:
            journal = journal.whenMatchedUpdate(F.col("old.revision").isin(*emptied), content)
        journal.whenMatchedDelete().execute()

    # the newest day separately: a removal conflicts with all appends of the twin to its days meanwhile
    for part in filter(None, (days[:-1], days[-1:])):
        commits.retried(partial(attempt, part))
