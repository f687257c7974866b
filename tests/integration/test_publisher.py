"""The publisher on the real broker; what the service answers is put on ``publisher-acks`` by the test."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import errors
from ackstream.client.publishing.publisher import Publisher
from ackstream.kafka import clients
from ackstream.kafka.reader import TopicReader
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.settings import Kafka, Settings
from tests.harness import pages
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ackstream.client.publishing.publications import FailedMessage, Receipt

pytestmark = pytest.mark.integration


@pytest.fixture
def topics(kafka: Kafka) -> Kafka:
    ensure_topics(Settings(kafka=kafka), ("messages", "publisher-acks"))
    return kafka


class Service:
    """Reads what publishers send, and answers logons; the rest of its answers are the test's."""

    def __init__(self, kafka: Kafka) -> None:
        self.last: dict[str, int] = {}
        self.silent = False
        self.obliging = False
        """Whether it persists everything, but what is secret."""
        self.received: list[tuple[str, int, bytes]] = []
        self.logons: list[dict[str, str]] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._acks = kafka.topic("publisher-acks")
        self._consumer = TopicReader.at_end(kafka, kafka.topic("messages")).consumer
        self._producer = clients.connect_producer(kafka, self._acks, delivery_timeout=PATIENCE_SECONDS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._consumer.close(autocommit=False)
        self._producer.close()

    def answer(self, client: str, *acks: CommandAck) -> None:
        for ack in acks:
            self._producer.send(self._acks, encode_ack(ack), client.encode()).get(PATIENCE_SECONDS)

    def persisted(self, client: str, seq: int, reason: str | None = None) -> None:
        status = "success" if reason is None else "failure"
        self.answer(client, CommandAck(ack_type="persisted", status=status, client=client, seq=seq, reason=reason))

    def wait_for(self, count: int) -> list[tuple[str, int, bytes]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.received) >= count, PATIENCE_SECONDS), self.received
            return list(self.received)

    def _run(self) -> None:
        while not self._closing.is_set():
            for records in self._consumer.poll(timeout_ms=50).values():
                for record in records:
                    self._take({name: value.decode() for name, value in record.headers}, record.value)

    def _take(self, headers: dict[str, str], value: bytes) -> None:
        client = headers["client"]
        if headers.get("command") == "logon":
            self.logons.append(headers)
            if not self.silent:
                last = self.last.get(client, int(headers.get("first", 1)) - 1)
                position = len(self.logons)
                self.answer(
                    client,
                    CommandAck(ack_type="processed", client=client, cid=headers["cid"], seq=last, bookmark=position),
                )
            return
        if "command" in headers:
            return
        with self._changed:
            self.received.append((client, int(headers["seq"]), value))
            self._changed.notify_all()
        if self.obliging:
            self.persisted(client, int(headers["seq"]), "not entitled" if headers.get("topic") == "secret" else None)


@pytest.fixture
def service(topics: Kafka) -> Iterator[Service]:
    started = Service(topics)
    yield started
    started.close()


def _publisher(kafka: Kafka, **options: Any) -> Publisher:
    return Publisher(kafka, **({"name": "p1", "logon_timeout": PATIENCE_SECONDS} | options))


def test_a_message_is_accepted_when_kafka_has_it(topics: Kafka) -> None:
    with _publisher(topics, stage="accepted") as publisher:
        futures = [publisher.publish(b"%d" % index, context=index) for index in range(100)]
        receipts = [future.result(PATIENCE_SECONDS) for future in futures]
        assert [receipt.context for receipt in receipts] == list(range(100))
        assert {receipt.stage for receipt in receipts} == {"accepted"}
        assert [receipt.seq - receipts[0].seq for receipt in receipts] == list(range(100))
        publisher.publish_flush(PATIENCE_SECONDS)
        assert publisher.unpersisted_count == 0
        assert publisher.statistics.acknowledged == 100


