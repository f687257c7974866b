"""What of Kafka sources and targets is decided without a broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import (
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumberError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from ackstream.client.core.messages import Deliveries
from ackstream.connectivity.transports import kafka as transport
from ackstream.connectivity.transports.kafka import (
    AWAY_SECONDS,
    DELIVERY_SECONDS,
    REFUSED_SECONDS,
    UNCOMMITTED,
    KafkaPublisher,
    KafkaSource,
    expired,
    external_message,
    record_metadata,
    refused,
)
from ackstream.connectivity.transports.transport import OutgoingMessage, Published, redelivers
from ackstream.errors import UnreachableError
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.errors import kafka_message_rejected
from ackstream.settings import Kafka
from tests.prose import covers, each


def record(**parts: Any) -> Any:
    values = {"topic": "in", "partition": 1, "offset": 7, "timestamp": 1234, "key": None, "value": b"x", "headers": []}
    return SimpleNamespace(**{**values, **parts})


def test_a_record_is_a_message_with_its_place_as_identity() -> None:
    found = external_message(record(key=b"k", headers=[("Device", b"d\xff"), ("none", None)]), "plant")
    assert found.identity == "plant-in-1-7"
    assert found.headers == {
        "device": "d\ufffd",
        "kafka.topic": "in",
        "kafka.timestamp": "1234",
        "kafka.key": "k",
    }
    assert external_message(record(value=None), "plant").payload == b""


@each("settlement", "kafka-expired")
def test_prose_expired_records(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["processed"] is not expired(given_["headers"], 1_000)
    assert not expired(given_["headers"], 999)


@pytest.mark.parametrize("headers", [{}, {"ttl": "1"}, {"creation-time": "0"}, {"creation-time": "x", "ttl": "1"}])
def test_without_both_headers_nothing_expires(headers: dict[str, str]) -> None:
    assert not expired(headers, 1e15)


@each("settlement", "kafka-rejected-error")
def test_prose_the_error_of_a_rejected_record(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    error = kafka_message_rejected("in-1-7")
    assert {name: getattr(error, name) for name in expect["error"]} == expect["error"]


@covers("protocol_acks", "kafka-issued-ack-debug")
def test_an_acknowledgement_can_tell_where_a_record_went() -> None:
    metadata = SimpleNamespace(
        timestamp=1, serialized_key_size=2, serialized_value_size=3, topic="out", partition=4, offset=5
    )
    assert record_metadata(metadata) == {
        "timestamp": 1,
        "serializedKeySize": 2,
        "serializedValueSize": 3,
        "topic": "out",
        "partition": 4,
        "offset": 5,
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotLeaderForPartitionError(), 500),
        (KafkaTimeoutError(), 500),
        (MessageSizeTooLargeError(), 400),
        (ValueError(), 400),
    ],
)
@covers("protocol_acks", "kafka-issued-ack-retriable", "kafka-issued-ack-nonretriable")
def test_what_may_go_well_another_time_is_no_fault_of_the_requester(error: Exception, status: int) -> None:
    assert refused(error).status == status


@each("settlement", "kafka-qos")
def test_prose_settlement_of_a_record(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    again = redelivers(given_["settlement"], given_["sourceQos"])
    assert again is ("consumes again" in expect["action"])


class Playing:
    """A publisher whose producer and cluster are played: ``raises`` by the next attempts, ``code`` of each topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *raises: Exception, code: int | None = 0) -> None:
        self.now, self.code, self.raises = 100.0, code, list(raises)
        self.sent: list[str] = []
        self.results: list[Published] = []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._wait)
        monkeypatch.setattr(transport, "time", clock)
        monkeypatch.setattr(transport.clients, "connect_admin", self._admin)
        publisher = KafkaPublisher.__new__(KafkaPublisher)
        publisher._debug, publisher._kafka, publisher._system = False, Kafka(), frozenset({"acks"})
        publisher._producer = SimpleNamespace(send=self._send)
        publisher._closed_at, publisher._away_at, publisher._resting_until = float("inf"), None, 0.0
        publisher._refused, publisher._admin = Latest(transport._MAX_REFUSED), None
        self.publisher = publisher
        self.asked = self.connected = 0

    def publish(self, address: str = "out") -> list[tuple[int, bool]]:
        """Return the statuses so far, and whether the cluster is away."""
        self.publisher._send(OutgoingMessage(address, {}, b"1"), self.results.append)
        return [(result.status, result.away) for result in self.results]

    def _send(self, topic: str, *_: Any) -> Any:
        self._wait(1.0)
        if self.raises:
            raise self.raises[0] if len(self.raises) == 1 else self.raises.pop(0)
        self.sent.append(topic)
        return SimpleNamespace(add_callback=lambda stored: stored(None), add_errback=lambda _failed: None)

    def _wait(self, seconds: float) -> None:
        self.now += seconds

    def _admin(self, _kafka: Kafka) -> Any:
        if self.code is None:
            raise UnreachableError("no broker")
        self.connected += 1
        return SimpleNamespace(describe_topics=self._describe, close=lambda: None)

    def _describe(self, _topics: list[str]) -> list[dict[str, Any]]:
        self.asked += 1
        return [{"error_code": self.code}]


