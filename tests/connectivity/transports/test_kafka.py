"""What of Kafka sources and targets is decided without a broker."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition, errors

from ackstream.client.core.messages import OffsetProgress
from ackstream.connectivity.transports import kafka
from ackstream.connectivity.transports import kafka as transport
from ackstream.connectivity.transports.transport import OutgoingMessage, Published, redelivers
from ackstream.errors import UnreachableError
from ackstream.kafka.library import BatchTooLargeError
from ackstream.settings import Kafka
from ackstream.settings.connections import KafkaConnection
from tests.prose import covers, each


def record(**parts: Any) -> Any:
    values = {"topic": "in", "partition": 1, "offset": 7, "timestamp": 1234, "key": None, "value": b"x", "headers": []}
    return SimpleNamespace(**{**values, **parts})


def test_a_record_is_a_message_with_its_place_as_identity() -> None:
    found = kafka.external_message(record(key=b"k", headers=[("Device", b"d\xff"), ("none", None)]), "plant")
    assert found.identity == "plant-in-1-7"
    assert found.headers == {
        "device": "d\ufffd",
        "kafka.topic": "in",
        "kafka.timestamp": "1234",
        "kafka.key": "k",
    }
    assert kafka.external_message(record(value=None), "plant").payload == b""


@each("settlement", "kafka-expired")
def test_prose_expired_records(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect["processed"] is not kafka.expired(given_["headers"], 1_000)
    assert not kafka.expired(given_["headers"], 999)


@pytest.mark.parametrize("headers", [{}, {"ttl": "1"}, {"creation-time": "0"}, {"creation-time": "x", "ttl": "1"}])
def test_without_both_headers_nothing_expires(headers: dict[str, str]) -> None:
    assert not kafka.expired(headers, 1e15)


@covers("protocol_acks", "kafka-issued-ack-debug")
def test_an_acknowledgement_can_tell_where_a_record_went() -> None:
    metadata = SimpleNamespace(
        timestamp=1, serialized_key_size=2, serialized_value_size=3, topic="out", partition=4, offset=5
    )
    assert kafka.record_metadata(metadata) == {
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
        (errors.NotLeaderForPartitionError(), 500),
        (errors.KafkaTimeoutError(), 500),
        (errors.MessageSizeTooLargeError(), 400),
        (ValueError(), 400),
    ],
)
@covers("protocol_acks", "kafka-issued-ack-retriable", "kafka-issued-ack-nonretriable")
def test_what_may_go_well_another_time_is_no_fault_of_the_requester(error: Exception, status: int) -> None:
    assert kafka.refused(error).status == status


@each("settlement", "kafka-qos")
def test_prose_settlement_of_a_record(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    again = redelivers(given_["settlement"], given_["sourceQos"])
    assert again is ("consumes again" in expect["action"])


class Playing:
    """A publisher whose producer and cluster are played: ``raises`` by the next sends, ``code`` of each topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *raises: Exception, code: int | None = 0) -> None:
        self.now, self.code, self.raises = 100.0, code, list(raises)
        self.codes: dict[str, int] = {}
        self.sent: list[str] = []
        self.results: list[Published] = []
        monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(transport.clients, "connect_admin", self._admin)
        monkeypatch.setattr(transport.clients, "connect_producer", lambda *_, **__: SimpleNamespace(send=self._send))
        thread = SimpleNamespace(start=lambda: None)
        monkeypatch.setattr(
            transport.ConfirmingPublisher, "__init__", lambda made, _name: vars(made).update(_thread=thread)
        )
        self.publisher = kafka.KafkaPublisher(KafkaConnection(id="c", type="kafka"), Kafka())
        self.publisher._accepted = deque()
        self.publisher._arrived = SimpleNamespace(wait=self._wait, clear=lambda: None)  # type: ignore[assignment]
        self.asked: list[str] = []
        self.connected = 0

    def publish(self, *addresses: str, turns: int = 2) -> list[tuple[int, bool]]:
        """Return the statuses so far, and whether the cluster is away."""
        for address in addresses:
            self.publisher._accepted.append((OutgoingMessage(address, {}, b"1"), self.results.append))
        for _ in range(turns):
            self.publisher._turn()
        return [(result.status, result.away) for result in self.results]

    def _send(self, topic: str, *_: Any) -> Any:
        if self.raises:
            self._wait(1.0)
            raise self.raises[0] if len(self.raises) == 1 else self.raises.pop(0)
        self.sent.append(topic)
        return SimpleNamespace(add_callback=lambda stored: stored(None), add_errback=lambda _failed: None)

    def _wait(self, seconds: float) -> None:
        self.now += seconds

    def _admin(self, _kafka: Kafka) -> Any:
        if self.code is None:
            raise UnreachableError("no broker")
        self.connected += 1
        return nullcontext(SimpleNamespace(describe_topics=self._describe))

    def _describe(self, topics: list[str]) -> list[dict[str, Any]]:
        self.asked += topics
        return [{"name": topic, "error_code": self.codes.get(topic, self.code)} for topic in topics]


