"""Data files of a table that the driver writes and reads itself, without a Spark job: rows in Arrow, Parquet files.

For a few hundred rows, planning and starting a job takes longer than the rest of an append. The files use Hadoop's file
systems, as Spark's own do: every store, and the same permissions.
"""

import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ackstream.lake.commits import java
from ackstream.lake.schemas import INDEXED_COLUMNS, PARTITION

_log = logging.getLogger(__name__)

TEXT_CHARACTERS = 32
"""The longest text in statistics, as in Delta's own."""
LAST_CHARACTER = "\U0010ffff"
_COMPRESSION = "snappy"
_ROWS_AT_ONCE = 64
"""Few rows, as each may take a megabyte in memory, although many share it in the file."""


def write(spark: SparkSession, log: Any, rows: pa.Table) -> list[dict[str, Any]]:
    """Write rows (at least one, in the table's schema) to new files; return the actions in its ``log`` for them."""
    actions = []
    for values, part in _partitions(rows):
        directory = "".join(f"{column}={value}/" for column, value in values.items())
        # unique, as Spark's names: files of failed attempts do not collide with it
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
    """Divide rows by day, if a table has that column, which is in the paths of its files and not in the files."""
    if PARTITION not in rows.column_names:
        yield {}, rows
        return
    days = rows.column(PARTITION)
    rows = rows.drop_columns([PARTITION])
    found = pc.unique(days).sort()
    for day in found:
        # nearly always there is one day, and no copy is needed
        part = rows if len(found) == 1 else rows.filter(pc.equal(days, day))
        yield {PARTITION: day.as_py().isoformat()}, part


def _store(spark: SparkSession, log: Any, path: str, rows: pa.Table) -> Any:
    """Write a file of the table; return its ``FileStatus``."""
    file = java(spark, "org.apache.hadoop.fs.Path")(log.dataPath(), path)
    system = file.getFileSystem(log.newDeltaHadoopConf())
    with _handed_over(spark) as (own, place):
        pq.write_table(rows, own, compression=_COMPRESSION, store_schema=False)
        system.copyFromLocalFile(True, False, place, file)  # noqa: FBT003 - Java's signature
    return system.getFileStatus(file)


@contextmanager
def _handed_over(spark: SparkSession) -> Iterator[tuple[Path, Any]]:
    """Yield the path of a temporary file, for Python and for the JVM."""
    # It is local, as PySpark's files of rows are: the connection to the JVM would encode the bytes as text.
    own = Path(spark.sparkContext._temp_dir) / f"{uuid.uuid4()}.parquet"  # noqa: SLF001 - there is no public way
    try:
        yield own, java(spark, "org.apache.hadoop.fs.Path")(str(own))
    finally:
        own.unlink(missing_ok=True)


def read(spark: SparkSession, log: Any, added: Mapping[str, Any], columns: pa.Schema, most: int) -> pa.Table | None:
    """Return the rows of a data file in the columns of a table; missing columns are null.

    :param log: the table's ``DeltaLog``
    :param added: the file in the form of the log
    :param most: maximum bytes of rows in memory
    :return: ``None`` if they take more, or cannot be read here: Spark can read more, and retries
    """
    if added["size"] > most:
        return None
    # it decodes the path, which may be absolute
    paths = java(spark, "org.apache.spark.sql.delta.util.DeltaFileOperations")
    file = paths.absolutePath(log.dataPath().toString(), added["path"])
    with _handed_over(spark) as (own, place):
        try:
            system = file.getFileSystem(log.newDeltaHadoopConf())
            system.copyToLocalFile(False, file, place, True)  # noqa: FBT003 - Java's signature
            with pq.ParquetFile(own, coerce_int96_timestamp_unit="us") as source:
                parts: list[pa.RecordBatch] = []
                for part in source.iter_batches(_ROWS_AT_ONCE):
                    most -= part.nbytes
                    if most < 0:
                        return None
                    parts.append(part)
                found = pa.Table.from_batches(parts, source.schema_arrow)
            return _in_columns(found, columns, added["partitionValues"])
        except (pa.ArrowException, OSError, Py4JJavaError) as error:
            _log.warning("The file %s is left to Spark: %s", file, str(error).partition("\n")[0])
            return None


def _in_columns(rows: pa.Table, columns: pa.Schema, partition: Mapping[str, str | None]) -> pa.Table:
    def column(field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name in rows.column_names:
            return rows.column(field.name).cast(field.type)
        # an empty text is null in Delta's protocol
        value = partition.get(field.name) or None
        if value is None:
            return pa.nulls(rows.num_rows, field.type)
        return pa.repeat(pa.scalar(value), rows.num_rows).cast(field.type)

    return pa.Table.from_arrays([column(field) for field in columns], schema=columns)


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics by which readers skip a file: of the first columns, if they have an order."""
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
            # Python has no such time or text; without a bound, no file is skipped
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