TIMEOUT = KafkaTimeoutError("Failed to update metadata after 1.0 secs.")
UNKNOWN_TOPIC, NO_AUTHORIZATION, NO_LEADER = 3, 29, 5


def test_only_a_cluster_that_says_that_it_has_no_such_topic_refuses_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch, TIMEOUT, code=UNKNOWN_TOPIC)
    assert playing.publish() == [(500, False)]
    assert b"UnknownTopicError" in bytes(playing.results[0].payload)  # type: ignore[arg-type]
    # a broker that has just started may say so once
    assert playing.asked == 2
    assert playing.publish("out#-1")[1:] == [(400, False)]
    assert Playing(monkeypatch, TIMEOUT, code=NO_AUTHORIZATION).publish() == [(400, False)]


def test_messages_to_a_topic_that_the_cluster_has_refused_hold_back_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch, TIMEOUT, code=UNKNOWN_TOPIC)
    playing.publish("missing")
    began, asked = playing.now, playing.asked
    assert playing.publish("missing") == [(500, False)] * 2
    assert (playing.now, playing.asked) == (began, asked)
    # it may have been created meanwhile; and the client that asks is kept
    playing.now += REFUSED_SECONDS
    playing.publish("missing")
    playing.publish("gone")
    assert (playing.asked, playing.connected) == (asked + 4, 1)
    playing.raises.clear()
    assert playing.publish("other")[-1] == (204, False)


def test_no_more_refused_topics_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_MAX_REFUSED", 3)
    playing = Playing(monkeypatch, TIMEOUT, code=NO_AUTHORIZATION)
    for number in range(9):
        playing.publish(f"out{number}")
    assert list(playing.publisher._refused) == ["out6", "out7", "out8"]


