"""The index: bytes that its merges write into things and things_search, by the bytes that changed."""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.jobs.twin.job import index_conf
from ackstream.lake import tables, things
from ackstream.settings import Lake
from benchmarks import common
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from benchmarks.common import Bench

CHANGED = 20
TABLES = ("things", "things_search")
METHOD = (
    f"All things (8 values each) are merged once, then batches that each change {CHANGED} of them, chosen at random. "
    "'written' counts the data files that these batches and the compactions among them add to a table; 'changed' is "
    "the number of changed things times the bytes that the first merge took for each."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Measure the merges of many things and few changes."""
    number, merges = (500, 3) if bench.small else (100_000, 60)
    lake = Lake(path=str(bench.directory / "lake"))
    spark = bench.spark.newSession()
    for key, value in index_conf(bench.base).items():
        spark.conf.set(key, value)
    tables.create(spark, lake, TABLES)
    chosen, revisions = random.Random(1), count(1)
    _merge(spark, lake, range(number), chosen, next(revisions))
    loaded = {name: _written(lake, name) for name in TABLES}
    for _ in range(merges):
        _merge(spark, lake, chosen.sample(range(number), CHANGED), chosen, next(revisions))
    found = {}
    for name in TABLES:
        written, changed = _written(lake, name) - loaded[name], loaded[name] * CHANGED * merges / number
        found[name] = {"loaded": loaded[name], "written": written, "changed": changed, "ratio": written / changed}
    bench.table(
        f"{merges} merges of {CHANGED} changes into {number:,} things",
        ("table", "whole MB", "changed kB", "written kB", "ratio"),
        [
            (name, row["loaded"] / 2**20, row["changed"] / 1024, row["written"] / 1024, row["ratio"])
            for name, row in found.items()
        ],
    )
    return {"method": METHOD, "things": number, "merges": merges, "changed_a_merge": CHANGED, "tables": found}


def _merge(spark: SparkSession, lake: Lake, numbers: Iterable[int], chosen: random.Random, revision: int) -> None:
    """Merge one batch of the journal, as the index query does."""
    rows = [change(f"org.acme:thing-{number}", revision, _thing(chosen)) for number in numbers]
    batch = spark.createDataFrame(table(*rows)).selectExpr("*", f"{revision}L AS batch").persist()
    things.merge(spark, lake, batch)
    things.merge_values(spark, lake, batch)
    batch.unpersist()


def _thing(chosen: random.Random) -> dict[str, Any]:
    features = {f"sensor-{n}": {"properties": {"value": chosen.random()}} for n in range(7)}
    return {"attributes": {"location": f"{chosen.getrandbits(32):08x}"}, "features": features}


def _written(lake: Lake, name: str) -> int:
    """Return the bytes of all data files that a table's commits added; a file is added again with its deletions."""
    sizes: dict[str, int] = {}
    for commit in Path(lake.table(name), "_delta_log").glob("*.json"):
        for line in commit.read_text("utf-8").splitlines():
            if (added := json.loads(line).get("add")) is not None:
                sizes[added["path"]] = added["size"]
    return sum(sizes.values())


if __name__ == "__main__":
    common.main("index", measure, kafka=False)
