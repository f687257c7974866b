"""The ten questions on large tables: seconds until DuckDB and Spark have answered them about one day, and about all.

The tables have the product's schemas, properties and partitions, and one file a day, as `ackstream maintain` leaves
them. Their rows follow from their numbers, so that two runs have the same.
"""

from __future__ import annotations

import random
import time
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from ackstream.lake import reading, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.settings import Lake
from benchmarks import common

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.common import Bench

ROWS, DAYS = 100_000_000, 30
FIRST_DAY = date(2026, 10, 1)
ROUNDS = {"DuckDB": 20, "Spark": 10}
"""Number of runs of each question about a day, which is chosen at random."""
QUESTIONS = [name for name, question in reading.VIEWS.items() if "day" in question.columns]
ROWS_OF_A_REQUEST = 4.4
"""Signal, outcome, 2.1 acknowledgements and, of one request in ten, a message with its events."""
METHOD = (
    f"Requests of {DAYS} days with two labels each, of which 3 % or more time out, and a message in ten requests, which"
    " a queue delivers and three readers acknowledge. Each question is asked about a day chosen at random, with the"
    f" tables opened anew, {ROUNDS['DuckDB']} times by DuckDB and {ROUNDS['Spark']} times by Spark; then once about all"
    " days. The first answer of each question does not count. The story is that of one request."
)

