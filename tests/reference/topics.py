"""``docs/asyncapi.json`` and the pages ``docs/reference/topics*.md``: the topics and their records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby

from ackstream.kafka.parties import readers, writers
from ackstream.kafka.topics import CLOCK, LEASE, TOPICS
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE
from tests.contract.asyncapi import FORMATS, HEADERS, SYSTEM, Example, Json, RecordFormat, TopicFormat, document

_HEAD = """# Topics

This page is for operators and for developers of programs without the SDK. Other pages describe the records of
[requests](topics-requests.md), [messages](topics-messages.md) and [queries](topics-queries.md).
[The wire contract](wire.md) describes the order in which programs write and read them.
[asyncapi.json](../asyncapi.json) (AsyncAPI 3) has the same records with JSON Schemas and more examples;
`ackstream topics --asyncapi` prints it with your topic prefix and brokers.

- The name of the schema follows each kind of record in brackets.
- Values are JSON unless a media type is named.
- Headers in *italics* are optional. The header `command` contains the name of the kind.
- The timestamp is that of the broker: `message.timestamp.type=LogAppendTime`.
- Topics that clients write have `compression.type=uncompressed`.

Topics of applications contain [records of any kind](wire.md#records-of-any-kind).
[Security](../operate/security.md#who-reads-and-writes-which-topic) lists the readers and writers of each topic.

"""
_REQUESTS = """# Topics of requests

This page is for developers of requesters, responders and subscribers without the SDK. See also:
[all topics and the notation](topics.md), [the order of records](wire.md), [messages](topics-messages.md),
[queries](topics-queries.md).
"""
_MESSAGES = """# Topics of messages

This page is for developers of publishers, readers and workers without the SDK. See also:
[all topics and the notation](topics.md), [the order of records](wire-messages.md), [requests](topics-requests.md),
[queries](topics-queries.md).
"""
_QUERIES = """# Topics of queries

This page is for developers of programs that query the messages without the SDK. See also:
[all topics and the notation](topics.md), [the order of records](wire-messages.md#commands-over-the-messages),
[requests](topics-requests.md), [messages](topics-messages.md).
"""
_PAGES = {
    "topics-requests.md": (
        _REQUESTS,
        ("signals", "acks", "twin-acks", "replies", "events", "declarations", "ledger", "audit"),
    ),
    "topics-messages.md": (
        _MESSAGES,
        ("messages", "publisher-acks", "stored", "destinations", "app-acks", "queue-deliveries"),
    ),
    "topics-queries.md": (_QUERIES, ("queries", "query-results")),
}
"""The head and the topics of each page; the other topics are on the first one."""
_HOMES = {topic: page for page, (_, topics) in _PAGES.items() for topic in topics}
_RARE = {
    *("writer-asks", "writer-state", "application-ack", "samples-done"),
    *("readers-asked", "readers-known", "queue-drain", "drained", "protocol-ack"),
}
"""Kinds of publishers that wait for readers, of operators, and of libraries, which the wire contract does not describe.

Their examples are in the AsyncAPI document."""
_TITLES = {id(CLOCK): "Clocks", id(LEASE): "Leases"}
"""Headings of the topics that several jobs have one of."""


def as_json() -> str:
    """Return the document of a system with the default settings."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def first_page() -> str:
    """Return the list of all topics, with the records of those that have no other page."""
    groups = [list(topics) for _, topics in groupby(FORMATS, lambda topic: id(FORMATS[topic]))]
    return "".join([_HEAD, *map(_row, groups), *_body([topic for topic, *_ in groups if topic not in _HOMES])])


def _plane(name: str) -> str:
    head, topics = _PAGES[name]
    return "".join([head, *_body(topics)])


PAGES = {"topics.md": first_page, **{name: partial(_plane, name) for name in _PAGES}}


def _body(topics: Iterable[str]) -> Iterator[str]:
    known: set[str] = set()
    yield from (_section(topic, FORMATS[topic], known) for topic in topics)
    yield "\n## Record headers\n\n"
    used = _names(topics)
    yield from (f"- `{name}`: {_about(schema)}\n" for name, schema in HEADERS.items() if name in used)


def _about(header: Json) -> str:
    return str(header["description"]).replace(", here as base64", "")


def _names(topics: Iterable[str]) -> set[str]:
    return {name for topic in topics for one in FORMATS[topic].formats for name in one.headers["properties"]}


def _title(topic: str) -> str:
    return _TITLES.get(id(TOPICS[topic]), topic)


def _row(topics: list[str]) -> str:
    named = ", ".join(f"[{topic}]({_HOMES.get(topic, '')}#{_title(topic).lower()})" for topic in topics)
    return f"- {named}: {FORMATS[topics[0]].about}\n"


def _section(topic: str, about: TopicFormat, known: set[str]) -> str:
    media = next((one.content_type for one in about.formats if one.value), "")
    several = len(about.formats) > 1
    common = [header for header in _headers(about.formats[0]) if all(header in _headers(one) for one in about.formats)]
    lines = [f"- Key: {about.key[0].lower()}{about.key[1:]}"]
    lines += [f"- Values: {media or 'none'}."] if media != JSON_CONTENT_TYPE else []
    lines += [f"- Headers of all records: {', '.join(common)}."] if common and several else []
    lines += ["- The topic is compacted."] if TOPICS[topic].compacted else []
    # topics between parts of the system have their examples in the AsyncAPI document only
    clients = {*writers(topic), *readers(topic)} - {*SYSTEM, "mirror"}
    kinds = (
        _kind(one, media, common if several else [])
        + (_examples(one.examples, known) if clients and one.name not in _RARE else "")
        for one in about.formats
    )
    return "\n".join([f"\n## {_title(topic)}\n", *lines, "", *kinds]).rstrip("\n") + "\n"


def _kind(one: RecordFormat, media: str, common: list[str]) -> str:
    own = [header for header in _headers(one) if header not in common]
    lines = [f"**{one.name}**" + (f" (`{one.value}`):" if one.value else ":"), one.about]
    lines += [f"Headers: {', '.join(own)}."] if own else []
    lines += [f"Value: {one.content_type}."] if one.value and one.content_type != media else []
    return " ".join(lines) + "\n"


def _headers(one: RecordFormat) -> list[str]:
    named = [f"`{name}`" for name in (*one.fixed, *one.required)]
    return named + [f"*`{name}`*" for name in one.optional]


def _examples(examples: Iterable[Example], known: set[str]) -> str:
    """Return the first example and those with further members, unless their values stand on the page."""
    shown: list[str] = []
    members: set[str] = set()
    for example in examples:
        new = {*example.headers, *(example.payload if isinstance(example.payload, dict) else ())}
        if shown and new <= members:
            continue
        members |= new
        lines = [f"{name}: {text}" for name, text in example.headers.items()]
        if example.value:
            value = json.dumps(example.payload, ensure_ascii=False)
            if value in known:
                continue
            known.add(value)
            lines.append(value)
        if lines:
            shown.append("\n".join(["\n```", *lines, "```\n"]))
    return "".join(shown)
