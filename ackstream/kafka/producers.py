"""What producers do otherwise than kafka-python: keys go where all Kafka clients put them, and ids are never lost."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kafka.errors import KafkaConnectionError, LeaderNotAvailableError, RetriableError
from kafka.partitioner import DefaultPartitioner, murmur2
from kafka.producer.transaction_manager import TransactionState


@lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the partition where every Kafka client puts records of a key."""
    # partition numbers have no gaps
    return _hash(key) % partitions


class KeyPartitioner(DefaultPartitioner):  # type: ignore[misc]  # kafka-python is not typed
    """Puts a key on the partition that every Kafka client puts it on; the hashes of keys are cached."""

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        """Return the partition of a record."""
        if serialized_key is None:
            return int(super().partition(topic, key, serialized_key, value, serialized_value, cluster))
        partitions = cluster.partitions_for_topic(topic)
        if not partitions:
            raise LeaderNotAvailableError(topic)
        return partition_of(serialized_key, len(partitions))


def keep_identity(producer: Any) -> None:
    """Let a producer always get an id from the broker again, without which it sends nothing.

    kafka-python 3.0.12 never asks for another one after it has given up a record which it may have sent, nor when the
    broker does not answer in time.
    """
    # they are the library's own, and there is no public way
    manager = producer._transaction_manager  # noqa: SLF001
    reset, enqueue = manager.reset_producer_id, manager._enqueue_request  # noqa: SLF001

    def renew() -> None:
        reset()
        if manager._current_state == TransactionState.READY:  # noqa: SLF001
            manager._current_state = TransactionState.UNINITIALIZED  # noqa: SLF001

    def repeat(handler: Any) -> None:
        complete = type(handler).on_complete

        def on_complete(number: int, answer: object) -> None:
            # the one failure after which the library repeats a request
            away = KafkaConnectionError(str(answer)) if isinstance(answer, RetriableError) else answer
            complete(handler, number, away)

        handler.on_complete = on_complete
        enqueue(handler)

    manager.reset_producer_id, manager._enqueue_request = renew, repeat  # noqa: SLF001
