"""Ledger records for tests, made with the structs that correlate writes them with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.protocol import ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = 1_795_000_000_000
"""2026-11-18 11:06:40 UTC, in epoch milliseconds."""

SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"


def frame(spark: SparkSession, values: list[bytes | None], first_offset: int = 0, topic: str = "ledger") -> DataFrame:
    """Lay out the values of ledger or audit as Spark's Kafka source does, on one partition."""
    rows = [(b"key", value, topic, 0, first_offset + at) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, SCHEMA).withColumn("timestamp", F.timestamp_millis(F.lit(START)))


def reply_id(number: int) -> str:
    return f"{number:032x}"


def signal_row(number: int, **changes: Any) -> ledger.SignalRow:
    row = ledger.SignalRow(
        correlation_id=f"c-{number}",
        thing_id=f"org.example:pump-{number % 10}",
        channel="twin",
        criterion="commands",
        action="modify",
        path="/features/water/properties/level",
        requested_acks=("twin-persisted", "billing:booked"),
        response_required=True,
        timeout_ms=5000,
        headers={"correlation-id": f"c-{number}", "requested-acks": ["twin-persisted", "billing:booked"]},
        received_at=START + number,
        topic="signals",
        partition=0,
        offset=number,
        value=msgspec.Raw(b'{"litres":5}'),
    )
    return msgspec.structs.replace(row, **changes)


def ack_row(number: int, label: str = "twin-persisted", index: int = 0, **changes: Any) -> ledger.AckRow:
    row = ledger.AckRow(
        correlation_id=f"c-{number}",
        label=label,
        status=204,
        weak=False,
        received_at=START + number + 20,
        latency_ms=20,
        disposition="accepted",
        topic="acks",
        partition=0,
        offset=number,
        index=index,
    )
    return msgspec.structs.replace(row, **changes)


def outcome_row(number: int, **changes: Any) -> ledger.OutcomeRow:
    row = ledger.OutcomeRow(
        correlation_id=f"c-{number}",
        thing_id=f"org.example:pump-{number % 10}",
        status=200,
        completed_by="acknowledgements",
        requested=("twin-persisted", "billing:booked"),
        missing=[],
        started_at=START + number,
        decided_at=START + number + 30,
        latency_ms=30,
        reply_id=reply_id(number),
        reply_topic="replies",
        reply=msgspec.Raw(b'{"status":200}'),
    )
    return msgspec.structs.replace(row, **changes)


def outcome(number: int, batch: int = 0, query: str = "correlate", **parts: Any) -> bytes:
    """Return the record of a request decided in its own batch: a signal, two acknowledgements, an outcome."""
    acks = [ack_row(number), ack_row(number, "billing:booked", index=1)]
    whole: dict[str, Any] = {"signal": signal_row(number), "acks": acks, "outcome": outcome_row(number)}
    record = ledger.LedgerRecord("outcome", reply_id(number), query, batch, **(whole | parts))
    return ledger.encode(record)


def acknowledgement(number: int, batch: int = 0, query: str = "correlate", **changes: Any) -> bytes:
    """Return the record of an acknowledgement that came to nothing."""
    row = ack_row(number, **({"disposition": "late"} | changes))
    identity = f"{row.topic}-{row.partition}-{row.offset}-{row.index}"
    return ledger.encode(ledger.LedgerRecord("ack", identity, query, batch, acks=[row]))


def dead_letter(number: int, batch: int = 0, query: str = "correlate") -> bytes:
    """Return the record of a record that could not be used."""
    row = ledger.DeadLetterRow("not JSON", None, "signals", 1, number, START, b"key", b"\x00\xff", truncated=False)
    return ledger.encode(ledger.LedgerRecord("dead-letter", f"signals-1-{number}", query, batch, dead_letter=row))


def audit(number: int, run: str = "gateway-1", **changes: Any) -> bytes:
    """Return the record of a command that the gateway refused."""
    row = ledger.AuditRow(
        correlation_id=f"c-{number}",
        received_at=START + number,
        event="command",
        subject="user:ada",
        roles=("user:operator",),
        address="10.0.0.9",
        method="PUT",
        command="twin/commands/modify",
        thing_id="org.example:pump-1",
        path="/attributes/x",
        allowed=False,
        count=1,
        status=403,
        reason="WRITE of /attributes/x",
    )
    row = msgspec.structs.replace(row, **changes)
    return ledger.encode(ledger.LedgerRecord("audit", f"{run}-{number}", run, number, audit=row))
