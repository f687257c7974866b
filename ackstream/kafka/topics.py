"""The product's Kafka topics, created or checked, and the offsets of partitions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kafka import TopicPartition
from kafka.admin import ACLOperation, ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import AuthorizationError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from ackstream.errors import LocalError, StartError
from ackstream.kafka.clients import MAX_RECORD_BYTES, connect_admin, failure
from ackstream.kafka.login import check_access, not_allowed
from ackstream.kafka.parties import LEASES, Party
from ackstream.settings import Kafka, Settings

TIMESTAMP_TYPE, IN_SYNC, MAX_BYTES = "message.timestamp.type", "min.insync.replicas", "max.message.bytes"
COMPRESSION, UNCOMPRESSED = "compression.type", "uncompressed"
KAFKA_MAX_BYTES = 1_048_588
"""Kafka's default of ``max.message.bytes``, for topics that the product did not create."""
SAFE_REPLICAS = 3
"""From this replication factor on, a record is accepted only once several brokers have it, so one may fail."""

HISTORY, SEGMENT = "min.compaction.lag.ms", "segment.ms"
SHORTEST_SEGMENT = timedelta(minutes=10)
"""Kafka never compacts the active segment, which by default would grow for a week."""
SEGMENTS = 24
"""About the number of segments of a topic with a history, each of which is an open file of the broker."""


