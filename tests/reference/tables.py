"""``docs/reference/tables.md``: the Delta tables and their columns."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from ackstream.lake.schemas import ALL_TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

_HEAD = """# Tables

The Delta tables, made by `python -m tests.reference` of `lake/schemas.toml`. Each is a directory below `lake.path`
(`ACKSTREAM_LAKE_PATH`). `ackstream sql` has them, and predefined questions, as views; `ackstream register` adds both to
[a catalog](../guides/ten-questions.md#in-a-catalog). Spark, DuckDB, Trino, delta-rs and Polars read them; in delta-rs
and Polars `things` and `things_search` need `DeltaTable.scan()`.

Python: `DeltaTable("LAKE/outcomes").to_pandas()` (pip install deltalake pandas). DuckDB:
`INSTALL delta; LOAD delta; SELECT … FROM delta_scan('LAKE/outcomes')`.

- Columns in *italics* may be null. JSON is stored as text. Times are UTC.
- DuckDB needs quotes for `"offset"` and `"at"`.
- Tables with the column `day` are partitioned by it: name days in a query.
- After an upgrade a job adds new columns to its tables ([upgrade](../operate/upgrade.md)).

Three queries for Spark, DuckDB and Trino:

```sql
-- outcomes: one row per request. Which replies are incomplete, and why?
SELECT completed_by, status, count(*) AS requests FROM outcomes
GROUP BY completed_by, status ORDER BY requests DESC, completed_by;

-- acknowledgements: one row per acknowledgement, used or not. Which labels are slow?
SELECT label, min(latency_ms) AS p95_ms
FROM (SELECT label, latency_ms, cume_dist() OVER (PARTITION BY label ORDER BY latency_ms) AS share
      FROM acknowledgements WHERE disposition = 'accepted' AND label IS NOT NULL) AS used
WHERE share >= 0.95 GROUP BY label ORDER BY p95_ms DESC;

-- signals: one row per command as it was sent. Which are in flight?
SELECT s.correlation_id, s.thing_id, s.received_at FROM signals s
WHERE s.response_required AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.id = s.id);
```

| table | one row per | written by |
| --- | --- | --- |
"""
_SHARED = 3
"""A column that so many tables have, with one meaning, is described once."""


def page() -> str:
    """Return the page."""
    tables = ALL_TABLES.values()
    rows = [f"| [{table.name}](#{table.name}) | {_about(table)} | {table.writer} |\n" for table in tables]
    counts = Counter(map(_line, chain.from_iterable(table.schema for table in tables)))
    shared = {line for line, count in counts.items() if count >= _SHARED}
    several = ["\n## Columns of several tables\n\n", *(line for line in counts if line in shared)]
    return "".join([_HEAD, *rows, *several, *(_table(table, shared) for table in tables)])


def _about(table: Table) -> str:
    about = table.comment.removeprefix("One row per ").removesuffix(".")
    return about + ("; its rows change" if table.derived else "")


def _table(table: Table, shared: set[str]) -> str:
    own, also = [], []
    for column in table.schema:
        name = f"*`{column.name}`*" if column.nullable else f"`{column.name}`"
        if (line := _line(column)) in shared:
            also.append(name)
        else:
            own.append(line.replace(f"`{column.name}`", name, 1))
    return f"\n## {table.name}\n\n{''.join(own)}" + (f"\nAlso {', '.join(also)}.\n" if also else "")


def _line(column: StructField) -> str:
    kind = column.dataType.simpleString().replace("<", "\\<")
    return f"- `{column.name}` {kind}: {column.metadata['comment']}\n"
