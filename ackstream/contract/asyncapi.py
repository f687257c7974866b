"""The AsyncAPI document: all topics, with schemas of keys, record headers and values, and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream import __version__
from ackstream.contract.schemas import DITTO_SCHEMAS, of_types, reference
from ackstream.contract.topics import FORMATS, SYSTEM, TYPES, VALUES, readers, writers
from ackstream.kafka.topics import TOPICS
from ackstream.protocol.record_headers import CID, CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.contract.schemas import Json
    from ackstream.contract.topics import RecordFormat, TopicFormat
    from ackstream.settings import Kafka

VERSION = "3.0.0"
_BINDING = "0.5.0"

REPLIED = {
    "signals": ("replies",),
    "queries": ("query-results",),
    "messages": ("publisher-acks",),
    "app-acks": ("publisher-acks", "queue-deliveries"),
}
"""Where the answers to the records of a topic are."""

_CORRELATED = {CORRELATION_ID: "correlationId", CID: "commandId"}
_ABOUT = (
    "The records of ackstream's Kafka topics, for programs in any language. How they follow each other is in "
    "docs/wire.md. The broker's clock is the event time: all topics have `message.timestamp.type=LogAppendTime`. "
    "Readers ignore members and record headers that they do not know, since a later release may add some."
)


def document(kafka: Kafka) -> Json:
    """Return the document of a system.

    :param kafka: the settings of its topics, and of the broker that the document names as its server
    """
    protocol = "kafka" if kafka.security.protocol == "PLAINTEXT" else "kafka-secure"
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "ackstream",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            f"kafka-{number}": {"host": host.strip(), "protocol": protocol, "description": "Of `kafka.bootstrap`."}
            for number, host in enumerate(kafka.bootstrap.split(","), 1)
        },
        "channels": {topic: _channel(topic, about, kafka) for topic, about in FORMATS.items()},
        "operations": dict(_operations()),
        "components": {
            "schemas": dict(_schemas()),
            "correlationIds": {
                name: {"location": f"$message.header#/{header}"} for header, name in _CORRELATED.items()
            },
        },
    }


def _channel(topic: str, about: TopicFormat, kafka: Kafka) -> Json:
    made = TOPICS[topic]
    config: dict[str, Any] = dict(made.config(kafka.replication))
    config["max.message.bytes"] = int(config["max.message.bytes"])
    if made.compacted:
        config["cleanup.policy"] = [config["cleanup.policy"]]
    written, read = (", ".join(found(topic)) for found in (writers, readers))
    return {
        "address": kafka.topic(topic),
        "title": topic,
        "summary": about.about,
        "description": f"Written by: {written}. Read by: {read or 'operators'}.",
        "messages": {one.name: _message(topic, about, one) for one in about.formats},
        "bindings": {
            "kafka": {
                "topic": kafka.topic(topic),
                "partitions": made.partitions or kafka.partitions,
                "replicas": kafka.replication,
                "topicConfiguration": config,
                "bindingVersion": _BINDING,
            }
        },
    }


def _message(topic: str, about: TopicFormat, one: RecordFormat) -> Json:
    named = one.headers
    found: Json = {
        "name": f"{topic}.{one.name}",
        "title": one.name,
        "summary": one.about,
        "contentType": one.content_type,
        "headers": named,
        "payload": {"type": "null", "description": "The record has no value, or an empty one."},
        "bindings": {"kafka": {"key": {"type": "string", "description": about.key}, "bindingVersion": _BINDING}},
    }
    if one.value:
        found["payload"] = reference(one.value)
    correlated = next((header for header in _CORRELATED if header in named["properties"]), None)
    if correlated is not None:
        found["correlationId"] = {"$ref": f"#/components/correlationIds/{_CORRELATED[correlated]}"}
    if one.examples:
        found["examples"] = [
            {
                "name": f"{one.name}-{number}",
                "summary": example.about or one.about,
                **({"headers": example.headers} if example.headers else {}),
                "payload": example.payload,
            }
            for number, example in enumerate(one.examples, 1)
        ]
    return found


def _operations() -> Iterator[tuple[str, Json]]:
    for topic, about in FORMATS.items():
        channel = {"$ref": f"#/channels/{topic}"}
        for action, parties in (("receive", readers(topic)), ("send", writers(topic))):
            own = [party for party in parties if party in SYSTEM]
            if not own:
                continue
            operation = {
                "action": action, "channel": channel, "summary": about.about, "tags": [{"name": name} for name in own]
            }  # fmt: skip
            replies = REPLIED.get(topic, ()) if action == "receive" else ()
            for reply in replies or (None,):
                name = f"{action}-{topic}" + (f"-for-{reply}" if len(replies) > 1 else "")
                answered = {} if reply is None else {"reply": {"channel": {"$ref": f"#/channels/{reply}"}}}
                yield name, operation | answered


def _schemas() -> Iterator[tuple[str, Json]]:
    values = dict.fromkeys(one.value for about in FORMATS.values() for one in about.formats)
    yield from DITTO_SCHEMAS.items()
    yield from of_types([TYPES[name] for name in values if name in TYPES]).items()
    yield from VALUES.items()
