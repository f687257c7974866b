"""The shell around a shard of settle: frames in and out, state, the columns of its tables."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from ackstream.jobs.settle import job as settle_job
from ackstream.jobs.settle.job import (
    FIELDS,
    JOB,
    MESSAGE,
    OUTPUT_SCHEMA,
    _of,
    settle,
)
from ackstream.jobs.settle.records import ReportRecord, is_for_all_shards
from ackstream.lake.schemas import ALL_TABLES
from ackstream.observe.metrics import DELIVERIES, IGNORED_REPORTS, Figures
from ackstream.protocol.json import BYTE_ORDER_MARK
from ackstream.protocol.readers import SKEW_MS, AppAckConf, read_answer
from ackstream.settings import Lake, Settings, Settle
from ackstream.spark.operator import SHUFFLE_PARTITIONS, operator
from ackstream.spark.records import LOOKS
from tests.harness.sessions import SETTINGS, other_session
from tests.jobs.settle.logs import PLAIN, Log, Run
from tests.lake import empty

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


class _State:
    """What the operator uses of Spark's GroupState."""

    def __init__(self, watermark: int = 0, state: tuple[int, bytes] | None = None) -> None:
        self.watermark, self.timeout = watermark, None
        self.exists, self.get = state is not None, state

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802 - Spark's name
        return self.watermark

    def update(self, state: tuple[int, bytes]) -> None:
        self.get = state

    def setTimeoutTimestamp(self, timeout: Any) -> None:  # noqa: N802 - Spark's name
        self.timeout = timeout


def _call(state: Any, *records: ReportRecord, ticks: Sequence[int] = ()) -> pd.DataFrame:
    columns = list(ReportRecord.__struct_fields__)
    frame = pd.DataFrame([[getattr(record, name) for name in columns] for record in records], columns=columns).assign(
        clock=None
    )
    for tick in ticks:
        frame.loc[len(frame)] = {
            "timestamp": tick,
            "source": 1,
            "partition": 0,
            "offset": 0,
            "value": None,
            "clock": True,
        }
    found = pd.concat(operator(partial(settle, PLAIN, [0]))((0,), iter([frame]), state))
    assert list(found.columns) == OUTPUT_SCHEMA.names
    return found


def test_a_batch_becomes_one_frame_of_rows_and_messages_and_a_state() -> None:
    log, state = Log(), _State()
    found = _call(state, log.stored(1, 5), log.ack("A", 1, (1, 2)), log.garbage(1, b"?"))
    assert found["kind"].tolist() == ["deliveries", "ignored_reports", "message", "message", "message"]
    delivery, ignored, *messages = found.to_dict("records")
    assert (delivery["id"], delivery["last"], delivery["reason"], delivery["key"]) == ("w1/A/1", 2, None, None)
    assert (ignored["reason"], ignored["value"], ignored["epoch"]) == ("unreadable", b"?", None)
    assert (messages[0]["key"], read_answer(messages[0]["value"])) == ("A", AppAckConf("A", "w1", 1, 1))
    assert state.timeout == PLAIN.reader_lease // LOOKS, "there has been no tick yet"


def test_it_goes_on_from_the_state_and_wakes_up_behind_the_watermark() -> None:
    log, state = Log(), _State()
    _call(state, log.stored(1, 5), log.ack("A", 1, (1, 9)))
    again = _State(1_002 + SKEW_MS, state.get)
    assert _call(again)["kind"].tolist() == []
    assert again.timeout == 1_003 + SKEW_MS, "a timeout must be behind the watermark"
    late = _State(1_003 + SKEW_MS, again.get)
    assert _call(late)["reason"].tolist() == ["never-delivered"]


@pytest.mark.parametrize(
    ("batches", "done"),
    [
        ([[15_000], [30_000], [45_000]], 1),
        ([[15_000], [45_000, 30_000]], 1),
        ([[15_000, 30_000, 45_000]], 1),
        ([[15_000], [75_000]], 0),
        ([[15_000, 75_000]], 0),
    ],
)
def test_ticks_show_that_a_silent_reader_could_have_written(batches: list[list[int]], done: int) -> None:
    log, state = Log(), _State()
    _call(state, log.start("A", at=1), log.stored(1, 5, at=2))
    for before, ticks in pairwise([[0], *batches]):
        state = _State(max(before), state.get)
        # the latest tick of the batch before is read again
        found = _call(state, ticks=[*ticks, max(before)])
    assert len(found) == done


