from __future__ import annotations

import msgspec
import pyarrow as pa

from ackstream.jobs.twin import job
from ackstream.jobs.twin.batch import JournalRow, TwinMessage
from ackstream.jobs.twin.changes import Thing
from ackstream.spark.batches import arrow
from tests.jobs.twin.commands import body, run


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


def test_things_are_loaded_as_they_were_kept() -> None:
    time = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "thing_id": ["a:1", "a:2"],
            "revision": [3, 4],
            "created_at": pa.array([1_000_000, 2_000_000], time),
            "modified_at": pa.array([1_001_000, 2_002_000], time),
            "thing": ['{"thingId":"a:1"}', None],
        }
    )
    assert job.load(table) == {
        "a:1": Thing(3, 1000, 1001, b'{"thingId":"a:1"}'),
        "a:2": Thing(4, 2000, 2002, None),
    }
