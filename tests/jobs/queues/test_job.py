from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pytest
from deltalake import DeltaTable

from ackstream.jobs.queues import job
from ackstream.jobs.queues.endpoint import Endpoint
from ackstream.jobs.queues.job import ARRIVAL, OUTPUT_SCHEMA, REPORT, count, read_frames, serve
from ackstream.jobs.queues.records import Arrival, ConsumerReport, Event
from ackstream.observe.metrics import (
    DEAD_LETTERS,
    QUEUE_CONSUMERS,
    QUEUE_DELIVERIES,
    QUEUE_DEPTH,
    QUEUE_LEFT,
    QUEUE_OLDEST,
    QUEUE_REDELIVERIES,
    Figures,
    Tally,
)
from ackstream.protocol import queues
from ackstream.protocol.json import BYTE_ORDER_MARK
from ackstream.protocol.queues import Alive, Bind, Bound, MessageDelivered, SettleMessages, Unbind, Unbound
from ackstream.settings import Lake, Settings
from ackstream.settings.jobs import QueueJob
from ackstream.spark.operator import operator
from tests.harness.sessions import SETTINGS, other_session
from tests.harness.waiting import PATIENCE_SECONDS
from tests.jobs.queues.rules import amps, solace
from tests.lake import empty, planes

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RULES = {
    "q": amps(max_backlog=2, lease_ms=1_000),
    "plain": solace(),
    "plenty": solace(respect_ttl=True, lease_ms=1_000),
}


class State:
    """Spark's state of one group, as far as the operator uses it."""

    def __init__(self) -> None:
        self.value: tuple[int, bytes] | None = None
        self.timeout: int | None = None
        self.watermark = -1

    @property
    def exists(self) -> bool:
        return self.value is not None

    @property
    def get(self) -> tuple[int, bytes] | None:
        return self.value

    def update(self, value: tuple[int, bytes]) -> None:
        self.value, self.timeout = value, None

    def remove(self) -> None:
        self.value = self.timeout = None

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802 - Spark's name
        return self.watermark

    def setTimeoutTimestamp(self, timestamp: int) -> None:  # noqa: N802 - Spark's name
        assert timestamp > self.watermark
        self.timeout = timestamp


def _row(kind: int, timestamp: int, offset: int, **more: Any) -> dict[str, Any]:
    columns = {
        "kind": kind, "timestamp": timestamp, "topic": "messages", "partition": 0, "offset": offset, "key": None,
        "value": None, "batch": 0, "subject": None, "ttl_ms": 0, "eligible": True, "barrier": False, "clock": None,
    }  # fmt: skip
    return columns | more


def _message(timestamp: int, offset: int) -> dict[str, Any]:
    return _row(ARRIVAL, timestamp, offset, batch=3, subject="orders/new")


def _word(timestamp: int, offset: int, record: queues.QueueRequest | bytes) -> dict[str, Any]:
    value = record if isinstance(record, bytes) else queues.write(record)
    return _row(REPORT, timestamp, offset, key=b"A", value=value, eligible=None, barrier=None)


def _call(state: State, *rows: dict[str, Any], queue: str = "q", frames: int = 1) -> dict[str, list[Any]]:
    """Run one batch of a queue, whose output has so many ``frames``; return what came out by its kind."""
    given = [pd.DataFrame([row]) for row in rows]
    found = list(operator(partial(serve, RULES, 30_000))((queue,), given, state))  # type: ignore[arg-type]
    assert len(found) == frames
    out = pd.concat(found)
    assert list(out.columns) == ["kind", "key", "value", "reason", "partition", "offset"]
    readers = {
        "answer": queues.read_answer,
        "event": msgspec.json.Decoder(Event).decode,
        "unreadable": bytes,
    }
    return {
        kind: [reader(value) for which, value in zip(out["kind"], out["value"], strict=True) if which == kind]
        for kind, reader in readers.items()
    }


def test_rows_are_read_as_messages_and_as_words_of_consumers() -> None:
    frame = pd.DataFrame([_message(1, 7), _word(2, 8, b"x")])
    assert read_frames([frame, frame.iloc[:0]]) == (
        [Arrival(1, "messages", 0, 7, 3, "orders/new")],
        [ConsumerReport(2, 0, 8, b"A", b"x")],
    )


def test_a_batch_is_answered_and_the_state_lasts_to_the_next_one() -> None:
    state = State()
    out = _call(state, _message(1, 7), _word(2, 8, Bind("q", "A", 5)))
    assert [type(answer) for answer in out["answer"]] == [Bound, MessageDelivered]
    assert [event.event for event in out["event"]] == ["delivered"]
    assert state.timeout == 15_002
    out = _call(state, _word(3, 9, SettleMessages("q", "A", 5, ("messages-0-7",))))
    assert [(event.event, event.reason) for event in out["event"]] == [("left", "accepted")]


