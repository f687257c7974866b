"""The shell around a shard: frames in and out, state, pieces of a batch that is large."""

from __future__ import annotations

import base64
import json
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.errors import StartError
from ackstream.jobs.correlate import job, pending, shard
from ackstream.jobs.correlate.job import JOB, OUTPUT_SCHEMA, correlate, records, sink_columns, write_frame
from ackstream.jobs.correlate.records import Emission, read_records
from ackstream.jobs.correlate.state import ACKS, SIGNALS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.protocol.json import BYTE_ORDER_MARK
from ackstream.settings import Correlate, Kafka, Settings
from ackstream.spark import records as spark_records
from ackstream.spark.checkpoint import Planned
from ackstream.spark.kafka import REHEARSAL
from ackstream.spark.operator import STATE_SCHEMA, operator
from ackstream.spark.pieces import Aside
from tests.harness.waiting import PATIENCE_SECONDS
from tests.jobs.correlate.shards import Log, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

FIELDS = list(Record.__struct_fields__)


class State:
    """What the operator uses of Spark's GroupState."""

    def __init__(self, watermark: int = 0, state: tuple[int, bytes] | None = None) -> None:
        self.watermark, self.timeout = watermark, None
        self.exists, self.get = state is not None, state
        self.removed = False

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802 - Spark's name
        return self.watermark

    def update(self, state: tuple[int, bytes]) -> None:
        self.exists, self.get = True, state

    def remove(self) -> None:
        self.removed = True

    def setTimeoutTimestamp(self, timeout: Any) -> None:  # noqa: N802 - Spark's name
        self.timeout = timeout


class Decided:
    """What the check of a start uses of an admin client of Kafka: the end of each partition of ``ledger``."""

    def __init__(self, *ends: int) -> None:
        self._ends = ends

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        parts = [{"partition_index": number, "replica_nodes": [0]} for number in range(len(self._ends))]
        return [{"name": name, "error_code": 0, "partitions": parts} for name in topics]

    def list_partition_offsets(self, wanted: Any) -> dict[Any, Any]:
        return {partition: SimpleNamespace(offset=self._ends[partition.partition]) for partition in wanted}


@pytest.mark.parametrize(
    ("ends", "planned", "starting", "rehearsal", "refused"),
    [
        ((0, 7), False, "earliest", None, True),
        ((0, 0), False, "earliest", None, False),
        ((0, 7), True, "earliest", None, False),
        ((0, 7), False, "latest", None, False),
        ((0, 7), False, datetime(2026, 11, 22, 8, tzinfo=timezone.utc), None, False),
        ((0, 7), False, "earliest", "correlate", False),
    ],
)
def test_a_lost_checkpoint_is_refused_beside_the_decisions_that_it_would_repeat(
    monkeypatch: pytest.MonkeyPatch, ends: Any, starting: Any, rehearsal: str | None, *, planned: bool, refused: bool
) -> None:
    monkeypatch.setattr(job, "connect_admin", lambda _: nullcontext(Decided(*ends)))
    newest = Planned("q", 0) if planned else None
    draft = SimpleNamespace(remembered={})
    monkeypatch.setattr(job, "Checkpoint", lambda *_: SimpleNamespace(planned=newest, at=lambda _: draft))
    spark: Any = SimpleNamespace(conf={REHEARSAL: rehearsal})
    settings = Settings(correlate=Correlate(starting=starting), kafka=Kafka(topic_prefix="a."))
    expected = r"^The topic a\.ledger has decisions of a checkpoint that is not at .*/correlate: .* correlate\.starting"
    with pytest.raises(StartError, match=expected) if refused else nullcontext():
        JOB.check(spark, settings)


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    rows = []
    for record in records:
        named = [{"key": key, "value": base64.b64encode(value).decode()} for key, value in record.headers.items()]
        rows.append([*msgspec.structs.astuple(record)[:-2], json.dumps(named) if named else None, record.topic])
    return pd.DataFrame(rows, columns=FIELDS).assign(clock=None)


