"""The archive of the classes that every Spark driver loads, by which its JVM starts in half the processor time.

Java calls it application class-data sharing. It is written once per Java and PySpark, by running this module as a short
Spark program that does what the jobs do. A JVM ignores an archive that does not fit, so a missing, stale or damaged one
costs time and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.local import installation, jars
from ackstream.local.submit import JAVA_OPTIONS, QUIET, archive, own_entries, submit_environment
from ackstream.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHIVE_SECONDS = 300
"""How long the program that writes the archive may take on the slowest machine."""
_STREAM_SECONDS = 120


def archive_classes() -> bool:
    """Write the archive unless it exists: 40 seconds, and 200 MB of the user's cache.

    :returns: whether there is an archive now; a Java without class-data sharing has none
    :raises LocalError: no Java, or a jar cannot be fetched
    """
    found = archive()
    if found.is_file():
        return True
    found.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=found.parent) as directory:
        part, fetched = Path(directory) / found.name, jars.resolve("spark")
        conf = {
            **own_entries(Settings(), fetched),
            JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={part} {QUIET}",
            "spark.local.dir": directory,
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        }
        command = [
            str(installation.spark_home() / "bin" / "spark-submit"),
            *("--master", "local[2]", "--driver-memory", "1g"),
            *("--properties-file", str(installation.conf("spark-defaults.conf"))),
            *("--jars", ",".join(map(str, fetched))),
            *(text for key, value in conf.items() for text in ("--conf", f"{key}={value}")),
            __file__,
            directory,
        ]
        try:
            subprocess.run(  # noqa: S603 - PySpark's own program, no shell
                command, env=submit_environment(), capture_output=True, timeout=ARCHIVE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if part.is_file():
            # another process may have been as quick: both archives are good
            part.replace(found)
    return found.is_file()


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
