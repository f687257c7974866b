"""Another Kafka cluster as connections see it (topics of its own on the same broker), and the connector under test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from ackstream.connectivity.connector import Connector
from ackstream.settings import Kafka, Settings
from tests.harness.counterpart import Counterpart, aggregate
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

_numbers = count()


class Elsewhere:
    """Topics of another system, on the same brokers or others, and the id of the connection to it."""

    def __init__(self, own: Kafka, bootstrap: str | None = None) -> None:
        self.own = own
        self.kafka = Kafka(bootstrap=bootstrap or own.bootstrap)
        self.id = f"c{os.getpid()}-{next(_numbers)}"
        self.producer = KafkaProducer(bootstrap_servers=self.kafka.bootstrap, acks="all")

    def close(self) -> None:
        self.producer.close()

    def topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic."""
        real = f"{self.id}-{name}"
        with KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap) as admin:
            admin.create_topics({real: {"num_partitions": partitions, "replication_factor": 1}})
            admin.wait_for_topics([real])
        return real

    def send(self, topic: str, value: Any, headers: dict[str, str] | None = None, partition: int | None = None) -> int:
        """Send a record, JSON unless it is bytes; return its offset."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        named = [(name, text.encode()) for name, text in (headers or {}).items()]
        sent = self.producer.send(topic, data, headers=named, partition=partition)
        return int(sent.get(timeout=PATIENCE_SECONDS).offset)

    def read(self, topic: str) -> list[Any]:
        return records(self.kafka, topic)

    def committed(self, topic: str, partition: int = 0) -> int | None:
        """Up to where the connection has committed."""
        group = self.own.group(f"ackstream-source-{self.id}")
        with KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap) as admin:
            found = admin.list_group_offsets([group])[group].get(TopicPartition(topic, partition))
        return None if found is None else found.offset


@contextmanager
def connected(settings: Settings) -> Iterator[Connector]:
    """Run the connections of the settings; all are open within the block."""
    with Connector(settings, settings.connections) as connector:
        eventually(lambda: connector.is_open, "the connections are open")
        yield connector


TOPICS = ("signals", "acks", "twin-acks", "replies", "ledger", "events", "declarations", "dead-letters")


def ids(job: Counterpart) -> list[str]:
    return [dict(record.headers)["correlation-id"].decode() for record in job.seen]


class Answers:
    """Answers requests with the statuses that were said, by correlation-id without suffix, then with 204."""

    def __init__(self, **statuses: list[int | None]) -> None:
        self.statuses = statuses

    def __call__(self, record: Any) -> list[Any]:
        identity = dict(record.headers)["correlation-id"].decode().partition("#")[0]
        left = self.statuses.get(identity)
        status = left.pop(0) if left else 204
        return [] if status is None else [aggregate(record, status=status)]


class Signals:
    """Writes what the twin and producers write."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def event(self, correlation_id: str, value: Any, acks: list[str], name: str = "lamp") -> None:
        topic = f"org.acme/{name}/things/twin/events/modified"
        self._send("events", correlation_id, topic, "/attributes/x", value, {"requested-acks": acks})

    def message(self, correlation_id: str, acks: list[str], **headers: str) -> None:
        topic = "org.acme/lamp/things/live/messages/turn"
        self._send("signals", correlation_id, topic, "/inbox/messages/turn", "on", {"requested-acks": acks, **headers})

    def _send(
        self, where: str, correlation_id: str, topic: str, path: str, value: Any, headers: dict[str, Any]
    ) -> None:
        message = {"topic": topic, "headers": headers, "path": path, "value": value}
        named = [("correlation-id", correlation_id.encode())]
        producer = KafkaProducer(bootstrap_servers=self._kafka.bootstrap)
        producer.send(self._kafka.topic(where), json.dumps(message).encode(), THING.encode(), named).get(
            PATIENCE_SECONDS
        )
        producer.close()


def acks_of(kafka: Kafka) -> dict[str, dict[str, Any]]:
    """Return the acknowledgements that were written: by correlation-id, label by label; a response by its own."""
    found: dict[str, dict[str, Any]] = {}
    for record in records(kafka, "acks"):
        message = json.loads(record.value)
        entries = message["value"] if message["topic"].endswith("/acks") else {"live-response": message}
        found.setdefault(dict(record.headers)["correlation-id"].decode(), {}).update(entries)
    return found


def plain(job: Counterpart) -> list[str]:
    return [identity.partition("#")[0] for identity in ids(job)]


THING = "org.acme:lamp"
