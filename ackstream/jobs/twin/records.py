"""The records of the twin: commands as read from envelopes, rows of the journal, and messages to send.

Source of the rules: Eclipse Ditto, the commands of ``things/model`` and their mapping strategies;
``ConditionalHeadersValidator`` and ``EntityTag`` for the preconditions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Raw

from ackstream.protocol import errors, record_headers
from ackstream.protocol.ditto.envelopes import Envelope, check_storable, encode
from ackstream.protocol.ditto.headers import CONDITION, CORRELATION_ID, IF_EQUAL
from ackstream.protocol.ditto.requests import Request
from ackstream.protocol.ditto.topics import THING_ACTIONS
from ackstream.protocol.ditto.twin import things
from ackstream.protocol.ditto.twin.things import Resource, resource

IF_MATCH, IF_NONE_MATCH = "if-match", "if-none-match"

_TAG = re.compile(r'\s*(\*|(?:W/)?"[^"*]*")\s*(?:,|$)')


class TwinCommand(msgspec.Struct, frozen=True):
    """A command for one thing; ``timestamp``: the broker's, epoch ms; ``value``: decoded, ``UNSET`` if it has none."""

    thing_id: str
    action: str
    resource: Resource
    timestamp: int
    value: Any = UNSET
    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    condition: str | None = None
    fields: str | None = None
    """The selector of a retrieve."""
    if_equal: str | None = None
    """How to treat a change without effect."""


def read_command(envelope: Envelope, headers: Mapping[str, Any], timestamp: int, max_bytes: int) -> TwinCommand:
    """Read a command, ``headers`` from ``read_headers``; DittoError 400 (id, path, value, header) or 413."""
    topic = envelope.topic
    action = topic.action
    if action not in THING_ACTIONS:
        raise errors.unknown_topic_path(str(topic), f"The twin does not know the action <{action}>.")
    things.check_id(topic.thing_id)
    part = resource(envelope.path)
    if (action == "create" and part.kind != "thing") or (action == "delete" and part.kind == "policyId"):
        raise errors.unknown_path(envelope.path)
    has_value = action not in ("retrieve", "delete")
    value = _value(envelope.value, topic.thing_id, action, part, max_bytes) if has_value else UNSET
    texts = {name: headers.get(name) for name in (IF_MATCH, IF_NONE_MATCH)}
    if_match, if_none_match = (None if text is None else read_tags(name, text) for name, text in texts.items())
    own = topic.thing_id, action, part, timestamp, value
    return TwinCommand(*own, if_match, if_none_match, headers.get(CONDITION), envelope.fields, headers.get(IF_EQUAL))


def _value(raw: Raw | msgspec.UnsetType, thing_id: str, action: str, part: Resource, max_bytes: int) -> Any:
    if raw is UNSET:
        raise errors.json_field_missing("/value")
    # no thing has room for more; how a value is written may double its size
    if len(memoryview(raw)) > 2 * max_bytes:
        size = len(msgspec.json.format(bytes(raw), indent=-1))
        if size > 2 * max_bytes:
            raise errors.thing_too_large(size / 1024, max_bytes / 1024)
    value = msgspec.json.decode(raw)
    try:
        check_storable(value)
    except OverflowError as error:
        raise errors.json_invalid(f"Failed to parse JSON string: a number is out of range: {error}!") from error
    # a thing stored with another policy id is checked only for the values sent now
    if part.kind == "policyId":
        things.check_policy_id(value, thing_id)
    elif part.kind == "thing" and isinstance(value, dict):
        things.check_policy_members(value)
        things.check_policy_id(value.get("policyId"), thing_id)
    if action == "merge":
        _check_patch(part, value, thing_id)
        return value
    if part.kind == "thing":
        return things.thing_content(value, thing_id)
    things.check(part, value)
    return value


