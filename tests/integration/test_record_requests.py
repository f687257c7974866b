"""Records of applications ask, and answer, on the real broker and real Spark."""

from __future__ import annotations

import json
import re
from contextlib import closing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from ackstream.client import Reply, Requester
from ackstream.errors import SettingsError, StartError
from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import TIMESTAMP_TYPE, ensure_topics
from ackstream.protocol.ledger import reply_id
from ackstream.settings.loading import with_values
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration

ORDER = b"\x00\x00\x00\x00\x07\x06avro"


def _create(kafka: Kafka, *names: str, time: str = "LogAppendTime") -> None:
    with connect_admin(kafka) as admin:
        configs = {TIMESTAMP_TYPE: time}
        admin.create_topics([NewTopic(kafka.topic(name), 2, 1, topic_configs=configs) for name in names])
        admin.wait_for_topics([kafka.topic(name) for name in names])


def _system(kafka: Kafka, path: Path, **correlate: Any) -> System:
    names = {"request_topics": (re.escape(kafka.topic("orders")),), "ack_topics": (re.escape(kafka.topic("bookings")),)}
    return System(kafka, path, **(names | correlate))


@pytest.fixture
def system(kafka: Kafka, tmp_path: Path) -> Iterator[System]:
    _create(kafka, "orders", "bookings")
    with closing(_system(kafka, tmp_path)) as system:
        yield system


def test_an_order_is_answered_and_everything_about_it_is_in_the_tables(spark: SparkSession, system: System) -> None:
    asks = {"requested-acks": b"bank:booked,stock:packed", "timeout": b"60s", "content-type": b"application/avro"}
    with system.correlate(spark) as query:
        system.send("orders", ORDER, asks | {"correlation-id": b"order-1"})
        system.send("orders", b"not asked")
        system.send("bookings", b"not an answer", {"correlation-id": b"order-1"})
        system.send("bookings", b"\xff", {"correlation-id": b"order-1", "label": b"bank:booked", "status": b"201"})
        system.send("acks", b"done", {"correlation-id": b"order-1", "label": b"stock:packed"})
        asked = system.send(
            "orders", None, {"ce_requestedacks": b"bank:booked", "ce_timeout": b"5s", "ce_id": b"event"}
        )
        system.send("orders", b"x", {"requested-acks": b"no label", "correlation-id": b"wrong"})
        eventually(lambda: system.replies().keys() >= {"order-1", "wrong"}, "the replies", query)
        system.tick(query, asked + 5_001)
        eventually(lambda: "event" in system.replies(), "the timeout", query)
    replies = system.replies()
    assert {key: reply["status"] for key, reply in replies.items()} == {"order-1": 200, "wrong": 400, "event": 408}
    booked, packed = replies["order-1"]["value"]["bank:booked"], replies["order-1"]["value"]["stock:packed"]
    assert (booked["payload"], booked["headers"]["content-transfer-encoding"]) == ("/w==", "base64")
    assert (packed["status"], packed["payload"]) == (200, "done")
    ensure_topics(system.settings)
    query = ARCHIVE.start(spark, system.settings, available_now=True)
    assert query.awaitTermination(PATIENCE_SECONDS)

    def rows(table: str, *columns: str) -> set[Any]:
        found = spark.read.format("delta").load(system.settings.lake.table(table))
        return {tuple(row) for row in found.select(*columns).collect()}

    orders, bookings, acks = map(system.settings.kafka.topic, ("orders", "bookings", "acks"))
    assert rows("signals", "correlation_id", "topic", "criterion", "value", "codec") == {
        ("order-1", orders, "records", None, "none"),
        ("event", orders, "records", None, "none"),
    }
    assert rows("acknowledgements", "label", "status", "topic", "payload", "codec") == {
        ("bank:booked", 201, bookings, '"/w=="', "base64"),
        ("stock:packed", 200, acks, '"done"', "text"),
    }
    assert {(topic, reason.partition(":")[0]) for topic, reason in rows("dead_letters", "topic", "reason")} == {
        (orders, "header.invalid")
    }


