"""An archive of the classes that every Spark driver loads: with it, its JVM starts in half the processor time.

Java calls this application class-data sharing. ``submit.archive_classes`` writes the archive once per Java and PySpark,
by running this module as a short Spark program that does what the jobs do. A JVM ignores an archive that does not fit,
so a missing, stale or damaged one costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

from ackstream.errors import LocalError
from ackstream.local import installation, java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

# an archive that does not fit is no news for the user
_QUIET = "-Xshare:auto -Xlog:cds*=off -Xlog:class+path=off"
_STREAM_SECONDS = 120


def java_options() -> str:
    """Return the options that let a Spark driver use the archive; an empty text where there is none."""
    try:
        found = archive()
    except LocalError:
        return ""
    return f"-XX:SharedArchiveFile={found} {_QUIET}" if found.is_file() else ""


def writing(path: Path) -> str:
    """Return the options that let a JVM write the archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={path} {_QUIET}"


def archive() -> Path:
    """Name the archive of this very Java and these very jars.

    :raises LocalError: no Java, or no PySpark
    """
    program = java.find().program.resolve()
    parts = [str(program)]
    # a JVM compares the paths, sizes and times of all jars of its class path
    for file in (program.parent.parent / "lib" / "modules", *sorted(installation.spark_home().glob("jars/*.jar"))):
        if file.is_file():
            status = file.stat()
            parts.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return installation.cache() / "class-data" / f"spark-{digest}.jsa"


def _exercise(directory: str) -> None:
    """Run what the jobs run: a table, and a stream with state in Python that writes a batch per trigger."""
    import pandas as pd  # noqa: PLC0415 - this function is a program of its own
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.streaming.state import GroupStateTimeout  # noqa: PLC0415

    spark = SparkSession.builder.getOrCreate()
    table = f"{directory}/table"
    schema = "id INT, text STRING"

    def count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        seen = (state.get[0] if state.exists else 0) + sum(len(found) for found in frames)
        state.update((seen,))
        yield pd.DataFrame({"id": [key[0]], "text": [str(seen)]})

    def write(batch: Any, number: int) -> None:
        batch.write.format("delta").option("txnAppId", "t").option("txnVersion", number).mode("append").save(table)

    spark.createDataFrame([(1, "a"), (2, "b")], schema).write.format("delta").save(table)
    groups = spark.readStream.format("delta").load(table).groupBy("id")
    counted = groups.applyInPandasWithState(count, schema, "n INT", "append", GroupStateTimeout.NoTimeout)
    query = counted.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination(_STREAM_SECONDS)
    spark.read.format("delta").load(table).groupBy("text").count().orderBy("text").collect()
    spark.stop()


if __name__ == "__main__":
    _exercise(sys.argv[1])