def test_a_timeout_lets_time_pass() -> None:
    state = State()
    _call(state, _message(1, 7), _word(2, 8, Bind("q", "A", 5)), _word(3, 9, Alive("q", "A", 5, received=2)))
    assert state.timeout == 1_003
    state.watermark = 1_003
    out = _call(state)
    assert [(event.event, event.at) for event in out["event"]] == [("returned", 1_003), ("delivered", 1_003)]
    assert state.timeout == 16_003


@pytest.mark.parametrize(("bound", "end", "events", "pieces"), [(False, 40_100, 100, 6), (True, 1_100, 200, 16)])
def test_a_tick_that_ends_much_hands_it_over_in_pieces_and_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
    bound: bool,  # noqa: FBT001 - a row of the table: else all expire
    end: int,
    events: int,
    pieces: int,
) -> None:
    state, rows = State(), [_message(1, offset) | {"ttl_ms": 40_000 - offset} for offset in range(100)]
    if bound:
        rows += [_word(2, 200, Bind("plenty", "A", 5)), _word(3, 201, Alive("plenty", "A", 5, 101, handed_out=101))]
    _call(state, *rows, queue="plenty")
    before, state.watermark = state.value, end
    whole = _call(state, queue="plenty")
    assert len(whole["event"]) == events
    after, state.value = state.value, before
    monkeypatch.setattr("ackstream.jobs.queues.endpoint.PIECE", 20)
    assert _call(state, queue="plenty", frames=pieces) == whole
    assert state.value == after


def test_a_batch_that_runs_again_comes_to_the_same() -> None:
    state = State()
    _call(state, _message(1, 7), _word(2, 8, Bind("q", "A", 5)))
    before = state.value
    rows = (_message(3, 9), _word(4, 10, SettleMessages("q", "A", 5, ("messages-0-7",))))
    first = _call(state, *rows)
    after, state.value = state.value, before
    assert _call(state, *rows) == first
    assert state.value == after


def test_a_queue_that_holds_nothing_has_no_state() -> None:
    state = State()
    _call(state, _word(1, 1, Bind("plain", "A", 5)), queue="plain")
    assert state.exists
    _call(state, _word(2, 2, Unbind("plain", "A", 5)), queue="plain")
    assert not state.exists


def test_what_a_queue_held_that_is_not_in_the_settings_stays() -> None:
    state = State()
    _call(state, _message(1, 7))
    kept = state.value
    out = _call(state, _message(2, 8), _word(3, 9, Bind("gone", "A", 5)), _word(3, 10, b"{"), queue="gone")
    assert out == {"answer": [Unbound("gone", "A", 5, "unknown-queue")], "event": [], "unreadable": [b"{"]}
    assert state.value == kept


def test_an_unreadable_record_is_named_by_its_coordinates() -> None:
    (out,) = operator(partial(serve, RULES, 30_000))(("q",), [pd.DataFrame([_word(1, 17, b"{")])], State())  # type: ignore[arg-type]
    assert out[["kind", "key", "value", "partition", "offset"]].to_numpy().tolist() == [
        ["unreadable", b"A", b"{", 0, 17]
    ]


def test_a_record_too_large_to_be_read_is_unreadable_wherever_it_goes() -> None:
    for queue in ("q", "gone"):
        row = _word(1, 17, b"{") | {"value": None}
        (out,) = operator(partial(serve, RULES, 30_000))((queue,), [pd.DataFrame([row])], State())  # type: ignore[arg-type]
        assert out[["kind", "value", "reason"]].to_numpy().tolist() == [
            ["unreadable", None, "The record is too large."]
        ]


def test_of_an_unreadable_record_the_dead_letter_has_the_beginning() -> None:
    for queue in ("q", "gone"):
        assert _call(State(), _word(1, 17, b"{" * 900_000), queue=queue)["unreadable"] == [b"{" * 4_096]


