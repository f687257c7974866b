"""Every table is read by Spark, DuckDB, Polars and delta-rs: the same rows, times in UTC, JSON texts as they were."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from delta.tables import DeltaTable

from ackstream.lake import reading, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.settings import Lake
from tests.lake import empty, planes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON = '{ "n":1.50,\n "e":1e3, "big":12345678901234567890, "text":"\\u00fc ü" }'
"""A text that a program which parses it and writes it anew would change."""
MOMENT = datetime(2026, 11, 18, 23, 59, 59, 123456, timezone.utc)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return tables as jobs create them, with rows in each, and a deletion vector in ``things``."""
    plain, made = (Lake(path=str(tmp_path_factory.mktemp(name))) for name in ("plain", "made"))
    planes.fill(plain)
    planes.write(plain, "signals", [{"correlation_id": "c-7", "id": "r-7", "value": JSON, "received_at": MOMENT}])
    planes.write(plain, "things", [{"thing_id": "org:gone", "thing": JSON}])
    empty.create(spark, made, ALL_TABLES)
    for name in ALL_TABLES:
        tables.read(spark, plain, name).coalesce(1).write.format("delta").mode("append").save(made.table(name))
    DeltaTable.forPath(spark, made.table("things")).delete("thing_id = 'org:gone'")
    return made


def by_spark(spark: SparkSession, lake: Lake, name: str) -> pa.Table:
    return tables.read(spark, lake, name).toArrow()


def by_duckdb(_spark: SparkSession, lake: Lake, name: str) -> pa.Table:
    with reading.database(lake, [name]) as connection:
        return connection.sql(f"SELECT * FROM {name}").to_arrow_table()


def by_polars(_spark: SparkSession, lake: Lake, name: str) -> pa.Table:
    if ALL_TABLES[name].derived:
        return pl.DataFrame(deltalake.DeltaTable(lake.table(name)).scan()).to_arrow()
    return pl.read_delta(lake.table(name)).to_arrow()


def by_delta_rs(_spark: SparkSession, lake: Lake, name: str) -> pa.Table:
    return pa.table(deltalake.DeltaTable(lake.table(name)).scan())


ENGINES = {"spark": by_spark, "duckdb": by_duckdb, "polars": by_polars, "delta-rs": by_delta_rs}


def rows(found: pa.Table) -> list[str]:
    # arrays and maps have no order to sort by
    return sorted(map(repr, found.to_pylist()))


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "spark"])
@pytest.mark.parametrize("name", ALL_TABLES)
def test_every_engine_reads_the_rows_that_spark_reads(spark: SparkSession, lake: Lake, engine: str, name: str) -> None:
    found, expected = ENGINES[engine](spark, lake, name), by_spark(spark, lake, name)
    assert found.column_names == expected.column_names
    assert rows(found) == rows(expected.cast(found.schema))
    assert found.num_rows > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_times_have_the_zone_utc_and_texts_are_as_they_were_sent(spark: SparkSession, lake: Lake, engine: str) -> None:
    for name, table in ALL_TABLES.items():
        found = ENGINES[engine](spark, lake, name)
        for column in table.columns:
            if column.kind == "timestamp":
                assert found.schema.field(column.name).type.tz in ("UTC", "Etc/UTC"), f"{name}.{column.name}"
    signals: list[dict[str, Any]] = ENGINES[engine](spark, lake, "signals").to_pylist()
    (row,) = [row for row in signals if row["id"] == "r-7"]
    assert (row["value"], row["received_at"]) == (JSON, MOMENT)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deleted_row_is_read_by_no_engine(spark: SparkSession, lake: Lake, engine: str) -> None:
    ids = ENGINES[engine](spark, lake, "things").column("thing_id").to_pylist()
    assert sorted(ids) == ["org:door", "org:lamp"]
