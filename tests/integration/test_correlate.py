"""Correlate on the real broker and real Spark; the test publishes the clock."""

from __future__ import annotations

import base64
import json
import random
import time
from contextlib import closing
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.errors import StreamingQueryException

from ackstream.client.core.labels import Declarer
from ackstream.errors import StartError, StoppedError
from ackstream.jobs.correlate.topics import REFRESH_SECONDS
from ackstream.kafka import topics
from ackstream.spark import clock
from ackstream.spark.job import DATA_LOSS
from ackstream.spark.kafka import ANY_RUN
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True, params=["hdfs", pytest.param("rocksdb", marks=pytest.mark.long)])
def state_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both state stores, the second one in the long group."""
    monkeypatch.setattr(System, "options", {"state_store": request.param})


@pytest.fixture
def system(kafka: Kafka, tmp_path: Path) -> Iterator[System]:
    with closing(System(kafka, tmp_path)) as system:
        yield system


def _value(topic: str = "org.acme/lamp/things/twin/commands/modify", **fields: Any) -> dict[str, Any]:
    return {"topic": topic, "path": "/attributes/x", **fields}


NESTED_BOMB = b'{"topic":"a/b/things/twin/commands/modify","path":"/","value":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
BAD_SIGNALS: dict[str, tuple[Any, str]] = {
    "not-json": (b"{nope", "json.invalid"),
    "not-an-object": (b"[1,2]", "json.invalid"),
    "no-topic": ({"path": "/"}, "json.field.missing"),
    "too-large": (_value(value="x" * 5_000_000), "things:thing.toolarge"),
    "wrong-utf8": (b'{"topic":"\xff\xfe"}', "json.invalid"),
    "tombstone": (None, "json.invalid"),
    "unknown-topic-path": (_value("org.acme/lamp/things/twin/commands/explode"), "protocoladapter:unknown.topicpath"),
    "invalid-label": (_value(headers={"requested-acks": ["no"]}), "header.invalid"),
    "invalid-timeout": (_value(headers={"timeout": "soon"}), "timeout.invalid"),
    "zero-timeout-with-acks": (_value(headers={"timeout": "0", "requested-acks": ["a-ack"]}), "header.invalid"),
    "ten-thousand-labels": (_value(headers={"requested-acks": [f"l-{n}" for n in range(10_000)]}), "header.invalid"),
    "nested-bomb": (NESTED_BOMB, "json.invalid"),
    "header-of-another-type": (_value(headers={"response-required": "perhaps"}), "header.invalid"),
    "reply-topic-not-allowed": (_value(headers={"requested-acks": ["a-ack"]}), "header.invalid"),
}


def test_bad_input_is_answered_and_recorded_and_disturbs_nobody(spark: SparkSession, system: System) -> None:
    with system.correlate(spark) as query:
        system.command("good", requested_acks=["a-ack"], huge="h" * 100_000, odd={"a": [1]}, number=5)
        for name, (value, _) in BAD_SIGNALS.items():
            headers = {"correlation-id": name.encode()}
            if name == "reply-topic-not-allowed":
                headers["reply-to"] = b"__consumer_offsets"
            system.send("signals", value, headers)
        system.send("acks", b"garbage")
        system.send("acks", None)
        system.send("acks", {"topic": "org.acme/lamp/things/twin/acks/a-ack", "path": "/", "status": 200})
        for tick in (b"not a number", b"99999999999999999999999999", b"9223372036854775807", None):
            system.send("clock", tick, key=ANY_RUN)
        system.ack("good", "a-ack")
        replies = eventually(
            lambda: (_found := system.replies()) if len(system.replies()) > len(BAD_SIGNALS) else None,
            "all replies",
            query,
        )
    assert {name: reply["value"].get("error") for name, reply in replies.items() if name != "good"} == {
        name: code for name, (_, code) in BAD_SIGNALS.items()
    }
    assert replies["good"]["status"] == 200
    assert {reply["record"]["completed-by"] for name, reply in replies.items() if name != "good"} == {b"invalid"}
    reasons = system.reasons()
    assert len(reasons) == len(BAD_SIGNALS) + 3
    assert len(system.records("dead-letters")) == len(reasons)


def test_only_the_twin_confirms_what_the_twin_knows(spark: SparkSession, system: System) -> None:
    named, modify = {"correlation-id": "forged"}, "org.acme/lamp/things/twin/commands/modify"
    response = {"topic": modify, "headers": named, "path": "/attributes/x", "status": 204}
    aggregate = {"topic": "org.acme/lamp/things/twin/acks", "headers": named, "path": "/", "status": 204}
    error = {"topic": "org.acme/lamp/things/twin/errors", "headers": named, "path": "/", "status": 404, "value": {}}
    with system.correlate(spark) as query:
        system.command("forged", requested_acks=["twin-persisted"], timeout="60s")
        for answer in (response, error, {**aggregate, "value": {"twin-persisted": {"status": 204}}}):
            system.send("acks", answer)
        system.command("good", requested_acks=["a-ack"])
        system.ack("good", "a-ack")
        eventually(lambda: "good" in system.replies(), "the reply to the next request", query)
        assert "forged" not in system.replies()
        system.answer("forged", {**response, "status": 201})
        eventually(lambda: "forged" in system.replies(), "the reply of the twin", query)
    assert system.replies()["forged"]["status"] == 201
    rows = [ack for record in system.ledger() for ack in record.get("acks", ()) if ack["correlation_id"] == "forged"]
    assert [(row["disposition"], row["topic"].endswith("twin-acks")) for row in rows] == [
        ("invalid", False),
        ("invalid", False),
        ("accepted", True),
    ]
    assert [reason.partition(": ")[0] for reason in system.reasons()] == ["acknowledgement:ditto.acklabel.forbidden"]


def test_labels_that_nobody_has_declared_are_refused(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    with closing(System(kafka, tmp_path, refuse_undeclared=True)) as system:
        with system.correlate(spark) as query, closing(Declarer(kafka)) as declarer:
            declarer.declare(["a-ack"]).future.result(PATIENCE_SECONDS)
            asked = system.command("open", requested_acks=["a-ack", "b-ack"], timeout="60s")
            system.ack("open", "a-ack")
            last = system.ack("open", "b-ack")
            slack = system.settings.clock.slack
            system.tick(query, last + slack + 1)
            found = [(ack["label"], ack["disposition"]) for record in system.ledger() for ack in record.get("acks", ())]
            assert found == [("b-ack", "undeclared")]
            system.tick(query, asked + slack + 60_001)
            eventually(lambda: "open" in system.replies(), "the reply at the deadline", query)
        reply = system.replies()["open"]
    assert {label: entry["status"] for label, entry in reply["value"].items()} == {"a-ack": 200, "b-ack": 408}


def test_a_checkpoint_of_a_query_that_passed_declarations_by_does_not_begin_to_refuse_labels(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path)) as system, system.correlate(spark) as query:
        system.command("before", requested_acks=["b-ack"])
        system.ack("before", "b-ack")
        eventually(lambda: "before" in system.replies(), "a reply while no label is refused", query)
    strict = System(kafka, tmp_path, refuse_undeclared=True)
    with closing(strict) as system, pytest.raises(StartError, match="refuse_undeclared"), system.correlate(spark):
        pass


def test_a_response_with_a_header_of_another_type_does_not_end_the_query(spark: SparkSession, system: System) -> None:
    ask, path = "org.acme/lamp/things/live/messages/ask", "/inbox/messages/ask"
    with system.correlate(spark) as query:
        system.send("signals", {"topic": ask, "path": path, "headers": {"correlation-id": "p-1", "timeout": "60s"}})
        headers = {"correlation-id": "p-1", "response-required": "False"}
        system.send("acks", {"topic": ask, "path": path, "headers": headers, "value": "ok", "status": 200})
        system.command("good", requested_acks=["a-ack"])
        system.ack("good", "a-ack")
        eventually(lambda: "good" in system.replies(), "the reply to the next request", query)
    assert [reason.partition(":")[0] for reason in system.reasons()] == ["header.invalid"]


def test_acknowledgements_that_are_large_together_are_answered_and_recorded(
    spark: SparkSession, system: System
) -> None:
    """Random text: no compression makes the records smaller."""
    labels = [f"p-{number}" for number in range(12)]
    payload = base64.b85encode(random.Random(1).randbytes(700_000)).decode()
    with system.correlate(spark) as query:
        system.command("large", requested_acks=labels[:6])
        system.command("larger", requested_acks=labels)
        for number in range(18):
            key, label = ("large", labels[number]) if number < 6 else ("larger", labels[number - 6])
            system.send("acks", {**system.ack_json(key, label), "value": payload})
        replies = eventually(lambda: (_found := system.replies()) if len(system.replies()) > 1 else None, "both", query)
    assert {name: reply["status"] for name, reply in replies.items()} == {"large": 200, "larger": 424}
    assert [entry["status"] for entry in replies["larger"]["value"].values()].count(413) == 1
    outcomes = [record["outcome"] for record in system.ledger() if "outcome" in record]
    assert sorted(outcome["status"] for outcome in outcomes) == [200, 424]


def test_a_batch_that_is_large_in_bytes_is_processed_in_pieces(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    """More than a frame and a piece hold, all of it in one shard."""
    value = base64.b85encode(random.Random(2).randbytes(720_000)).decode()
    with closing(System(kafka, tmp_path, shards=1, shuffle_partitions=1)) as system:
        for number in range(100):
            body = system.command_json(f"c-{number}", requested_acks=[], response_required=False)
            system.post("signals", {**body, "value": value})
        system.command("good", requested_acks=["a-ack"])
        system.ack("good", "a-ack")
        with system.correlate(spark) as query:
            eventually(lambda: "good" in system.replies(), "the reply", query)
            eventually(lambda: system.end("ledger") >= 101, "the ledger", query)
            query.processAllAvailable()
        values = [record["signal"]["value"] for record in system.ledger() if record["kind"] == "signal"]
    assert [len(written) for written in values if written != 1] == [len(value)] * 100


def test_reply_topics_may_come_and_go_while_the_job_runs(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    gone, new = kafka.topic("mine-gone"), kafka.topic("mine-new")
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topics({gone: {"num_partitions": 1, "replication_factor": 1}})
        with (
            closing(System(kafka, tmp_path, reply_topics=[".*mine-.*"])) as system,
            system.correlate(spark) as query,
        ):
            system.command("x", {"reply-to": gone.encode()}, requested_acks=["a-ack"])
            eventually(lambda: any("signal" in record for record in system.ledger()), "the signal row", query)
            admin.delete_topics([gone])
            forgotten = time.monotonic() + REFRESH_SECONDS
            admin.create_topics({new: {"num_partitions": 1, "replication_factor": 1}})
            # known after seconds: until then replies for it go to `replies`
            keys = count()

            def accepted() -> bool:
                key = f"y-{next(keys)}"
                system.command(key, {"reply-to": new.encode()}, requested_acks=["a-ack"])
                system.ack(key, "a-ack")
                eventually(lambda: key in system.replies() or key in system.replies("mine-new"), "an answer", query)
                # every worker looks for itself
                return key in system.replies("mine-new") and time.monotonic() > forgotten

            eventually(accepted, "a reply in the new topic", query)
            system.ack("x", "a-ack")
            reply = eventually(lambda: system.replies().get("x"), "the reply whose topic has gone", query)
    assert reply["status"] == 200


def test_an_empty_record_header_is_no_correlation_id(spark: SparkSession, system: System) -> None:
    with system.correlate(spark) as query:
        system.command("of-json", {"correlation-id": b""}, requested_acks=["a-ack"])
        system.command(None, {"correlation-id": b"", "kafka_correlationId": b"of-spring"}, requested_acks=["a-ack"])
        start = system.command(None, {"correlation-id": b""}, requested_acks=["a-ack"], timeout="1s")
        system.ack("of-json", "a-ack")
        system.ack("of-spring", "a-ack")
        system.tick(query, start + 2_000)
        replies = eventually(lambda: (_found := system.replies()) if len(system.replies()) > 2 else None, "all", query)
    (generated,) = replies.keys() - {"of-json", "of-spring"}
    assert generated.startswith(system.settings.kafka.topic("signals"))
    assert (replies["of-json"]["status"], replies["of-spring"]["status"]) == (200, 200)


def test_a_command_without_correlation_id_gets_one_from_its_coordinates(spark: SparkSession, system: System) -> None:
    with system.correlate(spark) as query:
        system.command(None, requested_acks=["a-ack"], timeout="1s")
        system.tick(query, system.command("other", requested_acks=["a-ack"]) + 60_000)
        (key, reply), *_ = eventually(lambda: list(system.replies().items()), "a reply", query)
    topic, partition, offset = key.rsplit("-", 2)
    assert topic == system.settings.kafka.topic("signals")
    assert (partition.isdigit(), offset) == (True, "0")
    assert reply["headers"]["correlation-id"] == key


def test_time_passes_by_the_clock_topic_alone(spark: SparkSession, system: System) -> None:
    with system.correlate(spark) as query:
        start = system.command("x", requested_acks=["a-ack", "b-ack"], timeout="60s")
        system.ack("x", "a-ack")
        system.tick(query, start + 59_000)
        system.command("y", requested_acks=["a-ack"])
        system.ack("y", "a-ack")
        eventually(lambda: "y" in system.replies(), "the reply to y", query)
        assert "x" not in system.replies()
        system.tick(query, start + 60_001)
        reply = eventually(lambda: system.replies().get("x"), "the timeout of x", query)
    assert reply["status"] == 424
    assert reply["record"]["completed-by"] == b"timeout"
    assert reply["value"]["b-ack"]["payload"]["error"] == "acknowledgement:request.timeout"


def test_a_spring_client_is_answered_in_its_partition_with_its_correlation_header(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    own = kafka.topic("spring-replies")
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topics({own: {"num_partitions": 4, "replication_factor": 1}})
    uuid = bytes(range(128, 144))
    with (
        closing(System(kafka, tmp_path, reply_topics=[".*spring-.*"])) as system,
        system.correlate(spark) as query,
    ):
        asked = {"kafka_replyTopic": own.encode(), "kafka_correlationId": uuid}
        for partition in range(4):
            chosen = {**asked, "kafka_replyPartition": partition.to_bytes(4, "big")}
            system.command(f"in-{partition}", chosen, requested_acks=["a-ack"])
            system.ack(f"in-{partition}", "a-ack")
        system.command(None, asked, requested_acks=["a-ack"])
        system.ack(uuid.hex().upper(), "a-ack")
        eventually(lambda: len(system.replies("spring-replies")) == 5, "the replies", query)
    reply = system.replies("spring-replies")[uuid.hex().upper()]
    assert reply["record"]["kafka_correlationId"] == uuid
    assert reply["status"] == 200
    partitions = {record.key: record.partition for record in system.records("spring-replies")}
    assert [partitions[f"in-{partition}".encode()] for partition in range(4)] == [0, 1, 2, 3]


def test_a_restart_on_the_same_checkpoint_keeps_open_early_and_decided_requests(
    spark: SparkSession, system: System, tmp_path: Path
) -> None:
    with system.correlate(spark) as query:
        system.command("x", requested_acks=["a-ack", "b-ack"])
        system.ack("x", "a-ack")
        system.ack("early", "a-ack")
        system.command("done", requested_acks=["a-ack"])
        system.ack("done", "a-ack")
        eventually(lambda: "done" in system.replies() and len(system.ledger()) > 1, "the reply to done", query)
        query.processAllAvailable()
    system.ack("x", "b-ack")
    system.command("early", requested_acks=["a-ack"])
    # a retry of its producer, and an acknowledgement that is late
    system.command("done", requested_acks=["a-ack"])
    system.ack("done", "a-ack")
    with system.correlate(spark) as query:
        eventually(lambda: {"x", "early"} <= system.replies().keys() and system.reasons(), "the replies", query)
        query.processAllAvailable()
    replies = system.replies()
    assert list(replies["x"]["value"]) == ["a-ack", "b-ack"]
    assert (replies["x"]["status"], replies["early"]["status"]) == (200, 200)
    assert len([record for record in system.records("replies") if record.key == b"done"]) == 1
    assert len(system.reasons()) == 1
    assert "late" in {ack["disposition"] for record in system.ledger() for ack in record.get("acks", ())}
    # without it, all requests would be decided again
    Path(system.settings.lake.checkpoint("correlate")).rename(tmp_path / "lost")
    with pytest.raises(StartError, match="has decisions of a checkpoint that is not at "), system.correlate(spark):
        pass


def test_a_backlog_causes_no_false_timeout(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """Acks well inside their deadlines, read long after them in many batches: the real clock publishes the time."""
    requests, timeout_ms = 4_000, 5_000
    with closing(System(kafka, tmp_path, clock=True, max_offsets_per_trigger=1_000)) as system:
        for number in range(requests):
            key = f"request-{number}"
            system.post("signals", system.command_json(key, requested_acks=["a-ack"], timeout=f"{timeout_ms}ms"))
            system.post("acks", system.ack_json(key, "a-ack"))
        last = system.send("acks", system.ack_json("nobody", "a-ack"))
        # the broker's own clock says when all deadlines are over
        eventually(lambda: system.send("clock", b"0") > last + timeout_ms, "the deadlines to pass")
        with system.correlate(spark) as query:
            eventually(lambda: system.end("replies") >= requests, "all replies", query)
            replies = system.replies()
    assert len(replies) == requests
    assert {reply["status"] for reply in replies.values()} == {200}


def test_a_command_of_an_aborted_transaction_is_answered_by_nobody(spark: SparkSession, system: System) -> None:
    name = system.settings.kafka.topic("signals")
    with (
        system.correlate(spark) as query,
        KafkaProducer(bootstrap_servers=system.settings.kafka.bootstrap, transactional_id=name) as producer,
    ):
        producer.init_transactions()
        for correlation_id, finish in (
            ("aborted", producer.abort_transaction),
            ("committed", producer.commit_transaction),
        ):
            producer.begin_transaction()
            value = json.dumps(system.command_json(correlation_id, requested_acks=["a-ack"])).encode()
            producer.send(name, key=b"k", value=value).get(timeout=PATIENCE_SECONDS)
            system.ack(correlation_id, "a-ack")
            finish()
        eventually(lambda: "committed" in system.replies(), "the reply", query)
    assert system.replies().keys() == {"committed"}


def test_records_that_were_deleted_unread_stop_the_job_or_are_counted(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    going_on = kafka.model_copy(update={"on_data_loss": "continue"})
    with closing(System(kafka, tmp_path)) as system, closing(System(going_on, tmp_path)) as other:
        with system.correlate(spark) as query:
            system.command("read", requested_acks=["a-ack"])
            system.ack("read", "a-ack")
            eventually(lambda: "read" in system.replies(), "the reply", query)
        for number in range(3):
            system.command(f"deleted-{number}", requested_acks=["a-ack"])
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
            admin.delete_records(topics.ends(admin, topics.replicas(admin, [kafka.topic("signals")])))
        system.command("kept", requested_acks=["a-ack"])
        system.ack("kept", "a-ack")
        with system.correlate(spark) as query, pytest.raises(StreamingQueryException, match=DATA_LOSS):
            query.awaitTermination(PATIENCE_SECONDS)
        with other.correlate(spark) as query:
            eventually(lambda: "kept" in other.replies(), "the reply", query)
            eventually(lambda: "deleted before correlate read them" in caplog.text, "the count", query)
    assert "3 records of" in caplog.text


def test_a_second_process_is_refused_while_the_first_runs_and_may_follow_it(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with (
        closing(System(kafka, tmp_path / "1", clock=True)) as first,
        # of a checkpoint of its own, it would refuse to begin beside the decisions of the first one
        closing(System(kafka, tmp_path / "2", clock=True, starting=datetime.fromtimestamp(0, timezone.utc))) as second,
    ):
        with first.correlate(spark) as query:
            with pytest.raises(
                StartError, match=r"^Another process \(.*\) runs this job on the same system: it shows signs of life on"
            ):
                second.correlate(spark).__enter__()
            first.command("x", requested_acks=["a-ack"])
            first.ack("x", "a-ack")
            eventually(lambda: "x" in first.replies(), "the reply of the first", query)
        with second.correlate(spark) as query:
            second.command("y", requested_acks=["a-ack"])
            second.ack("y", "a-ack")
            eventually(lambda: "y" in second.replies(), "the reply of the second", query)


def test_ticks_of_others_end_no_deadline_and_a_successor_ends_the_job(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path, clock=True)) as system:
        running = system.correlate(spark)
        query = running.__enter__()
        asked = system.command("x", requested_acks=["a-ack"], timeout="60s")
        for key in (ANY_RUN, "no-run", "999999999"):
            for topic in ("clock", "correlate-lease"):
                system.send(topic, str(asked + 1_000_000).encode(), key=key)
        system.ack("x", "a-ack")
        assert eventually(lambda: system.replies().get("x"), "the reply", query)["status"] == 200
        assert query.isActive
        # a run that claimed later, as after a pause of this one
        successor, lease = max(record.offset for record in system.records("correlate-lease")), "correlate-lease"
        eventually(lambda: system.send(lease, b"0", key=str(successor)) and not query.isActive, "the end of the job")
        with pytest.raises(StoppedError, match=r"^Another process runs this job on the same system"):
            running.__exit__(None, None, None)


def test_partitions_that_are_added_behind_a_backlog_are_read_before_time_passes_them(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path, clock=True, max_offsets_per_trigger=200)) as system:
        topic, requests, timeout_ms = kafka.topic("acks"), 50, 5_000
        with system.correlate(spark) as query:
            system.command("warm", requested_acks=["a-ack"])
            system.ack("warm", "a-ack")
            eventually(lambda: "warm" in system.replies(), "the query to be warm", query)
            with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
                admin.create_partitions({topic: 4})
            # its producer knows the new ones
            with closing(System(kafka, tmp_path)) as later:
                for number in range(4_000):
                    later.post("acks", system.ack_json(f"foreign-{number}", "a-ack"), partition=2 + number % 2)
                for number in range(requests):
                    name = f"request-{number}"
                    later.command(name, requested_acks=["a-ack"], timeout=f"{timeout_ms}ms")
                    later.post("acks", system.ack_json(name, "a-ack"), partition=2 + number % 2)
            eventually(lambda: len(system.replies()) > requests, "all replies", query)
            replies = system.replies()
    assert {reply["status"] for reply in replies.values()} == {200}


def test_a_quiet_stream_gets_its_timeout_and_not_too_early(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    """One request, no ack, nothing else: only the product's clock moves time."""
    with closing(System(kafka, tmp_path, clock=True)) as system, system.correlate(spark) as query:
        system.command("first", requested_acks=["a-ack"])
        system.ack("first", "a-ack")
        eventually(lambda: system.end("replies") == 1, "the query to be warm", query)
        asked = system.command("quiet", requested_acks=["a-ack"], timeout="2s")
        eventually(lambda: system.end("replies") > 1, "the timeout", query)
        (reply,) = [record for record in system.records("replies") if record.key == b"quiet"]
    assert dict(reply.headers)["status"] == b"408"
    # how soon after its deadline, benchmarks/latency.py measures
    assert reply.timestamp - asked >= 2_000


