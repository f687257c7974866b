from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from ackstream.client.core import connection
from ackstream.client.core.connection import ReliableSender, Sending
from ackstream.errors import UnreachableError
from ackstream.kafka import clients
from ackstream.settings import Kafka


class Producer:
    """Keeps what is sent; the test reports for Kafka."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.reports: list[tuple[Any, Any]] = []

    def put(self, stored: Any, failed: Any, topic: str, **record: Any) -> None:  # noqa: ARG002
        self.sent.append(record["value"])
        self.reports.append((stored, failed))

    def prepare(self, topic: str) -> None: ...

    def close(self, timeout: float = 0.0) -> None: ...


class Sent:
    """A sender, and how its records ended."""

    def __init__(self, kind: type[ReliableSender] = ReliableSender) -> None:
        self.producer, self.ended = Producer(), list[Any]()
        self.sender = kind(self.producer)

    def send(self, value: bytes = b"v", **options: Any) -> None:
        self.sender.submit(Sending({"topic": "t", "value": value}, self.ended.append, **options))

    def store(self, number: int = -1) -> None:
        self.producer.reports[number][0]("metadata")

    def fail(self, error: Exception) -> None:
        self.producer.reports[-1][1](error)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.sender.waiting, self.sender.sending, self.sender.sending_bytes


def test_a_record_is_sent_again_until_it_is_stored() -> None:
    sent = Sent()
    sent.send(b"abc")
    for now in (1.0, 2.0):
        sent.fail(KafkaTimeoutError())
        sent.sender.turn(now)
        assert (sent.counts, sent.sender.wait(now)) == ((1, 0, 0), pytest.approx(0.2))
        sent.sender.turn(now + 0.3)
        assert sent.counts == (0, 1, 3)
    assert sent.ended == []
    sent.store()
    sent.sender.turn(3.0)
    assert (sent.producer.sent, sent.ended, sent.counts) == ([b"abc"] * 3, [None], (0, 0, 0))


def test_an_error_is_final_if_it_does_not_pass_or_the_time_is_over() -> None:
    sent, errors = Sent(), [MessageSizeTooLargeError(), KafkaTimeoutError()]
    for error in errors:
        sent.send(give_up_at=5.0)
        sent.fail(error)
        sent.sender.turn(5.0)
    assert (sent.ended, len(sent.producer.sent)) == (errors, 2)


def test_the_metadata_of_a_stored_record_are_reported_at_once() -> None:
    sent, stored = Sent(), list[Any]()
    sent.send(stored=stored.append)
    sent.store()
    assert (stored, sent.ended) == (["metadata"], [])


def test_records_wait_until_they_may_be_sent_and_a_withdrawn_one_is_not_sent() -> None:
    class Gate(ReliableSender):
        ready = False

    reason = LookupError("withdrawn")
    sent = Sent(Gate)
    sent.send(b"a")
    sent.send(b"b", withdrawn=lambda: reason)
    sent.sender.turn(1.0)
    assert (sent.producer.sent, sent.counts, sent.sender.wait(1.0)) == ([], (2, 0, 0), None)
    Gate.ready = True
    sent.sender.turn(2.0)
    assert (sent.producer.sent, sent.ended) == ([b"a"], [reason])


@pytest.mark.parametrize(("topics", "looks"), [([], 1), (["orders"], 10)])
def test_a_missing_topic_is_refused_at_once_and_one_without_a_leader_after_ten_seconds(
    topics: list[str], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, producer = mock.MagicMock(), mock.MagicMock()
    admin.__enter__.return_value.list_topics.return_value = topics
    producer.partitions_for.side_effect = KafkaTimeoutError
    monkeypatch.setattr(clients, "connect_admin", lambda _kafka: admin)
    monkeypatch.setattr(clients, "monotonic_ms", lambda: 1_000 * producer.partitions_for.call_count)
    with pytest.raises(UnreachableError, match="has not named the partitions of the topic orders: create it"):
        connection.Producer(Kafka(), producer).prepare("orders")
    assert producer.partitions_for.call_count == looks
