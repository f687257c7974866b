"""Rows of the twin's journal, for the tests of its tables."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from ackstream.lake.schemas import ALL_TABLES

TIME = pa.timestamp("ms", tz="UTC")
TYPES = {"string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "boolean": pa.bool_(), "timestamp": TIME}
COLUMNS = [column for column in ALL_TABLES["thing_events"].columns if column.name not in ("query_id", "batch", "day")]
FIELDS = [(column.name, TYPES[column.kind]) for column in COLUMNS]


def change(thing_id: str, revision: int, thing: Any = None, **more: Any) -> dict[str, Any]:
    """Return a row; with a thing (JSON) or ``deleted`` it is the last of its batch."""
    row = {
        "thing_id": thing_id,
        "revision": revision,
        "created_at": 1_700_000_000_000,
        "modified_at": 1_700_000_000_000 + revision,
        "action": "modified",
        "path": "/",
        "value": None,
        "thing": None if thing is None else json.dumps({"thingId": thing_id} | thing),
        "last": thing is not None or more.get("deleted", False),
        "deleted": False,
        "visible": True,
        "search_persisted": False,
        "correlation_id": f"c-{thing_id}-{revision}",
        "topic": "signals",
        "partition": 0,
        "offset": revision,
    }
    return row | more


def table(*rows: dict[str, Any]) -> pa.Table:
    """Return rows as the journal takes them."""
    return pa.Table.from_pylist(list(rows), pa.schema(FIELDS))
