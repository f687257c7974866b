"""What of Kafka sources and targets is decided without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, NotLeaderForPartitionError

from ackstream.connectivity.kafka import KafkaPublisher, UnknownTopicError, expired, external_message, record_metadata
from ackstream.connectivity.transport import OutgoingMessage, redelivers
from ackstream.protocol.ditto.errors import kafka_message_rejected
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
    assert KafkaPublisher.status_of(None, error) == status  # type: ignore[arg-type]


@each("settlement", "kafka-qos")
def test_prose_settlement_of_a_record(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    again = redelivers(given_["settlement"], given_["sourceQos"])
    assert again is ("consumes again" in expect["action"])


def test_a_cluster_that_stores_nothing_is_away_and_one_without_the_topic_is_not() -> None:
    def send(*_arguments: Any) -> Any:
        raise KafkaTimeoutError("Failed to update metadata after 1.0 secs.")

    publisher = KafkaPublisher.__new__(KafkaPublisher)
    publisher._producer, publisher._until = SimpleNamespace(send=send), float("inf")
    results: list[Any] = []
    publisher._send(OutgoingMessage("nowhere", {}, b"1"), results.append)
    publisher._send(OutgoingMessage("out#-1", {}, b"1"), results.append)
    unknown = results[0]
    assert isinstance(unknown, UnknownTopicError)
    assert publisher.status_of(unknown) == 500
    # of a record that waited for 30 s
    errors = [KafkaTimeoutError(), NotLeaderForPartitionError(), MessageSizeTooLargeError(), *results]
    assert list(map(publisher.is_away, errors))[:4] == [True, True, False, False]


def test_a_publisher_that_closes_does_not_wait_for_each_message_that_is_left() -> None:
    publisher = KafkaPublisher.__new__(KafkaPublisher)
    publisher._until = 0.0
    results: list[Any] = []
    publisher._send(OutgoingMessage("out", {}, b"1"), results.append)
    assert [type(result) for result in results] == [UnknownTopicError]