_DEFAULTS = {
    "string": "'x'",
    "timestamp": "moment",
    "integer": "0",
    "long": "0",
    "boolean": "false",
    "double": "0.0",
    "texts": "[]::VARCHAR[]",
}
_TYPES = {
    "string": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
    "integer": "INTEGER",
    "long": "BIGINT",
    "boolean": "BOOLEAN",
    "double": "DOUBLE",
    "binary": "BLOB",
    "texts": "VARCHAR[]",
    "date": "DATE",
    "headers": "STRUCT(name VARCHAR, value BLOB)[]",
}
_REQUESTS = """
CREATE OR REPLACE TEMP TABLE requests AS
SELECT i, 'order-' || substr(md5(i::VARCHAR), 1, 20) AS correlation_id,
       'org.acme:lamp-' || (i * 7919 % 50000) AS thing_id,
       $start::TIMESTAMPTZ + to_microseconds(((i - $low) * 86380000000.0 / ($high - $low))::BIGINT) AS moment,
       hash(i) % 100 AS fate, 5 + (hash(i + 1) % 40)::BIGINT + (hash(i + 2) % 100 = 0)::BIGINT * 800 AS fast,
       20 + (hash(i + 3) % 200)::BIGINT + (hash(i + 4) % 20 = 0)::BIGINT * 2500 AS slow,
       ['fleet:done', 'plant:seen', 'lab:checked', 'store:kept'][1 + i % 4] AS first,
       ['billing:booked', 'audit:filed', 'map:drawn'][1 + i % 3] AS second
FROM range($low, $high) AS numbers(i)
"""
# billing is slow for two hours of each day
_TIMED_OUT = """
CREATE OR REPLACE TEMP TABLE requests AS
SELECT *, fate < 3 OR (second = 'billing:booked' AND hour(moment) IN (13, 14) AND fate < 25) AS timed_out FROM requests
"""
_MESSAGES = """
CREATE OR REPLACE TEMP TABLE sent AS
SELECT i, 'orders-' || i % 20 AS client, i // 20 AS seq, hash(i) % 100 AS fate,
       $start::TIMESTAMPTZ + to_microseconds(((i - $low) * 86380000000.0 / ($high - $low))::BIGINT) AS moment
FROM range($low, $high) AS numbers(i)
"""
_ACKS = """(
SELECT *, 0 AS number, first AS label, 200 AS status, fast AS latency, 'accepted' AS disposition FROM requests
UNION ALL
SELECT *, 1, second, CASE WHEN fate = 3 THEN 503 ELSE 200 END, CASE WHEN timed_out THEN 12000 ELSE slow END,
       CASE WHEN timed_out THEN 'late' ELSE 'accepted' END
FROM requests WHERE fate <> 0
UNION ALL
SELECT *, 2, first, 200, fast + 9, 'duplicate' FROM requests WHERE fate > 90) AS acks"""
# the reader map stopped before the last day
_DELIVERED = """sent, (VALUES ('log'), ('map'), ('bill')) AS readers(reader) WHERE reader <> 'map' OR $day <> $last
GROUP BY client, reader, seq // 50"""
_EVENTS = """(
SELECT *, 1 AS step, 'delivered' AS event, 1 AS count, NULL AS outcome FROM sent
UNION ALL SELECT *, 2, 'returned', 1, NULL FROM sent WHERE fate < 6
UNION ALL SELECT *, 3, 'delivered', 2, NULL FROM sent WHERE fate < 6
UNION ALL SELECT *, 4, 'delivered', 3, NULL FROM sent WHERE fate < 1
UNION ALL SELECT *, 5, 'left', 1, 'settled' FROM sent) AS events"""
_DAY = {"day": "$day::DATE", "query_id": "'bench'"}
_REQUEST = {
    "correlation_id": "correlation_id",
    "topic": "'signals'",
    "offset": "i",
    "id": "md5(correlation_id)",
    **_DAY,
}
_ACK = {
    "correlation_id": "correlation_id",
    "received_at": "moment + to_milliseconds(latency)",
    "status": "status",
    "label": "label",
    "disposition": "disposition",
    "latency_ms": "CASE WHEN disposition <> 'late' THEN latency END",
    "payload": """'{"done":true,"by":"' || thing_id || '"}'""",
    "topic": "'acks'",
    "offset": "i",
    "id": "'acks-0-' || i || '-' || number",
    **_DAY,
}
_EVENT = {
    "message": "'messages-0-' || i",
    "at": "moment + to_milliseconds(step * 40)",
    "queue": "'work-' || i % 3",
    "event": "event",
    "consumer": "'worker-' || (i + step) % 7",
    "count": "count",
    "outcome": "outcome",
    "topic": "'messages'",
    "offset": "i",
    "received_at": "moment",
    **_DAY,
}
_COLUMNS: dict[str, tuple[dict[str, str], str]] = {
    "signals": (
        _REQUEST
        | {
            "received_at": "moment",
            "thing_id": "thing_id",
            "channel": "'twin'",
            "criterion": "'commands'",
            "action": "'modify'",
            "path": "'/attributes/power'",
            "requested_acks": "[first, second]",
            "response_required": "true",
            "timeout_ms": "10000",
            "headers": """'{"correlation-id":"' || correlation_id || '","requested-acks":["' || first || '"]}'""",
            "value": """'{"power":' || i % 100 || ',"by":"' || thing_id || '"}'""",
        },
        "requests",
    ),
    # the last three are open
    "outcomes": (
        _REQUEST
        | {
            "decided_at": "moment + to_milliseconds(CASE WHEN timed_out THEN 10000 ELSE slow END)",
            "thing_id": "thing_id",
            "status": "CASE WHEN timed_out THEN 408 WHEN fate = 3 THEN 424 ELSE 200 END",
            "completed_by": "CASE WHEN timed_out THEN 'timeout' ELSE 'acknowledgements' END",
            "requested": "[first, second]",
            "missing": "CASE WHEN timed_out THEN [second] ELSE [] END",
            "started_at": "moment",
            "latency_ms": "CASE WHEN timed_out THEN 10000 ELSE slow END",
            "reply_id": "md5(correlation_id)",
            "reply": """'{"status":' || CASE WHEN timed_out THEN 408 ELSE 200 END || '}'""",
            "reply_topic": "'replies'",
        },
        "requests WHERE i < (SELECT max(i) FROM requests) - 2 OR $day <> $last",
    ),
    "acknowledgements": (
        _ACK,
        _ACKS,
    ),
    "dead_letters": (
        _REQUEST
        | {
            "received_at": "moment",
            "reason": "['The record has no JSON.', 'The correlation-id is in use.', 'Unknown channel.'][1 + i % 3]",
            "id": "'signals-0-' || i",
            "value": "'{'::BLOB",
        },
        "requests WHERE hash(i + 5) % 2000 = 0",
    ),
    "messages": (
        {
            "client": "client",
            "received_at": "moment",
            "batch": "i // 1000",
            "seq": "seq",
            "subject": "'orders'",
            "value": "'{\"price\":12}'::BLOB",
            "topic": "'messages'",
            "offset": "i",
            **_DAY,
        },
        "sent",
    ),
    "deliveries": (
        {
            "writer": "client",
            "acknowledged_at": "max(moment) + to_milliseconds(300)",
            "reader": "reader",
            "first": "min(seq)",
            "last": "max(seq)",
            "role": "reader",
            "id": "client || reader || min(seq)",
            "offset": "min(i)",
            **_DAY,
        },
        _DELIVERED,
    ),
    "queue_events": (
        _EVENT,
        _EVENTS,
    ),
}


