from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.jobs.twin import job
from ackstream.jobs.twin.batch import JournalRow, TwinMessage
from ackstream.jobs.twin.changes import Thing
from ackstream.lake import tables, things
from ackstream.settings import Lake, Settings
from ackstream.spark.batches import arrow
from tests.jobs.twin.commands import body, run
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_and_messages_are_laid_out_in_the_columns_of_their_tables() -> None:
    result = run(body("create", value={"attributes": {"a": 1}}), body("delete"))
    rows = arrow(map(msgspec.structs.astuple, result.rows), job._ROWS)
    assert rows.schema == job._ROWS
    assert tuple(job._ROWS.names) == JournalRow.__struct_fields__
    assert tuple(job._MESSAGES.names) == TwinMessage.__struct_fields__
    assert rows.column("revision").to_pylist() == [1, 2]
    assert rows.column("thing").to_pylist() == [None, None]
    messages = arrow(map(msgspec.structs.astuple, result.messages), job._MESSAGES)
    assert messages.column("topic").to_pylist() == ["events", "acks", "events", "acks"]


def test_things_are_loaded_as_they_were_kept(spark: SparkSession, lake: Lake) -> None:
    tables.create(spark, lake, ["thing_events", "things"])
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
