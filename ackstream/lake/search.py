"""The search index: every value within every thing, one row each, for SQL and for searches.

Paths are written as RQL names them (``attributes/location/city``, ``features/lamp/properties/on``). The values of an
array, and what the objects in one have, share a path, as RQL looks at them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake import tables
from ackstream.lake.schemas import THINGS, THINGS_SEARCH
from ackstream.lake.things import latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake

KEY = ("thing_id", "path", "element")
COLUMNS = THINGS_SEARCH.fieldNames()
_ARROW = pa.schema(
    [
        ("thing_id", pa.string()), ("path", pa.string()), ("element", pa.int32()), ("text", pa.string()),
        ("number", pa.float64()), ("flag", pa.bool_()), ("value", pa.string()),
    ]
)  # fmt: skip

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def flatten(thing: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give each value of a thing with its path; an empty object or array is a value."""
    rest: list[tuple[str, Any]] = [(_escaped(name), value) for name, value in reversed(thing.items())]
    while rest:
        path, value = rest.pop()
        if isinstance(value, dict) and value:
            rest.extend((f"{path}/{_escaped(name)}", entry) for name, entry in reversed(value.items()))
        elif isinstance(value, list) and value:
            rest.extend((path, entry) for entry in reversed(value))
        else:
            yield path, value


def rows(thing_id: str, thing: str) -> Iterator[tuple[Any, ...]]:
    """Give the rows of a thing (JSON), in the columns of the table."""
    seen: dict[str, int] = {}
    for path, value in flatten(_decode(thing)):
        element = seen[path] = seen.get(path, -1) + 1
        text = value if isinstance(value, str) else None
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        flag = value if isinstance(value, bool) else None
        yield thing_id, path, element, text, number, flag, _encode(value).decode()


def merge(spark: SparkSession, lake: Lake, events: DataFrame) -> None:
    """Bring the index up to rows of the journal; rows it has already change nothing."""
    changed = latest(events.where("last").select(*THINGS.fieldNames())).select("thing_id", "thing")
    new = changed.where("thing IS NOT NULL").mapInArrow(_index, THINGS_SEARCH)
    index = tables.read(spark, lake, "things_search")
    known = index.join(changed.select("thing_id"), "thing_id", "left_semi").select(*KEY, F.col("value").alias("known"))
    different = new.join(known, list(KEY), "full_outer").where("NOT (value <=> known)").localCheckpoint()
    same_value = " AND ".join(f"known.{name} = new.{name}" for name in KEY)
    columns = {name: f"new.{name}" for name in COLUMNS}

    def attempt() -> None:
        target = DeltaTable.forPath(spark, tables.location(lake, "things_search")).alias("known")
        (
            target.merge(different.alias("new"), same_value)
            .whenMatchedDelete("new.value IS NULL")
            .whenMatchedUpdate(set=columns)
            .whenNotMatchedInsert("new.value IS NOT NULL", values=columns)
            .execute()
        )

    if not different.isEmpty():
        tables.retried(attempt)


def _index(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        things = zip(batch.column("thing_id").to_pylist(), batch.column("thing").to_pylist(), strict=True)
        found = [row for thing_id, thing in things for row in rows(thing_id, thing)]
        columns = zip(*found, strict=True) if found else [[] for _ in COLUMNS]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
        )


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
