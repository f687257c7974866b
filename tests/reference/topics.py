"""``docs/asyncapi.json`` and ``docs/reference/topics.md``: what the product says of its topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ackstream.kafka.parties import readers, writers
from ackstream.kafka.topics import TOPICS
from tests.contract.asyncapi import FORMATS, HEADERS, document

_HEAD = """# Topics

What each topic carries, made by `python -m tests.reference` of the formats of the product. The same for programs,
with JSON Schemas of keys, record headers and values, is [asyncapi.json](../asyncapi.json), an AsyncAPI 3 document;
`ackstream topics --asyncapi` prints that of your system, with its topic prefix and its broker. How the records follow
each other is in [the wire contract](wire.md).

All topics are created with `message.timestamp.type=LogAppendTime`: the broker's clock is the event time. Those that
clients write have `compression.type=uncompressed`: producers compress as they like, the broker unpacks. The key
decides the partition, by the hash of Java's clients, murmur2 ([the wire contract](wire.md)). A header in *italics* may
be left out. Readers ignore members and headers that they do not know: a later release may add some.

Topics of applications (`correlate.request_topics`, `correlate.ack_topics`) are not among them: how their records ask
and acknowledge is in [the wire contract](wire.md#records-of-any-kind), too.
"""


def as_json() -> str:
    """Return the document of a system with the default settings."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def as_page() -> str:
    """Return it as a page for people."""
    found = document()
    parts = [_HEAD, "\n| topic | what it carries | written by | read by |\n| --- | --- | --- | --- |\n"]
    for topic, about in FORMATS.items():
        row = f"[{topic}](#{topic})", about.about, ", ".join(writers(topic)), ", ".join(readers(topic))
        parts.append(f"| {' | '.join(row)} |\n")
    for topic, about in FORMATS.items():
        compacted = " Compacted: the last record of a key stays." if TOPICS[topic].compacted else ""
        channel = found["channels"][topic]
        parts.append(f"\n## {topic}\n\n{channel['summary']}{compacted} Key: {about.key}\n\n")
        parts += [_kind(name, message) for name, message in channel["messages"].items()]
    parts.append("## Record headers\n\n| header | value |\n| --- | --- |\n")
    parts += [f"| `{name}` | {schema['description']} |\n" for name, schema in HEADERS.items()]
    return "".join(parts)


def _kind(name: str, message: dict[str, Any]) -> str:
    lines = [f"**{name}**: {message['summary']}", *_headers(message)]
    if "$ref" in message["payload"]:
        lines.append(f"Value: `{message['payload']['$ref'].rpartition('/')[2]}`, {message['contentType']}.")
    else:
        lines.append("No value.")
    return " ".join(lines) + "\n\n" + "".join(map(_example, message.get("examples", ())))


def _headers(message: dict[str, Any]) -> Iterator[str]:
    headers = message["headers"]
    if headers["properties"]:
        named = [_header(name, schema, headers["required"]) for name, schema in headers["properties"].items()]
        yield f"Headers: {', '.join(named)}."


def _header(name: str, schema: dict[str, Any], required: list[str]) -> str:
    if name not in required:
        return f"*`{name}`*"
    return f"`{name}`" + (f" = `{schema['const']}`" if "const" in schema else "")


def _example(example: dict[str, Any]) -> str:
    headers = "".join(f"{name}: {text}\n" for name, text in example.get("headers", {}).items())
    if example["payload"] is None:
        return f"```\n{headers}```\n\n" if headers else ""
    return f"```\n{headers}{json.dumps(example['payload'], ensure_ascii=False)}\n```\n\n"
