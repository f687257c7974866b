from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from ackstream.errors import StartError
from ackstream.kafka import topics
from ackstream.kafka.parties import PARTIES
from ackstream.settings import Kafka
from ackstream.settings.kafka import real

CLOCKS = ["clock", "queue-clock", "settle-clock"]
LEASES = [
    "archive-lease", "correlate-lease", "persist-lease", "query-lease", "queues-lease", "settle-lease", "twin-lease",
]  # fmt: skip


def test_every_topic_is_stamped_by_the_broker() -> None:
    assert {topic.config()[topics.TIMESTAMP_TYPE] for topic in topics.TOPICS.values()} == {"LogAppendTime"}


def test_topics_that_clients_write_are_stored_uncompressed() -> None:
    clients = {name for party in PARTIES.values() if not party.job for name in party.writes}
    assert {name for name, topic in topics.TOPICS.items() if topic.config().get("compression.type")} == clients
    assert {topics.TOPICS[name].config()["compression.type"] for name in clients} == {"uncompressed"}


def test_ordered_topics_have_one_partition_and_topics_of_latest_values_are_compacted() -> None:
    ordered = [name for name, topic in topics.TOPICS.items() if topic.partitions == 1]
    assert sorted(ordered) == sorted(["declarations", "destinations", *CLOCKS, *LEASES])
    compacted = [name for name, topic in topics.TOPICS.items() if "cleanup.policy" in topic.config()]
    assert sorted(compacted) == sorted(ordered)


def test_the_history_of_a_topic_is_some_dozens_of_files_of_the_broker_not_thousands() -> None:
    for name, topic in topics.TOPICS.items():
        if topic.compacted:
            segment = int(topic.config()["segment.ms"]) / 1000
            assert topic.history.total_seconds() / segment <= 24, name
            assert segment <= max(600, topic.history.total_seconds() / 24), "what may be compacted is, soon"


@pytest.mark.parametrize(("replication", "in_sync"), [(1, None), (2, None), (3, "2"), (4, "3"), (5, "3")])
def test_a_record_is_accepted_by_most_of_three_and_more_replicas(replication: int, in_sync: str | None) -> None:
    assert {topic.config(replication).get(topics.IN_SYNC) for topic in topics.TOPICS.values()} == {in_sync}


def _check(copies: int, in_sync: str, stamped: str = "LogAppendTime", stored: str = "uncompressed") -> None:
    config = {topics.TIMESTAMP_TYPE: stamped, topics.IN_SYNC: in_sync, topics.COMPRESSION: stored}
    topics.check_config(Kafka(bootstrap="b:1"), "x-acks", topics.TOPICS["acks"], config, copies)


@pytest.mark.parametrize(("copies", "in_sync"), [(1, "1"), (2, "1"), (3, "2"), (3, "3"), (5, "2")])
def test_existing_topics_with_a_safe_configuration_are_accepted(copies: int, in_sync: str) -> None:
    _check(copies, in_sync)


def test_an_existing_topic_that_one_of_three_brokers_may_accept_alone_is_refused_with_the_command() -> None:
    with pytest.raises(StartError) as refused:
        _check(3, "1")
    assert str(refused.value) == (
        "The topic x-acks has min.insync.replicas=1, so an accepted record may be on one of its 3 replicas alone: run "
        "`kafka-configs.sh --bootstrap-server b:1 --alter --topic x-acks --add-config min.insync.replicas=2`."
    )


def test_an_existing_topic_with_its_producers_clock_is_refused_with_the_command() -> None:
    with pytest.raises(
        StartError, match=r"type=CreateTime, but .* --add-config message\.timestamp\.type=LogAppendTime"
    ):
        _check(1, "1", "CreateTime")


@pytest.mark.parametrize("stored", ["producer", "zstd", "lz4"])
def test_an_existing_topic_of_clients_whose_records_stay_compressed_is_refused_with_the_command(stored: str) -> None:
    with pytest.raises(StartError) as refused:
        _check(1, "1", stored=stored)
    assert str(refused.value) == (
        f"The topic x-acks has compression.type={stored}, but a compressed record of some kB may need more memory than "
        "a job has: run `kafka-configs.sh --bootstrap-server b:1 --alter --topic x-acks --add-config "
        "compression.type=uncompressed`."
    )


