"""``docs/reference/tables.md``: the Delta tables and their columns."""

from __future__ import annotations

from ackstream.lake.schemas import ALL_TABLES, PARTITION, Table

_HEAD = """# Tables

The Delta tables and their columns, made by `python -m tests.reference` of `lake/schemas.toml`. Each is a directory of
its name below `lake.path` of the settings, with its comments in its own metadata. `ackstream sql` has them as views;
`ackstream outcomes` answers predefined questions. Spark, DuckDB and Trino read them all; delta-rs, too, but
`things` and `things_search` only by `DeltaTable.scan()`, as they have deletion vectors.

From Python: `DeltaTable("LAKE/outcomes").to_pandas()` (pip install deltalake pandas). In DuckDB by itself:
`INSTALL delta; LOAD delta; SELECT … FROM delta_scan('LAKE/outcomes')`. `ackstream sql` looks at `lake.path`, or at what
`ACKSTREAM_LAKE_PATH` says.

- Columns that may be null are in *italics*. JSON in a row is text that holds JSON. Times are UTC, and those of records
  the broker's.
- In the SQL of DuckDB, `offset` and `at` are words of the language: write `"offset"` and `"at"`.
- A table with the column `day` is partitioned by it: a query about some days should name them.
- A job that starts after an upgrade adds the columns that are new to its tables ([upgrade](../operate/upgrade.md)).

Start with these three queries, which Spark, DuckDB and Trino understand:

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

| table | rows | written by |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page."""
    rows = [f"| [{table.name}](#{table.name}) | {table.comment} | {table.writer} |\n" for table in ALL_TABLES.values()]
    return "".join([_HEAD, *rows, *map(_table, ALL_TABLES.values())])


def _table(table: Table) -> str:
    notes = [f"{table.comment} Written by {table.writer}."]
    notes += ["Its rows change: it is merged from another table."] if table.derived else []
    notes += ["Partitioned by `day`."] if PARTITION in table.names else []
    lines = [f"\n## {table.name}\n", " ".join(notes), "", "| column | type | meaning |", "| --- | --- | --- |"]
    for column in table.schema:
        name = f"*`{column.name}`*" if column.nullable else f"`{column.name}`"
        lines.append(f"| {name} | {column.dataType.simpleString()} | {column.metadata.get('comment', '')} |")
    return "\n".join(lines) + "\n"