def _check_patch(part: Resource, patch: Any, thing_id: str) -> None:
    """Reject patches that are never allowed; the others are judged by the thing that results."""
    things.check_patch(patch)
    if part.kind == "policyId" and patch is None:
        raise errors.policy_id_not_deletable()
    if part.kind != "thing":
        return
    if not isinstance(patch, dict) or not patch:
        raise errors.merge_invalid("The patch of a whole thing must be a JSON object with at least one member.")
    if patch.get("policyId", thing_id) is None:
        raise errors.policy_id_not_deletable()
    if patch.get("thingId", thing_id) is None:
        raise errors.id_not_deletable()
    if patch.get("thingId", thing_id) != thing_id:
        raise errors.id_not_settable()


def read_tags(header: str, text: str) -> tuple[str, ...]:
    """Read the entity tags of a header: ``*``, or ``"rev:1", W/"rev:1"``; DittoError 400 ``header.invalid``."""
    tags: list[str] = []
    position = 0
    while position < len(text) or not tags:
        found = _TAG.match(text, position)
        if found is None:
            raise errors.header_type_invalid(header, text, "entity-tag")
        tags.append(found[1])
        position = found.end()
    return tuple(tags)


def check_tags(
    if_match: tuple[str, ...] | None, if_none_match: tuple[str, ...] | None, tag: str | None, *, action: str
) -> None:
    """Compare the entity tags of a command with the ``tag`` of its resource, ``None`` if that is missing."""
    # DittoError 412 things:precondition.failed; for a retrieve 304 things:precondition.notmodified. Without a resource,
    # a retrieve or a delete fails with another error later.
    if tag is None and action in ("retrieve", "delete"):
        return
    # the tags of things are strong: if-match takes no weak one; a cache or proxy may weaken what if-none-match returns
    if if_match is not None and (tag is None or not {"*", tag} & {*if_match}):
        raise errors.thing_precondition_failed(IF_MATCH, ",".join(if_match), tag or "null")
    if tag is not None and {"*", tag} & {known.removeprefix("W/") for known in if_none_match or ()}:
        expected = ",".join(if_none_match or ())
        if action == "retrieve":
            raise errors.not_modified(expected, tag)
        raise errors.thing_precondition_failed(IF_NONE_MATCH, expected, tag)


MAX_TOPIC = 249
"""Maximum length of the name of a Kafka topic."""


class SignalRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of signals; ``timestamp``: the broker's, epoch ms; its record headers choose the ``reply_topic``."""

    source: ClassVar[int] = 0
    timestamp: int
    partition: int
    offset: int
    correlation_id: str | None
    """That of the record headers; ``None`` if the JSON or the coordinates give it."""
    value: bytes | None
    reply_topic: bytes | None = None


class JournalRow(msgspec.Struct, frozen=True, gc=False):
    """A change of a thing and the command that made it; JSON is text, times are epoch milliseconds."""

    thing_id: str
    revision: int
    created_at: int
    modified_at: int
    action: str
    path: str
    value: str | None
    deleted: bool
    visible: bool
    """Whether the thing's content changed."""
    search_persisted: bool
    correlation_id: str
    partition: int
    offset: int
    last: bool = False
    thing: str | None = None
    """The whole thing, in the last row of a thing in a batch; ``None`` there: it is deleted."""


EVENTS, ACKS = "events", "twin-acks"


class TwinMessage(msgspec.Struct, frozen=True, gc=False):
    """A record to send once the journal has the batch; ``topic`` is :data:`EVENTS` or :data:`ACKS`."""

    topic: str
    key: str
    value: bytes
    correlation_id: str
    reply_id: str | None = None
    """The id of the reply to the command, for an awaited answer: others may have the same correlation-id."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Its record headers."""
        awaited = [] if self.reply_id is None else [(record_headers.REPLY_ID, self.reply_id)]
        return [(record_headers.CORRELATION_ID, self.correlation_id), *awaited]

    @classmethod
    def of(cls, topic: str, request: Request, envelope: Envelope, reply_id: str | None = None) -> TwinMessage:
        """Address an envelope to the thing and the requester of a request."""
        return cls(topic, request.thing_id or "", encode(envelope), request.headers[CORRELATION_ID], reply_id)
