"""Dead letters are sent again on the real broker, each once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client import RedriveStopped
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import TRANSACTION_SECONDS, connect_admin, connect_consumer, connect_producer
from ackstream.kafka.library import partition_of
from ackstream.kafka.reader import TopicReader
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ledger import decode
from ackstream.redriving import letters, redrive
from ackstream.redriving import runs as module
from ackstream.redriving.letters import all_of
from ackstream.settings import Kafka, Lake, Settings
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.lake.planes import write

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Kafka, lake: Lake) -> Settings:
    found = Settings(kafka=kafka, lake=lake)
    ensure_topics(found)
    return found


def read(kafka: Kafka, topic: str, least: int = 0) -> list[Any]:
    """Return the committed records of a topic once there are ``least``: a commit shows a moment after it is made."""
    found: list[Any] = []
    with TopicReader(connect_consumer(kafka, None, auto_offset_reset="earliest")) as reader:

        def enough() -> bool:
            found[:] = all_of(reader, (0, 1), kafka.topic(topic))
            return len(found) >= least

        eventually(enough, f"{least} records of {topic}")
    return found


def give_up(settings: Settings, number: int) -> list[str]:
    """Store signals, and rows of the table dead_letters about them; return their ids."""
    topic = settings.kafka.topic("signals")
    producer = connect_producer(settings.kafka, topic)
    stored = [
        producer.send(topic, f"no JSON {one}".encode(), f"key-{one % 7}".encode(), [("reply-to", b"mine")])
        for one in range(number)
    ]
    found = [future.get(PATIENCE_SECONDS) for future in stored]
    producer.close()
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = [
        {
            "id": f"{topic}-{one.partition}-{one.offset}", "reason": "json.invalid", "received_at": at,
            "topic": topic, "partition": one.partition, "offset": one.offset, "truncated": True,
        }
        for one in found
    ]  # fmt: skip
    write(settings.lake, "dead_letters", rows)
    return [row["id"] for row in rows]


def row_of(topic: str, offset: int, **more: Any) -> dict[str, Any]:
    """Return a row of the table dead_letters."""
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    place = {"topic": topic, "partition": 0, "offset": offset}
    return {
        "id": f"{topic}-0-{offset}",
        "reason": "json.invalid",
        "received_at": at,
        "truncated": True,
        **place,
        **more,
    }


def origins(records: Sequence[Any]) -> Counter[str]:
    return Counter(
        dict(one.headers)["redriven-from"].decode() for one in records if "redriven-from" in dict(one.headers)
    )


def test_a_record_goes_to_its_topic_with_its_key_and_headers_once_and_has_a_row_in_the_audit(settings: Settings):
    ids = give_up(settings, 3)
    assert redrive(settings, where="reason = 'json.invalid'", dry_run=True).redriven == 3
    report = redrive(settings, where="reason = 'json.invalid'")
    assert (report.chosen, report.earlier, report.redriven, report.unavailable) == (3, 0, 3, [])
    copies = [one for one in read(settings.kafka, "signals", 6) if "redriven-from" in dict(one.headers)]
    assert sorted((one.value, one.key) for one in copies) == [
        (b"no JSON 0", b"key-0"), (b"no JSON 1", b"key-1"), (b"no JSON 2", b"key-2"),
    ]  # fmt: skip
    assert {dict(one.headers)["reply-to"] for one in copies} == {b"mine"}
    rows = [decode(one.value) for one in read(settings.kafka, "audit", 3)]
    assert sorted(row.audit.command for row in rows) == sorted(ids)
    assert {(row.audit.event, row.audit.path) for row in rows} == {("redrive", settings.kafka.topic("signals"))}
    again = redrive(settings)
    assert (again.chosen, again.earlier, again.redriven) == (3, 3, 0)


@pytest.mark.parametrize("number", [3_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_run_that_is_killed_and_repeated_sends_each_letter_once(settings: Settings, number: int):
    ids = give_up(settings, number)
    environment = {
        **os.environ,
        "ACKSTREAM_KAFKA_BOOTSTRAP": settings.kafka.bootstrap,
        "ACKSTREAM_KAFKA_TOPIC_PREFIX": settings.kafka.topic_prefix,
        "ACKSTREAM_LAKE_PATH": settings.lake.path,
    }

    def sent() -> int:
        return sum(origins(read(settings.kafka, "signals")).values())

    killed = 0
    for after in (number // 15, number // 4, number // 2):
        # in the middle of its transactions, wherever that is
        run = subprocess.Popen(
            [sys.executable, "-m", "ackstream", "redrive", "true", "--rate", f"{number // 15}/s"], env=environment
        )
        eventually(lambda: run.poll() is not None or sent() >= after, "a part of the letters to be sent")  # noqa: B023
        run.send_signal(signal.SIGKILL)
        killed += run.wait() == -signal.SIGKILL
    assert killed == 3
    report = redrive(settings, rate=10_000)
    assert report.earlier >= number // 2
    assert report.earlier + report.redriven == report.chosen == len(ids)
    assert origins(read(settings.kafka, "signals", 2 * len(ids))) == Counter(ids)


@pytest.mark.parametrize("noticed", ["by a send", "by the commit"])
def test_a_second_run_ends_the_first(settings: Settings, monkeypatch: pytest.MonkeyPatch, noticed: str):
    ids = give_up(settings, 60)
    submit = module._Run._submit

    def wait(*of: Any) -> Any:
        future = submit(*of)
        with suppress(KafkaError):
            future.get(timeout=30)
        return future

    if noticed == "by a send":
        monkeypatch.setattr(module._Run, "_submit", wait)

    def again(_report: object) -> None:
        assert redrive(settings, rate=1_000).redriven == 50

    with pytest.raises(RedriveStopped, match="Another run of redrive has begun"):
        redrive(settings, rate=10, progress=again)
    assert origins(read(settings.kafka, "signals", 2 * len(ids))) == Counter(ids)


def test_a_run_stops_when_what_it_sends_comes_back(settings: Settings):
    give_up(settings, 100)
    kafka = settings.kafka
    producer = connect_producer(kafka, kafka.topic("dead-letters"))

    def refuse(_report: object) -> None:
        for one in read(kafka, "signals"):
            if "redriven-from" in dict(one.headers):
                reason = f"json.invalid: it is no JSON ({one.topic}-{one.partition}-{one.offset})"
                producer.send(kafka.topic("dead-letters"), one.value, one.key, [("reason", reason.encode())])
        producer.flush()

    with pytest.raises(RedriveStopped, match="are dead letters again: remove the cause"):
        redrive(settings, rate=20, progress=refuse)
    producer.close()
    assert 0 < sum(origins(read(kafka, "signals")).values()) < 100


def test_the_dead_letters_of_others_go_to_the_topic_that_their_headers_name(settings: Settings):
    kafka = settings.kafka
    producer = connect_producer(kafka, None)
    dlq, target = kafka.topic("replies"), kafka.topic("acks")
    share_group = [
        ("__dlq.errors.topic", target.encode()), ("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"12345678"),
    ]  # fmt: skip
    spring = [
        ("kafka_dlt-original-topic", target.encode()), ("kafka_dlt-original-partition", (0).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", (7).to_bytes(8, "big")), ("kafka_dlt-exception-message", b"too late"),
        ("own", b"1"),
    ]  # fmt: skip
    for key, value, own in ((b"a", b"kafka", share_group), (b"b", b"spring", spring), (b"c", b"unknown", [])):
        producer.send(dlq, value, key, own).get(PATIENCE_SECONDS)
    producer.close()
    report = redrive(settings, source=dlq, where="key <> 'x'::BLOB")
    assert (report.chosen, report.redriven, len(report.unavailable)) == (3, 2, 1)
    sent = {one.value: dict(one.headers) for one in read(kafka, "acks", 2)}
    assert sent.keys() == {b"kafka", b"spring"}
    assert sent[b"spring"].keys() == {"own", "redriven-from"}
    assert redrive(settings, source=dlq, where="reason = 'too late'").earlier == 1


def test_a_letter_that_cannot_be_sent_holds_up_no_other(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    ids = give_up(settings, 4)
    small, gone, messages = (settings.kafka.topic(name) for name in ("small", "gone", "messages"))
    with connect_admin(settings.kafka) as admin:
        admin.create_topics({small: {"num_partitions": 1, "configs": {"max.message.bytes": "300"}}})
    producer = connect_producer(settings.kafka, small)
    # with its new header it is too large for the topic
    large = producer.send(small, b"x" * 200, b"k").get(PATIENCE_SECONDS)
    producer.close()
    write(
        settings.lake,
        "dead_letters",
        [row_of(small, large.offset), row_of(gone, 1, key=b"k", value=b"v", truncated=False)],
    )
    place = {"topic": messages, "partition": 0, "offset": 5, "batch": 1}
    write(settings.lake, "messages", [{"client": "c", "seq": 1, "subject": "s", "value": b"v", **place}])
    left = {"event": "left", "outcome": "dead-letter", "message": f"{messages}-0-5", "count": 1}
    write(settings.lake, "queue_events", [{"queue": "no-more", **left, **place}])
    read_contents = letters.contents

    def contents(*arguments: Any) -> Any:
        # Kafka has headers without a value, which the library reads but does not send
        found = read_contents(*arguments)
        return {**found, ids[2]: found[ids[2]]._replace(headers=[("empty", None)])}

    monkeypatch.setattr(letters, "contents", contents)
    report = redrive(settings)
    assert sorted(report.unavailable) == sorted(
        [f"{small}-0-{large.offset}", f"{gone}-0-1", f"no-more/{messages}-0-5", ids[2]]
    )
    assert origins(read(settings.kafka, "signals", 7)) == Counter(ids[:2] + ids[3:])
    rows = [decode(one.value) for one in read(settings.kafka, "audit", 3)]
    assert [row.batch_id for row in rows] == [1, 2, 3]
    assert read(settings.kafka, "messages") == []


def test_a_topic_that_does_not_exist_is_refused_at_once(settings: Settings):
    give_up(settings, 1)
    with pytest.raises(UnreachableError, match="There is no topic nowhere at"):
        redrive(settings, to="nowhere")


def test_a_run_that_is_interrupted_hides_nothing_from_the_readers_of_its_topics(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    give_up(settings, 3)
    submit, topic = module._Run._submit, settings.kafka.topic("signals")
    sent: list[Any] = []

    def interrupt(*arguments: Any) -> Any:
        for future in sent:
            future.get(PATIENCE_SECONDS)
            raise KeyboardInterrupt
        sent.append(submit(*arguments))
        return sent[0]

    monkeypatch.setattr(module._Run, "_submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        redrive(settings)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    committed, stored = (
        connect_consumer(settings.kafka, None, isolation_level=level)
        for level in ("read_committed", "read_uncommitted")
    )

    def nothing_is_open() -> bool:
        return bool(committed.end_offsets(partitions) == stored.end_offsets(partitions))

    began = time.monotonic()
    eventually(nothing_is_open, "the end of the transaction")
    assert time.monotonic() - began < TRANSACTION_SECONDS / 2
    committed.close()
    stored.close()


def test_a_letter_is_sent_once_though_the_audit_gets_more_partitions(settings: Settings):
    ids, audit = give_up(settings, 3), settings.kafka.topic("audit")
    assert redrive(settings).redriven == 3
    more = next(count for count in range(3, 50) if partition_of(b"redrive", count) != partition_of(b"redrive", 2))
    with connect_admin(settings.kafka) as admin:
        admin.create_partitions({audit: more})
    with TopicReader(connect_consumer(settings.kafka, None)) as reader:

        def more_are_known() -> bool:
            reader.consumer.topics()
            return len(reader.consumer.partitions_for_topic(audit)) == more

        eventually(more_are_known, "the partitions")
    assert redrive(settings).earlier == 3
    assert origins(read(settings.kafka, "signals", 6)) == Counter(ids)


def test_a_run_stops_when_letters_of_another_system_come_back_to_its_topic(settings: Settings):
    kafka = settings.kafka
    dlq, target = kafka.topic("replies"), kafka.topic("acks")
    producer, known = connect_producer(kafka, None), set()

    def give_up_again(partition: int, offset: int) -> None:
        place = {"topic": target, "partition": str(partition), "offset": str(offset)}
        producer.send(dlq, b"v", b"k", [(f"__dlq.errors.{name}", text.encode()) for name, text in place.items()])

    def refuse(_report: object) -> None:
        for one in read(kafka, "acks"):
            if one.offset not in known:
                known.add(one.offset)
                give_up_again(one.partition, one.offset)
        producer.flush()

    for offset in range(100):
        give_up_again(0, offset)
    producer.flush()
    with pytest.raises(RedriveStopped, match="are dead letters again: remove the cause"):
        redrive(settings, source=dlq, rate=20, progress=refuse)
    producer.close()
