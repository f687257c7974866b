"""Readers on the real persist and settle queries: what Kafka has deleted comes from the table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from ackstream.client.errors import ReaderTimeout, SamplesGoneError
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.reading.sample_reader import SampleReader
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from tests.harness.settlement import Settlement
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from ackstream.client.publishing._acks import Callback

pytestmark = pytest.mark.integration

EXPLICIT = ReaderQos(kind="application-explicit", max_response_length=100)


@pytest.fixture(scope="module")
def settlement(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settlement]:
    required = [{"role": "Logger", "quorum": 2, "writers": ["logged"]}]
    started = Settlement(spark, broker, tmp_path_factory.mktemp("retained"), required)
    yield started
    started.close()


def _publisher(settlement: Settlement, client: str, **options: Any) -> Publisher:
    return Publisher(settlement.kafka, name=client, writer_qos=WriterQos(), logon_timeout=PATIENCE_SECONDS, **options)


def _reader(settlement: Settlement, name: str, **options: Any) -> SampleReader:
    return SampleReader(settlement.kafka, name=name, start_timeout=PATIENCE_SECONDS, **options)


def _take(reader: SampleReader, count: int) -> list[Sample]:
    found: list[Sample] = []
    limit = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < limit, f"only {len(found)} of {count} samples came"
        found += reader.take(count - len(found), 1.0)
    return found


def _delete_messages(settlement: Settlement, last: Sample) -> None:
    """Delete the records up to a message that is stored: persist may have yet to read a copy that was sent after it."""
    place = TopicPartition(settlement.kafka.topic("messages"), last.partition)
    with KafkaAdminClient(bootstrap_servers=settlement.kafka.bootstrap) as admin:
        admin.delete_records({place: last.offset + 1})


def test_a_restarted_reader_gets_exactly_the_rest_from_the_table_where_kafka_has_deleted_it(
    settlement: Settlement,
) -> None:
    with _publisher(settlement, "w1") as publisher:
        with _reader(settlement, "r1", qos=EXPLICIT, writers=["w1"]) as reader:
            for number in range(1, 7):
                publisher.publish(b"%d" % number, key=b"k", topic="orders", headers=[("colour", b"red")])
            taken = _take(reader, 6)
            taken[2].acknowledge()
            taken[0].acknowledge()
        publisher.publish_flush(PATIENCE_SECONDS)
        _delete_messages(settlement, taken[-1])
        publisher.publish(b"7")
        lake = settlement.settings.lake
        with (
            _reader(settlement, "r1", qos=EXPLICIT, writers=["w1"]) as without,
            pytest.raises(SamplesGoneError, match=r"Messages 2 to 6 of w1 .* `lake`"),
        ):
            without.take(1, PATIENCE_SECONDS)
        with _reader(settlement, "r1", qos=EXPLICIT, writers=["w1"], lake=lake) as reader:
            again = _take(reader, 5)
            assert [(sample.seq, sample.value) for sample in again] == [(n, b"%d" % n) for n in (2, 4, 5, 6, 7)]
            first = again[0]
            assert (first.key, first.topic, dict(first.headers)) == (b"k", "orders", {"colour": b"red"})
            assert (first.timestamp_ms, first.partition, first.offset) == (
                taken[1].timestamp_ms,
                taken[1].partition,
                taken[1].offset,
            )
            assert (reader.take(), reader.statistics.fetched, reader.statistics.lost) == ([], 4, 0)
            reader.acknowledge_all()
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_waiting_ends_with_the_quorum_of_the_role_and_each_response_is_told_once(settlement: Settlement) -> None:
    told: list[Callback] = []
    with (
        _publisher(settlement, "logged", on_application_acknowledgment=told.append) as publisher,
        _reader(settlement, "l1", qos=EXPLICIT, role="Logger", writers=["logged"]) as one,
        _reader(settlement, "l2", qos=EXPLICIT, role="Logger", writers=["logged"]) as other,
    ):
        publisher.publish(b"1")
        (sample,) = _take(one, 1)
        _take(other, 1)
        sample.acknowledge(b"first")
        with pytest.raises(ReaderTimeout, match="waits for Logger"):
            publisher.wait_for_acknowledgments(5.0)
        assert [(callback.reader, callback.response) for callback in told] == [("l1", b"first")]
        other.acknowledge_all(b"second")
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        assert publisher.is_sample_app_acknowledged(1)
    assert sorted((callback.reader, callback.role, callback.seq, callback.response) for callback in told) == [
        ("l1", "Logger", 1, b"first"),
        ("l2", "Logger", 1, b"second"),
    ]