def test_an_open_request_gets_its_timeout_after_a_restart_although_nothing_else_happens(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path, clock=True)) as system:
        with system.correlate(spark) as query:
            system.command("x", requested_acks=["a-ack"], timeout="5s")
            system.command("done", requested_acks=["a-ack"])
            system.ack("done", "a-ack")
            eventually(lambda: "done" in system.replies(), "the reply to done", query)
        with system.correlate(spark) as query:
            eventually(lambda: "x" in system.replies(), "the timeout", query)
        assert system.replies()["x"]["status"] == 408


def test_a_query_without_anything_to_do_has_no_batches(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # behind what was read, time moves on once more
    monkeypatch.setattr(clock, "REST_SECONDS", 1.0)
    with closing(System(kafka, tmp_path, clock=True)) as system, system.correlate(spark) as query:

        def pass_signs(number: int) -> None:
            last = len(system.records("correlate-lease")) + number
            eventually(lambda: len(system.records("correlate-lease")) > last, "signs of life", query)

        system.command("x", requested_acks=["a-ack"])
        system.ack("x", "a-ack")
        eventually(lambda: "x" in system.replies(), "the reply", query)
        pass_signs(3)
        query.processAllAvailable()
        batch = query.lastProgress.batchId
        pass_signs(4)
        assert query.lastProgress.batchId == batch


def test_a_timeout_is_sent_again_as_it_was_by_the_replay_of_its_batch(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    """The run before is gone, and with it the clock whose tick has let the deadline pass."""
    with closing(System(kafka, tmp_path, clock=True)) as system:

        def sent() -> list[Any]:
            return [
                [(record.key, record.value, record.headers) for record in system.records(topic) if record.key == b"x"]
                for topic in ("replies", "ledger")
            ]

        with system.correlate(spark) as query:
            system.command("x", requested_acks=["a-ack"], timeout="1s")
            eventually(lambda: "x" in system.replies(), "the timeout", query)
        first = sent()
        (outcome,) = [record for record in system.ledger() if record.get("outcome")]
        commits = Path(system.settings.lake.checkpoint("correlate")) / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        assert newest == outcome["batch_id"]
        # as if it had been killed before it wrote that the batch was done
        for path in commits.glob(f"*{newest}*"):
            path.unlink()
        with system.correlate(spark) as query:
            eventually(lambda: len(sent()[0]) > 1, "the replay", query)
    replies, ledger = sent()
    assert replies == first[0] * 2
    assert ledger == first[1] + [record for record in first[1] if b"outcome" in record[1]]
