"""The ten questions on large tables: seconds until DuckDB and Spark have answered them about one day, and about all.

The tables have the product's schemas, properties and partitions. `ackstream maintain` lays out their last two days; the
days before are written as it leaves them, since to order 100,000,000 rows takes longer than the questions. The rows
follow from their numbers, so that two runs have the same.
"""

from __future__ import annotations

import hashlib
import random
import time
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import duckdb
from deltalake import WriterProperties, write_deltalake

from ackstream.lake import maintenance, reading, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.settings import Lake, Settings
from benchmarks import common

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.common import Bench

ROWS, DAYS = 100_000_000, 30
FIRST_DAY = date(2026, 11, 16)
ROUNDS = {"DuckDB": 20, "Spark": 10}
"""Number of runs of each question about a day, which is chosen at random."""
ROWS_OF_A_GROUP = 60_000
"""About as many as `ackstream maintain` writes into 8 MB of these rows."""
QUESTIONS = [name for name, question in reading.VIEWS.items() if "day" in question.columns]
ROWS_OF_A_REQUEST = 4.4
"""Signal, outcome, 2.1 acknowledgements and, of one request in ten, a message with its events."""
METHOD = (
    f"Requests of {DAYS} days with two labels each, of which 3 % or more time out, and a message in ten requests, which"
    " a queue delivers and three readers acknowledge. Each question is asked about a day chosen at random, with the"
    f" tables opened anew, {ROUNDS['DuckDB']} times by DuckDB and {ROUNDS['Spark']} times by Spark; then once about all"
    " days, the story as often as about a day: it is that of one request, and analysts seldom know its day. The first"
    " answer of each question does not count. The rows of a day are in the order of the first column, as `ackstream"
    " maintain` leaves them, except those of the newest day."
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
    # a large file stays whole
    written: dict[str, Any] = {
        "mode": "append",
        "target_file_size": 2**30,
        "writer_properties": WriterProperties(max_row_group_size=ROWS_OF_A_GROUP),
    }
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
                # maintenance takes a day with one file to be in order
                maintained = at < days - 2
                query = _select(name, columns, source) + (" ORDER BY 1" if maintained else "")
                rows = connection.sql(query, params=used).to_arrow_table().cast(ALL_TABLES[name].arrow)
                counts[name] += rows.num_rows
                half = rows.num_rows if maintained else rows.num_rows // 2
                for part in filter(len, (rows.slice(0, half), rows.slice(half))):
                    write_deltalake(lake.table(name), part, **written)
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
    bench.say(f"{sum(counts.values()):,} rows in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    reports = maintenance.maintain(bench.spark, Settings(lake=lake), list(counts))
    maintained, sizes = time.monotonic() - began, {report.table: report.bytes_after for report in reports}
    bench.say(f"Maintained in {maintained:.0f} s: {sum(sizes.values()) / 2**20:,.0f} MB")
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
        engine: {name: _ask(bench, engine, ask, name, counts["signals"]) for name in QUESTIONS}
        for engine, ask in engines.items()
    }
    for engine, answers in found.items():
        bench.table(
            f"{sum(counts.values()):,} rows in {DAYS} days, {engine}: seconds",
            ("question", "rows", "one day, p50", "p95", "all days"),
            [(name, one["rows"], one["p50"], one["p95"], one["all"]) for name, one in answers.items()],
        )
    return {
        "method": METHOD,
        "days": DAYS,
        "rows": counts,
        "bytes": sizes,
        "maintained": maintained,
        "seconds": found,
    }


def _ask(bench: Bench, engine: str, ask: Callable[[str, str], int], name: str, requests: int) -> dict[str, float]:
    chosen = random.Random(1)
    rounds = 2 if bench.small else ROUNDS[engine]
    seconds, whole, rows = [], [], 0
    for at in range(rounds + 1):
        day = chosen.randrange(DAYS)
        number = 1 + requests * day // DAYS + chosen.randrange(requests // DAYS)
        one = f" AND correlation_id = '{_correlation_id(number)}'" if name == "story" else ""
        began = time.monotonic()
        rows = ask(name, f"WHERE day = DATE '{FIRST_DAY + timedelta(days=day)}'{one}")
        seconds.append(time.monotonic() - began)
        if one or at == rounds:
            began = time.monotonic()
            # an answer of a million rows would measure Python
            ask(name, f"WHERE true{one}" if one else "LIMIT 1000")
            whole.append(time.monotonic() - began)
    ordered, whole = sorted(seconds[1:]), sorted(whole)
    found = {"p50": _at(ordered, 0.5), "p95": _at(ordered, 0.95), "all": _at(whole, 0.95)}
    bench.say(f"{engine}, {name}: {found['p50']:.2f} s, all days {found['all']:.2f} s")
    return {"rows": rows, **found}


def _at(ordered: list[float], share: float) -> float:
    return ordered[int(len(ordered) * share)]


def _correlation_id(number: int) -> str:
    """Return the correlation-id of a request, as in the tables."""
    return f"order-{hashlib.md5(str(number).encode()).hexdigest()[:20]}"


if __name__ == "__main__":
    common.main("questions", measure, kafka=False, requests=ROWS, option="rows")
