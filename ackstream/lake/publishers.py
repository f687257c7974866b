"""The table ``publishers`` grows by a row a client and batch, of which few are ever read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.window import Window

from ackstream.lake import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Lake

TABLE = "publishers"


def prune(spark: SparkSession, lake: Lake) -> None:
    """Remove the rows that persist never starts from again; beside the running job, too.

    The newest batch may run again: it starts from the newest row of each client before it. The first and the last row
    of each query tell where its batches begin and end, and acks that wait for destinations are still to be sent.
    """
    rows = tables.read(spark, lake, TABLE)
    newest, told = rows.agg(F.max("batch"), F.max("told")).collect()[0]
    if newest is None:
        return
    by_client, by_query = (Window.partitionBy(column) for column in ("client", "query_id"))
    old = (
        rows.where(F.col("batch") < newest)
        .withColumn("later", F.max("batch").over(by_client))
        .withColumn("begin", F.min("batch").over(by_query))
        .withColumn("end", F.max("batch").over(by_query))
        .where((F.col("batch") < F.col("later")) & (F.col("batch") > F.col("begin")) & (F.col("batch") < F.col("end")))
        .where(F.col("acks").isNull() | (F.col("batch") <= F.lit(told)))
        .select("client", "batch")
    )
    table = DeltaTable.forPath(spark, tables.location(lake, TABLE)).alias("row")
    same = "row.client = old.client AND row.batch = old.batch"
    tables.retried(lambda: table.merge(old.alias("old"), same).whenMatchedDelete().execute())
