from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake

from ackstream.lake import maintenance, tables
from ackstream.lake.schemas import PUBLISHERS
from ackstream.publishing.ledger import Ledger
from ackstream.publishing.query import load
from ackstream.settings import Lake, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD, NEW = "old query", "new query"


def _put(spark: SparkSession, lake: Lake, query: str, batch: int, told: int | None, **acks: str | None) -> None:
    rows = [
        (client, batch, batch, told, query, f'{{"watermark":{batch}}}', waiting) for client, waiting in acks.items()
    ]
    tables.append(spark.createDataFrame(rows, PUBLISHERS), lake, "publishers", query, batch)


def _rows(lake: Lake) -> list[tuple[int, str]]:
    found = deltalake.DeltaTable(lake.table("publishers")).to_pyarrow_table(columns=["batch", "client"]).to_pylist()
    return sorted((row["batch"], row["client"]) for row in found)


def test_what_persist_starts_from_and_what_waits_is_kept(spark: SparkSession, lake: Lake) -> None:
    settings = Settings(lake=lake)
    tables.create(spark, lake, ["publishers"])
    assert maintenance.maintain(spark, settings, ["publishers"])[0].files_after == 0
    _put(spark, lake, OLD, 0, None, a=None, b=None)
    _put(spark, lake, OLD, 1, None, a=None)
    _put(spark, lake, NEW, 2, 1, a="[]", b="[]")
    _put(spark, lake, NEW, 3, 2, a="[]", b=None)
    _put(spark, lake, NEW, 4, 2, a=None)
    _put(spark, lake, NEW, 5, 2, a=None, c=None)
    before = [load(spark, settings, NEW, batch) for batch in (3, 4)]
    maintenance.maintain(spark, settings, ["publishers"])
    # batch 2 is told, 3 is not; 1 is where the old query ended, 5 may run again and starts from 3 and 4
    assert _rows(lake) == [(1, "a"), (3, "a"), (3, "b"), (4, "a"), (5, "a"), (5, "c")]
    assert [load(spark, settings, NEW, batch) for batch in (3, 4)] == before
    assert before[0] == (2, {"a": Ledger(watermark=4), "b": Ledger(watermark=3)})