def _call(
    state: State, *batches: Sequence[Record], tick: int | None = None, aside: Aside | None = None, **limits: Any
) -> list[pd.DataFrame]:
    handle = partial(correlate, Correlate(**limits), CorrelateTopics(), Kafka(), 2_000, aside or Aside())
    # of a call for a timeout Spark makes a frame without rows
    frames = [_frame(records) for records in batches or ([],)]
    if tick is not None:
        frames.append(_frame([Log().command(tick)]).assign(clock=tick))
    return list(operator(handle)((0,), iter(frames), state))


def _emissions(frames: list[pd.DataFrame]) -> list[Emission]:
    """Take the emissions out of frames, as the query does; empty rows are none."""
    return [Emission(*row) for frame in frames for row in frame.itertuples(index=False) if row.topic is not None]


def test_a_batch_becomes_a_frame_and_a_state_with_the_next_timeout() -> None:
    log, state = Log(), State()
    (found,) = _call(state, [log.command(1000, "x", requested_acks=["a-ack"])], [log.ack(1100, "b-ack", 200, "x")])
    assert list(found.columns) == [field.split()[0] for field in OUTPUT_SCHEMA.split(",")]
    assert found["topic"].tolist() == ["ledger", "ledger"]
    assert state.timeout == 61_000
    again = State(61_001, state.get)
    (late,) = _call(again)
    assert [emission.status for emission in _emissions([late])] == ["408", None]
    assert again.removed is False, "the decided request is remembered"
    over = State(200_000, again.get)
    assert _call(over) == []
    assert over.removed is True


def test_it_wakes_up_behind_the_watermark() -> None:
    log, state = Log(), State()
    _call(state, [log.command(0, requested_acks=["a-ack"], timeout="1s")])
    later = State(1000, state.get)
    _call(later)
    assert later.timeout == 1001


def test_a_request_whose_broker_has_set_its_clock_back_is_open_for_its_whole_timeout() -> None:
    log, state = Log(), State(10_000)
    (opened,) = _call(state, [log.command(5_000, "x", requested_acks=["a-ack"], timeout="1s")])
    assert (len(opened), state.timeout) == (1, 11_000)
    (answered,) = _call(State(10_500, state.get), [log.ack(5_100, "a-ack", 200, "x")])
    assert answered["status"][0] == "200"


def test_headers_are_read_of_those_that_count_the_last_one_that_is_not_empty() -> None:
    log = Log()
    frame = _frame([log.command(1), log.command(2)])
    named = [("reply-to", b"a"), ("reply-to", b"b"), ("kafka_correlationId", b""), ("tag", b"x" * 1000)]
    frame.loc[1, "headers"] = json.dumps(
        [{"key": key, "value": base64.b64encode(value).decode()} for key, value in named] + [{"key": "reply-to"}]
    )
    assert [record.headers for record in read_records(frame)] == [{}, {"reply-to": b"b"}]


