"""What commands find in the tables, on real Spark."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.query import results
from ackstream.jobs.query.records import QueryRequest, read
from ackstream.jobs.query.results import Acknowledged, GroupMark, LogDelivered, LogSubscription, Selected, Step
from ackstream.lake import messages, tables
from ackstream.lake.messages import Moment, Tail
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol import queries
from ackstream.protocol.json import BYTE_ORDER_MARK
from ackstream.protocol.messages import CommandAck, decode_ack
from ackstream.protocol.queries import BEGINNING, Position
from ackstream.settings import Lake
from ackstream.spark.kafka import COPY_BYTES
from tests.lake import empty

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

TIME = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
VALUES: list[Any] = [
    {"id": 0, "price": 7, "state": "open", "bid": 9, "ask": 10},
    {"id": 1, "price": 10.5, "state": "open"},
    {"id": 2, "price": "12", "state": "closed", "order": {"by": "ann"}},
    {"id": 3, "price": "cheap", "done": True},
    {"id": 4, "price": None},
]
KEYS = [b"a", b"b", b"c", b"d", None]
MARKS = {2: BYTE_ORDER_MARK}
"""The bytes before the JSON of some values."""


@pytest.fixture(scope="module")
def apart(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    return session


@pytest.fixture(scope="module")
def lake(apart: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    path = tmp_path_factory.mktemp("lake")
    made = Lake(path=str(path / "lake"), checkpoints=str(path / "checkpoints"))
    empty.create(apart, made, ["messages", "publishers", "subscriptions", "sow_deletes"])
    old = [(0, 0, offset, "orders", b"a", b'{"id": "old"}', None) for offset in range(2)]
    new = [
        (1, offset % 2, 10 + offset, "orders", key, MARKS.get(offset, b"") + json.dumps(value).encode(), None)
        for offset, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]
    others = [(1, 0, 20, "trades", b"a", b"no JSON", None), (1, 0, 21, "orders", b"e", b'{"price": 8}', "not entitled")]
    rows = [
        {
            "client": "p1", "received_at": TIME, "batch": batch, "seq": offset, "query_id": "q", "reason": reason,
            "subject": subject, "key": key, "value": value, "headers": [("colour", b"red")], "topic": "messages",
            "partition": partition, "offset": offset, "day": TIME.date(),
        }
        for batch, partition, offset, subject, key, value, reason in old + new + others
    ]  # fmt: skip
    written = apart.createDataFrame(rows, ALL_TABLES["messages"].schema).coalesce(1)
    written.write.format("delta").mode("append").save(tables.location(made, "messages"))
    return made


def _request(command: str = "sow", **headers: str) -> QueryRequest:
    said = {"command": command, "cid": "c", "topic": "orders"} | headers
    request = read(b"analyst", [(name, text.encode()) for name, text in said.items()], "0-7", 0)
    assert request.reason is None
    return request


def _told(spark: SparkSession, lake: Lake, *steps: Step, newest: int = 1, batch: int = 0) -> list[dict[str, Any]]:
    tail = Tail(spark, lake)
    rows = results.records(spark, lake, tail, steps, newest, Moment(batch, 0)).collect()
    return [
        {"to": row.key, "value": row.value and bytes(row.value)} | {name: bytes(value) for name, value in row.headers}
        for row in rows
    ]


def _ids(told: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(row["value"]).get("id") for row in told]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("/price > 7", [1, 2]),
        ("/price = 10.5", [1]),
        ("/price IN (7, 'cheap')", [0, 3]),
        ("/price NOT BETWEEN 8 AND 11", [0, 2]),
        ("/bid < /ask", [0]),
        ("/state = 'open' AND NOT /price < 10", [1]),
        ("/order/by LIKE '^a'", [2]),
        ("/state BEGINS WITH 'clo' OR /done = TRUE", [2, 3]),
        ("/price IS NULL", [4]),
        ("LENGTH(/state) + 1 = 5 AND UPPER(state) = 'OPEN'", [0, 1]),
        ("/id % 2 = 1 OR SUBSTRING(/state, 1, 2) = 'cl'", [1, 2, 3]),
        ("/price / 0 > 1", []),
        ("/price IN (10.5, 7, 'cheap', '12') AND /id IN (1, '0', 3)", [0, 1, 3]),
        ("-/price < -10 AND '-' || /state || '-' = '-open-'", [1]),
        ("/state ENDS WITH 'n' AND /state LIKE '(p|en)+'", [0, 1]),
        ('and(eq(state,"open"),gt(price,7))', [1]),
        ('or(like(order/by,"a*"),exists(done))', [2, 3]),
    ],
)
def test_filters_take_numbers_as_numbers_and_never_fail(
    apart: SparkSession, lake: Lake, text: str, ids: list[int]
) -> None:
    found = results.selected(apart, lake, _request(filter=text), 1, Moment(0, 0)).select("value").collect()
    assert sorted(_ids([{"value": row.value} for row in found])) == ids


def test_a_record_is_the_newest_message_of_its_key_and_a_message_without_a_key_one_of_its_own(
    apart: SparkSession, lake: Lake
) -> None:
    assert results.counted(apart, lake, _request(filter="/price > 7"), 1, Moment(0, 0)) == (5, 2)
    assert results.counted(apart, lake, _request(filter="/id = 'old'"), 0, Moment(0, 0)) == (1, 1)
    assert results.counted(apart, lake, _request(sow_keys="a,d,none"), 1, Moment(0, 0)) == (5, 2)


@pytest.mark.parametrize(
    ("order_by", "top_n", "ids"),
    [
        ("", "3", [0, 2, 4]),
        ("/price", None, [0, 1, 2, 3, 4]),
        ("/price DESC", "2", [2, 1]),
        ("/state desc, /id DESC", None, [1, 0, 2, 4, 3]),
    ],
)
def test_records_are_ordered_and_cut(
    apart: SparkSession, lake: Lake, order_by: str, top_n: str | None, ids: list[int]
) -> None:
    request = _request(order_by=order_by, **({} if top_n is None else {"top_n": top_n}))
    told = _told(
        apart,
        lake,
        GroupMark(request, "0-7/1", "group_begin"),
        Selected(request),
        GroupMark(request, "0-7/2", "group_end"),
    )
    assert [row["command"] for row in told] == [b"group_begin", *[b"sow"] * len(ids), b"group_end"]
    assert _ids(told[1:-1]) == ids
    assert {(row["to"], row["cid"], row["topic"], row["header-colour"]) for row in told[1:-1]} == {
        ("analyst", b"c", b"orders", b"red")
    }


def test_messages_are_delivered_in_the_order_of_the_log_to_each_subscription_they_match(
    apart: SparkSession, lake: Lake
) -> None:
    subscribers = (
        LogSubscription("a", "all", "c1", "0-1", "orders"),
        LogSubscription("b", "same", "c2", "0-2", "orders"),
        LogSubscription("b", "dear", "c3", "0-3", "orders", "/price > 7"),
        LogSubscription("b", "other", "c4", "0-4", "trades"),
        LogSubscription("b", "rql", "c5", "0-5", "orders", 'and(ge(price,10.5),eq(state,"open"))'),
        LogSubscription("b", "like", "c6", "0-6", "orders", "/state LIKE '^(o|p)+en$' AND NOT /price LIKE '7'"),
    )
    last = Acknowledged("0-9/1", CommandAck(ack_type="completed", client="b", cid="c3"))
    told = _told(apart, lake, LogDelivered(subscribers, Position(0, 0, 0), queries.end(1)), last)
    assert decode_ack(told[-1]["value"]) == last.ack
    seen = {one.sub_id: [row for row in told[:-1] if row["sub_id"].decode() == one.sub_id] for one in subscribers}
    assert _ids(seen["all"]) == ["old", 0, 2, 4, 1, 3]
    assert [row["value"] for row in seen["same"]] == [row["value"] for row in seen["all"]]
    assert _ids(seen["dear"]) == [2, 1]
    assert [row["value"] for row in seen["other"]] == [b"no JSON"]
    assert _ids(seen["rql"]) == _ids(seen["like"]) == [1]
    row = seen["dear"][0]
    assert row["bookmark"].decode() == queries.bookmark(Position(1, 0, 12), "orders")
    assert (row["id"], row["key"], row["client"]) == (b"0-3/1|0|12", b"c", b"p1")
    stop = LogDelivered(subscribers[:1], BEGINNING, Position(1, 0, 10))
    assert _ids(_told(apart, lake, stop)) == ["old", "old", 0]


def test_batches_without_a_message_deliver_nothing(apart: SparkSession, lake: Lake) -> None:
    """As those in which all was discarded."""
    subscribers = (LogSubscription("a", "all", "c1", "0-1", "orders"),)
    assert _told(apart, lake, LogDelivered(subscribers, queries.end(1), queries.end(3)), newest=3) == []


def test_deleted_records_are_gone_for_later_commands_only(apart: SparkSession, lake: Lake) -> None:
    request = _request("sow_delete", filter="/id >= 3")
    moment = Moment(5, 2)
    own = {"client": F.lit("analyst"), "cid": F.lit("c"), "deleted_at": F.timestamp_millis(F.lit(0))}
    for _ in range(2):
        found = results.selected(apart, lake, request, 1, moment)
        messages.delete(found, lake, moment, own, "q")
    counts = {step: results.counted(apart, lake, request, 1, Moment(5, step)) for step in (2, 3)}
    assert counts == {2: (5, 2), 3: (3, 0)}
    assert tables.read(apart, lake, "sow_deletes").count() == 2
    # of a topic that was made anew, at the offset of a record that was deleted, and of one without a key
    rows = tables.read(apart, lake, "messages").where("batch = 1 AND subject = 'orders' AND reason IS NULL")
    anew = rows.where("offset IN (13, 14)").withColumns(
        {"batch": F.lit(2).cast("long"), "received_at": F.expr("received_at + INTERVAL 1 DAY")}
    )
    anew.write.format("delta").mode("append").save(tables.location(lake, "messages"))
    try:
        gone = {step: results.counted(apart, lake, request, 2, Moment(5, step)) for step in (2, 3)}
        assert gone == {2: (6, 3), 3: (5, 2)}
    finally:
        DeltaTable.forPath(apart, tables.location(lake, "messages")).delete("batch = 2")


def test_a_message_whose_copy_its_topic_would_refuse_is_delivered_as_its_reference(
    apart: SparkSession, lake: Lake
) -> None:
    apart.conf.set(COPY_BYTES, "100")
    try:
        told = _told(apart, lake, Selected(_request()))
    finally:
        apart.conf.unset(COPY_BYTES)
    small, large = (next(row for row in told if row["bookmark"].startswith(mark)) for mark in (b"1|1|11", b"1|0|10"))
    assert ("omitted" in small, small["header-colour"], small["key"]) == (False, b"red", b"b")
    assert large["value"] is None
    assert int(large["omitted"]) > 100
    assert {"header-colour", "key"}.isdisjoint(large)
    assert large["topic"] == b"orders"


@pytest.mark.long
@pytest.mark.parametrize("further", ["/n{} = 1", "/n{} LIKE '1'"])
def test_a_thousand_subscriptions_with_filters_of_their_own_are_served(
    apart: SparkSession, lake: Lake, further: str
) -> None:
    subscriptions = tuple(
        LogSubscription(f"c{n}", "s", None, f"0-{n}", "orders", f"/id = {n % 7} OR {further.format(n)}")
        for n in range(1_000)
    )
    told = _told(apart, lake, LogDelivered(subscriptions, BEGINNING, queries.end(1)))
    assert len(told) == sum(number % 7 < len(VALUES) for number in range(1_000))
