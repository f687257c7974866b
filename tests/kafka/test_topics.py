from __future__ import annotations

from ackstream.kafka import topics


def test_every_topic_is_stamped_by_the_broker() -> None:
    assert {topic.config()[topics.TIMESTAMP_TYPE] for topic in topics.TOPICS.values()} == {"LogAppendTime"}


def test_ordered_topics_have_one_partition_and_topics_of_latest_values_are_compacted() -> None:
    ordered = [name for name, topic in topics.TOPICS.items() if topic.partitions == 1]
    assert ordered == ["clock", "declarations", "destinations", "queue-clock", "settle-clock"]
    compacted = [name for name, topic in topics.TOPICS.items() if "cleanup.policy" in topic.config()]
    assert compacted == ["declarations", "destinations"]
