"""``docs/asyncapi.json`` and ``docs/reference/topics.md``: what the product says of its topics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, groupby

from ackstream.kafka.parties import readers, writers
from ackstream.kafka.topics import CLOCK, LEASE, TOPICS
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE
from tests.contract.asyncapi import FORMATS, HEADERS, Example, RecordFormat, TopicFormat, document

_HEAD = """# Topics

Keys, record headers and values, made by `python -m tests.reference`. With JSON Schemas:
[asyncapi.json](../asyncapi.json) (AsyncAPI 3); `ackstream topics --asyncapi` prints it with your prefix and brokers.
The order of records: [the wire contract](wire.md).

- A **kind** of record is followed by its schema. Values are JSON unless a media type is named.
- Headers in *italics* are optional. `command` has the name of the kind.
- All topics have `message.timestamp.type=LogAppendTime`; those that clients write have `compression.type=uncompressed`.
- The key decides partition and order, by murmur2 as in Java's clients.
- Readers ignore unknown members and headers. An example is shown once.

Topics of applications: [records of any kind](wire.md#records-of-any-kind).

| topic | records | written by | read by |
| --- | --- | --- | --- |
"""
_TITLES = {id(CLOCK): "Clocks", id(LEASE): "Leases"}
"""Of topics that several jobs have one of."""


def as_json() -> str:
    """Return the document of a system with the default settings."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def as_page() -> str:
    """Return it as a page for people."""
    groups = [list(topics) for _, topics in groupby(FORMATS, lambda topic: id(FORMATS[topic]))]
    parts = [_HEAD, *map(_row, groups)]
    known: set[str] = set()
    parts += [_section(topic, FORMATS[topic], known) for topic, *_ in groups]
    parts.append("## Record headers\n\n")
    parts += [f"- `{name}`: {schema['description']}\n" for name, schema in HEADERS.items()]
    return "".join(parts)


def _title(topic: str) -> str:
    return _TITLES.get(id(TOPICS[topic]), topic)


def _row(topics: list[str]) -> str:
    named = ", ".join(f"[{topic}](#{_title(topic).lower()})" for topic in topics)
    written, read = (", ".join(chain.from_iterable(map(parties, topics))) for parties in (writers, readers))
    return f"| {named} | {FORMATS[topics[0]].about} | {written} | {'the same' if read == written else read} |\n"


def _section(topic: str, about: TopicFormat, known: set[str]) -> str:
    media = next((one.content_type for one in about.formats if one.value), "")
    common = [header for header in _headers(about.formats[0]) if all(header in _headers(one) for one in about.formats)]
    lines = [f"Key: {about.key}"]
    lines += ["Compacted."] if TOPICS[topic].compacted else []
    lines += [f"Values: {media}."] if media != JSON_CONTENT_TYPE else []
    lines += [f"Headers: {', '.join(common)}."] if common and len(about.formats) > 1 else []
    kinds = (_kind(one, media, common if len(about.formats) > 1 else [], known) for one in about.formats)
    return "".join([f"\n## {_title(topic)}\n\n{' '.join(lines)}\n\n", *kinds])


def _kind(one: RecordFormat, media: str, common: list[str], known: set[str]) -> str:
    own = [header for header in _headers(one) if header not in common]
    lines = [f"**{one.name}**" + (f" (`{one.value}`):" if one.value else ":"), one.about]
    lines += [f"Headers: {', '.join(own)}."] if own else []
    lines += [f"Value: {one.content_type}."] if one.value and one.content_type != media else []
    return " ".join(lines) + "\n\n" + "".join(_examples(one.examples, known))


def _headers(one: RecordFormat) -> list[str]:
    named = [f"`{name}`" for name in (*one.fixed, *one.required)]
    return named + [f"*`{name}`*" for name in one.optional]


def _examples(examples: Iterable[Example], known: set[str]) -> Iterator[str]:
    """Show each example whose value does not stand on the page yet."""
    for example in examples:
        lines = [f"{name}: {text}" for name, text in example.headers.items()]
        if example.value:
            value = json.dumps(example.payload, ensure_ascii=False)
            if value in known:
                continue
            known.add(value)
            lines.append(value)
        if lines:
            yield "\n".join(["```", *lines, "```\n\n"])
