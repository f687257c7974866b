from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake

from ackstream.lake import maintenance, tables
from ackstream.lake.schemas import PUBLISHERS
from ackstream.publishing.account import Ledger
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
    tables.create(spark, lake, ["publishers", "messages"])
    assert maintenance.maintain(spark, settings, ["publishers"])[0].files_after == 0
    _put(spark, lake, OLD, 0, None, a=None)
    _put(spark, lake, OLD, 1, None, a=None, b=None)
    _put(spark, lake, OLD, 2, None, a=None)
    _put(spark, lake, NEW, 3, 2, b=None)
    _put(spark, lake, NEW, 4, 3, a="[]", b="[]")
    _put(spark, lake, NEW, 5, 4, a="[]", b=None)
    _put(spark, lake, NEW, 6, 4, a=None)
    _put(spark, lake, NEW, 7, 4, a=None, c=None)
    before = [load(spark, settings, NEW, batch) for batch in (4, 5)]
    maintenance.maintain(spark, settings, ["publishers"])
    # batch 4 is told, 5 is not; 7 may run again and starts from 5 and 6; the others are where the queries begin and end
    assert _rows(lake) == [
        (0, "a"), (2, "a"), (3, "b"), (5, "a"), (5, "b"), (6, "a"), (7, "a"), (7, "c"),
    ]  # fmt: skip
    assert [load(spark, settings, NEW, batch) for batch in (4, 5)] == before
    assert before[0] == (3, {"a": Ledger(watermark=6), "b": Ledger(watermark=5)})


def test_the_batches_of_a_new_query_begin_behind_all_that_are_in_the_tables(spark: SparkSession, lake: Lake) -> None:
    settings = Settings(lake=lake)
    tables.create(spark, lake, ["publishers", "messages"])
    assert load(spark, settings, NEW, 0) == (0, {})
    _put(spark, lake, OLD, 0, None, a=None)
    _put_message(spark, lake, OLD, 1)
    assert load(spark, settings, NEW, 0) == (2, {"a": Ledger(watermark=0)})
    # and stay where they were
    _put_message(spark, lake, NEW, 2)
    assert load(spark, settings, NEW, 0)[0] == 2
    _put(spark, lake, NEW, 3, None, a=None)
    assert load(spark, settings, NEW, 2)[0] == 2


def _put_message(spark: SparkSession, lake: Lake, query: str, batch: int) -> None:
    rows = spark.range(1).selectExpr(
        "timestamp'2026-11-21 12:00:00' AS received_at", f"{batch}L AS batch", f"'{query}' AS query_id",
        "'t' AS topic", "0 AS partition", "id AS offset", "date'2026-11-21' AS day",
    )  # fmt: skip
    tables.append(rows, lake, "messages", query, batch)