@dataclass(frozen=True)
class Topic:
    """The properties of a topic; ``partitions`` ``None`` for ``kafka.partitions`` of the settings.

    ``compacted``: only the last record of a key is kept, but all records for the time of ``history``. ``compression``:
    how the broker stores records; with ``producer`` as they come.
    """

    partitions: int | None = None
    compacted: bool = False
    history: timedelta = timedelta()
    compression: str = "producer"

    def config(self, replication: int = 1) -> dict[str, str]:
        """Return the topic's configuration."""
        config = {TIMESTAMP_TYPE: "LogAppendTime", MAX_BYTES: str(MAX_RECORD_BYTES)}
        if self.compression != "producer":
            config[COMPRESSION] = self.compression
        if replication >= SAFE_REPLICAS:
            config[IN_SYNC] = str(replication // 2 + 1)
        if not self.compacted:
            return config
        config |= {"cleanup.policy": "compact", SEGMENT: _milliseconds(max(SHORTEST_SEGMENT, self.history / SEGMENTS))}
        return config | ({HISTORY: _milliseconds(self.history)} if self.history else {})


def _milliseconds(duration: timedelta) -> str:
    return str(duration // timedelta(milliseconds=1))


CLOCK = Topic(partitions=1, compacted=True, history=timedelta(days=7))
"""One partition, because ticks have an order. A replayed batch needs its ticks as long as its records: by Kafka's
default a week. Compacted but not truncated, it keeps the offset at which a job that was stopped longer continues."""

LEASE = Topic(partitions=1, compacted=True)
"""One partition, because claims and signs of life have an order. Only the last record of a run matters."""

OPEN = Topic(compression=UNCOMPRESSED)
"""Clients write it. The broker unpacks their records, so that it refuses one of some kB that would be hundreds of MB,
and that clients without its compression can read them."""

TOPICS: dict[str, Topic] = {
    "signals": OPEN,
    "acks": OPEN,
    # written by the twin only, so that no subscriber can confirm in the twin's name
    "twin-acks": Topic(),
    "clock": CLOCK,
    "replies": Topic(),
    "ledger": Topic(),
    # written by gateways only
    "audit": OPEN,
    "events": OPEN,
    # one partition: its order decides who holds a label
    "declarations": Topic(partitions=1, compacted=True, history=timedelta(days=1), compression=UNCOMPRESSED),
    "messages": OPEN,
    "publisher-acks": Topic(),
    "stored": Topic(),
    # one partition: destinations are few, and their reports small
    "destinations": Topic(partitions=1, compacted=True),
    "queries": OPEN,
    "query-results": Topic(),
    "app-acks": OPEN,
    "queue-deliveries": Topic(),
    "queue-clock": CLOCK,
    "settle-clock": CLOCK,
    **dict.fromkeys(sorted(LEASES), LEASE),
    "dead-letters": OPEN,
}
"""All topics by their names without the prefix."""


def system_topics(kafka: Kafka) -> frozenset[str]:
    """Return the real names of the topics that only parts of the system write and act upon."""
    return frozenset(map(kafka.topic, TOPICS))


def ensure_topics(settings: Settings, names: Iterable[str] = TOPICS) -> list[str]:
    """Create missing topics (without the prefix); return their real names. Raises LocalError, UnreachableError."""
    with connect_admin(settings.kafka) as admin:
        return _create(admin, settings.kafka, names)


LIMITED = ("replies", "ledger", "dead-letters")
OF_TWIN = ("twin-acks", "events")
"""The topics to which correlate, or the twin, may write records of the largest size that the settings allow."""


def prepare(settings: Settings, names: Iterable[str] = TOPICS, party: Party | None = None) -> None:
    """Create missing topics, as :func:`ensure_topics`, and refuse unsuitable ones, before a job starts."""
    # AccessRefusedError: the broker does not allow ``party`` an operation; StartError, with the command that corrects
    # it: records have their producer's time, may be accepted by one broker only, or are refused for their size. Of
    # ``names`` that are real ones, of topics of applications, only the first counts
    names, kafka = list(names), settings.kafka
    try:
        with connect_admin(kafka) as admin:
            if party is not None and kafka.security.protocol != "PLAINTEXT":
                check_access(admin, kafka, party.operations(kafka), [kafka.group(name) for name in party.groups[:1]])
            _create(admin, kafka, [name for name in names if name in TOPICS])
            check(admin, settings, names)
    except AuthorizationError as error:
        raise failure(kafka, error) from error


def _create(admin: Any, kafka: Kafka, names: Iterable[str]) -> list[str]:
    existing = set(admin.list_topics())
    wanted = {kafka.topic(name): TOPICS.get(name, Topic()) for name in names}
    missing = {name: topic for name, topic in wanted.items() if name not in existing}
    if not missing:
        return []
    request = {
        name: {
            "num_partitions": topic.partitions or kafka.partitions,
            "replication_factor": kafka.replication,
            "configs": topic.config(kafka.replication),
        }
        for name, topic in missing.items()
    }
    created = []
    for result in admin.create_topics(request, raise_errors=False)["topics"]:
        error = for_code(result["error_code"])
        if result["error_code"] == 0:
            created.append(result["name"])
        elif issubclass(error, AuthorizationError):
            raise not_allowed(kafka, f"to create the topic {result['name']}, which is missing")
        elif error is not TopicAlreadyExistsError:
            # another process may create the same topic at the same moment, which is fine
            reason = result.get("error_message") or error.__name__
            raise LocalError(f"Kafka did not create the topic {result['name']}: {reason.rstrip('.')}.")
    admin.wait_for_topics(list(missing))
    return created


def check(admin: Any, settings: Settings, names: Iterable[str]) -> Counter[str]:
    """Refuse unsuitable topics, as :func:`prepare`; return the number of partitions of each (real names)."""
    kafka, largest = settings.kafka, settings.correlate.record_bytes
    topics = {kafka.topic(name): TOPICS.get(name) for name in names}
    needed = {kafka.topic(name): largest for name in (*LIMITED, *OF_TWIN)}
    wanted = dict.fromkeys((TIMESTAMP_TYPE, IN_SYNC, MAX_BYTES, COMPRESSION))
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, wanted) for topic in topics]
    found = admin.describe_configs(resources, config_filter="all")
    configs = {name: config for described in found.values() for name, config in described.items()}
    partitions = replicas(admin, topics)
    copies = {partition.topic: len(brokers) for partition, brokers in partitions.items()}
    for name, config in sorted(configs.items()):
        values = {key: config[key]["value"] for key in wanted}
        number = copies[name] if topics[name] else 1
        check_config(kafka, name, topics[name] or Topic(), values, number, needed.get(name, 0))
    return Counter(partition.topic for partition in partitions)


