"""A small lake with rows in every table, written without Spark: one story for each plane."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from ackstream.lake.schemas import ALL_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Lake

START = datetime(2026, 11, 18, 11, 0, tzinfo=timezone.utc)

_FILLED = {
    "string": "x",
    "timestamp": START,
    "date": START.date(),
    "integer": 0,
    "long": 0,
    "boolean": False,
    "array": [],
    "double": 0.0,
}

TERMS = "x-0-0, labels a:b, timeout 5000 ms"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def filled(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return rows of a table; required columns that a row leaves out get a value."""
    schema = ALL_TABLES[name].schema
    found = [
        {field.name: None if field.nullable else _FILLED[field.dataType.typeName()] for field in schema} | row
        for row in rows
    ]
    return pa.Table.from_pylist(found, schema=ALL_TABLES[name].arrow)


def write(lake: Lake, name: str, rows: Iterable[dict[str, Any]] = ()) -> None:
    """Append rows to a table, which begins to exist (:func:`filled`)."""
    write_deltalake(lake.table(name), filled(name, rows), mode="append")


def message(seq: int, seconds: float, client: str = "orders", **more: Any) -> dict[str, Any]:
    place = {"topic": "messages", "partition": 0, "offset": 100 + seq, "received_at": at(seconds)}
    return {"client": client, "seq": seq, "subject": "new", "value": b"1234", **place, **more}


def queue_event(seq: int, seconds: float, event: str, count: int, **more: Any) -> dict[str, Any]:
    place = {"topic": "messages", "partition": 0, "offset": 100 + seq, "received_at": at(seq), "subject": "new"}
    own = {"message": f"messages-0-{100 + seq}", "at": at(seconds), "queue": "work", "event": event, "count": count}
    return {**place, **own, "consumer": "w1", **more}