def _admin(**described: Any) -> Any:
    found = [
        {
            "name": name,
            "error_code": code,
            "partitions": [{"partition_index": n, "replica_nodes": [1, 2]} for n in numbers],
        }
        for name, (code, *numbers) in described.items()
    ]
    return SimpleNamespace(describe_topics=lambda _names: found)


def test_partitions_are_listed_with_the_brokers_that_have_them() -> None:
    assert topics.replicas(_admin(a=(0, 0, 1)), "a") == {TopicPartition("a", 0): {1, 2}, TopicPartition("a", 1): {1, 2}}


@pytest.mark.parametrize(("described", "error"), [((0,), UnknownTopicOrPartitionError), ((3,), KafkaError)])
def test_a_topic_without_partitions_is_an_error_and_not_a_topic_without_records(
    described: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="a"):
        topics.replicas(_admin(a=described), "a")


def _limited(limit: int, needed: int) -> None:
    config = {topics.TIMESTAMP_TYPE: "LogAppendTime", topics.IN_SYNC: "1", topics.MAX_BYTES: str(limit)}
    topics.check_config(Kafka(bootstrap="b:1"), "x-ledger", topics.TOPICS["ledger"], config, 1, needed)


def test_a_topic_that_takes_the_largest_record_of_correlate_is_accepted() -> None:
    _limited(4_466_944, 4_466_944)


def test_a_topic_that_would_refuse_a_record_of_correlate_is_refused_with_both_ways_out() -> None:
    with pytest.raises(StartError) as refused:
        _limited(1_048_588, 4_466_944)
    assert str(refused.value) == (
        "The topic x-ledger has max.message.bytes=1048588, but correlate or the twin may have to write a record of "
        "4466944 bytes: run `kafka-configs.sh --bootstrap-server b:1 --alter --topic x-ledger --add-config "
        "max.message.bytes=10485760`, or lower correlate.max_value_bytes."
    )


def test_a_topic_of_an_application_is_created_with_the_time_of_the_broker() -> None:
    created: dict[str, Any] = {}

    def create(request: dict[str, Any], **_: Any) -> dict[str, Any]:
        created.update(request)
        return {"topics": [{"name": name, "error_code": 0} for name in request]}

    admin = SimpleNamespace(list_topics=lambda: ["x-acks"], create_topics=create, wait_for_topics=list)
    assert topics._create(admin, Kafka(topic_prefix="x-"), ["acks", real("orders")]) == ["orders"]
    assert created["orders"]["configs"][topics.TIMESTAMP_TYPE] == "LogAppendTime"


@pytest.mark.parametrize(
    ("topic", "config", "found"),
    [
        ({"error_code": 0, "authorized_operations": ["WRITE", "DESCRIBE"]}, {"value": "7"}, {"a": 7}),
        ({"error_code": 0, "authorized_operations": None}, {"value": "7"}, {"a": 7}),
        ({"error_code": 0, "authorized_operations": ["WRITE"]}, None, {"a": topics.KAFKA_MAX_BYTES}),
        ({"error_code": 0, "authorized_operations": ["READ"]}, {"value": "7"}, {}),
        ({"error_code": 3, "authorized_operations": None}, {"value": "7"}, {}),
    ],
    ids=["writable", "unknown", "configuration-hidden", "read-only", "missing"],
)
def test_the_largest_record_is_known_of_topics_that_exist_and_may_be_written(
    topic: Any, config: Any, found: Any
) -> None:
    described = {} if config is None else {topics.MAX_BYTES: config}
    admin = SimpleNamespace(
        describe_topics=lambda _names: [{"name": "a", **topic}],
        describe_configs=lambda _resources, **_: {"topic": {"a": described}},
    )
    assert topics.largest_records(admin, ["a"]) == found
    assert topics.largest_records(admin, []) == {}