def _budget(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    for module in (shard, spark_records):
        monkeypatch.setattr(module, "BUDGET", budget)
    monkeypatch.setattr(job, "FRAME_ROWS", 2)


def _large(log: Log) -> list[list[Record]]:
    signals = [log.command(1000, key, requested_acks=["a-ack"], filler="x" * 500) for key in "pqr"]
    acks = [log.ack(1000 + number, "a-ack", 200, key, payload="y" * 500) for number, key in enumerate("prs")]
    return [acks[:2], signals[:1], [acks[2], *signals[1:]]]


def test_a_share_that_is_too_large_is_processed_in_pieces_with_the_same_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, cut = State(), State()
    (once,) = _call(whole, *_large(Log()), tick=67_000)
    _budget(monkeypatch, 600)
    pieces = _call(cut, *_large(Log()), tick=67_000)
    # Spark passes on more than two rows at once
    assert min(len(frame) for frame in pieces[:-1]) == 3
    assert len(pieces) > 1

    def decided(frames: list[pd.DataFrame]) -> Any:
        run = Run()
        run.emissions = _emissions(frames)
        acks = sorted((ack["correlation_id"], ack["disposition"]) for r in run.ledger() for ack in r.get("acks", ()))
        return sorted(map(repr, run.replies())), sorted(map(repr, run.outcomes())), acks

    assert decided(pieces) == decided([once])
    assert (cut.get, cut.timeout) == (whole.get, whole.timeout)


def test_what_was_decided_in_an_earlier_piece_is_remembered_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    _budget(monkeypatch, 10)
    request, ack = log.command(1000, "x", requested_acks=["a-ack"]), log.ack(1001, "a-ack", 200, "x")
    found = _call(State(), [request], [ack], [log.ack(1002, "a-ack", 200, "x"), log.command(1003, "x")])
    run = Run()
    run.emissions = _emissions(found)
    assert run.acks() == [("a-ack", "accepted"), ("a-ack", "late")]
    # in one piece the outcome would have the signal
    assert [record["kind"] for record in run.ledger()] == ["signal", "outcome", "ack", "dead-letter"]
    assert len(run.reasons()) == 1


def _mixed(swapped: bool) -> list[list[Record]]:  # noqa: FBT001
    """An id that is used twice, 200 s apart, as a sort hands it over that has spilled."""
    log = Log()
    first, second = (
        [log.command(at, "job-7", requested_acks=["a-ack"], timeout="10s"), log.ack(at + 1, "a-ack", status, "job-7")]
        for at, status in ((1_000, 200), (201_000, 204))
    )
    return [second, first] if swapped else [first, second]


def test_the_records_of_a_partition_are_taken_in_their_order_whatever_the_sort_of_spark_has_spilled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _budget(monkeypatch, 100)
    written = [_emissions(_call(State(), *_mixed(swapped), tick=1_000_000)) for swapped in (False, True)]
    assert written[0] == written[1]
    assert [emission.status for emission in written[0] if emission.reply_id] == ["200", "204"]


def test_a_tick_that_ends_many_requests_hands_their_answers_over_in_parts_and_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pending, "HOT_BYTES", 0)
    monkeypatch.setattr(pending, "TOUCHED_BYTES", 0)

    def end_all(aside: Aside) -> list[pd.DataFrame]:
        log, state = Log(), State()
        requests = [log.command(1000, f"c-{number}", requested_acks=["a-ack"]) for number in range(300)]
        for first in range(0, 300, 100):
            _call(state, requests[first : first + 100], aside=aside)
        return _call(State(100_000, state.get), aside=aside)

    (whole,) = end_all(Aside())
    _budget(monkeypatch, 10_000)
    parts = end_all(Aside(str(tmp_path), 1))
    assert _emissions(parts) == _emissions([whole])
    assert max(len(b"".join(frame["value"].dropna())) for frame in parts) < 2 * 10_000


def test_early_acknowledgements_beyond_a_budget_are_beside_the_state_and_count_for_their_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(aside: Aside, hot_bytes: int) -> tuple[list[Emission], int]:
        monkeypatch.setattr(shard, "HOT_BYTES", hot_bytes)
        log, state, found, blobs = Log(), State(), list[pd.DataFrame](), []
        for first in range(0, 60, 20):
            acks = [log.ack(1000 + n, "a-ack", 200, f"c-{n % 30}", payload="y" * 500) for n in range(first, first + 20)]
            found += _call(state, acks, aside=aside)
            blobs.append(len(state.get[1]))
        found += _call(state, [log.command(2000, f"c-{n}", requested_acks=["a-ack"]) for n in range(20)], aside=aside)
        return _emissions([*found, *_call(state, tick=100_000, aside=aside)]), max(blobs)

    whole, all_of_it = answer(Aside(), 256_000)
    assert all_of_it > 30_000
    _budget(monkeypatch, 2_000)
    same, most = answer(Aside(str(tmp_path), 1), 2_000)
    assert same == whole
    assert most < 3_000


