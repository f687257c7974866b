"""The states of the query job in their table: those that a batch may start from stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from ackstream.jobs.query.state import prune
from ackstream.lake import tables
from ackstream.settings import Lake

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_states_that_no_batch_starts_from_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    tables.create(spark, lake, ["subscriptions"])
    for query, numbers in (("q1", (0, 3, 4)), ("q2", (5, 6, 9, 12))):
        for batch in numbers:
            row = {"batch": batch, "position": batch, "query_id": query, "state": "{}"}
            tables.append_rows(spark, pa.Table.from_pylist([row]), lake, "subscriptions", query, batch)

    def kept() -> list[int]:
        return sorted(row.batch for row in tables.read(spark, lake, "subscriptions").select("batch").collect())

    prune(spark, lake)
    # the newest two, and the end of the other query
    assert kept() == [4, 9, 12]
    prune(spark, lake)
    assert kept() == [4, 9, 12]
