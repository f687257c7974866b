"""Data files of a table that the driver writes itself, without a Spark job: rows in Arrow, a Parquet file per day.

For a few hundred rows, planning and starting a job takes longer than all the rest of an append. The files go through
Hadoop's file systems, as Spark's own do: to every store, and with the same permissions.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ackstream.lake.columns import INDEXED_COLUMNS, PARTITION
from ackstream.lake.commits import java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import SparkSession

TEXT_CHARACTERS = 32
"""Texts in statistics are not longer, as Delta's own."""

LAST_CHARACTER = "\U0010ffff"
_COMPRESSION = "snappy"


def write(spark: SparkSession, log: Any, rows: pa.Table) -> list[dict[str, Any]]:
    """Write rows to new files; return the actions of Delta's log that add them to the table.

    :param log: the table's ``DeltaLog``
    :param rows: at least one, in the columns and types of the table
    """
    actions = []
    for values, part in _partitions(rows):
        directory = "".join(f"{column}={value}/" for column, value in values.items())
        # a name of its own, as Spark's: what an attempt that failed has left behind is in nobody's way
        path = f"{directory}part-00000-{uuid.uuid4()}.c000.{_COMPRESSION}.parquet"
        status = _store(spark, log, path, part)
        add = {
            "path": path,
            "partitionValues": values,
            "size": status.getLen(),
            "modificationTime": status.getModificationTime(),
            "dataChange": True,
            "stats": json.dumps(statistics(part)),
        }
        actions.append({"add": add})
    return actions


def _partitions(rows: pa.Table) -> Iterator[tuple[dict[str, str], pa.Table]]:
    """Divide rows by day, where a table has that column, which is in the names of its files and not in them."""
    if PARTITION not in rows.column_names:
        yield {}, rows
        return
    days = rows.column(PARTITION)
    rows = rows.drop_columns([PARTITION])
    found = pc.unique(days).sort()
    for day in found:
        # nearly always there is one day, and nothing to copy
        part = rows if len(found) == 1 else rows.filter(pc.equal(days, day))
        yield {PARTITION: day.as_py().isoformat()}, part


def _store(spark: SparkSession, log: Any, path: str, rows: pa.Table) -> Any:
    """Write a file of the table; return its ``FileStatus``.

    It is handed over as PySpark does with rows, in a directory of this machine: bytes that go through the connection to
    the JVM are a text on the way.
    """
    file = java(spark, "org.apache.hadoop.fs.Path")(log.dataPath(), path)
    system = file.getFileSystem(log.newDeltaHadoopConf())
    made = Path(spark.sparkContext._temp_dir) / Path(path).name  # noqa: SLF001 - there is no public way
    try:
        pq.write_table(rows, made, compression=_COMPRESSION, store_schema=False)
        source = java(spark, "org.apache.hadoop.fs.Path")(str(made))
        system.copyFromLocalFile(True, False, source, file)  # noqa: FBT003 - Java's signature
    finally:
        made.unlink(missing_ok=True)
    return system.getFileStatus(file)


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics of a file by which readers skip it: of the first columns, where they have an order."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(rows.schema)[:INDEXED_COLUMNS]:
        kind, column = field.type, rows.column(field.name)
        if pa.types.is_nested(kind):
            continue
        nulls[field.name] = column.null_count
        try:
            bounds = _bounds(kind, column) if column.null_count < len(column) else (None, None)
        except (OverflowError, ValueError):
            # Python has no such time or text; without a bound nothing is skipped
            bounds = None, None
        for side, bound in zip((least, most), bounds, strict=True):
            if bound is not None:
                side[field.name] = bound
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(kind: pa.DataType, column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return a lower and an upper bound of a column as the log writes them; ``None``: no bound."""
    if pa.types.is_timestamp(kind):
        # the log has milliseconds
        least = pc.min_max(pc.floor_temporal(column, unit="millisecond"))["min"]
        most = pc.min_max(pc.ceil_temporal(column, unit="millisecond"))["max"]
        return _instant(least.as_py()), _instant(most.as_py())
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        return None, None
    least, most = (value.as_py() for value in pc.min_max(column).values())
    if pa.types.is_string(kind):
        bound = most if len(most) <= TEXT_CHARACTERS else most[:TEXT_CHARACTERS] + LAST_CHARACTER
        return least[:TEXT_CHARACTERS], bound if bound >= most else None
    return least, most


def _instant(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
