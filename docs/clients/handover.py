"""Hands a table over between Spark jobs: one writes it, and ends when the others have loaded it, or names who has not.

``handover.py SETTINGS write TOPIC TABLE NAME TIMEOUT LABEL…`` writes, asks, and waits for the outcome.
``handover.py SETTINGS load TOPIC LABEL COPY CHECKPOINT`` loads each table that waits, then acknowledges it, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ackstream.dataframe import acknowledge, register
from ackstream.settings import load as load_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def write(spark: SparkSession, settings: str, topic: str, table: str, name: str, timeout: str, *labels: str) -> Row:
    """Write a table under a path, ask the parties whether they have loaded it, and return the outcome."""
    register(spark)
    spark.range(1_000).selectExpr("id AS sale", "id * 3 AS cents").write.mode("overwrite").parquet(table)
    request = spark.createDataFrame([(name, table)], "correlation_id string, value string")
    asking = request.write.format("ackstream").mode("append").option("settings", settings)
    asking.options(topic=topic, labels=",".join(labels), timeout=timeout).save()
    outcomes = spark.readStream.format("ackstream.outcomes").options(settings=settings, correlation_id=name).load()
    found: list[Row] = []
    query = outcomes.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect())).start()
    # it raises the error of a query that fails
    while not found and not query.awaitTermination(1):
        pass
    query.stop()
    return found[0]


def load(spark: SparkSession, settings: str, topic: str, label: str, copy: str, checkpoint: str) -> None:
    """Load the tables of all requests since the last run, and acknowledge each batch once its tables are loaded."""
    kafka = load_settings(Path(settings)).kafka
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    requests = source.options(subscribe=topic, startingOffsets="earliest", includeHeaders="true").load()

    def take(batch: DataFrame, batch_id: int) -> None:
        for row in batch.selectExpr("CAST(value AS STRING) AS path").collect():
            # overwrites: a batch that runs again loads nothing twice
            spark.read.parquet(row.path).write.mode("overwrite").parquet(f"{copy}/{batch_id}/{Path(row.path).name}")
        acknowledge(label, kafka=kafka).after(batch)

    query = requests.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    its_settings, action, *rest = sys.argv[1:]
    session = SparkSession.builder.appName(f"handover-{action}").getOrCreate()
    if action == "load":
        load(session, its_settings, *rest)
    else:
        outcome = write(session, its_settings, *rest)
        print(outcome.status, outcome.completed_by, *outcome.missing)  # noqa: T201
        sys.exit(0 if outcome.status == 200 else 1)  # noqa: PLR2004