def fill(lake: Lake) -> None:
    """Write the stories of all planes but the twin and the requests, and one row or two of these."""
    asked = {"requested_acks": ["a:b"], "response_required": True, "timeout_ms": 5000}
    traced = {"headers": f'{{"correlation-id":"c","traceparent":"{TRACE}","x":1}}'}
    write(
        lake,
        "signals",
        [
            {"correlation_id": "c-1", "id": "r-1", "received_at": at(1), "thing_id": "org:lamp", **asked, **traced},
            {"correlation_id": "c-2", "id": "r-2", "received_at": at(2), "thing_id": "org:door", **asked, **traced},
            # mentioned, but not its trace
            {"correlation_id": "c-6", "id": "r-6", "received_at": at(2), "headers": f'{{"x":"{TRACE[3:35]}"}}'},
        ],
    )
    ended = {"status": 424, "completed_by": "timeout", "requested": ["a:b", "c:d"], "missing": ["c:d"]}
    times = {"started_at": at(1), "decided_at": at(6), "latency_ms": 5000}
    failed = {"correlation_id": "c-3", "id": "r-3", "status": 404, "completed_by": "error", "requested": ["c:d"]}
    negative = {"correlation_id": "c-4", "id": "r-4", "status": 424, "completed_by": "acknowledgements"}
    write(
        lake,
        "outcomes",
        [
            {"correlation_id": "c-1", "id": "r-1", "thing_id": "org:lamp", **ended, **times},
            {**failed, "started_at": at(3), "decided_at": at(4), "latency_ms": 1000},
            {**negative, "requested": ["a:b", "c:d"], "started_at": at(4), "decided_at": at(5), "latency_ms": 1000},
        ],
    )
    used = {"correlation_id": "c-1", "disposition": "accepted", "label": "a:b", "status": 200, "latency_ms": 30}
    late = {"correlation_id": "c-1", "disposition": "late", "label": "c:d", "received_at": at(7), "id": "late"}
    error = {"correlation_id": "c-3", "disposition": "accepted", "status": 404, "received_at": at(4), "id": "error"}
    of_c4 = {"correlation_id": "c-4", "disposition": "accepted", "received_at": at(5)}
    # the id was that of an earlier request, too
    earlier = {**of_c4, "label": "a:b", "status": 500, "received_at": at(0.5), "latency_ms": 10, "id": "earlier"}
    answers = [
        {**of_c4, "label": "a:b", "status": 507, "latency_ms": 40, "id": "full"},
        {**of_c4, "label": "c:d", "status": 200, "latency_ms": 1000, "id": "done"},
        {**of_c4, "label": "twin-persisted", "disposition": "late", "status": 204, "id": "twin"},
        {**of_c4, "label": "a:b", "disposition": "late", "status": 200, "id": "again"},
    ]
    twice = {**used, "disposition": "duplicate", "received_at": at(3), "id": "twice"}
    write(lake, "acknowledgements", [{**used, "received_at": at(2)}, late, error, earlier, *answers, twice])
    dead = {"topic": "signals", "reason": "no JSON", "truncated": False, "value": b"\xff"}
    write(lake, "dead_letters", [{**dead, "received_at": at(n), "id": f"signals-0-{n}"} for n in (3, 4)])
    write(lake, "audit", [{"event": "command", "allowed": False, "count": 3, "reason": "WRITE", "received_at": at(5)}])
    change = {"thing_id": "org:lamp", "modified_at": at(1), "path": "/attributes/on"}
    write(
        lake,
        "thing_events",
        [{**change, "action": "created", "revision": 1}, {**change, "action": "modified", "revision": 2}],
    )
    write(
        lake,
        "things",
        [{"thing_id": "org:lamp", "modified_at": at(1)}, {"thing_id": "org:door", "deleted": True}],
    )
    write(lake, "things_search", [{"path": "attributes/on", "value": str(n), "number": float(n)} for n in (1, 2)])
    # 3 is missing, 5 is refused
    refused = {"reason": "duplicate", "batch": 1}
    write(lake, "messages", [*(message(n, n, batch=1) for n in (1, 2, 4)), message(5, 5, **refused)])
    write(lake, "publishers", [{"client": "orders", "batch": n, "last_seq": n} for n in (1, 2)])
    modes = [("start", "sync", 0), ("downgrade", "async", 9000)]
    write(
        lake,
        "destinations",
        [
            {"destination": "mirror", "cause": cause, "mode": mode, "age_ms": age, "changed_at": at(age / 1000)}
            for cause, mode, age in modes
        ],
    )
    read = {"writer": "orders", "reader": "log", "role": "Logger", "acknowledged_at": at(4)}
    write(
        lake,
        "deliveries",
        [
            {**read, "first": 1, "last": 1, "id": "orders/log/1"},
            {**read, "first": 4, "last": 4, "auto": "filtered", "id": "orders/log/4"},
            {**read, "reader": "audit", "role": None, "first": 1, "last": 1, "acknowledged_at": at(2), "id": "audit"},
        ],
    )
    write(lake, "ignored_reports", [{"reason": "unreadable", "reader": "log", "received_at": at(8), "detail": "no"}])
    left = {"outcome": "settled", "consumer": "w1"}
    write(
        lake,
        "queue_events",
        [
            queue_event(1, 2, "delivered", 1),
            queue_event(1, 3, "returned", 1, reason="lease"),
            queue_event(1, 4, "delivered", 2),
            queue_event(1, 5, "left", 2, **left),
            queue_event(2, 3, "delivered", 1, consumer="w2"),
            queue_event(2, 4, "refused", 1, outcome="accepted", reason="lease"),
            queue_event(4, 6, "delivered", 1),
            queue_event(4, 9, "left", 1, outcome="dead-letter", reason="failed"),
        ],
    )
    write(lake, "subscriptions", [{"batch": 3, "position": 0, "state": "{}"}])
    gone = {
        "partition": 0,
        "offset": 104,
        "received_at": at(5),
        "subject": "new",
        "client": "cleaner",
        "cid": "d1",
        "deleted_at": at(20),
    }
    write(lake, "sow_deletes", [{"batch": 3, "step": 1, **gone}])