def test_the_session_has_what_the_settings_say() -> None:
    correlate = Correlate(shuffle_partitions=7, state_store="rocksdb")
    assert job.conf(Settings(correlate=correlate)) == {
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "60000",
    }


OWN = ("correlation-id", b"own")
IN_JSON = b'{"headers":{"correlation-id":"json"}}'
HEADERS: list[tuple[list[tuple[str, bytes | None]] | None, bytes | None, str | None, list[str]]] = [
    ([OWN], IN_JSON, "own", []),
    ([("correlation-id", b"\xff")], IN_JSON, "\ufffd", []),
    ([("correlation-id", b"")], IN_JSON, "json", []),
    ([("correlation-id", None)], None, None, []),
    ([OWN, ("correlation-id", b"last")], IN_JSON, "last", []),
    ([OWN, ("reply-to", b"mine")], IN_JSON, "own", ["correlation-id", "reply-to"]),
    ([("reply-to", b"mine")], IN_JSON, "json", ["reply-to"]),
    ([("kafka_correlationId", b"\xff\x01")], b"{}", "FF01", ["kafka_correlationId"]),
    ([], IN_JSON, "json", []),
    ([], BYTE_ORDER_MARK + IN_JSON, "json", []),
    (None, IN_JSON, "json", []),
    (None, b"x", None, []),
    ([], b'{"headers":{"correlation-id":""}}', None, []),
    ([], b'{"headers":{"correlation-id":"","Correlation-Id":17}}', "17", []),
]
"""Record headers and value; the correlation-id of an acknowledgement, and the names of the headers that are read."""


def test_a_record_has_its_correlation_id_from_a_header_or_the_json_and_headers_if_there_are_others(
    spark: SparkSession,
) -> None:
    schema = (
        "topic STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>, partition INT,"
        " offset LONG, timestamp TIMESTAMP"
    )
    at = datetime.fromtimestamp(1, tz=timezone.utc)
    rows = [("acks", b"k", value, headers, 0, n, at) for n, (headers, value, *_) in enumerate(HEADERS)]
    found = records(spark.createDataFrame(rows, schema), Settings(), CorrelateTopics()).orderBy("offset").collect()
    named = [[entry["key"] for entry in json.loads(row.headers or "[]")] for row in found]
    assert [(row.correlation_id, names) for row, names in zip(found, named, strict=True)] == [
        (wanted, names) for *_, wanted, names in HEADERS
    ]


ASKS = ("requested-acks", b"a-ack")
OF_APPLICATIONS: list[tuple[str, list[tuple[str, bytes]] | None, str | None, str | None]] = [
    ("orders", None, None, None),
    ("orders", [OWN], None, None),
    ("orders", [("label", b"a-ack"), OWN], None, None),
    ("orders", [("requested-acks", b""), OWN], None, None),
    ("bookings", [("label", b""), OWN], None, None),
    ("orders", [ASKS, OWN], "signals", "own"),
    ("orders", [ASKS], "signals", "orders-0-6"),
    ("orders", [("ce_requestedacks", b"a-ack"), ("ce_id", b"event")], "signals", "event"),
    ("orders", [ASKS, ("kafka_correlationId", b"spring")], "signals", "spring"),
    ("bookings", [ASKS, OWN], None, None),
    ("bookings", [("label", b"a-ack"), OWN], "acks", "own"),
    ("bookings", [("label", b"a-ack"), ("ce_id", b"event")], "acks", None),
    ("both", [ASKS, ("label", b"a-ack"), OWN], "signals", "own"),
    ("both", [("label", b"a-ack"), OWN], "acks", "own"),
    ("acks", [("label", b"a-ack"), OWN], "acks", "own"),
]
"""Topic and record headers; as a record of which topic it counts (``None``: of no one), and its correlation-id."""


