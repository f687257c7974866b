from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.errors import AckstreamError
from ackstream.gateway.meter import LedgerFeed, Meter
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Archive, Correlate, Settings
from tests.gateway.ledgers import outcome

if TYPE_CHECKING:
    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    prefix = kafka.topic_prefix
    settings = Settings(kafka=kafka, correlate=Correlate(group=f"{prefix}c"), archive=Archive(group=f"{prefix}a"))
    ensure_topics(settings, ("signals", "acks", "ledger"))
    return settings


def write(settings: Settings, topic: str, values: list[bytes]) -> int:
    """Write records, each with its own key; return the broker's time of the last one."""
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, linger_ms=0) as producer:
        sent = [
            producer.send(settings.kafka.topic(topic), key=str(number).encode(), value=value)
            for number, value in enumerate(values)
        ]
        return max(int(future.get(timeout=30).timestamp) for future in sent)


def test_a_feed_counts_what_was_written_since(settings: Settings):
    last = write(settings, "ledger", [outcome(f"r{number}") for number in range(10)])
    write(settings, "ledger", [b"no json", outcome("r10"), outcome("r10")])
    meter = Meter(60_000)
    with LedgerFeed(settings, 0) as feed:
        feed.read_to_end(meter)
        assert meter.snapshot(last).counts["answered"].total == 11
        write(settings, "ledger", [outcome("r11")])
        feed.read_to_end(meter)
        assert meter.snapshot(last).counts["answered"].total == 12


def test_a_feed_leaves_out_what_is_older(settings: Settings):
    last = write(settings, "ledger", [outcome("r0")])
    meter = Meter(60_000)
    with LedgerFeed(settings, last + 3_600_000) as feed:
        feed.read_to_end(meter)
    assert meter.snapshot(last).counts["answered"].total == 0


def test_the_lag_is_what_a_group_has_still_to_read(settings: Settings):
    kafka = settings.kafka
    write(settings, "signals", [b"{}"] * 10)
    write(settings, "acks", [b"{}"] * 4)
    write(settings, "ledger", [b"{}"] * 3)
    with KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=settings.correlate.group) as consumer:
        places = [TopicPartition(kafka.topic("signals"), number) for number in range(kafka.partitions)]
        ends = consumer.end_offsets(places)
        consumer.commit({place: OffsetAndMetadata(ends[place] - 1, "", -1) for place in places})
        consumer.commit({TopicPartition(kafka.topic("acks"), 0): OffsetAndMetadata(0, "", -1)})
    with LedgerFeed(settings, 0) as feed:
        lags = {lag.topic.removeprefix(kafka.topic_prefix): lag.records for lag in feed.lags()}
    # of acks one partition alone has been read; of the ledger nothing
    assert lags == {"signals": kafka.partitions, "acks": 4, "ledger": None}


def test_a_topic_that_is_not_there_is_one_sentence(kafka: Kafka):
    with pytest.raises(AckstreamError, match=r"There is no topic .*signals"):
        LedgerFeed(Settings(kafka=kafka), 0)