@pytest.mark.parametrize("code", [None, NO_LEADER], ids=["no answer", "no leader"])
def test_a_cluster_that_does_not_show_the_partitions_of_a_topic_is_away_after_30_s(
    monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    playing = Playing(monkeypatch, TIMEOUT, code=code)
    assert playing.publish() == [(500, True)]
    assert DELIVERY_SECONDS <= playing.now - 100.0 < DELIVERY_SECONDS + 3
    # the next ones do not wait as long again, and most of them not at all
    began = playing.now
    for _ in range(100):
        playing.publish()
    assert [(result.status, result.away) for result in playing.results] == [(500, True)] * 101
    assert playing.now == began
    playing.now += AWAY_SECONDS
    playing.publish()
    assert 0 < playing.now - began - AWAY_SECONDS < 3


def test_a_record_whose_partitions_become_known_late_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a slow link, after a connection was opened; or when a topic has no leader for a moment."""
    playing = Playing(monkeypatch, TIMEOUT, ValueError("no partition"), LeaderNotAvailableError(), code=None)
    playing.raises.append(TIMEOUT)

    def admin(_kafka: Kafka) -> Any:
        if len(playing.raises) == 1:
            playing.raises.clear()
        raise UnreachableError("no broker")

    monkeypatch.setattr(transport.clients, "connect_admin", admin)
    assert playing.publish() == [(204, False)]
    assert (playing.sent, playing.publisher._away_at) == (["out"], None)


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (KafkaTimeoutError(), True),
        (NotLeaderForPartitionError(), True),
        # a topic that was known when the record was sent
        (UnknownTopicOrPartitionError(), True),
        (SaslAuthenticationFailedError(), True),
        (OutOfOrderSequenceNumberError(), True),
        (MessageSizeTooLargeError(), False),
        (TopicAuthorizationFailedError(), False),
        (ValueError("a header"), False),
    ],
)
def test_a_record_that_was_not_stored_is_published_again_unless_its_topic_or_the_record_is_refused(
    error: Exception,
    away: bool,  # noqa: FBT001 - a table
) -> None:
    assert refused(error).away is away


def test_a_publisher_that_closes_does_not_wait_for_each_message_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch, TIMEOUT, code=None)
    playing.publisher._closed_at = 99.0
    assert playing.publish() == [(500, True)]
    assert playing.now == 100.0


def test_a_reply_that_comes_when_the_publisher_is_closed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch)
    playing.publisher._executor = ThreadPoolExecutor(1)
    playing.publisher._executor.shutdown()
    playing.publisher.publish(OutgoingMessage("out", {}, b"1"), playing.results.append)
    assert [result.status for result in playing.results] == [500]


class Consumed:
    """A source whose consumer has two partitions; a poll takes those away that are in ``loses``."""

    def __init__(self, room: int) -> None:
        self.paused: set[TopicPartition] = set()
        self.assigned = {ONE, TWO}
        self.loses: set[TopicPartition] = set()
        self.read: list[tuple[set[TopicPartition], int]] = []
        source = KafkaSource.__new__(KafkaSource)
        source._deliveries, source._limit = Deliveries(), 2
        source._member = SimpleNamespace(partitions={ONE, TWO})  # type: ignore[assignment]
        source._intake = SimpleNamespace(room=room)  # type: ignore[assignment]
        source._consumer = SimpleNamespace(
            assignment=lambda: self.assigned, pause=self._pause, resume=self._resume, seek=self._seek
        )
        source._reader = SimpleNamespace(read=self._read)  # type: ignore[assignment]
        self.source = source

    def _read(self, _timeout: int, room: int) -> list[Any]:
        self.read.append((set(self.paused), room))
        self.assigned = self.assigned - self.loses
        return []

    def _check(self, *parts: TopicPartition) -> None:
        # as the library does
        for part in parts:
            if part not in self.assigned:
                raise KeyError(part)

    def _pause(self, *parts: TopicPartition) -> None:
        self._check(*parts)
        self.paused.update(parts)

    def _resume(self, *parts: TopicPartition) -> None:
        self._check(*parts)
        self.paused.difference_update(parts)

    def _seek(self, part: TopicPartition, _offset: int) -> None:
        self._check(part)


ONE, TWO = TopicPartition("in", 1), TopicPartition("in", 2)


def test_a_partition_is_not_read_while_too_many_records_wait_behind_an_unsettled_one() -> None:
    consumed = Consumed(room=7)
    works = [consumed.source._deliveries.begin(ONE, offset) for offset in range(2 * UNCOMMITTED)]
    for work in works[1:]:
        work.remaining = 0  # type: ignore[union-attr]
    consumed.source._read()
    works[0].remaining = 0  # type: ignore[union-attr]
    consumed.source._deliveries.positions()
    consumed.source._read()
    assert (consumed.read, consumed.paused) == ([({ONE}, 7), (set(), 7)], set())


def test_without_room_no_partition_is_read() -> None:
    consumed = Consumed(room=0)
    consumed.source._read()
    assert (consumed.read, consumed.paused) == ([({ONE, TWO}, 1)], set())


@pytest.mark.parametrize("room", [0, 7])
def test_a_rebalance_while_partitions_are_paused_ends_no_source(room: int) -> None:
    consumed = Consumed(room)
    consumed.loses = {ONE}
    # the group has not reported which partitions are left
    consumed.source._read()
    consumed.source._read()
    assert len(consumed.read) == 2


def test_a_source_that_closes_commits_no_partition_that_it_has_lost() -> None:
    consumed = Consumed(7)
    for partition in (ONE, TWO):
        consumed.source._deliveries.start(partition, 5)
    committed: list[Any] = []
    leave: Any = lambda _metadata: committed.extend(consumed.source._deliveries.positions())  # noqa: E731
    consumed.source._member = SimpleNamespace(partitions={ONE, TWO}, leave=leave)  # type: ignore[assignment]
    consumed.assigned = {TWO}
    consumed.source._disconnect()
    assert committed == [TWO]


def test_a_placeholder_cannot_name_a_topic_of_the_system_either(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch)
    assert playing.publish("acks/key") == [(400, False)]
    assert playing.publish("out") == [(400, False), (204, False)]
    assert playing.sent == ["out"]


def test_a_header_does_not_stand_for_the_key_of_a_record() -> None:
    assert "kafka.key" not in external_message(record(headers=[("kafka.key", b"forged")]), "plant").headers
    assert external_message(record(), "plant").address == "in"