def fill(lake: Lake, number: int, days: int = DAYS) -> dict[str, int]:
    """Append the rows of a number of requests to existing tables, a day at a time; return the rows of each table."""
    counts = dict.fromkeys(_COLUMNS, 0)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for at in range(days):
            day = FIRST_DAY + timedelta(days=at)
            for source, count in (_REQUESTS, number), (_MESSAGES, number // 10):
                span = {"low": 1 + count * at // days, "high": 1 + count * (at + 1) // days}
                connection.execute(source, {"start": day.isoformat(), **span})
            connection.execute(_TIMED_OUT)
            for name, (columns, source) in _COLUMNS.items():
                values = {"day": day, "last": FIRST_DAY + timedelta(days=days - 1)}
                used = {key: value for key, value in values.items() if f"${key}" in f"{columns} {source}"}
                rows = connection.sql(_select(name, columns, source), params=used).to_arrow_table()
                counts[name] += rows.num_rows
                write_deltalake(lake.table(name), rows.cast(ALL_TABLES[name].arrow), mode="append")
    return counts


def _select(name: str, columns: Mapping[str, str], source: str) -> str:
    cells = []
    for column in ALL_TABLES[name].columns:
        value = columns.get(column.name, "NULL" if column.nullable else _DEFAULTS.get(column.kind, "NULL"))
        cells.append(f'CAST({value} AS {_TYPES[column.kind]}) AS "{column.name}"')
    return f"SELECT {', '.join(cells)} FROM {source}"


def measure(bench: Bench) -> dict[str, Any]:
    """Fill the tables, and run all questions."""
    rows = 40_000 if bench.small else bench.requests
    lake = Lake(path=str(bench.directory / "lake"))
    tables.create(bench.spark, lake, ALL_TABLES)
    began = time.monotonic()
    counts = fill(lake, round(rows / ROWS_OF_A_REQUEST))
    sizes = {name: sum(path.stat().st_size for path in Path(lake.table(name)).rglob("*.parquet")) for name in counts}
    bench.say(
        f"{sum(counts.values()):,} rows, {sum(sizes.values()) / 2**20:,.0f} MB in {time.monotonic() - began:.0f} s"
    )
    for name in counts:
        tables.read(bench.spark, lake, name).createOrReplaceTempView(name)
    present = list(ALL_TABLES)

    def by_duckdb(name: str, where: str) -> int:
        question = reading.QUESTIONS[name]
        with reading.database(lake, question.tables) as connection:
            return len(connection.execute(f"SELECT * FROM ({question.view(present, lake)}) {where}").fetchall())

    def by_spark(name: str, where: str) -> int:
        return len(bench.spark.sql(f"SELECT * FROM ({reading.QUESTIONS[name].view(present, lake)}) {where}").collect())

    engines: dict[str, Callable[[str, str], int]] = {"DuckDB": by_duckdb, "Spark": by_spark}
    found = {
        engine: {name: _ask(bench, engine, ask, name, lake) for name in QUESTIONS} for engine, ask in engines.items()
    }
    for engine, answers in found.items():
        bench.table(
            f"{sum(counts.values()):,} rows in {DAYS} days, {engine}: seconds",
            ("question", "rows", "one day, p50", "p95", "all days"),
            [(name, one["rows"], one["p50"], one["p95"], one["all"]) for name, one in answers.items()],
        )
    return {"method": METHOD, "days": DAYS, "rows": counts, "bytes": sizes, "seconds": found}


def _ask(bench: Bench, engine: str, ask: Callable[[str, str], int], name: str, lake: Lake) -> dict[str, float]:
    chosen = random.Random(1)
    rounds = 2 if bench.small else ROUNDS[engine]
    seconds, rows = [], 0
    for _ in range(rounds + 1):
        day = FIRST_DAY + timedelta(days=chosen.randrange(DAYS))
        where = f"WHERE day = DATE '{day}'{_of_one(lake, name, day)}"
        began = time.monotonic()
        rows = ask(name, where)
        seconds.append(time.monotonic() - began)
    began = time.monotonic()
    # an answer of a million rows would measure Python
    one = _of_one(lake, name, FIRST_DAY)
    ask(name, f"WHERE true{one}" if one else "LIMIT 1000")
    whole = time.monotonic() - began
    ordered = sorted(seconds[1:])
    bench.say(f"{engine}, {name}: {ordered[len(ordered) // 2]:.2f} s, all days {whole:.2f} s")
    return {"rows": rows, "p50": ordered[len(ordered) // 2], "p95": ordered[int(len(ordered) * 0.95)], "all": whole}


def _of_one(lake: Lake, name: str, day: date) -> str:
    """Return the condition for the story of the first request of a day; nothing for other questions."""
    if name != "story":
        return ""
    signals = DeltaTable(lake.table("signals")).to_pyarrow_dataset()
    found = signals.scanner(["correlation_id"], filter=pc.field("day") == day).head(1)
    return f" AND correlation_id = '{found['correlation_id'][0]}'"


if __name__ == "__main__":
    common.main("questions", measure, kafka=False, requests=ROWS, option="rows")
