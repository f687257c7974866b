"""The pages ``docs/reference/tables*.md``: the Delta tables and their columns."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ackstream.lake.schemas import ALL_TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

_HEAD = """# Tables

This page is for analysts and for developers of Spark jobs. Other pages describe the columns of the tables of
[requests](tables-requests.md) and of [messages](tables-messages.md).

Each table is a directory below `lake.path` (`ACKSTREAM_LAKE_PATH`). `ackstream sql` provides the tables and the
predefined questions as views; `ackstream register` adds both to [a catalog](../guides/ten-questions.md#in-a-catalog).

- Python: `DeltaTable("LAKE/outcomes").to_pandas()` (pip install deltalake pandas pyarrow).
- DuckDB: `INSTALL delta; LOAD delta; SELECT … FROM delta_scan('LAKE/outcomes')`. It requires quotes for `"offset"` and
  `"at"`. Without internet for the extension, use `ackstream sql`, or name a Python variable in the query:
  `outcomes = DeltaTable("LAKE/outcomes").to_pyarrow_table()`, `duckdb.sql("SELECT … FROM outcomes")`.
- Spark: [eight lines of Python](../guides/ten-questions.md#in-spark).
- Other engines: Trino requires quotes for `"auto"`. In delta-rs and Polars `things` and
  `things_search` require `DeltaTable.scan()`.

All tables:

- JSON is stored as text. Times are UTC.
- Tables with the column `day` are partitioned by it: a query that names days reads fewer files. A request and its
  outcome have the same day: join `signals` and `outcomes` by `day` and `id`.
- A table has the rows of the last commit of its job, usually seconds old. Readers see a fixed version: open the table
  again for newer rows.
- Rows stay until you [delete them](../operate/data.md#tables).
- `latency_ms` is the time between broker timestamps, from the request to its decision or acknowledgement. A requester
  also waits for its record to reach the broker and for the reply.
- `twin-persisted` is often `late`: a request that does not wait for it can be decided first. The view
  `late_acknowledgements` leaves it out.
- [Join acknowledgements to requests](../guides/ten-questions.md#join-acknowledgements-to-requests) by correlation-id
  and time.
- After an [upgrade](../operate/upgrade.md) a job adds new columns to its tables.

Three queries for Spark, DuckDB and Trino:

```sql
-- Which replies are incomplete, and why?
SELECT completed_by, status, count(*) AS requests FROM outcomes
GROUP BY completed_by, status ORDER BY requests DESC, completed_by;

-- Which labels are slow?
SELECT label, min(latency_ms) AS p95_ms
FROM (SELECT label, latency_ms, cume_dist() OVER (PARTITION BY label ORDER BY latency_ms) AS share
      FROM acknowledgements WHERE disposition = 'accepted' AND label IS NOT NULL) AS used
WHERE share >= 0.95 GROUP BY label ORDER BY p95_ms DESC;

-- Which requests are in flight?
SELECT s.correlation_id, s.thing_id, s.received_at FROM signals s
WHERE s.response_required AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.day = s.day AND o.id = s.id);
```

Tables by the job that writes them:

"""
_REQUESTS = """# Tables of requests

This page is for analysts. See also: [all tables and how to read them](tables.md), [messages](tables-messages.md).
Columns in *italics* may be null.
"""
_MESSAGES = """# Tables of messages

This page is for analysts. See also: [all tables and how to read them](tables.md), [requests](tables-requests.md).
Columns in *italics* may be null.
"""
_SHARED = 3
"""A column that this number of tables of a page have, with one meaning, is described once."""


def first_page() -> str:
    """Return the list of the tables."""
    jobs: dict[str, list[str]] = {}
    for table in ALL_TABLES.values():
        jobs.setdefault(table.writer, []).append(f"[{table.name}]({_home(table)}#{table.name})")
    return "".join([_HEAD, *(f"- {job}: {', '.join(links)}\n" for job, links in jobs.items())])


def _plane(name: str, head: str) -> str:
    tables = [table for table in ALL_TABLES.values() if _home(table) == name]
    counts = Counter(map(_line, chain.from_iterable(table.schema for table in tables)))
    shared = {line for line, count in counts.items() if count >= _SHARED}
    several = ["\n## Common columns\n\n", *(line for line in counts if line in shared)]
    return "".join([head, *several, *(_table(table, shared) for table in tables)])


_PAGES = {"tables-requests.md": _REQUESTS, "tables-messages.md": _MESSAGES}
PAGES = {"tables.md": first_page, **{name: partial(_plane, name, head) for name, head in _PAGES.items()}}


def _home(table: Table) -> str:
    return "tables-requests.md" if table.writer in ("archive", "twin") else "tables-messages.md"


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
    also = [f"Common columns: {', '.join(also)}.\n"] if also else []
    return "\n".join([f"\n## {table.name}\n\nOne row per {_about(table)}.\n", "".join(own), *also])


def _line(column: StructField) -> str:
    kind = column.dataType.simpleString().replace("<", "\\<")
    # the first page describes the column by which tables are partitioned
    about = column.metadata["comment"].removesuffix("; partition column")
    return f"- `{column.name}` {kind}: {about}\n"