def test_time_does_not_pass_an_order_that_is_unread(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    _create(kafka, "orders", "bookings")
    with closing(_system(kafka, tmp_path, clock=True, max_offsets_per_trigger=20)) as system:
        asks = {"requested-acks": b"bank:booked", "timeout": b"1s"}
        for number in range(200):
            name = f"order-{number}".encode()
            system.send("orders", ORDER, asks | {"correlation-id": name})
            system.send("bookings", None, {"correlation-id": name, "label": b"bank:booked"})
        # the first deadlines are over when the job begins
        with system.correlate(spark) as query:
            eventually(lambda: len(system.replies()) == 200, "all replies", query)
        assert {reply["status"] for reply in system.replies().values()} == {200}


@pytest.mark.parametrize(
    ("key", "name", "why"),
    [
        ("request_topics", "missing", r"No topic matches .* of correlate\.request_topics or correlate\.ack_topics"),
        (
            "ack_topics",
            "replies",
            r"The setting correlate\.ack_topics has the pattern .* that is a topic of the system",
        ),
    ],
)
def test_a_pattern_that_fits_no_topic_of_an_application_stops_the_start(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, key: str, name: str, why: str
) -> None:
    _create(kafka, "orders", "bookings")
    with (
        closing(_system(kafka, tmp_path, **{key: (re.escape(kafka.topic(name)),)})) as system,
        pytest.raises(SettingsError, match=why),
    ):
        system.correlate(spark).__enter__()


def test_a_topic_whose_records_have_the_time_of_their_producer_stops_the_start(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    _create(kafka, "orders", time="CreateTime")
    _create(kafka, "bookings")
    with closing(_system(kafka, tmp_path)) as system:
        with pytest.raises(StartError, match=rf"The topic {kafka.topic('orders')} has {TIMESTAMP_TYPE}=CreateTime"):
            system.correlate(spark).__enter__()
        fixed = ConfigResource(ConfigResourceType.TOPIC, kafka.topic("orders"), {TIMESTAMP_TYPE: "LogAppendTime"})
        with connect_admin(kafka) as admin:
            admin.alter_configs([fixed])
        with system.correlate(spark):
            pass


def test_a_topic_that_is_left_out_stops_the_start_unless_lost_records_are_accepted(
    spark: SparkSession, system: System
) -> None:
    with system.correlate(spark) as query:
        system.send("orders", ORDER, {"requested-acks": b"bank:booked", "correlation-id": b"order-1"})
        system.send("bookings", None, {"correlation-id": b"order-1", "label": b"bank:booked"})
        eventually(lambda: "order-1" in system.replies(), "the reply", query)
    name = system.settings.kafka.topic("bookings")
    system.settings = with_values(system.settings, {"correlate.ack_topics": ()})
    with pytest.raises(StartError, match=rf"has read the topic {name}, which is deleted, or which the settings no"):
        system.correlate(spark).__enter__()
    accepting = with_values(system.settings, {"kafka.on_data_loss": "continue"})
    before, system.settings = system.settings, accepting
    for _ in range(2):
        with system.correlate(spark) as query:
            key = f"later-{system.settings.kafka.on_data_loss}"
            system.send("orders", ORDER, {"requested-acks": b"bank:booked", "correlation-id": key.encode()})
            system.send("acks", None, {"correlation-id": key.encode(), "label": b"bank:booked"})
            eventually(lambda: key in system.replies(), "the reply", query)  # noqa: B023 - it is called here
        system.settings = before


def test_a_value_is_copied_if_the_settings_say_so(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    _create(kafka, "orders", "bookings")
    with closing(_system(kafka, tmp_path, store_values=True)) as system, system.correlate(spark) as query:
        asks = {"requested-acks": b"bank:booked", "content-type": b"application/json", "correlation-id": b"order-1"}
        system.send("orders", b'{"total": 5}', asks)
        eventually(lambda: [one for one in system.ledger() if "signal" in one], "the row", query)
        (row,) = [one["signal"] for one in system.ledger() if "signal" in one]
    assert (row["value"], row["codec"]) == ({"total": 5}, "json")
    assert json.dumps(row["headers"])


def test_progress_a_quorum_and_a_cancellation_decide_orders(spark: SparkSession, system: System) -> None:
    def asks(name: str, labels: bytes, **further: bytes) -> dict[str, bytes]:
        own = {"correlation-id": name.encode(), "requested-acks": labels, "timeout": b"10s"}
        return own | {header.replace("_", "-"): value for header, value in further.items()}

    with system.correlate(spark) as query:
        asked = system.send("orders", ORDER, asks("slow", b"a-ack"))
        system.send("acks", None, {"correlation-id": b"slow", "label": b"a-ack", "status": b"102", "extend": b"1m"})
        system.send("orders", ORDER, asks("some", b"a-ack,b-ack,c-ack", ack_quorum=b"2"))
        for label in (b"a-ack", b"c-ack"):
            system.send("acks", None, {"correlation-id": b"some", "label": label})
        system.send("orders", ORDER, asks("back", b"a-ack"))
        stored = next(one for one in system.records("orders") if dict(one.headers)["correlation-id"] == b"back")
        identity = reply_id("back", stored.topic, stored.partition, stored.offset).encode()
        system.producer.send(
            stored.topic, key=b"cancel", partition=stored.partition,
            headers=[("correlation-id", b"back"), ("cancel", identity)],
        ).get(timeout=PATIENCE_SECONDS)  # fmt: skip
        eventually(lambda: system.replies().keys() >= {"some", "back"}, "the replies", query)
        system.tick(query, asked + 20_000)
        assert "slow" not in system.replies()
        system.send("acks", None, {"correlation-id": b"slow", "label": b"a-ack"})
        eventually(lambda: "slow" in system.replies(), "the answer of the slow party", query)
    ends = {name: (one["status"], one["record"]["completed-by"]) for name, one in system.replies().items()}
    assert ends == {"slow": (200, b"acknowledgements"), "some": (200, b"acknowledgements"), "back": (499, b"cancelled")}
    (unneeded,) = [one["outcome"]["unneeded"] for one in system.ledger() if one.get("outcome", {}).get("unneeded")]
    assert unneeded == ["b-ack"]


def test_a_requester_gets_answers_as_they_come_and_a_second_reply_after_a_timeout(
    spark: SparkSession, system: System
) -> None:
    amended: SimpleQueue[Reply] = SimpleQueue()
    orders = system.settings.kafka.topic("orders")
    with system.correlate(spark) as query, Requester(system.settings.kafka, on_amended=amended.put) as requester:
        asks: dict[str, Any] = {"acks": ["a-ack", "b-ack"], "timeout": "10s", "correlation_id": "order-1"}
        updates = requester.stream_record(orders, ORDER, headers={"amend": "1h"}, **asks)
        asked = system.send("acks", None, {"correlation-id": b"order-1", "label": b"a-ack"})
        update = next(updates)
        system.tick(query, asked + 20_000)
        reply = next(updates)
        system.send("acks", None, {"correlation-id": b"order-1", "label": b"b-ack"})
        second = amended.get(timeout=PATIENCE_SECONDS)
    found = [(one.completed_by, one.status, {label: ack.status for label, ack in one.acks.items()})
             for one in (update, reply, second)]  # fmt: skip
    assert found == [
        ("progress", 102, {"a-ack": 200}),
        ("timeout", 424, {"a-ack": 200, "b-ack": 408}),
        ("amended", 200, {"a-ack": 200, "b-ack": 200}),
    ]
    assert (reply.version, second.version, reply.reply_id) == (1, 2, second.reply_id)
    ensure_topics(system.settings)
    archive = ARCHIVE.start(spark, system.settings, available_now=True)
    assert archive.awaitTermination(PATIENCE_SECONDS)
    rows = spark.read.format("delta").load(system.settings.lake.table("outcomes")).orderBy("decided_at").collect()
    assert [(row.completed_by, row.version, row.id) for row in rows] == [
        ("timeout", None, reply.reply_id),
        ("amended", 2, f"{reply.reply_id}-2"),
    ]
