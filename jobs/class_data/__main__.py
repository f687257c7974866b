"""A program that does the work of the jobs, so that Java archives their classes: ``ackstream jars --archive`` runs it.

It writes a table, and runs a stream with state in Python that writes a batch per trigger.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

STREAM_SECONDS = 120


def main(directory: str) -> None:
    """Use a directory for the table and the checkpoint."""
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
    query.trigger(availableNow=True).start().awaitTermination(STREAM_SECONDS)
    spark.read.format("delta").load(table).groupBy("text").count().orderBy("text").collect()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
