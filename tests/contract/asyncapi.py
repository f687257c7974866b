"""The wire contract: schemas of values, the records of each topic from ``topics.toml``; the AsyncAPI document of them.

JSON Schemas are in the dialect of AsyncAPI 3 (draft 07): of types of ``protocol/``, and of Ditto messages, whose shared
parts are in ``schemas.json``. A docstring of a type becomes the description of its schema, each ``:ivar`` that of a
property. Readers of ackstream ignore members that they do not know, so no schema forbids them: a later release may add
some.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec

from ackstream import __version__
from ackstream.cli.monitoring import of_settings
from ackstream.kafka.parties import PARTIES, readers, writers
from ackstream.kafka.topics import CLOCK, LEASE, TOPICS
from ackstream.protocol import record_headers as names
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, PROTOCOL_CONTENT_TYPE
from ackstream.protocol.ditto.labels import BUILT_IN, PATTERN, Claim
from ackstream.protocol.ditto.topics import COMMAND_ACTIONS, EVENT_ACTIONS
from ackstream.protocol.ledger import LedgerRecord
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS, AckType, CommandAck, Replicated, StoredRange
from ackstream.protocol.queues import QueueAnswer, QueueRequest
from ackstream.protocol.readers import Answer, ConsumerRecord
from ackstream.settings import Kafka
from ackstream.settings.base import parse_toml

Json: TypeAlias = dict[str, Any]

REFERENCE = "#/components/schemas/{name}"

_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?([^`]+)`")
_SOURCES = re.compile(r" \((?:(?:brokers\.md|RTI-RN:?|[ARS]\d|255: R)[^)]*)\)")
_IVAR = re.compile(r"\n\s*:ivar (\w+): ")


def of_types(types: Iterable[Any]) -> dict[str, Json]:
    """Return the schemas of types and of all that they contain, by name."""
    _, found = msgspec.json.schema_components(types, schema_hook=_anything, ref_template=REFERENCE)
    return {name: _described(_in_draft_07(schema)) for name, schema in found.items()}


def reference(name: str) -> Json:
    """Return a reference to the schema of a name."""
    return {"$ref": REFERENCE.format(name=name)}


def _anything(kind: type) -> Json:
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


def _in_draft_07(schema: Any) -> Any:
    """Write an array of a fixed length as that dialect does; leave out the discriminators of OpenAPI."""
    if isinstance(schema, list):
        return [_in_draft_07(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _in_draft_07(part) for name, part in schema.items() if name != "discriminator"}
    if "prefixItems" in found:
        # most are pairs of the same type
        parts = found.pop("prefixItems")
        found["items"] = parts[0] if all(part == parts[0] for part in parts) else parts
    return found


def _described(schema: Json) -> Json:
    whole = inspect.cleandoc(schema.get("description", ""))
    about, *members = _IVAR.split(whole)
    found = {name: part for name, part in schema.items() if name != "description"}
    if about:
        found["description"] = plain(about)
    properties = found.get("properties", {})
    for name, text in zip(members[::2], members[1::2], strict=True):
        # a member with another name on the wire is described by its type
        if name in properties and "$ref" not in properties[name]:
            properties[name] = properties[name] | {"description": plain(text)}
    return found


def plain(text: str) -> str:
    """Return the text of a docstring without its markup, and without the sources of the rules, as one line."""
    shown = _SOURCES.sub("", _ROLE.sub(r"`\1`", text)).replace("``", "`")
    return " ".join(shown.split())


_FILLED = {
    "<label>": PATTERN,
    "<built-in>": "|".join(BUILT_IN),
    "<commands>": "|".join(COMMAND_ACTIONS),
    "<events>": "|".join(EVENT_ACTIONS),
}
"""Parts of patterns in ``schemas.json``."""


def _ditto_schemas() -> dict[str, Json]:
    text = Path(__file__).with_name("schemas.json").read_text("utf-8")
    for name, part in _FILLED.items():
        text = text.replace(name, msgspec.json.encode(part).decode()[1:-1])
    found: Json = msgspec.json.decode(text)
    parts, messages = found.pop("parts"), found.pop("messages")
    return found | {name: _message_schema(parts, message) for name, message in messages.items()}


def _message_schema(parts: Json, kind: Json) -> Json:
    """Describe a kind of message by the pattern of its topic path, after the thing, and by properties of its own."""
    pattern, required = f"^[^/]*/[^/]+/things/{kind['topic']}", kind.get("required", ())
    topic = {"type": "string", "pattern": pattern, "description": "The topic path."}
    found = {
        "type": "object",
        "description": kind["description"],
        "required": ["topic", "path", *required],
        "properties": {**parts, "topic": topic, **kind.get("properties", {})},
    }
    # with a status, it would be an answer
    return found if "status" in required else found | {"not": {"required": ["status"]}}


DITTO_SCHEMAS = _ditto_schemas()
"""The schemas of all kinds of Ditto messages, by topic path and status, and of their parts, by name."""


# -- records -----------------------------------------------------------------------------------------------------------

TYPES = {
    kind.__name__: kind
    for kind in (
        Claim, LedgerRecord, CommandAck, StoredRange, Replicated, *get_args(ConsumerRecord), *get_args(Answer),
        *get_args(QueueRequest), *get_args(QueueAnswer),
    )
}  # fmt: skip
"""The types of ``protocol/`` that are values of records, by name."""


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as it is written; ``value`` is JSON, empty for a record without a value."""

    about: str = ""
    headers: dict[str, str] = {}
    value: str = ""

    @property
    def payload(self) -> Any:
        """The value as a JSON reader sees it."""
        return msgspec.json.decode(self.value) if self.value else None


class RecordFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of record of a topic; its name is unique there.

    :ivar value: the name of its schema or type; empty for a record without a value
    :ivar media: its media type, by default that of JSON
    :ivar fixed: record headers whose values distinguish it from the other kinds of its topic
    :ivar required: further record headers, which it always has
    :ivar optional: record headers that it may have
    :ivar absent: a record header that it never has, which distinguishes it from other kinds
    :ivar described: schemas of its record headers that other kinds have not, or in another form
    """

    name: str
    summary: str = msgspec.field(default="", name="about")
    value: str = ""
    media: str = msgspec.field(default="", name="content_type")
    fixed: dict[str, str] = {}
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    absent: str = ""
    described: dict[str, dict[str, Any]] = {}
    examples: tuple[Example, ...] = ()

    @property
    def about(self) -> str:
        """Its description, by default the first sentence of its type."""
        return self.summary or plain((TYPES[self.value].__doc__ or "").split("\n\n")[0])

    @property
    def content_type(self) -> str:
        """The media type of its value."""
        return self.media or (PROTOCOL_CONTENT_TYPE if self.value in DITTO_SCHEMAS else JSON_CONTENT_TYPE)

    @property
    def headers(self) -> Json:
        """The schema of its record headers; those that it does not name are the application's own."""
        known = HEADERS | {name: {"type": "string", **schema} for name, schema in self.described.items()}
        properties = {name: {**known[name], "const": text} for name, text in self.fixed.items()}
        properties |= {name: known[name] for name in (*self.required, *self.optional)}
        found = {"type": "object", "required": [*self.fixed, *self.required], "properties": properties}
        return found | {"not": {"required": [self.absent]}} if self.absent else found


class TopicFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records of a topic: each fits exactly one of the formats, and has its answer in one of ``replied``."""

    about: str
    key: str
    formats: tuple[RecordFormat, ...]
    replied: tuple[str, ...] = ()


class _Contract(msgspec.Struct, forbid_unknown_fields=True):
    info: dict[str, Any]
    headers: dict[str, dict[str, Any]]
    topics: dict[str, TopicFormat]
    applications: TopicFormat
    schemas: dict[str, dict[str, Any]]


_CONTRACT = msgspec.convert(parse_toml(Path(__file__).with_name("topics.toml").read_text("utf-8")), _Contract)
_ACKS = "|".join(get_args(AckType))
_DERIVED: dict[str, Json] = {
    names.CLIENT: {"maxLength": MAX_CLIENT_CHARACTERS},
    names.ACK: {"pattern": rf"^ *(?:{_ACKS}|none|)(?: *, *(?:{_ACKS}|none|))* *$"},
}

HEADERS: dict[str, Json] = {
    name: {"type": "string", **schema, **_DERIVED.get(name, {})} for name, schema in _CONTRACT.headers.items()
}
"""The schemas of record headers, by name."""

VALUES: dict[str, Json] = _CONTRACT.schemas
"""The schemas of values that are neither a type of ``protocol/`` nor a message of Ditto, by name."""

_OF_JOBS = {"clock": CLOCK, "lease": LEASE}
"""The topics that each job has one of, by their name in the file."""

FORMATS: dict[str, TopicFormat] = {name: about for name, about in _CONTRACT.topics.items() if name not in _OF_JOBS}
for _name, _kind in _OF_JOBS.items():
    FORMATS |= {topic: _CONTRACT.topics[_name] for topic, made in TOPICS.items() if made is _kind}

APPLICATIONS = _CONTRACT.applications
"""The records in topics of applications, which have no channel: the settings name those topics by patterns."""

SYSTEM = tuple(name for name, party in PARTIES.items() if party.job or name in ("gateway", "connect"))
"""The parties that are parts of the system; all others are its clients."""

_BINDING = "0.5.0"
_CORRELATED = {names.CORRELATION_ID: "correlationId", names.CID: "commandId"}


def document() -> Json:
    """Return the document of a system with the default settings; the command line fills in those of another."""
    formats = [one for about in FORMATS.values() for one in about.formats]
    types = {one.value: TYPES[one.value] for one in formats if one.value in TYPES}
    found = {
        "asyncapi": "3.0.0",
        "info": {"title": "ackstream", "version": __version__, **_CONTRACT.info},
        "defaultContentType": JSON_CONTENT_TYPE,
        "servers": {},
        "channels": {topic: _channel(topic, about) for topic, about in FORMATS.items()},
        "operations": dict(_operations()),
        "components": {
            "messages": {one.name: _message("applications", APPLICATIONS, one) for one in APPLICATIONS.formats},
            "schemas": {**DITTO_SCHEMAS, **of_types(types.values()), **VALUES},
            "correlationIds": {
                name: {"location": f"$message.header#/{header}"} for header, name in _CORRELATED.items()
            },
        },
    }
    return of_settings(found, Kafka())


def _channel(topic: str, about: TopicFormat) -> Json:
    written, read = (", ".join(found(topic)) for found in (writers, readers))
    return {
        "address": "",
        "title": topic,
        "summary": about.about,
        "description": f"Written by: {written}. Read by: {read or 'operators'}.",
        "messages": {one.name: _message(topic, about, one) for one in about.formats},
        # the command line replaces what comes before the version
        "bindings": {
            "kafka": {"topic": "", "partitions": 0, "replicas": 0, "topicConfiguration": {}, "bindingVersion": _BINDING}
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
            replies = about.replied if action == "receive" else ()
            for reply in replies or (None,):
                name = f"{action}-{topic}" + (f"-for-{reply}" if len(replies) > 1 else "")
                answered = {} if reply is None else {"reply": {"channel": {"$ref": f"#/channels/{reply}"}}}
                yield name, operation | answered
