"""The product's Kafka topics: created as they must be, and checked where somebody else created them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from ackstream.errors import LocalError, StartError
from ackstream.kafka.clients import options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.settings import Settings

TIMESTAMP_TYPE = "message.timestamp.type"
MAX_MESSAGE_BYTES = 10 * 1024 * 1024
"""A record of several MB must be able to arrive: it is refused with a reason, not lost at the producer."""

BOOTSTRAP_MILLISECONDS = 10_000
COMPACTED = {"cleanup.policy": "compact", "segment.ms": str(10 * 60_000)}
"""The segment that is written to is never compacted; by default it would grow for a week."""


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
        config = {TIMESTAMP_TYPE: "LogAppendTime", "max.message.bytes": str(MAX_MESSAGE_BYTES)}
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
    # one partition: there are few, and each says little
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


@contextmanager
def admin(settings: Settings) -> Iterator[Any]:
    """Connect an admin client; ``kafka.options`` apply (``security.protocol`` is kafka-python's ``security_protocol``).

    :raises LocalError: nothing answers at ``kafka.bootstrap``
    :raises SettingsError: an option that the client does not know
    """
    kafka = settings.kafka
    known = options(kafka, KafkaAdminClient.DEFAULT_CONFIG)
    try:
        client = KafkaAdminClient(
            bootstrap_servers=kafka.bootstrap, bootstrap_timeout_ms=BOOTSTRAP_MILLISECONDS, **known
        )
    except KafkaError:
        raise LocalError(
            f"No Kafka answers at {kafka.bootstrap}: start one with `ackstream up`, or correct "
            f"kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP)."
        ) from None
    with client:
        yield client


def ensure_topics(settings: Settings, names: Iterable[str] = TOPICS) -> list[str]:
    """Create the topics that are missing; those that exist stay as they are.

    :param names: names without the prefix
    :returns: the real names of the topics that were created now
    :raises LocalError: Kafka does not answer, or refuses
    """
    kafka = settings.kafka
    with admin(settings) as client:
        existing = set(client.list_topics())
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
        answers = client.create_topics(request, raise_errors=False)["topics"]
        created = []
        for answer in answers:
            error = for_code(answer["error_code"])
            if answer["error_code"] == 0:
                created.append(answer["name"])
            elif error is not TopicAlreadyExistsError:
                # another process may create the same topic at the same moment: that one is not an error
                reason = answer.get("error_message") or error.__name__
                raise LocalError(f"Kafka did not create the topic {answer['name']}: {reason.rstrip('.')}.")
        client.wait_for_topics(list(missing))
        return created


def check_timestamp_type(settings: Settings, names: Iterable[str] = TOPICS) -> None:
    """Refuse a topic whose records carry their producer's clock: the record timestamp is the event time.

    :param names: names without the prefix; topics that do not exist are passed over
    :raises StartError: a topic has ``CreateTime``; with the command that corrects it
    :raises LocalError: Kafka does not answer
    """
    kafka = settings.kafka
    with admin(settings) as client:
        existing = set(client.list_topics())
        real = [name for name in map(kafka.topic, names) if name in existing]
        if not real:
            return
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, {TIMESTAMP_TYPE: None}) for name in real]
        configs = client.describe_configs(resources, config_filter="all")
    for name, config in sorted(_by_topic(configs).items()):
        if (found := config[TIMESTAMP_TYPE]["value"]) != "LogAppendTime":
            raise StartError(
                f"The topic {name} has {TIMESTAMP_TYPE}={found}, but deadlines are counted from the broker's clock: "
                f"run `kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --topic {name} "
                f"--add-config {TIMESTAMP_TYPE}=LogAppendTime`."
            )


def _by_topic(configs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    return {name: config for resources in configs.values() for name, config in resources.items()}


def prepare(settings: Settings, names: Iterable[str] = TOPICS) -> set[str]:
    """Create what is missing and refuse what would not work: what a job does before it starts.

    :param names: names without the prefix
    :returns: the real names of all topics there are, the product's and others
    :raises StartError: a topic has ``CreateTime``
    :raises LocalError: Kafka does not answer, or refuses
    """
    names = list(names)
    ensure_topics(settings, names)
    check_timestamp_type(settings, names)
    with admin(settings) as client:
        return set(client.list_topics())