def check_config(
    kafka: Kafka, name: str, topic: Topic, config: Mapping[str, str], copies: int, needed: int = 0
) -> None:
    """Raise a StartError with the correcting command for an unsuitable configuration of a topic (real name)."""
    # ``copies``: the number of its replicas; ``needed``: the bytes of its largest record

    def refuse(key: str, why: str, wanted: str, or_else: str = "") -> None:
        raise StartError(
            f"The topic {name} has {key}={config[key]}, {why}: run `kafka-configs.sh --bootstrap-server "
            f"{kafka.bootstrap} --alter --topic {name} --add-config {key}={wanted}`{or_else}."
        )

    if config[TIMESTAMP_TYPE] != "LogAppendTime":
        refuse(TIMESTAMP_TYPE, "but deadlines are counted from the broker's clock", "LogAppendTime")
    if topic.compression != "producer" and config[COMPRESSION] != topic.compression:
        why = "but a compressed record of some kB may need more memory than a job has"
        refuse(COMPRESSION, why, topic.compression)
    if copies >= SAFE_REPLICAS and int(config[IN_SYNC]) <= 1:
        refuse(IN_SYNC, f"so an accepted record may be on one of its {copies} replicas alone", str(copies // 2 + 1))
    if needed and int(config[MAX_BYTES]) < needed:
        why = f"but correlate or the twin may have to write a record of {needed} bytes"
        refuse(MAX_BYTES, why, str(max(needed, MAX_RECORD_BYTES)), ", or lower correlate.max_value_bytes")


def replicas(admin: Any, topics: Iterable[str]) -> dict[TopicPartition, set[int]]:
    """Return the brokers of each partition of topics (real names); KafkaError: a topic is missing, or unknown yet."""
    found = {}
    for topic in admin.describe_topics(list(topics)):
        if topic["error_code"] or not topic["partitions"]:
            raise for_code(topic["error_code"] or UnknownTopicOrPartitionError.errno)(topic["name"])
        for partition in topic["partitions"]:
            found[TopicPartition(topic["name"], partition["partition_index"])] = set(partition["replica_nodes"])
    return found


def largest_records(admin: Any, topics: Iterable[str]) -> dict[str, int]:
    """Return the record size limit, in bytes, of those topics (real names) that exist and may be written."""
    described = admin.describe_topics(list(topics)) if topics else []
    operations = {topic["name"]: topic["authorized_operations"] for topic in described if topic["error_code"] == 0}
    # some brokers do not report the operations
    found = [name for name, known in operations.items() if known is None or ACLOperation.WRITE.name in known]
    if not found:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, {MAX_BYTES: None}) for name in found]
    configs = admin.describe_configs(resources, config_filter="all")["topic"]
    # without the right to read it, the configuration is missing
    return {name: int(configs[name].get(MAX_BYTES, {"value": KAFKA_MAX_BYTES})["value"]) for name in found}


def ids(admin: Any, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of existing topics (real names); no two topics ever have the same."""
    found = {topic["name"]: str(topic["topic_id"] or "") for topic in admin.describe_topics(list(topics))}
    # the id of a missing topic has only zeros, and so has any of a broker before 2.8
    return {name: identity for name, identity in found.items() if identity.strip("-0")}


TOPIC_ID = "topic-id:"
"""The prefix of a topic's real name in the key of its id, where a checkpoint or a table remembers it."""


def topic_ids(kafka: Kafka, names: Iterable[str]) -> dict[str, str]:
    """Return the ids of existing topics (given without the prefix) by :data:`TOPIC_ID` and their real names."""
    real = [kafka.topic(name) for name in names]
    if not real:
        return {}
    with connect_admin(kafka) as admin:
        return {TOPIC_ID + topic: identity for topic, identity in ids(admin, real).items()}


def compare_topics(ours: Mapping[str, object], theirs: Mapping[str, object], whose: str, remedy: str) -> None:
    """Raise a StartError if a topic's present id (:func:`topic_ids`) differs from the remembered one."""
    # ``theirs``: the remembered ids; a topic without one is accepted. ``whose``: the checkpoint or table that remembers
    # them, as the beginning of a sentence; ``remedy`` is its end
    for key, identity in ours.items():
        if key.startswith(TOPIC_ID) and theirs.get(key, identity) != identity:
            raise StartError(
                f"{whose} counts offsets of the topic {key.removeprefix(TOPIC_ID)} with the id {theirs[key]}, but the"
                f" topic now has the id {identity}: it was re-created, or kafka.bootstrap names another cluster."
                f" Correct kafka.bootstrap, or {remedy}."
            )


def ends(admin: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition, open transactions included; KafkaError: the broker is unavailable."""
    # an admin client finds all of them; a consumer's own end_offsets() omits partitions whose leader has moved
    found = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {partition: entry.offset for partition, entry in found.items()}


def offsets_at(admin: Any, times: Mapping[TopicPartition, datetime]) -> dict[TopicPartition, int]:
    """Return the offset of the first record of a time or later, for partitions with such a record."""
    wanted = {partition: int(time.timestamp() * 1000) for partition, time in times.items()}
    found = admin.list_partition_offsets(wanted)
    return {partition: entry.offset for partition, entry in found.items() if entry.offset >= 0}