def test_of_the_records_of_applications_those_that_ask_or_answer_are_read(spark: SparkSession) -> None:
    schema = (
        "topic STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>, partition INT,"
        " offset LONG, timestamp TIMESTAMP"
    )
    at = datetime.fromtimestamp(1, tz=timezone.utc)
    rows = [(topic, b"k", IN_JSON, headers, 0, n, at) for n, (topic, headers, *_) in enumerate(OF_APPLICATIONS)]
    topics = CorrelateTopics(requests=("orders", "both"), answers=("bookings", "both"))
    frame = records(spark.createDataFrame(rows, schema), Settings(), topics).orderBy("offset").toPandas()
    found = {record.offset: record for record in read_records(frame)}
    roles = {SIGNALS: "signals", ACKS: "acks"}
    assert {offset: (roles[record.role], record.correlation_id) for offset, record in found.items()} == {
        offset: (role, identity) for offset, (_, _, role, identity) in enumerate(OF_APPLICATIONS) if role
    }
    assert {record.topic for record in found.values()} == {"orders", "bookings", "both", None}
    numbers = {record.topic: record.source - record.role for record in found.values()}
    log = Log()
    assert [numbers[name] for name in ("orders", "bookings")] == [
        one.source - one.role for one in (log.order(1), log.confirmation(1, "a-ack"))
    ]
    assert numbers[None] == 0


def test_a_shard_gets_its_records_in_one_frame_unless_they_have_many_bytes(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    for key, value in job.conf(Settings()).items():
        session.conf.set(key, value)

    def rows(_key: Any, frames: Iterator[pd.DataFrame], _state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"rows": [len(frame) for frame in frames]})

    def frames_of(records: int, size: int) -> list[int]:
        path = str(tmp_path / f"records-{size}")
        frame = session.range(records).select(F.lit(0).alias("shard"), F.repeat(F.lit("x"), F.lit(size)).alias("value"))
        frame.coalesce(1).write.parquet(path)
        stream = session.readStream.schema(frame.schema).parquet(path).groupBy("shard")
        shard = stream.applyInPandasWithState(rows, "rows INT", STATE_SCHEMA, "append", "NoTimeout")
        written = shard.writeStream.queryName(f"frames_{size}").format("memory").outputMode("append")
        query = written.option("checkpointLocation", f"{path}-own").trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_SECONDS)
        return [row.rows for row in session.table(f"frames_{size}").collect()]

    assert frames_of(50_000, 10) == [50_000]
    assert frames_of(50, 1024 * 1024) == [32, 18]


def test_the_sink_gets_a_record_for_each_emission_with_its_headers(spark: SparkSession) -> None:
    emissions = [
        Emission("replies", b"c", b"{}", "r", "200", "timeout", b"\x00"),
        Emission("replies", b"c", b"{}", "r", "200", "timeout"),
        Emission("ledger", b"c", b"1"),
        Emission("dead-letters", None, None, reason="why"),
        Emission("replies", b"c", b"{}", "r", "200", "amended", traceparent=b"t", version="2"),
    ]
    frame = pd.concat([write_frame(emissions, 2), write_frame(emissions[:1])])
    found = sink_columns(spark.createDataFrame([*frame.itertuples(index=False, name=None)], OUTPUT_SCHEMA)).collect()
    assert [(row.topic, row.key, row.value) for row in found] == [
        (emission.topic, emission.key, emission.value) for emission in [*emissions, emissions[0]]
    ]
    reply = ["correlation-id", "reply-id", "status", "completed-by", "content-type"]
    named = [[header.key for header in row.headers or []] for row in found]
    assert named[:4] == [[*reply, "kafka_correlationId"], reply, [], ["reason"]]
    assert named[4] == [*reply, "reply-version", "traceparent"]