def test_a_report_is_read_with_a_byte_order_mark_too(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = "topic STRING, key BINARY, value BINARY, partition INT, offset LONG, timestamp TIMESTAMP"
    at, bind = datetime.fromtimestamp(1, tz=timezone.utc), queues.write(Bind("q", "A", 1, 10))
    rows = [("app-acks", b"A", mark + bind, 0, number, at) for number, mark in enumerate((b"", BYTE_ORDER_MARK))]
    monkeypatch.setattr(job.spark_kafka, "source", lambda *_, **__: spark.createDataFrame(rows, schema))
    assert [row.queue for row in job._reports(spark, Settings()).collect()] == ["q", "q"]


def test_nothing_to_say_is_an_empty_frame() -> None:
    assert _call(State()) == {"answer": [], "event": [], "unreadable": []}


# -- figures -----------------------------------------------------------------------------------------------------------


def _reports(*records: tuple[int, object]) -> list[ConsumerReport]:
    return [
        ConsumerReport(at, 0, offset, b"A", queues.write(record))  # type: ignore[arg-type]
        for offset, (at, record) in enumerate(records)
    ]


def test_deliveries_and_exits_count_by_queue_and_what_is_left_is_measured() -> None:
    endpoint, figures = Endpoint(solace(), 30_000), Figures()
    arrivals = [Arrival(at, "m", partition, 0, 5, "orders") for at, partition in ((1_000, 1), (2_000, 2), (3_000, 3))]
    outcomes = ("failed", "rejected")
    reports = _reports(
        (4_000, Bind("q", "A", 1, outcomes=outcomes)),
        (5_000, SettleMessages("q", "A", 1, ("m-1-0",), "accepted")),
        (6_000, SettleMessages("q", "A", 1, ("m-2-0",), "rejected")),
        (7_000, Unbind("q", "A", 1, handed_out=4)),
        (8_000, Bind("q", "B", 1, outcomes=outcomes)),
    )
    list(endpoint.process(arrivals, reports, 0))
    endpoint.dump()
    count(endpoint.events, 2, figures)
    counted = figures.read().counters
    assert counted == {
        (QUEUE_DELIVERIES.name, "q"): 4,
        (QUEUE_REDELIVERIES.name, "q"): 1,
        (QUEUE_LEFT.name, "q", "settled"): 1,
        (QUEUE_LEFT.name, "q", "dead-letter"): 1,
        (DEAD_LETTERS.name, "queues", "rejected"): 1,
        (DEAD_LETTERS.name, "queues", "unreadable"): 2,
    }
    tally = Tally()
    endpoint.measure(tally)
    assert tally.gauges == {
        (QUEUE_DEPTH.name, "q"): 1, (QUEUE_CONSUMERS.name, "q"): 1, (QUEUE_OLDEST.name, "q"): 3.0,
    }  # fmt: skip


def test_an_empty_queue_has_no_oldest_message() -> None:
    tally = Tally()
    Endpoint(solace(), 30_000).measure(tally)
    assert tally.gauges == {(QUEUE_DEPTH.name, "q"): 0, (QUEUE_CONSUMERS.name, "q"): 0}


@pytest.mark.parametrize(("key", "value"), SETTINGS)
def test_no_value_depends_on_a_setting_of_the_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    dead: list[Any] = []
    monkeypatch.setattr(job.spark_kafka, "send", lambda *_: None)
    monkeypatch.setattr(job.spark_kafka, "write", lambda frame, *_: dead.extend(map(str, frame.toArrow().to_pylist())))
    times = [datetime(2026, 11, day, hour, 30, tzinfo=timezone.utc) for day in (1, 2) for hour in (0, 12, 23)]
    named = [*enumerate(times)]
    stored = [planes.message(n, 0, received_at=at, day=at.date(), subject="I", client="İ") for n, at in named]
    left = [
        Event("q", f"messages-0-{100 + n}", int(at.timestamp()) * 1000, "left", "A", 1, "dead-letter", "failed",
              "messages", 0, 100 + n, 0, "I", int(at.timestamp()) * 1000)
        for n, at in named
    ]  # fmt: skip
    out = [("event", None, msgspec.json.encode(event), None, None, None) for event in left]

    def results(session: SparkSession, name: str) -> list[list[str]]:
        lake = Lake(path=str(tmp_path / name))
        empty.create(spark, lake, ("messages", "queue_events"))
        planes.write(lake, "messages", stored)
        settings = Settings(lake=lake, queues=(amps(),), queue=QueueJob(starting="earliest"))
        job.write(settings, session.createDataFrame(out, OUTPUT_SCHEMA), 0, "query")
        arrivals = job._messages(session, settings).writeStream.format("memory").queryName(f"arrivals_{name}")
        arrivals.trigger(availableNow=True).start().awaitTermination(PATIENCE_SECONDS)
        read = [
            session.table(f"arrivals_{name}").toArrow(),
            DeltaTable(lake.table("queue_events")).to_pyarrow_table(),
        ]
        letters = sorted(dead)
        dead.clear()
        return [letters, *(sorted(map(str, found.to_pylist())) for found in read)]

    with other_session(spark, key, value) as other:
        found = results(other, "other")
    assert found == results(spark, "own")
    assert [len(rows) for rows in found] == [6, 6, 6]
