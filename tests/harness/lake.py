"""Rows and commits of tables, read by delta-rs: no Spark, and so what any other program sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

if TYPE_CHECKING:
    from ackstream.settings import Lake


def rows(lake: Lake, table: str, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of a table, all columns unless some are named; none where there is no table yet."""
    path, options = lake.table(table), lake.storage_options
    if not DeltaTable.is_deltatable(path, options):
        return []
    # a pyarrow dataset cannot read deletion vectors
    return pa.table(DeltaTable(path, storage_options=options).scan(columns=list(columns) or None)).to_pylist()


def count(lake: Lake, table: str) -> int:
    """Return how many rows a table has by the statistics of its files."""
    path, options = lake.table(table), lake.storage_options
    return DeltaTable(path, storage_options=options).count() if DeltaTable.is_deltatable(path, options) else 0


def commit_times(lake: Lake, table: str) -> dict[int, int]:
    """Return when each batch was committed, in nanoseconds: when its log entry got its name."""
    found = {}
    for path in Path(lake.table(table), "_delta_log").glob("*.json"):
        for line in path.read_text("utf-8").splitlines():
            if "txn" in (action := json.loads(line)):
                found[action["txn"]["version"]] = path.stat().st_ctime_ns
    return found