HOUR, DAY = START, START.date()

ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "slowest_labels": [(DAY, "c:d", 1, 1000, 1000, 1000), (DAY, "a:b", 3, 30, 40, 40)],
    "missing_labels": [(DAY, "c", "c:d", 2, 1, 0.5)],
    "success_by_hour": [(DAY, HOUR, "a:b", 2, 2, 0, 0.0), (DAY, HOUR, "c:d", 3, 2, 0, 0.0)],
    "late_acknowledgements": [(DAY, "a:b", 1, 1, at(5), "c-4"), (DAY, "c:d", 1, 1, at(7), "c-1")],
    "duplicate_acknowledgements": [(DAY, "a:b", 1, 1, at(3), "c-1")],
    "timeouts_by_hour": [(HOUR, 3, 1, 1 / 3)],
    "outcomes_by_status": [
        (404, "error", 1, 1000, 1000, 1000),
        (424, "acknowledgements", 1, 1000, 1000, 1000),
        (424, "timeout", 1, 5000, 5000, 5000),
    ],
    "unused_acknowledgements": [
        ("late", "c:d", 1, 1, 1, at(7)),
        ("duplicate", "a:b", 1, 1, 0, at(3)),
        ("late", "a:b", 1, 1, 0, at(5)),
    ],
    "negative_acknowledgements": [
        (None, 404, 1, at(4), "c-3"),
        ("a:b", 500, 1, at(0.5), "c-4"),
        ("a:b", 507, 1, at(5), "c-4"),
    ],
    "refusals": [("command", None, None, "WRITE", 3, at(5))],
    "unconfirmed_requests": [
        (at(6), "c-1", "org:lamp", 424, "timeout", ["c:d"], None),
        (at(5), "c-4", None, 424, "acknowledgements", [], ["a:b 507"]),
        (at(4), "c-3", None, 404, "error", [], ["error 404"]),
    ],
    "undecided_requests": [(DAY, at(2), "c-2", "org:door", ["a:b"], 5000)],
    "dead_letters_by_reason": [(DAY, "signals", "no JSON", 2, at(3), at(4), "signals-0-4")],
    "messages_by_publisher": [("orders", 3, 1, 1, 4, 12, at(5))],
    "publisher_gaps": [("orders", 3, 3, 1, at(4))],
    "refused_messages": [("orders", "duplicate", 1, 5, at(5))],
    "messages_by_hour": [(HOUR, "new", 3, 1, 12)],
    "publisher_progress": [("orders", 2, 4, 1, 2)],
    "destination_modes": [("mirror", "async", "downgrade", at(9), 2, 1, 9000)],
    "reader_progress": [("audit", None, "orders", 1, 0, 1, at(2)), ("log", "Logger", "orders", 2, 1, 4, at(4))],
    "readers_behind": [(DAY, "audit", "orders", 1, 4, 2, at(2))],
    "unfinished_samples": [("audit", "orders", 2, 2, 4, at(2)), ("log", "orders", 1, 2, 2, at(2))],
    "reader_latencies": [("log", 1, 3000, 3000, 3000), ("audit", 1, 1000, 1000, 1000)],
    "ignored_reports_by_reason": [("unreadable", "log", 1, at(8), "no")],
    "queue_depths": [("work", 1, at(2), 1, at(9))],
    "departures": [
        ("work", "dead-letter", "failed", 1, 5000, 5000, at(9)),
        ("work", "settled", None, 1, 4000, 4000, at(5)),
    ],
    "delivery_attempts": [(DAY, "work", 1, 3, 2, at(6)), (DAY, "work", 2, 1, 1, at(4))],
    "redeliveries": [("work", "new", 1, 2, "lease", at(4))],
    "queue_dead_letters": [(at(9), "work", "new", "failed", 1, "messages-0-104")],
    "consumers": [("work", "w1", 3, 1, 2, 1, at(9)), ("work", "w2", 1, 0, 0, 0, at(3))],
    "subscription_lag": [(3, 0, 1, 1)],
    "deleted_messages": [("new", "cleaner", 1, 1, at(20))],
    "changes_by_hour": [(HOUR, "created", 1, 1), (HOUR, "modified", 1, 1)],
    "busiest_things": [("org:lamp", 2, 1, 2, at(1))],
    "things_by_namespace": [("org", 1, 1, at(1), at(1))],
    "searchable_paths": [("attributes/on", 1, 2, 1.0, 2.0)],
    "message_story": [
        (at(1), 1, "stored", "orders", "new", None, "messages-0-101"),
        (at(2), 2, "delivered", "w1", "work", "", "messages-0-101"),
        (at(2), 3, "acknowledged", "audit", None, None, "audit"),
        (at(3), 2, "returned", "w1", "work", "lease", "messages-0-101"),
        (at(4), 2, "delivered", "w1", "work", "", "messages-0-101"),
        (at(4), 3, "acknowledged", "log", "Logger", None, "orders/log/1"),
        (at(5), 2, "left", "w1", "work", "settled", "messages-0-101"),
    ],
    "story": [
        (
            at(1),
            1,
            "request",
            None,
            None,
            "",
            None,
            "r-1",
            TRACE,
            "c-1",
            "org:lamp",
            DAY,
            "x-0-0, labels a:b, timeout 5000 ms",
        ),
        (at(2), 2, "acknowledgement", "a:b", 200, "accepted", None, "x", None, "c-1", None, DAY, None),
        (at(3), 2, "acknowledgement", "a:b", 200, "duplicate", None, "twice", None, "c-1", None, DAY, None),
        (at(6), 3, "outcome", None, 424, "timeout", None, "r-1", None, "c-1", "org:lamp", DAY, None),
        (at(7), 2, "acknowledgement", "c:d", None, "late", None, "late", None, "c-1", None, DAY, None),
    ],
    "trace": [
        (at(1), "c-1", "org:lamp", "", 424, "timeout", 5000, TRACE[36:52], TRACE),
        (at(2), "c-2", "org:door", "", None, None, None, TRACE[36:52], TRACE),
    ],
}
"""What each question is answered about this lake; the stories are those of c-1 and orders/1."""

ARGUMENTS = {"story": "c-1", "message_story": "orders/1", "trace": TRACE[3:35]}
