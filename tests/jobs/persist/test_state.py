from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import deltalake
from msgspec.json import encode

from ackstream.jobs.persist import deferred_acks
from ackstream.jobs.persist.deferred_acks import DeferredAcks
from ackstream.jobs.persist.state import PublisherState, StoredStates
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.messages import CommandAck
from ackstream.settings import Destination, Lake, Settings
from ackstream.spark.checkpoint import Planned
from tests.lake import empty

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

PUBLISHERS = ALL_TABLES["publishers"].schema
OLD, NEW = "old query", "new query"
ACK = CommandAck(ack_type="persisted", status="success", first=1, seq=2)


Row: TypeAlias = "tuple[str, int, str, int | None, str | None]"
"""Client, batch, query, told, acks."""


def _put(spark: SparkSession, lake: Lake, *rows: Row) -> None:
    full = [
        (client, batch, batch, told, query, f'{{"watermark":{batch}}}', acks)
        for client, batch, query, told, acks in rows
    ]
    written = spark.createDataFrame(full, PUBLISHERS).coalesce(1).write.format("delta").mode("append")
    written.save(lake.table("publishers"))


def _load(spark: SparkSession, settings: Settings, batch: int) -> tuple[int, dict[str, PublisherState]]:
    stored = StoredStates(spark, settings, NEW)
    return stored.first, stored.before(batch)


def _rows(lake: Lake) -> list[tuple[int, str]]:
    found = deltalake.DeltaTable(lake.table("publishers")).to_pyarrow_table(columns=["batch", "client"]).to_pylist()
    return sorted((row["batch"], row["client"]) for row in found)


def test_what_persist_starts_from_and_what_waits_is_kept(spark: SparkSession, lake: Lake) -> None:
    settings = Settings(lake=lake)
    empty.create(spark, lake, ["publishers", "messages"])
    StoredStates(spark, settings, NEW).prune()
    _put(
        spark,
        lake,
        *[("a", 0, OLD, None, None), ("a", 1, OLD, None, None), ("b", 1, OLD, None, None), ("a", 2, OLD, None, None)],
        *[("b", 3, NEW, 2, None), ("a", 4, NEW, 3, "[]"), ("b", 4, NEW, 3, "[]"), ("a", 5, NEW, 4, "[]")],
        *[("b", 5, NEW, 4, None), ("a", 6, NEW, 4, None), ("a", 7, NEW, 4, None), ("c", 7, NEW, 4, None)],
    )
    before = [_load(spark, settings, batch) for batch in (4, 5)]
    StoredStates(spark, settings, NEW).prune()
    # batch 4 is told, 5 is not; 7 may run again and starts from 5 and 6; the others are where the queries begin and end
    assert _rows(lake) == [
        (0, "a"), (2, "a"), (3, "b"), (5, "a"), (5, "b"), (6, "a"), (7, "a"), (7, "c"),
    ]  # fmt: skip
    assert [_load(spark, settings, batch) for batch in (4, 5)] == before
    assert before[0] == (3, {"a": PublisherState(watermark=6), "b": PublisherState(watermark=5)})


def test_a_state_is_kept_as_long_as_the_only_later_one_of_its_publisher_was_never_whole(
    spark: SparkSession, lake: Lake
) -> None:
    settings = Settings(lake=lake)
    empty.create(spark, lake, ["publishers", "messages"])
    _put(spark, lake, ("b", 80, OLD, None, None), ("c", 90, OLD, None, None))
    _put_message(spark, lake, OLD, 99)
    # interrupted before it had messages; the new query has not reached a record of the publisher
    _put(spark, lake, ("c", 100, OLD, None, None), ("b", 101, NEW, None, None), ("b", 102, NEW, None, None))
    before = _load(spark, settings, 3)
    assert before[1]["c"] == PublisherState(watermark=90)
    StoredStates(spark, settings, NEW).prune()
    assert _load(spark, settings, 3) == before


def test_the_batches_of_a_new_query_begin_behind_all_that_are_in_the_tables(spark: SparkSession, lake: Lake) -> None:
    settings = Settings(lake=lake)
    empty.create(spark, lake, ["publishers", "messages"])
    assert _load(spark, settings, 0) == (0, {})
    _put(spark, lake, ("a", 0, OLD, None, None))
    _put_message(spark, lake, OLD, 1)
    assert _load(spark, settings, 0) == (2, {"a": PublisherState(watermark=0)})
    # and stay where they were
    _put_message(spark, lake, NEW, 2)
    assert _load(spark, settings, 0)[0] == 2
    _put(spark, lake, ("a", 3, NEW, None, None))
    assert _load(spark, settings, 2)[0] == 2


