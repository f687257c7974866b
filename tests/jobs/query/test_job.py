from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ackstream.jobs.query import job as query_job
from ackstream.jobs.query import records as requests
from ackstream.jobs.query.job import QueryFold, prune
from ackstream.jobs.query.plan import SubscriptionPlan
from ackstream.jobs.query.records import QueryRecord, collect, read_queries
from ackstream.lake import tables
from ackstream.settings import Lake, Settings
from tests.lake import empty

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class _Frame:
    """The batch of a stream, as far as it is collected."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows, self.sparkSession = rows, None

    def selectExpr(self, *_columns: Any) -> _Frame:  # noqa: N802 - Spark's name
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.Table.from_pylist(self._rows)


def test_commands_of_a_client_are_carried_out_in_their_order_although_its_broker_was_set_back() -> None:
    times = [(5_000, 0, 1), (1_000, 0, 2), (4_000, 1, 1)]
    empty = {"topic": "queries", "key": b"c", "value": None, "headers": None}
    rows = [{"time": time, "partition": partition, "offset": offset, **empty} for time, partition, offset in times]
    frame: Any = _Frame(rows[::-1])
    assert [record[:3] for record in collect(frame)] == [(4_000, 1, 1), (5_000, 0, 1), (1_000, 0, 2)]


def test_a_record_whose_reading_fails_is_a_dead_letter_and_the_next_one_is_read(monkeypatch: Any) -> None:
    def read(key: bytes | None, *rest: Any) -> requests.QueryRequest:
        if key == b"p1":
            raise KeyError("unforeseen")
        return known(key, *rest)

    known = requests.read
    monkeypatch.setattr(requests, "read", read)
    records = [QueryRecord(0, 0, 0, "queries", key, None, [("command", b"flush")]) for key in (b"p1", b"p2", b"")]
    asked, dead = read_queries(None, records)  # type: ignore[arg-type]
    assert [request.client for request in asked] == ["p2"]
    assert [reason for _, reason in dead] == ["it cannot be processed: KeyError('unforeseen')", "no client name"]


def test_a_command_whose_headers_were_too_large_is_refused() -> None:
    record = QueryRecord(0, 0, 0, "queries", b"p1", None, [("command", b"sow")], oversized=True)
    (request,), dead = read_queries(None, [record])  # type: ignore[arg-type]
    assert (request.reason, dead) == ("command too large", [])
    assert "processed" in request.command.asked


def test_a_batch_knows_when_the_last_record_before_it_was_stored(monkeypatch: Any) -> None:
    found: list[list[int]] = []

    class Plan(SubscriptionPlan):
        def deliver(self, requests: Any, times: Any = ()) -> None:  # noqa: ARG002 - as it is called
            found.append(list(times))
            raise InterruptedError

    monkeypatch.setattr(query_job, "SubscriptionPlan", Plan)
    monkeypatch.setattr(QueryFold, "_load", lambda *_: False)
    fold = QueryFold(Settings())
    for times in ([5_000, 4_000], [65_000], [64_000]):
        rows = [
            {"time": time, "partition": 0, "offset": 0, "topic": "t", "key": b"c", "value": None, "headers": None}
            for time in times
        ]
        frame: Any = _Frame(rows)
        with pytest.raises(InterruptedError):
            fold.write(frame, 0, "q")
    assert found[1:] == [[5_000, 65_000], [65_000, 64_000]]


@pytest.mark.integration
def test_states_that_no_batch_starts_from_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    empty.create(spark, lake, ["subscriptions"])
    for query, numbers in (("q1", (0, 3, 4)), ("q2", (5, 6, 9, 12))):
        for batch in numbers:
            row = {"batch": batch, "position": batch, "query_id": query, "state": "{}"}
            tables.append_rows(spark, pa.Table.from_pylist([row]), lake, "subscriptions", query, batch)

    def kept() -> list[int]:
        return sorted(row.batch for row in tables.read(spark, lake, "subscriptions").select("batch").collect())

    prune(spark, lake)
    # the newest two, and the end of the other query
    assert kept() == [4, 9, 12]
    prune(spark, lake)
    assert kept() == [4, 9, 12]
