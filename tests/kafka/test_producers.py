from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)
from kafka.future import Future
from kafka.partitioner import DefaultPartitioner
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState
from kafka.protocol.producer import ProduceResponse

from ackstream.kafka import library
from ackstream.kafka.clients import may_pass

PartitionProduceResponse = ProduceResponse.TopicProduceResponse.PartitionProduceResponse


class Cluster:
    """A cluster as a partitioner sees it."""

    def __init__(self, number: int) -> None:
        self._partitions = set(range(number))

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return self._partitions

    available_partitions_for_topic = partitions_for_topic


@pytest.mark.parametrize("number", [1, 4, 7])
def test_a_key_goes_where_every_kafka_client_puts_it(number: int) -> None:
    ours, theirs = library.KeyPartitioner(), DefaultPartitioner()
    for key in (b"", b"a", b"org.acme:lamp", b"org.acme:lamp", b"x" * 99):
        arguments = ("t", key, key, b"", b"", Cluster(number))
        assert ours.partition(*arguments) == theirs.partition(*arguments)
    assert ours.partition("t", None, None, b"", b"", Cluster(number)) in range(number)


def test_a_send_is_retried_when_the_partitions_of_its_topic_are_unknown_for_a_moment() -> None:
    with pytest.raises(LeaderNotAvailableError) as caught:
        library.KeyPartitioner().partition("t", None, b"k", b"", b"", Cluster(0))
    assert may_pass(caught.value)


class Broker:
    """A client whose broker answers no request; it leads the partition 0 of two topics."""

    partitions = TopicPartition("short", 0), TopicPartition("healthy", 0)

    def __init__(self) -> None:
        self.sent: list[dict[str, bytes]] = []
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda _partition: 0, partitions_for_broker=lambda _node: self.partitions
        )

    def is_ready(self, _node: int) -> bool:
        return True

    def send(self, _node: int, request: Any, **_options: Any) -> Future:
        self.sent.append({each.name: bytes(each.partition_data[0].records) for each in request.topic_data})
        return Future()


def _producer(manager: TransactionManager, broker: Broker | None = None) -> Any:
    accumulator = RecordAccumulator(transaction_manager=manager, retry_backoff_ms=0)
    sender = Sender(broker or Broker(), None, accumulator, transaction_manager=manager, guarantee_message_order=True)
    producer = SimpleNamespace(_transaction_manager=manager, _sender=sender, _accumulator=accumulator)
    library.keep_identity(producer)
    return producer


def _identify(manager: TransactionManager, number: int) -> None:
    manager.init_producer_id()
    manager.set_producer_id_and_epoch(ProducerIdAndEpoch(number, 0))
    manager._transition_to(TransactionState.READY)


def test_a_record_is_sent_soon_if_one_of_another_topic_expires_as_its_turn_comes() -> None:
    """As records to a topic without enough replicas do: the library would send it never, and report it at its end."""
    manager, broker = TransactionManager(), Broker()
    producer = _producer(manager, broker)
    sender, accumulator, (short, healthy) = producer._sender, producer._accumulator, broker.partitions
    _identify(manager, 7)
    expired, *_ = accumulator.append(short, None, None, b"1", [])
    sender._send_producer_data()
    (batch,) = accumulator._incomplete.all()
    sender._complete_batch_with_exception(batch, NotEnoughReplicasError())
    batch.created -= accumulator.delivery_timeout_ms / 1000
    first, *_ = accumulator.append(healthy, None, None, b"2", [])
    sender._send_producer_data()
    assert expired.failed()
    assert not manager.has_producer_id()
    _identify(manager, 8)
    later, *_ = accumulator.append(healthy, None, None, b"3", [])
    for sent, future in ((1, first), (2, later)):
        sender._send_producer_data()
        # one at a time, so that they stay in order
        sender._send_producer_data()
        assert [set(each) for each in broker.sent] == [{"short"}, *[{"healthy"}] * sent]
        (batch,) = (each for each in accumulator._incomplete.all() if each.drained)
        sender._complete_batch(batch, PartitionProduceResponse(error_code=0, base_offset=sent))
        assert future.succeeded()
    assert not accumulator._incomplete
    assert not any(sender._in_flight_batches.values())


def test_a_producer_that_gave_up_a_record_which_it_may_have_sent_asks_for_a_new_id() -> None:
    manager = TransactionManager()
    _producer(manager)
    for _ in range(2):
        assert not manager.has_producer_id()
        # as the library's sender does before each send
        manager.init_producer_id()
        assert manager.next_request_handler(has_incomplete_batches=False) is not None
        manager.set_producer_id_and_epoch(ProducerIdAndEpoch(7, 0))
        manager._transition_to(TransactionState.READY)
        manager.reset_producer_id()


@pytest.mark.parametrize("error", [RequestTimedOutError(), NotEnoughReplicasError(), KafkaConnectionError()])
def test_a_producer_whose_request_for_an_id_is_not_answered_asks_again(error: Exception) -> None:
    manager = TransactionManager()
    _producer(manager)
    manager.init_producer_id()
    for _ in range(3):
        # as the library's sender does
        handler = manager.next_request_handler(has_incomplete_batches=False)
        handler.on_complete(manager.next_in_flight_request_correlation_id(), error)
        assert not manager.has_fatal_error()
    assert manager.next_request_handler(has_incomplete_batches=False) is handler


def test_a_producer_that_may_have_no_id_says_so() -> None:
    manager = TransactionManager()
    _producer(manager)
    manager.init_producer_id()
    handler = manager.next_request_handler(has_incomplete_batches=False)
    handler.on_complete(manager.next_in_flight_request_correlation_id(), ClusterAuthorizationFailedError())
    assert manager.has_fatal_error()
