from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)
from kafka.partitioner import DefaultPartitioner
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState

from ackstream.kafka import library
from ackstream.kafka.clients import may_pass


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


def test_a_producer_that_gave_up_a_record_which_it_may_have_sent_asks_for_a_new_id() -> None:
    manager = TransactionManager()
    library.keep_identity(SimpleNamespace(_transaction_manager=manager))
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
    library.keep_identity(SimpleNamespace(_transaction_manager=manager))
    manager.init_producer_id()
    for _ in range(3):
        # as the library's sender does
        handler = manager.next_request_handler(has_incomplete_batches=False)
        handler.on_complete(manager.next_in_flight_request_correlation_id(), error)
        assert not manager.has_fatal_error()
    assert manager.next_request_handler(has_incomplete_batches=False) is handler


def test_a_producer_that_may_have_no_id_says_so() -> None:
    manager = TransactionManager()
    library.keep_identity(SimpleNamespace(_transaction_manager=manager))
    manager.init_producer_id()
    handler = manager.next_request_handler(has_incomplete_batches=False)
    handler.on_complete(manager.next_in_flight_request_correlation_id(), ClusterAuthorizationFailedError())
    assert manager.has_fatal_error()
