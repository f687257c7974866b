from __future__ import annotations

import pytest

from ackstream.errors import LocalError, SettingsError
from ackstream.kafka import topics
from ackstream.settings import Kafka, Settings
from tests.conftest import free_ports


def test_no_kafka_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topics, "BOOTSTRAP_MILLISECONDS", 100)
    bootstrap = f"localhost:{free_ports(1)[0]}"
    with pytest.raises(
        LocalError, match=rf"^No Kafka answers at {bootstrap}: start one with `ackstream up`, or correct"
    ):
        topics.ensure_topics(Settings(kafka=Kafka(bootstrap=bootstrap)))


def test_an_option_that_the_client_does_not_know_is_named():
    kafka = Kafka(options={"security.protocol": "PLAINTEXT", "securty.protocol": "SSL"})
    with pytest.raises(
        SettingsError, match=r"^kafka\.options has securty.protocol, which the Kafka client does not know"
    ):
        topics.ensure_topics(Settings(kafka=kafka))


def test_every_topic_is_stamped_by_the_broker():
    assert {topic.config()[topics.TIMESTAMP_TYPE] for topic in topics.TOPICS.values()} == {"LogAppendTime"}


def test_what_needs_an_order_has_one_partition_and_what_only_the_newest_counts_of_is_compacted():
    ordered = [name for name, topic in topics.TOPICS.items() if topic.partitions == 1]
    assert ordered == ["clock", "declarations", "destinations", "queue-clock", "settle-clock"]
    compacted = [name for name, topic in topics.TOPICS.items() if "cleanup.policy" in topic.config()]
    assert compacted == ["declarations", "destinations"]
