"""The product's topics on the real broker."""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.record import default_records

from ackstream.errors import LocalError, StartError
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import TOPICS, ensure_topics, largest_records, prepare
from ackstream.settings import Correlate, Kafka, Settings
from tests.harness.kafka import CODECS, records, send_bombs

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    return Settings(kafka=kafka)


def test_topics_are_created_once_as_the_settings_want_them(settings: Settings):
    prefix = settings.kafka.topic_prefix
    assert sorted(ensure_topics(settings)) == sorted(prefix + name for name in TOPICS)
    assert ensure_topics(settings) == []
    prepare(settings)
    with connect_admin(settings.kafka) as client:
        assert set(client.list_topics()) >= {prefix + name for name in TOPICS}
        described = client.describe_topics([prefix + "clock", prefix + "acks"])
        resource = ConfigResource(ConfigResourceType.TOPIC, prefix + "declarations")
        config = client.describe_configs([resource])["topic"][prefix + "declarations"]
    assert {topic["name"]: len(topic["partitions"]) for topic in described} == {prefix + "clock": 1, prefix + "acks": 2}
    assert {key: entry["value"] for key, entry in config.items()} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "max.message.bytes": "10485760",
        "message.timestamp.type": "LogAppendTime",
        "min.compaction.lag.ms": "86400000",
        "segment.ms": "3600000",
    }


def test_some_topics_can_be_asked_for_alone(settings: Settings):
    prefix = settings.kafka.topic_prefix
    assert ensure_topics(settings, ["signals"]) == [prefix + "signals"]
    assert sorted(ensure_topics(settings, ["signals", "acks"])) == [prefix + "acks"]


def test_a_topic_with_its_producers_clock_is_refused_with_the_command_that_corrects_it(settings: Settings):
    name = settings.kafka.topic("acks")
    with connect_admin(settings.kafka) as client:
        config = TOPICS["acks"].config() | {"message.timestamp.type": "CreateTime"}
        client.create_topics({name: {"configs": config}}, wait_for_metadata=True)
    prepare(settings, ["signals", "clock"])
    with pytest.raises(
        StartError, match=rf"^The topic {name} has message\.timestamp\.type=CreateTime.*--topic {name} "
    ):
        prepare(settings)


@pytest.mark.parametrize("topic", ["ledger", "events"])
def test_a_topic_that_may_refuse_what_a_job_writes_is_refused_with_the_command_that_corrects_it(
    settings: Settings, topic: str
):
    name = settings.kafka.topic(topic)
    with connect_admin(settings.kafka) as client:
        config = TOPICS[topic].config() | {"max.message.bytes": "1048588"}
        client.create_topics({name: {"configs": config}}, wait_for_metadata=True)
        assert largest_records(client, [name, "missing"]) == {name: 1_048_588}
    with pytest.raises(StartError, match=rf"^The topic {name} has max\.message\.bytes=1048588.*max_value_bytes\.$"):
        prepare(settings)
    small = Correlate(max_value_bytes=100_000)
    prepare(settings.model_copy(update={"correlate": small}))


def test_more_replicas_than_brokers_are_told_as_kafka_tells_them(kafka: Kafka):
    settings = Settings(kafka=kafka.model_copy(update={"replication": 3}))
    with pytest.raises(LocalError, match=r"^Kafka did not create the topic \S+: .*replication factor.*[^.]\.$"):
        ensure_topics(settings, ["signals"])


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_is_large_once_decompressed_is_refused_to_its_sender_on_every_topic_of_clients(
    settings: Settings, codec: str
):
    ensure_topics(settings)
    assert set(send_bombs(settings.kafka, codec, 60)) == {"refused: MessageSizeTooLargeError"}


@pytest.mark.parametrize("codec", CODECS)
def test_a_client_that_lacks_a_compression_reads_what_a_producer_compresses_with_it(
    settings: Settings, codec: str, monkeypatch: pytest.MonkeyPatch
):
    ensure_topics(settings, ["signals"])
    topic = settings.kafka.topic("signals")
    with closing(KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, compression_type=codec)) as producer:
        producer.send(topic, b"x" * 1_000).get(30)
    monkeypatch.delattr(default_records, f"{codec}_decode")
    assert [record.value for record in records(settings.kafka, "signals")] == [b"x" * 1_000]
