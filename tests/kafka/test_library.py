from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher, OffsetAndTimestamp
from kafka.errors import (
    Cancelled,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    SaslAuthenticationFailedError,
)
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from ackstream.errors import UnreachableError
from ackstream.kafka.clients import failure
from ackstream.kafka.library import MAX_BATCH_BYTES, AdaptedConsumer, BatchTooLargeError, PatientClient
from ackstream.settings import Kafka
from tests.harness.ports import ending_each


def test_a_socket_that_was_closed_while_it_was_read_is_no_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("kafka.net.transport")
    for closed in (None, object()):
        try:
            closed.recv(1)  # type: ignore[union-attr]
        except AttributeError:
            log.exception("Error receiving network data from %s", closed)
    # what is no socket at all is a defect, and told
    (told,) = caplog.messages
    assert "object" in told


def test_a_request_that_the_end_of_a_client_cancels_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("kafka.cluster")
    for error in Cancelled(), KafkaConnectionError("gone"):
        log.error("Metadata refresh: failed %s", error)
    assert caplog.messages == ["Metadata refresh: failed KafkaConnectionError: gone"]


def test_a_login_that_is_refused_while_a_program_runs_is_reported_and_tried_again() -> None:
    manager = PatientClient(bootstrap_servers="localhost:1")._manager
    refusal = SaslAuthenticationFailedError("a new key")
    manager._auth_failures["bootstrap-0"] = refusal
    with pytest.raises(SaslAuthenticationFailedError):
        manager.maybe_raise_auth_failure("bootstrap-0")
    manager.maybe_raise_auth_failure("bootstrap-0")


def test_a_proxy_that_accepts_and_ends_each_connection_is_tried_at_longer_and_longer_intervals() -> None:
    """As a load balancer does whose broker is away: the library would try hundreds of times a second."""

    async def opened(connection: Any) -> None:
        await connection

    with ending_each() as port:
        client = PatientClient(bootstrap_servers=f"127.0.0.1:{port}")
        connections, broker, delays = client._manager, "bootstrap-0", []
        for _ in range(5):
            connection = connections.get_connection(broker)
            with pytest.raises(KafkaConnectionError):
                client._net.run(opened, connection)
            delays.append(connections.connection_delay(broker))
            with pytest.raises(NodeNotReadyError):
                connections.get_connection(broker)
            # as if the time were over
            failures, _, timeout = connections._backoff[broker]
            connections._backoff[broker] = (failures, 0.0, timeout)
        client.close()
    # from 50 ms on, doubled each time, with a fifth of chance
    assert delays == sorted(delays)
    assert delays[-1] > 0.5


class Offline(Fetcher):  # type: ignore[misc]  # kafka-python is not typed
    """The library's own, with a network in which one partition has no leader."""

    def __init__(self, leaders: dict[TopicPartition, int]) -> None:
        async def wait_for(future: Any, _timeout: Any) -> Any:
            return await future

        self.config = {"request_timeout_ms": 1_000, "retry_backoff_ms": 10}
        cluster = SimpleNamespace(
            leader_for_partition=leaders.get, add_topic=lambda _: None, request_update=lambda: None, need_update=False
        )
        call_soon = lambda function, *given: function(*given)  # noqa: E731
        self._manager = SimpleNamespace(cluster=cluster, call_soon=call_soon, wait_for=wait_for)
        self._net = SimpleNamespace(run=lambda function, *given: asyncio.run(function(*given)))

    async def _send_list_offsets_request(self, _node: int, wanted: Any) -> Any:
        return {partition: OffsetAndTimestamp(7, -1, -1) for partition in wanted}, set()


@pytest.mark.parametrize("name", ["beginning_offsets", "end_offsets"])
def test_a_partition_without_a_leader_is_named(name: str) -> None:
    leaders = {TopicPartition("messages", 0): 1, TopicPartition("messages", 1): -1}
    consumer = AdaptedConsumer.__new__(AdaptedConsumer)
    consumer.config = {"request_timeout_ms": 1_000}
    consumer._fetcher = Offline(leaders)
    assert getattr(consumer, name)([TopicPartition("messages", 0)]) == {TopicPartition("messages", 0): 7}
    with pytest.raises(LeaderNotAvailableError, match="Partition 1 of messages has no leader") as caught:
        getattr(consumer, name)(list(leaders))
    found = failure(Kafka(), caught.value)
    assert isinstance(found, UnreachableError)
    assert str(found) == "Partition 1 of messages has no leader: start the broker that has its newest records."


CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def _batch(codec: str, values: list[bytes]) -> Any:
    builder = MemoryRecordsBuilder(2, CODECS[codec], 4 * MAX_BATCH_BYTES, offset=7)
    for value in values:
        builder.append(timestamp=1, key=None, value=value, headers=[])
    builder.close()
    return MemoryRecords(bytes(builder.buffer())).next_batch()


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression_of_kafka_is_read(codec: str) -> None:
    values = [b"a", bytes(20_000_000), b"c" * 100]
    assert [record.value for record in _batch(codec, values)] == values


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_that_is_too_large_once_decompressed_is_an_error_with_the_offset_behind_it(codec: str) -> None:
    half = bytes(MAX_BATCH_BYTES // 2)
    with pytest.raises(BatchTooLargeError, match="more than 64 MiB once decompressed") as raised:
        list(_batch(codec, [half, half]))
    assert raised.value.following == 9