def test_a_report_with_a_byte_order_mark_goes_to_the_same_shards(spark: SparkSession) -> None:
    schema = "topic STRING, key BINARY, value BINARY, partition INT, offset LONG, timestamp TIMESTAMP"
    at, log, keys = datetime.fromtimestamp(1, tz=timezone.utc), Log(), list(range(64))
    said = [record.value or b"" for record in (log.start("A"), log.ack("A", 1, (1, 2)))]
    rows = [
        ("app-acks", b"A", mark + value, 0, number, at)
        for number, mark in enumerate((b"", BYTE_ORDER_MARK))
        for value in said
    ]
    found = settle_job.records(spark.createDataFrame(rows, schema), Settings(), keys).collect()
    plain, marked = (
        sorted((row.shard, bytes(row.value).removeprefix(BYTE_ORDER_MARK)) for row in found if row.offset == number)
        for number in (0, 1)
    )
    assert marked == plain
    assert len(plain) == len(keys) + 1
    assert all(map(is_for_all_shards, (log.say(said[0]), log.say(BYTE_ORDER_MARK + said[0]))))


def test_a_row_has_the_columns_of_its_table_but_for_those_of_the_batch() -> None:
    log = Log()
    settled = Run().feed(log.stored(1, 5), log.ack("A", 1, (1, 2), (3, 2)), log.garbage(1, b"?"))
    assert [set(row) for row in settled.deliveries] == [set(FIELDS["deliveries"])]
    assert {name for row in settled.ignored for name in row} == set(FIELDS["ignored_reports"])
    for table in ("deliveries", "ignored_reports"):
        assert {*FIELDS[table], "query_id", "batch_id", "day"} == set(ALL_TABLES[table].schema.names)


def test_the_number_of_tasks_is_that_of_the_settings() -> None:
    conf = JOB.conf(Settings(settle=Settle(shuffle_partitions=7)))
    assert conf == {SHUFFLE_PARTITIONS: "7"}


def test_what_goes_to_spark_is_one_piece_whatever_it_was_chosen_from() -> None:
    batch = pa.table({"kind": [MESSAGE, "deliveries", MESSAGE], "key": ["a", "b", "c"], "value": [b"1", b"2", b"3"]})
    found = _of(pa.concat_tables([batch] * 3), MESSAGE)
    assert found.column("key").to_pylist() == ["a", "c"] * 3
    assert {column.num_chunks for column in found.columns} == {1}


def test_the_rows_of_a_batch_count_by_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, log = Figures(), Log()
    monkeypatch.setattr(settle_job, "FIGURES", figures)
    found = _call(_State(), log.stored(1, 5), log.ack("A", 1, (1, 2)), log.garbage(1, b"?"), log.garbage(1, b"!"))
    settle_job.count(pa.Table.from_pandas(found))
    settle_job.count(pa.Table.from_pandas(found.iloc[:0].astype({"kind": "string", "reason": "string"})))
    assert figures.read().counters == {(DELIVERIES.name,): 1, (IGNORED_REPORTS.name, "unreadable"): 2}


@pytest.mark.parametrize(("key", "value"), SETTINGS)
def test_no_value_depends_on_a_setting_of_the_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.setattr(settle_job.spark_kafka, "send", lambda *_: None)
    log, run = Log(), Run()
    times = [int(datetime(2026, 11, day, hour, 30, tzinfo=timezone.utc).timestamp()) * 1000 for day, hour in DAYS]
    said = [log.start("A", at=times[0])]
    for number, at in enumerate(times, 1):
        said += [log.stored(number, number, at=at), log.ack("A", 1, (number, number), at=at), log.garbage(1, b"?")]
    settled = settle_job.write_frame(run.feed(*said)).to_numpy().tolist()
    topics = ("stored", "app-acks")
    schema = "topic STRING, key BINARY, value BINARY, partition INT, offset LONG, timestamp TIMESTAMP"
    rows = [
        (topics[one.source], b"A", one.value, 0, one.offset, datetime.fromtimestamp(one.timestamp / 1e3, timezone.utc))
        for one in said
    ]

    def results(session: SparkSession, name: str) -> list[list[Any]]:
        lake = Lake(path=str(tmp_path / name))
        empty.create(spark, lake, settle_job.TABLES)
        read = settle_job.records(session.createDataFrame(rows, schema), Settings(), list(range(8)))
        settle_job.write(Settings(lake=lake), session.createDataFrame(settled, OUTPUT_SCHEMA), 0, "q")
        stored = [DeltaTable(lake.table(table)).to_pyarrow_table().to_pylist() for table in settle_job.TABLES]
        return [sorted(map(str, found)) for found in (read.toArrow().to_pylist(), *stored)]

    with other_session(spark, key, value) as other:
        found = results(other, "other")
    assert found == results(spark, "own")
    assert [len(rows) for rows in found[1:]] == [3, 4]
    assert all(f"'day': datetime.date(2026, 11, {day})" in str(found[1]) for day, _ in DAYS)


DAYS = ((1, 0), (1, 12), (1, 23), (2, 0))
"""Days and hours."""
