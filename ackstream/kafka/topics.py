"""The product's Kafka topics, created or checked, and the offsets of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import TopicAlreadyExistsError, for_code

from ackstream.errors import LocalError, StartError
from ackstream.kafka.clients import MAX_RECORD_BYTES, connect_admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from ackstream.settings import Kafka, Settings


TIMESTAMP_TYPE = "message.timestamp.type"
COMPACTED = {"cleanup.policy": "compact", "segment.ms": str(10 * 60_000)}
"""Kafka never compacts the active segment, which by default would grow for a week."""


@dataclass(frozen=True)
class Topic:
    """What is particular to a topic.

    :param partitions: ``None`` for ``kafka.partitions`` of the settings
    :param compacted: only the last record of a key is kept
    """

    partitions: int | None = None
    compacted: bool = False

    def config(self) -> dict[str, str]:
        """Return the topic's configuration."""
        config = {TIMESTAMP_TYPE: "LogAppendTime", "max.message.bytes": str(MAX_RECORD_BYTES)}
        return config | COMPACTED if self.compacted else config


TOPICS: dict[str, Topic] = {
    "signals": Topic(),
    "acks": Topic(),
    # one partition: ticks have an order
    "clock": Topic(partitions=1),
    "replies": Topic(),
    "ledger": Topic(),
    "events": Topic(),
    # one partition: its order decides who holds a label
    "declarations": Topic(partitions=1, compacted=True),
    "messages": Topic(),
    "publisher-acks": Topic(),
    "stored": Topic(),
    # one partition: destinations are few, and their reports small
    "destinations": Topic(partitions=1, compacted=True),
    "queries": Topic(),
    "query-results": Topic(),
    "app-acks": Topic(),
    "queue-deliveries": Topic(),
    # one partition: ticks have an order
    "queue-clock": Topic(partitions=1),
    "settle-clock": Topic(partitions=1),
    "dead-letters": Topic(),
}
"""All topics by their names without the prefix."""


def ensure_topics(settings: Settings, names: Iterable[str] = TOPICS) -> list[str]:
    """Create the topics that are missing; existing ones stay as they are.

    :param names: names without the prefix
    :returns: the real names of the topics that were created now
    :raises LocalError: Kafka refuses to create a topic
    :raises UnreachableError: no broker answers
    """
    with connect_admin(settings.kafka) as admin:
        return _create(admin, settings.kafka, names)


def prepare(settings: Settings, names: Iterable[str] = TOPICS) -> None:
    """Create missing topics, as :func:`ensure_topics`, and refuse unsuitable ones, before a job starts.

    :raises StartError: the records of a topic carry their producer's clock; with the command that corrects it
    """
    names = list(names)
    with connect_admin(settings.kafka) as admin:
        _create(admin, settings.kafka, names)
        _check_timestamp_type(admin, settings.kafka, names)


def _create(admin: Any, kafka: Kafka, names: Iterable[str]) -> list[str]:
    existing = set(admin.list_topics())
    wanted = {kafka.topic(name): TOPICS[name] for name in names}
    missing = {name: topic for name, topic in wanted.items() if name not in existing}
    if not missing:
        return []
    request = {
        name: {
            "num_partitions": topic.partitions or kafka.partitions,
            "replication_factor": kafka.replication,
            "configs": topic.config(),
        }
        for name, topic in missing.items()
    }
    created = []
    for result in admin.create_topics(request, raise_errors=False)["topics"]:
        error = for_code(result["error_code"])
        if result["error_code"] == 0:
            created.append(result["name"])
        elif error is not TopicAlreadyExistsError:
            # another process may create the same topic at the same moment, which is fine
            reason = result.get("error_message") or error.__name__
            raise LocalError(f"Kafka did not create the topic {result['name']}: {reason.rstrip('.')}.")
    admin.wait_for_topics(list(missing))
    return created


def _check_timestamp_type(admin: Any, kafka: Kafka, names: Iterable[str]) -> None:
    """Make sure that the broker stamps the records: their timestamp is the event time."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, kafka.topic(name), {TIMESTAMP_TYPE: None}) for name in names]
    found = admin.describe_configs(resources, config_filter="all")
    configs = {name: config for topics in found.values() for name, config in topics.items()}
    for name, config in sorted(configs.items()):
        if (value := config[TIMESTAMP_TYPE]["value"]) != "LogAppendTime":
            raise StartError(
                f"The topic {name} has {TIMESTAMP_TYPE}={value}, but deadlines are counted from the broker's clock: "
                f"run `kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --topic {name} "
                f"--add-config {TIMESTAMP_TYPE}=LogAppendTime`."
            )


def of_topics(admin: Any, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of topics (real names) that exist."""
    return [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in admin.describe_topics(list(topics))
        for partition in topic["partitions"]
    ]


def ends(admin: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset that the next record of each partition will have.

    An admin client finds them all; a consumer's own ``end_offsets()`` omits partitions whose leader has moved.

    :raises KafkaError: the broker went away
    """
    found = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {partition: entry.offset for partition, entry in found.items()}


def offsets_at(admin: Any, times: Mapping[TopicPartition, datetime]) -> dict[TopicPartition, int]:
    """Return the offset of each partition's first record of a time or later, of the partitions that have one."""
    wanted = {partition: int(time.timestamp() * 1000) for partition, time in times.items()}
    found = admin.list_partition_offsets(wanted)
    return {partition: entry.offset for partition, entry in found.items() if entry.offset >= 0}
