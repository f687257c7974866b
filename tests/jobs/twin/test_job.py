from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ackstream.errors import StoppedError
from ackstream.jobs.twin import job
from ackstream.jobs.twin.changes import Thing
from ackstream.lake import tables, things
from ackstream.settings import Lake, Settings, Twin
from ackstream.spark import batches
from ackstream.spark.batches import arrow
from ackstream.spark.kafka import RECORDS
from tests.jobs.twin.commands import START, body, run
from tests.lake import empty
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

SIGNALS = (
    "timestamp TIMESTAMP, partition INT, offset BIGINT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, value BINARY"
)


def test_rows_and_messages_are_laid_out_in_the_columns_of_their_tables() -> None:
    result = run(body("create", value={"attributes": {"a": 1}}), body("delete"))
    rows = arrow(map(msgspec.structs.astuple, result.rows), job._ROWS)
    assert rows.schema == job._ROWS
    assert rows.column("revision").to_pylist() == [1, 2]
    assert rows.column("thing").to_pylist() == [None, None]
    records = arrow([(one.topic, one.key, one.value, one.headers) for one in result.messages], RECORDS)
    assert records.column("topic").to_pylist() == ["events", "twin-acks"] * 2
    of_event, of_answer = ([entry["key"] for entry in headers] for headers in records.column("headers").to_pylist()[:2])
    assert (of_event, of_answer) == (["correlation-id"], ["correlation-id", "reply-id"])


def test_a_twin_stops_when_another_one_has_written_to_the_journal(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, [things.JOURNAL])
    twin = job.TwinFold(Settings(lake=lake))
    created, deleted = (run(body(action, value={})).rows for action in ("create", "modify"))
    for batch in (0, 1):
        twin._append(spark, created, "query", batch, 0)
    things.append(spark, lake, table(change("a:1", 1, {"n": 1})), "other", 0)
    with pytest.raises(StoppedError, match="Another twin has written to the journal"):
        twin._append(spark, deleted, "query", 2, 0)


def test_of_a_journal_that_is_merged_anew_nothing_is_acknowledged_for_which_nobody_waits(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create(spark, lake, [things.JOURNAL])
    now = time.time_ns() // 1_000_000
    asked = [change(f"a:{number}", 1, {}, search_persisted=True, modified_at=now) for number in range(5)]
    old = change("a:old", 1, {}, search_persisted=True, modified_at=now - 49 * 3_600_000)
    things.append(spark, lake, table(*asked, old, change("a:silent", 1, {}, modified_at=now)), "query", 0)
    sent: list[list[str]] = []
    monkeypatch.setattr(job, "ACKS_AT_ONCE", 2)
    monkeypatch.setattr(job, "send", lambda _spark, _settings, acks: sent.append([ack.correlation_id for ack in acks]))
    index = job.TwinIndex(spark, Settings(lake=lake))
    index._acknowledge(tables.read(spark, lake, things.JOURNAL), failed=False)
    assert sent == [["c-a:0-1", "c-a:1-1"], ["c-a:2-1", "c-a:3-1"], ["c-a:4-1"]]


def test_a_batch_of_large_commands_is_fetched_in_pieces_and_in_order(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "FETCH_BYTES", 4_000)
    settings = Settings(twin=Twin(max_offsets_per_trigger=20))
    sizes = [10, 900, 10, 3_000, 1_500, 10, 2_400, 10]
    commands = [json.dumps(body("create", value={"attributes": {"x": "x" * size}})).encode() for size in sizes]
    other = json.dumps({"topic": "a/b/things/live/messages/x", "path": "/", "value": "x" * 2_000}).encode()
    rows = [
        (datetime.fromtimestamp(START / 1000 + at, timezone.utc), at % 2, at, [("correlation-id", b"c-%d" % at)], value)
        for at, value in enumerate([*commands, other, None])
    ]
    frame = spark.createDataFrame(rows, SIGNALS)
    fetched: list[int] = []
    real = batches.collect

    def counted(found: DataFrame) -> Iterator[Any]:
        rows = list(real(found))
        fetched.append(sum(len(value) for row in rows for value in row if isinstance(value, bytes)))
        return iter(rows)

    monkeypatch.setattr(batches, "collect", counted)
    found = list(job.read_records(job.commands(frame, settings), settings))
    assert [record.offset for record in found] == list(range(8))
    assert {record.offset: record.value for record in found} == dict(enumerate(commands))
    assert [record.correlation_id for record in found] == [f"c-{record.offset}" for record in found]
    assert len(fetched) > 2
    assert max(fetched) <= 4_000 + 200


def test_things_are_fetched_in_pieces(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.create(spark, lake, ["thing_events", "things"])
    things.append(spark, lake, table(*[change(f"a:{at}", 1, {"n": at}) for at in range(40)]), "query", 0)
    whole = job.load(spark, Settings(lake=lake), "query", 1)
    monkeypatch.setattr(job, "FETCH_BYTES", 300)
    assert job.load(spark, Settings(lake=lake), "query", 1) == whole
    assert len(whole[1]) == 40


def test_things_are_loaded_as_they_were_kept(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, ["thing_events", "things"])
    rows = table(change("a:1", 1, {"n": 1}), change("a:2", 2, deleted=True))
    things.append(spark, lake, rows, "query", 0)
    assert job.load(spark, Settings(lake=lake), "query", 0) == (0, {})
    assert job.load(spark, Settings(lake=lake), "query", 1) == (
        0,
        {
            "a:1": Thing(1, 1_700_000_000_000, 1_700_000_000_001, b'{"thingId": "a:1", "n": 1}'),
            "a:2": Thing(2, 1_700_000_000_000, 1_700_000_000_002, None),
        },
    )
