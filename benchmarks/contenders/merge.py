"""The other design of the twin: the changed things are merged into ``things`` before anything is acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.twin.job import _ROWS, TwinFold
from ackstream.lake import things
from ackstream.spark.batches import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from ackstream.jobs.twin.records import JournalRow


class MergingTwin(TwinFold):
    """Everything as the product does it, but for the commit."""

    def _append(self, spark: SparkSession, rows: Sequence[JournalRow], _query: str, batch: int, _part: int) -> None:
        last = arrow([msgspec.structs.astuple(row) for row in rows if row.last], _ROWS)
        events = spark.createDataFrame(last).withColumn("batch", F.lit(batch).cast("long"))
        things.merge(spark, self._settings.lake, events)
