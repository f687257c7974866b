from __future__ import annotations

import pyarrow as pa

from ackstream.jobs.twin import job
from ackstream.jobs.twin.things import Thing
from ackstream.settings import Kafka, Settings
from tests.jobs.twin.commands import body, run


def test_rows_and_messages_are_laid_out_in_the_columns_of_their_tables() -> None:
    result = run(body("create", value={"attributes": {"a": 1}}), body("delete"))
    rows = job.columns(result.rows, job._ROWS)
    assert rows.schema == job._ROWS
    assert rows.column("revision").to_pylist() == [1, 2]
    assert rows.column("thing").to_pylist() == [None, None]
    messages = job.columns(result.messages, job._MESSAGES)
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


def test_the_limits_of_correlate_are_those_of_the_twin() -> None:
    limits = job.limits(Settings(kafka=Kafka(topic_prefix="x-")))
    assert (limits.signals, limits.max_value_bytes, limits.max_thing_bytes) == ("x-signals", 1_000_000, 102_400)