def test_a_batch_that_was_interrupted_before_it_had_messages_is_never_acknowledged(
    spark: SparkSession, lake: Lake
) -> None:
    """Neither by the first start with a new checkpoint, nor by later ones: it reads the messages again."""
    settings = Settings(lake=lake)
    empty.create(spark, lake, ["publishers", "messages"])
    _put(spark, lake, ("a", 6, OLD, 5, "[]"), ("a", 7, OLD, 5, "[]"))
    _put_message(spark, lake, OLD, 6)

    def waiting(last: Planned | None) -> list[int]:
        return DeferredAcks(spark, settings, last)._backlog.ready(100)

    assert waiting(None) == [6]
    _put(spark, lake, ("a", 8, NEW, 5, "[]"), ("a", 9, NEW, 5, "[]"))
    _put_message(spark, lake, NEW, 8)
    _put_message(spark, lake, NEW, 9)
    assert waiting(Planned(NEW, 1)) == [6, 8, 9]
    assert _load(spark, settings, 0) == (8, {"a": PublisherState(watermark=6)})


def test_the_acks_of_a_batch_that_is_about_to_be_replayed_wait_for_its_messages(
    spark: SparkSession, lake: Lake
) -> None:
    settings = Settings(lake=lake)
    empty.create(spark, lake, ["publishers", "messages"])
    _put(spark, lake, ("a", 6, OLD, 5, "[]"), ("a", 8, NEW, 5, "[]"), ("a", 9, NEW, 5, "[]"))
    # the last batch of the old query has messages alone, that of the new one states alone
    for query, batch in ((OLD, 6), (OLD, 7), (NEW, 8)):
        _put_message(spark, lake, query, batch)
    ready = {}
    for unfinished in (False, True):
        last = Planned(NEW, 1, unfinished)
        ready[unfinished] = DeferredAcks(spark, settings, last)._backlog.ready(100)
    assert ready == {False: [6, 8, 9], True: [6, 8]}


def test_acks_that_wait_are_here_or_in_the_table(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = Destination(name="east", path=str(lake.table("east")), type="sync")
    settings = Settings(lake=lake, destinations=[destination])
    empty.create(spark, lake, ["publishers", "messages"])
    _put(spark, lake, ("a", 6, NEW, 5, encode([ACK]).decode()))
    _put_message(spark, lake, NEW, 6)
    deferred = DeferredAcks(spark, settings, None)
    asked: list[list[int]] = []
    real = deferred._stored
    monkeypatch.setattr(deferred, "_stored", lambda numbers: [asked.append(numbers), real(numbers)][1])
    monkeypatch.setattr(deferred_acks, "MAX_ACKS_HELD", 5)
    state = PublisherState(conflation=0)
    result: Any = SimpleNamespace(changed={"a": state, "b": state}, urgent=frozenset("b"))
    for batch in (7, 8, 9):
        _put(spark, lake, *[(client, batch, NEW, 5, encode([ACK]).decode()) for client in "ab"])
        deferred.committed(batch, {"a": [ACK], "b": [ACK]}, result, stored=True, began=0)
    paced: list[tuple[int, str, bool]] = []
    monkeypatch.setattr(deferred._pacing, "add", lambda one, batch, _: paced.append((batch, one.client, one.urgent)))
    for batch in (6, 8, 9):
        deferred._backlog.report("east", batch)
        deferred._catch_up()
    # one was there before, and there is no room for the last one
    assert asked == [[6], [9]]
    assert sorted(paced) == [(6, "a", True), *[(batch, who, who == "b") for batch in (7, 8, 9) for who in "ab"]]
    assert (deferred._held, deferred._urgent) == ({}, {})


def test_a_publisher_that_has_been_silent_is_loaded_when_it_sends_again(spark: SparkSession, lake: Lake) -> None:
    settings = Settings(lake=lake)
    empty.create(spark, lake, ["publishers", "messages"])
    states = [("idle", PublisherState(watermark=5, day=20_000)), ("busy", PublisherState(watermark=7, day=20_002))]
    rows = [(name, batch, 0, None, NEW, encode(state).decode(), None) for batch, (name, state) in enumerate(states)]
    spark.createDataFrame(rows, PUBLISHERS).coalesce(1).write.format("delta").mode("append").save(
        lake.table("publishers")
    )
    stored = StoredStates(spark, settings, NEW)
    assert (stored.before(2), stored.complete) == ({"busy": states[1][1]}, False)
    assert stored.before(2, {"idle", "new"}) == {"idle": states[0][1]}
    assert stored.before(0, {"idle"}) == {}


def _put_message(spark: SparkSession, lake: Lake, query: str, batch: int) -> None:
    rows = spark.range(1).selectExpr(
        "timestamp'2026-11-21 12:00:00' AS received_at", f"{batch}L AS batch", f"'{query}' AS query_id",
        "'t' AS topic", "0 AS partition", "id AS offset", "date'2026-11-21' AS day",
    )  # fmt: skip
    tables.append(rows, lake, "messages", query, batch)
