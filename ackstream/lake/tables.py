"""The tables in the lake: created on the first start, checked on every other, read and appended to by name."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.errors import StartError
from ackstream.lake import commits, files
from ackstream.lake.schemas import ALL_TABLES, INDEXED_COLUMNS, PARTITION, TABLES, Table, absent, in_full
from ackstream.settings import Lake, Settings

CREATION_SECONDS, CREATION_POLL_SECONDS = 10.0, 0.2
"""Maximum time of another job between creating the directory of a table and its first commit."""
ROWS_PER_FILE = 100_000
"""An append of more rows writes several files."""
WRITER_VERSION = 2
"""The protocol version of a table of appends."""
SHORTEST_RETENTION_HOURS = 24
"""The shortest time to keep removed files: longer than any query or transaction should run."""
MILLISECONDS_AN_HOUR = 3_600_000
_EXCLUSIVE_STORES = ("hdfs", "abfs", "abfss", "gs")
"""Stores on which Delta's default log store lets only one process create a commit's name."""


def location(lake: Lake, name: str) -> str:
    """Return the location of a table: a URL, or an absolute path (Spark's SQL does not accept a relative one)."""
    return in_full(lake.table(name))


def properties(lake: Lake, table: Table) -> dict[str, str]:
    """Return the Delta properties of a table."""
    # A table of appends has reader version 1 and writer version 2: delta-rs, DuckDB and Trino read and compact it. A
    # derived one has deletion vectors, or each merge would copy every file with a changed row; delta-rs reads it by
    # ``scan()``. Its past is in the table it is derived from, so its removed files go early.
    kept = min(lake.retention, SHORTEST_RETENTION_HOURS * MILLISECONDS_AN_HOUR) if table.derived else lake.retention
    protocol = {} if table.derived else {"delta.minReaderVersion": "1", "delta.minWriterVersion": str(WRITER_VERSION)}
    return protocol | {
        "delta.enableDeletionVectors": str(table.derived).lower(),
        # each checkpoint costs 1.5 s, a commit 1 s
        "delta.checkpointInterval": str(lake.checkpoint_interval),
        "delta.dataSkippingNumIndexedCols": str(INDEXED_COLUMNS),
        # one value for every tool that vacuums
        "delta.deletedFileRetentionDuration": f"interval {kept} milliseconds",
        # the shortest that Delta allows with it, not 30 days: each commit lists the whole log
        "delta.logRetentionDuration": f"interval {kept} milliseconds",
    }


def create(spark: SparkSession, lake: Lake, names: Iterable[str] = TABLES) -> None:
    """Create the missing tables; add new columns to the others, and update their properties to the settings.

    :raises StartError: a table has a column of another type or an empty commit, a directory holds something else, or a
        table would have to be altered that may have one writer only
    """
    for name in names:
        table = ALL_TABLES[name]
        # another job may be at the same table
        commits.retried(partial(_prepare, spark, table, location(lake, name), properties(lake, table)))


def read(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """Return a table's present rows; raise a StartError if it does not exist yet."""
    if not exists(spark, lake, name):
        raise absent(name, location(lake, name))
    return spark.read.format("delta").load(location(lake, name))


def exists(spark: SparkSession, lake: Lake, name: str) -> bool:
    """Return whether a table exists."""
    return bool(DeltaTable.isDeltaTable(spark, location(lake, name)))


def refuse_rows(spark: SparkSession, lake: Lake, name: str, checkpoint: str, remedy: str) -> None:
    """Raise a StartError, with the ``remedy`` at its end, if a table has rows: a new checkpoint lacks their state."""
    if exists(spark, lake, name) and not read(spark, lake, name).isEmpty():
        raise StartError(
            f"The table {location(lake, name)} has rows of a checkpoint that is not at {checkpoint}: put that one back,"
            f" or {remedy}."
        )


def newest_batch(rows: DataFrame, column: str = "batch") -> int:
    """Return the highest number of a batch among rows; -1 without rows."""
    return int(commits.retried(lambda: rows.agg(F.coalesce(F.max(column), F.lit(-1))).collect()[0][0]))


def append(
    rows: DataFrame,
    lake: Lake,
    name: str,
    application: str,
    version: int,
    *,
    count: int = 1,
    follows: int | None = None,
) -> bool:
    """Append rows of a frame unless the table already has this version; return whether they were appended.

    :param application: the counter of versions, such as a query; each table has its own count
    :param count: the number of rows, if they may need more than one file
    :param follows: the newest version that the table may have, if versions have gaps
    """
    write = partial(commits.written, rows=rows.coalesce(-(-count // ROWS_PER_FILE)))
    path = location(lake, name)
    return commits.commit(rows.sparkSession, path, f"{application}/{name}", version, write, follows=follows)


def append_rows(
    spark: SparkSession,
    rows: pa.Table,
    lake: Lake,
    name: str,
    application: str,
    version: int,
    *,
    check: Callable[[Mapping[str, int]], None] | None = None,
    follows: int | None = None,
) -> bool:
    """Append rows from the driver as :func:`append` does, but without a Spark job.

    :param rows: at least one, in types that can be cast to the table's; columns that it does not have are left out;
        those of the query, of the batch (the version) and of the day are added where they are missing
    :param check: gets the table's :func:`transactions`, and raises to refuse the append; no other append with a check
        comes in between
    """
    columns = ALL_TABLES[name].arrow
    own = {"query_id": application.partition("+")[0], "batch": version, "batch_id": version}
    for column in own.keys() & set(columns.names) - set(rows.column_names):
        rows = rows.append_column(column, pa.repeat(pa.scalar(own[column]), rows.num_rows))
    if PARTITION in columns.names and PARTITION not in rows.column_names:
        rows = rows.append_column(PARTITION, rows.column(ALL_TABLES[name].time).cast(pa.date32()))
    rows = rows.select(columns.names).cast(columns)

    def write(transaction: Any) -> Any:
        # after changes by its owner, a file may not suffice: column mapping, constraints, other partitions
        partitions = f"struct<{PARTITION}:date>" if PARTITION in columns.names else "struct<>"
        as_ours = transaction.metadata().partitionSchema().simpleString() == partitions
        if not as_ours or not is_plain(transaction):
            return commits.written(transaction, spark.createDataFrame(rows))
        return commits.added(spark, files.write(spark, transaction.deltaLog(), rows))

    checked = None if check is None else lambda found: check(_named(found, name))
    place = location(lake, name)
    return commits.commit(spark, place, f"{application}/{name}", version, write, checked, follows)


def is_plain(table: Any) -> bool:
    """Return whether the files of a snapshot or transaction are its content: columns by name, and no deleted rows."""
    return bool(table.protocol().minWriterVersion() <= WRITER_VERSION)


def transactions(spark: SparkSession, lake: Lake, name: str) -> dict[str, int]:
    """Return the newest version that each application has appended to a table (:func:`append`)."""
    look = partial(commits.log_and_snapshot, spark, location(lake, name))
    return _named(commits.retried(lambda: commits.versions(spark, look()[1])), name)


def _named(found: Mapping[str, int], name: str) -> dict[str, int]:
    # a copy of another lake's table also has names of queries there
    return {key.removesuffix(f"/{name}"): version for key, version in found.items() if key.endswith(f"/{name}")}


def newest_versions(spark: SparkSession, lake: Lake, names: Iterable[str]) -> dict[str, int]:
    """Return the newest version that each application has appended to any of these tables."""
    found = sorted((version, key) for name in names for key, version in transactions(spark, lake, name).items())
    return {key: version for version, key in found}


def first_and_newest(versions: Mapping[str, int], query_id: str) -> tuple[int, int]:
    """Return the numbers of a query's first batch and of its newest (or -1), for batches numbered across queries."""
    # ``versions``: of the table's applications (``transactions()``): the queries, or ``QUERY+PART``
    own = {key: version for key, version in versions.items() if key.partition("+")[0] == query_id}
    others = [version for key, version in versions.items() if key not in own]
    return max(others, default=-1) + 1, max(own.values(), default=-1)


def newest_batch_of(names: Iterable[str], spark: SparkSession, settings: Settings, query_id: str) -> int:
    """Return the newest batch of a query in the tables that it appends to; -1 for no batch."""
    return first_and_newest(newest_versions(spark, settings.lake, names), query_id)[1]


def newest_own_batch(names: Iterable[str], spark: SparkSession, settings: Settings, query_id: str) -> int:
    """Return the same for tables with batches numbered across queries; the result is the query's own number."""
    first, newest = first_and_newest(newest_versions(spark, settings.lake, names), query_id)
    return max(newest - first, -1)


def _prepare(spark: SparkSession, table: Table, path: str, wanted: dict[str, str]) -> None:
    if DeltaTable.isDeltaTable(spark, path):
        _adjust(spark, table, path, wanted)
        return
    builder = DeltaTable.createIfNotExists(spark).location(path).comment(table.comment).addColumns(table.schema)
    if PARTITION in table.names:
        builder = builder.partitionedBy(PARTITION)
    for key, value in wanted.items():
        builder = builder.property(key, value)
    try:
        builder.execute()
    except AnalysisException as error:
        if _appears(spark, path):
            _adjust(spark, table, path, wanted)
            return
        raise StartError(
            f"The table {table.name} cannot be created at {path}: {str(error).splitlines()[0]} Empty the directory, or"
            f" point lake.path to another one."
        ) from None


def _appears(spark: SparkSession, path: str) -> bool:
    """Wait for a table that another job is creating: its directory is there before its first commit."""
    deadline = time.monotonic() + CREATION_SECONDS
    # isDeltaTable() keeps its first answer
    while commits.log_and_snapshot(spark, path)[1].version() < 0:
        if time.monotonic() >= deadline:
            return False
        time.sleep(CREATION_POLL_SECONDS)
    return True


def new_columns(table: Table, found: Mapping[str, str], path: str) -> list[Any]:
    """Return the columns that a table of an earlier release lacks; ``found``: the types of those that it has."""
    # Its additional columns stay null. StartError: a column has another type, or one without nulls is missing: its old
    # rows cannot have it
    missing = []
    for column in table.schema:
        name, kind = column.name, column.dataType.simpleString()
        if name not in found and column.nullable:
            missing.append(column)
        elif found.get(name) != kind:
            there = f"a column {name} of type {found[name]}" if name in found else f"no column {name}"
            raise StartError(
                f"The table {table.name} at {path} has {there} where this version writes a column {name} of type"
                f" {kind}; move the table away, or point lake.path to another directory."
            )
    return missing


def _adjust(spark: SparkSession, table: Table, path: str, wanted: dict[str, str]) -> None:
    if (empty := commits.empty_commit(spark, path)) is not None:
        raise StartError(
            f"The newest commit of the table {table.name}, {empty}, is empty: the power failed before it was on the"
            " disk, and its rows are missing. Put tables and checkpoints back from one backup; without a backup, see"
            ' "After a power failure" in docs/operate/recovery.md.'
        )
    delta = DeltaTable.forPath(spark, path)
    columns = {field.name: field.dataType.simpleString() for field in delta.toDF().schema}
    missing = new_columns(table, columns, path)
    found = delta.detail().select("properties").first()[0]
    # the protocol versions of an existing table are not among its properties
    changed = {key: value for key, value in wanted.items() if not key.endswith("Version") and found.get(key) != value}
    if missing:
        added = [f"`{c.name}` {c.dataType.simpleString()} COMMENT {quoted(c.metadata['comment'])}" for c in missing]
        _alter(spark, path, f"ADD COLUMNS ({', '.join(added)})")
    if changed:
        listed = ", ".join(f"{quoted(key)} = {quoted(value)}" for key, value in changed.items())
        _alter(spark, path, f"SET TBLPROPERTIES ({listed})")


def _alter(spark: SparkSession, path: str, change: str) -> None:
    statement = f"ALTER TABLE delta.`{path}` {change}"
    # the job may be starting while an earlier process of it still runs
    check_log_store(spark, path, f" Or execute this while no job runs: {statement}")
    spark.sql(statement)


def check_log_store(spark: SparkSession, path: str, otherwise: str = "") -> None:
    """Refuse to write a table beside its job if that is unsafe: see :func:`refuse_writer`."""
    # where HDFS is Hadoop's default file system, a path without a scheme is there
    found = commits.java(spark, "org.apache.hadoop.fs.Path")(path)
    files = found.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001 - there is no public way
    refuse_writer(spark.sparkContext.getConf().get, str(files.makeQualified(found)), otherwise)


def refuse_writer(conf: Callable[[str, str], str | None], path: str, otherwise: str = "") -> None:
    """Refuse a second writer where two could take one commit's name: a commit would be lost silently.

    On a local disk that is so unless the product started the driver (``local[…]``), with a log store of its own.

    :param conf: returns the value of a key of Spark's conf, or the given default
    :param path: with its scheme
    :param otherwise: another remedy, as a sentence
    :raises StartError: with the key to set
    """
    scheme = path.partition(":")[0]
    key = f"spark.delta.logStore.{scheme}.impl"
    if scheme in _EXCLUSIVE_STORES or conf(key, "") or conf("spark.delta.logStore.class", ""):
        return
    example = (
        "io.delta.storage.S3DynamoDBLogStore with its jar" if scheme.startswith("s3") else "one that names it once"
    )
    remedy = f"Set {key} in [spark.conf] of all jobs, for example to {example}."
    if scheme == "file":
        remedy = "Run all jobs with spark.master = local[…], or set lake.path to HDFS or to an object store."
    raise StartError(
        f"The table at {path} may be written by one process only, and this would be a second one: commits would be"
        f" lost silently. {remedy}{otherwise}"
    )


def quoted(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