TIMEOUT = errors.KafkaTimeoutError("Failed to update metadata after 1.0 secs.")
UNKNOWN_TOPIC, NO_AUTHORIZATION, NO_LEADER = 3, 29, 5


def test_only_a_cluster_that_reports_twice_that_it_has_no_such_topic_refuses_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    playing = Playing(monkeypatch, code=UNKNOWN_TOPIC)
    # a broker that has just started may report so once
    assert playing.publish("out", turns=1) == []
    assert playing.publish() == [(500, False)]
    assert b"UnknownTopicError" in bytes(playing.results[0].payload)  # type: ignore[arg-type]
    assert playing.asked == ["out", "out"]
    assert playing.publish("out#-1")[1:] == [(400, False)]
    assert Playing(monkeypatch, code=NO_AUTHORIZATION).publish("out") == [(400, False)]
    playing = Playing(monkeypatch, code=UNKNOWN_TOPIC)
    playing.publish("new", turns=1)
    playing.code = 0
    assert playing.publish("new") == [(204, False)] * 2


def test_topics_that_are_unknown_or_have_no_leader_hold_back_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders choose the topic of their replies."""
    playing = Playing(monkeypatch)
    names = [f"missing{number}" for number in range(100)]
    playing.codes = dict.fromkeys(names, UNKNOWN_TOPIC) | {"headless": NO_LEADER}
    assert playing.publish(*names, *names, "headless", "good", turns=1) == [(204, False)]
    # neither the producer nor the thread has waited
    assert playing.now < 100.0 + 2 * kafka.clients.RESEND_SECONDS
    assert playing.sent == ["good"]
    assert playing.publish()[1:] == [(500, False)] * 200
    # two looks at all of them, however many the names and the messages are
    assert playing.connected <= 4
    playing.codes.clear()
    assert playing.publish("missing1")[-2:] == [(204, False)] * 2
    assert sorted(playing.sent) == ["good", "headless", "missing1"]


def test_messages_to_a_topic_keep_their_order_while_it_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch, code=NO_LEADER)
    order: list[bytes] = []
    monkeypatch.setattr(playing.publisher._producer, "send", lambda _topic, value, *_: order.append(value))
    for number in range(3):
        playing.publisher._send(OutgoingMessage("out", {}, b"%d" % number), playing.results.append)
    playing.code = 0
    monkeypatch.setattr(
        playing.publisher,
        "_attempt",
        lambda _where, message: (
            order.append(message.payload)
            or SimpleNamespace(add_callback=lambda _stored: None, add_errback=lambda _failed: None)
        ),
    )
    playing.publish()
    assert order == [b"0", b"1", b"2"]


def test_no_more_topics_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "REMEMBERED", 3)
    playing = Playing(monkeypatch)
    playing.publish(*(f"out{number}" for number in range(9)))
    assert list(playing.publisher._usable) == ["out6", "out7", "out8"]


@pytest.mark.parametrize("code", [None, NO_LEADER], ids=["no answer", "no leader"])
def test_a_cluster_that_does_not_show_the_partitions_of_a_topic_is_away_after_30_s(
    monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    playing = Playing(monkeypatch, code=code)
    while not playing.publish(*([] if playing.now > 100.0 else ["out", "out"]), turns=1):
        assert playing.now - 100.0 < kafka.DELIVERY_SECONDS + 1
    assert playing.publish() == [(500, True)] * 2
    assert playing.now - 100.0 >= kafka.DELIVERY_SECONDS


def test_a_producer_that_never_knows_a_topic_is_away_after_30_s_too(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch, TIMEOUT)
    while not playing.publish(*([] if playing.now > 100.0 else ["out"]), turns=1):
        assert playing.now - 100.0 < kafka.DELIVERY_SECONDS + 3
    assert playing.publish() == [(500, True)]


def test_a_record_whose_partitions_become_known_late_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a slow link, after a connection was opened; or when a topic has no leader for a moment."""
    playing = Playing(monkeypatch, TIMEOUT, ValueError("no partition"), errors.LeaderNotAvailableError())
    assert playing.publish("out", turns=3) == []
    playing.raises.clear()
    assert playing.publish() == [(204, False)]
    assert playing.sent == ["out"]


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (errors.KafkaTimeoutError(), True),
        (errors.NotLeaderForPartitionError(), True),
        # a topic that was known when the record was sent
        (errors.UnknownTopicOrPartitionError(), True),
        (errors.SaslAuthenticationFailedError(), True),
        (errors.OutOfOrderSequenceNumberError(), True),
        (errors.MessageSizeTooLargeError(), False),
        (errors.TopicAuthorizationFailedError(), False),
        (ValueError("a header"), False),
    ],
)
def test_a_record_that_was_not_stored_is_published_again_unless_its_topic_or_the_record_is_refused(
    error: Exception,
    away: bool,  # noqa: FBT001 - a table
) -> None:
    assert kafka.refused(error).away is away