def test_a_publisher_may_be_closed_by_its_own_callback(
    topics: Kafka, service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the thread of its producer, which would wait for itself."""
    path = tmp_path / "store"
    publisher = _publisher(topics, stage="accepted", store=path, on_receipt=lambda _receipt: publisher.close())
    futures = []
    with suppress(errors.PublisherClosedError):
        futures += [publisher.publish(b"x", topic="orders") for _ in range(100)]
    assert publisher.wait_closed(PATIENCE_SECONDS)
    assert not wait(futures, PATIENCE_SECONDS).not_done
    # its store is free, the job tells the next publisher whose the numbers of its messages are, and nothing was wrong
    _publisher(topics, stage="accepted", store=path).close()
    eventually(lambda: len(service.logons) == 2, "the second logon")
    assert "Traceback" not in caplog.text


def test_merged_acks_end_the_futures_of_all_messages_they_are_about(topics: Kafka, service: Service) -> None:
    raw: list[CommandAck] = []
    failed: list[FailedMessage] = []
    with _publisher(topics, on_ack=raw.append, on_failed_write=failed.append) as publisher:
        futures = [publisher.publish(b"%d" % seq, key=b"k", context=seq) for seq in range(1, 6)]
        assert [seq for _, seq, _ in service.wait_for(5)] == [1, 2, 3, 4, 5]
        service.persisted("p1", 2)
        service.persisted("p1", 3, "not entitled")
        service.persisted("p1", 5)
        done = wait(futures, PATIENCE_SECONDS).done
        assert len(done) == 5
        assert [future.exception() is None for future in futures] == [True, True, False, True, True]
        with pytest.raises(errors.NotEntitledError, match="Message 3 was refused: not entitled"):
            futures[2].result()
        assert [(item.seq, item.reason, item.value, item.key, item.context) for item in failed] == [
            (3, "not entitled", b"3", b"k", 3)
        ]
        assert [ack.seq for ack in raw if ack.ack_type == "persisted"] == [2, 3, 5]
        assert publisher.unpersisted_count == 0


def test_windowed_receipts_are_for_the_last_of_a_run(topics: Kafka, service: Service) -> None:
    receipts: list[Receipt] = []
    with _publisher(topics, windowed=True, on_receipt=receipts.append) as publisher:
        futures = [publisher.publish(b"x") for _ in range(3)]
        service.persisted("p1", 3)
        wait(futures, PATIENCE_SECONDS)
        publisher.publish_flush(PATIENCE_SECONDS)
    assert [(receipt.first, receipt.seq) for receipt in receipts] == [(1, 3)]


def test_a_duplicate_is_a_success_that_the_handler_is_told_of(topics: Kafka, service: Service) -> None:
    failed: list[FailedMessage] = []
    with _publisher(topics, on_failed_write=failed.append) as publisher:
        future = publisher.publish(b"x")
        service.persisted("p1", 1, "duplicate")
        assert future.result(PATIENCE_SECONDS).duplicate
    assert [item.reason for item in failed] == ["duplicate"]


def test_a_store_is_sent_again_from_where_the_service_stands(topics: Kafka, service: Service, tmp_path: Path) -> None:
    with _publisher(topics, store=tmp_path / "p1") as publisher:
        futures = [publisher.publish(b"%d" % seq) for seq in range(1, 6)]
        service.wait_for(5)
    assert all(isinstance(future.exception(), errors.PublisherClosedError) for future in futures)
    service.last["p1"] = 3
    with _publisher(topics, store=tmp_path / "p1") as publisher:
        assert [(seq, value) for _, seq, value in service.wait_for(7)[5:]] == [(4, b"4"), (5, b"5")]
        assert publisher.unpersisted_count == 2
        service.persisted("p1", 5)
        publisher.publish_flush(PATIENCE_SECONDS)
        assert publisher.publish(b"6") is not None
        assert service.wait_for(8)[7][1] == 6
    assert [logon.get("first") for logon in service.logons] == [None, "1"]


def test_a_service_that_lacks_what_was_dropped_is_refused_where_that_is_wanted(
    topics: Kafka, service: Service, tmp_path: Path
) -> None:
    with _publisher(topics, store=tmp_path / "p1") as publisher:
        publisher.publish(b"1")
        service.persisted("p1", 1)
        publisher.publish_flush(PATIENCE_SECONDS)
    service.last["p1"] = 0
    with pytest.raises(errors.GapError, match="1 to 1 are missing"):
        _publisher(topics, store=tmp_path / "p1", error_on_gap=True)


def test_without_an_answer_a_message_is_sent_again(topics: Kafka, service: Service) -> None:
    with _publisher(topics, ack_timeout=0.2) as publisher:
        future = publisher.publish(b"x")
        assert {seq for _, seq, _ in service.wait_for(3)} == {1}
        service.persisted("p1", 1)
        assert future.result(PATIENCE_SECONDS).seq == 1
        assert publisher.statistics.resent >= 2


def test_a_full_window_blocks_or_says_so(topics: Kafka, service: Service) -> None:
    with _publisher(topics, window=2, block=False) as publisher:
        publisher.publish(b"1")
        publisher.publish(b"2")
        with pytest.raises(errors.WouldBlockError):
            publisher.publish(b"3")
        assert publisher.statistics.window_closed == 1
    with _publisher(topics, name="p2", window=2) as publisher:
        publisher.publish(b"1")
        publisher.publish(b"2")
        third = threading.Thread(target=publisher.publish, args=(b"3",))
        third.start()
        service.persisted("p2", 1)
        third.join(PATIENCE_SECONDS)
        assert not third.is_alive()
        assert ("p2", 3, b"3") in service.wait_for(5)


def test_waiting_for_an_acknowledgement_ends_with_the_time(topics: Kafka, service: Service) -> None:
    with _publisher(topics) as publisher:
        with pytest.raises(errors.AcknowledgementTimeout, match=r"within 0\.1 s"):
            publisher.publish_await_acknowledgement(b"x", timeout=0.1)
        with pytest.raises(errors.FlushTimeout, match="1 messages were not acknowledged"):
            publisher.publish_flush(0.1)
        publisher.publish_flush(PATIENCE_SECONDS, stage="accepted")
        assert publisher.unpersisted_count == 1

        def acknowledge() -> None:
            # what was not sent yet cannot be acknowledged
            while publisher.unpersisted_count < 2:
                time.sleep(0.01)  # leaves the processor to the publisher
            service.persisted("p1", 2)

        acknowledging = threading.Thread(target=acknowledge)
        acknowledging.start()
        assert publisher.publish_await_acknowledgement(b"y", timeout=PATIENCE_SECONDS).seq == 2
        acknowledging.join()


def test_a_logon_nobody_answers_says_what_to_start(topics: Kafka, service: Service) -> None:
    service.silent = True
    with pytest.raises(errors.LogonTimeout, match="submit persist"):
        # Kafka has to store it within the same time
        _publisher(topics, logon_timeout=2)


def test_a_second_publisher_of_the_same_name_ends_the_first(topics: Kafka, service: Service) -> None:
    with _publisher(topics) as first:
        future = first.publish(b"x")
        with _publisher(topics):
            with pytest.raises(errors.TakenOverError, match="as p1"):
                future.result(PATIENCE_SECONDS)
            with pytest.raises(errors.TakenOverError):
                first.publish(b"y")
    assert len(service.logons) == 2


def test_an_older_logon_that_is_told_again_ends_nobody(topics: Kafka, service: Service) -> None:
    with _publisher(topics) as publisher:
        service.answer("p1", CommandAck(ack_type="processed", client="p1", cid="logon-old", bookmark=0))
        future = publisher.publish(b"x")
        service.persisted("p1", 1)
        assert future.result(PATIENCE_SECONDS).seq == 1


def test_what_cannot_be_sent_is_refused_before_it_has_a_number(topics: Kafka) -> None:
    with _publisher(topics, stage="accepted") as publisher:
        with pytest.raises(errors.MessageTooLargeError):
            publisher.publish(b"x" * clients.MAX_RECORD_BYTES)
        assert publisher.statistics.published == 0


def test_a_window_of_nothing_is_refused(topics: Kafka) -> None:
    with pytest.raises(errors.WindowError, match="1 or more"):
        _publisher(topics, window=0)


def test_a_damaged_store_is_refused(topics: Kafka, tmp_path: Path) -> None:
    (tmp_path / "p1").write_bytes(b"x" * 5000)
    with pytest.raises(errors.StoreError, match="damaged"):
        _publisher(topics, store=tmp_path / "p1")


EXAMPLES = [
    pytest.param(example, id=str(number))
    for number, example in enumerate(pages.examples("docs/guides/publish-safely.md"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_pages_runs(
    topics: Kafka, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    service.obliging = True
    pages.run(example, Settings(kafka=topics), tmp_path, monkeypatch)