class Consumed:
    """A source whose consumer has two partitions; a poll takes those away that are in ``loses``."""

    def __init__(self, room: int) -> None:
        self.paused: set[TopicPartition] = set()
        self.assigned = {ONE, TWO}
        self.loses: set[TopicPartition] = set()
        self.read: list[tuple[set[TopicPartition], int]] = []
        source = kafka.KafkaSource.__new__(kafka.KafkaSource)
        source._progress, source._seen, source._limit = OffsetProgress(), {}, 2
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
    works = [consumed.source._progress.begin(ONE, offset) for offset in range(2 * kafka.UNCOMMITTED)]
    works[0].remaining = 1  # type: ignore[union-attr]
    for work in works[1:]:
        work.remaining = 0  # type: ignore[union-attr]
    consumed.source._read()
    works[0].remaining = 0  # type: ignore[union-attr]
    consumed.source._progress.positions()
    consumed.source._read()
    assert (consumed.read, consumed.paused) == ([({ONE}, 7), (set(), 7)], set())


def test_a_record_that_cannot_be_unpacked_is_handed_over_with_the_reason_and_committed_once_it_is_settled() -> None:
    consumed, taken = Consumed(room=7), []
    source = consumed.source
    source._id, source._qos = "c", 1
    source._intake.take = lambda message, done, delivered: taken.append((message, done, delivered))  # type: ignore[method-assign,assignment]
    source._progress.start(ONE, 5)
    source._take_unreadable(ONE, 5, BatchTooLargeError("The batch is too large."))
    ((message, done, delivered),) = taken
    assert (message.identity, message.address, message.payload, delivered) == ("c-in-1-5", "in", b"", 0)
    assert message.unreadable == "BatchTooLargeError: The batch is too large."
    assert source._progress.positions() == {ONE: 5}
    done(None)
    assert source._progress.positions() == {ONE: 6}


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
        consumed.source._progress.start(partition, 5)
    committed: list[Any] = []
    leave: Any = lambda _metadata: committed.extend(consumed.source._progress.positions())  # noqa: E731
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
    assert "kafka.key" not in kafka.external_message(record(headers=[("kafka.key", b"forged")]), "plant").headers
    assert kafka.external_message(record(), "plant").address == "in"
