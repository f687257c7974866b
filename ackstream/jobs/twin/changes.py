"""Applying a command to a thing.

Pure: thing and command in, result out. A command that fails raises and changes nothing. Source of the rules: Eclipse
Ditto, the strategies of ``things/service/…/strategies/commands``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin.commands import check_condition, check_tags
from ackstream.jobs.twin.search import select
from ackstream.jobs.twin.things import (
    Thing,
    check_depth,
    decode,
    encode,
    merge_patch,
    part_tag,
    thing_tag,
    without_nulls,
)
from ackstream.protocol import pointers
from ackstream.protocol.ditto import things
from ackstream.protocol.ditto.thing_errors import conflict, merge_invalid, not_found, thing_too_large
from ackstream.protocol.ditto.things import Resource
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from ackstream.jobs.twin.commands import TwinCommand

CREATED, OK, NO_CONTENT = 201, 200, 204


class ThingChange(msgspec.Struct, frozen=True):
    """The content of an event: its action (``created``, ``modified``, ``merged``, ``deleted``) and its value, if any.

    ``visible`` is false if the thing's content is the same as before.
    """

    action: str
    value: Any
    visible: bool


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a successful command: status, value and entity tag of the response, the thing, and its change.

    A retrieve has no change; its ``thing`` is the current one.
    """

    status: int
    value: Any
    tag: str | None
    thing: Thing
    change: ThingChange | None = None


def apply(thing: Thing | None, command: TwinCommand, max_bytes: int) -> CommandResult:
    """Apply a command to a thing.

    :param thing: ``None`` if it never existed
    :param max_bytes: the limit of a thing's JSON
    :raises DittoError: 404, 409, 412, 304, 400, 413
    """
    if thing is None or thing.content is None:
        return _create(thing, command, max_bytes)
    content = decode(thing.content)
    if command.condition is not None and command.action != "create":
        check_condition(command.condition, thing.whole(), command.timestamp)
    found = pointers.find(content, command.resource.keys)
    check_tags(command.if_match, command.if_none_match, _tag(command.resource, found, thing), action=command.action)
    match command.action:
        case "create":
            raise conflict(command.thing_id)
        case "retrieve":
            return _retrieve(thing, command, content, found)
        case "delete":
            return _delete(thing, command, content, found, max_bytes)
        case "merge":
            return _merge(thing, command, content, max_bytes)
    return _modify(thing, command, content, found, max_bytes)


def tag_of(thing: Thing | None, part: Resource) -> str | None:
    """Return the entity tag of a part of a thing, ``None`` if the part is missing."""
    if thing is None or thing.content is None:
        return None
    return _tag(part, pointers.find(decode(thing.content), part.keys), thing)


def _create(deleted: Thing | None, command: TwinCommand, max_bytes: int) -> CommandResult:
    """Create a thing, also by a modify or merge of a whole thing that is missing."""
    if command.resource.kind != "thing" or command.action in ("retrieve", "delete"):
        raise not_found(command.thing_id, Resource("thing", ()))
    check_tags(command.if_match, command.if_none_match, None, action=command.action)
    value = command.value
    if command.action == "merge":
        value = _valid(without_nulls(merge_patch({}, value)), command.thing_id)
    policy = {"policyId": value.get("policyId", command.thing_id)}
    content = {"thingId": command.thing_id, **policy, **value}
    now = command.timestamp
    created = Thing(1 + (deleted.revision if deleted else 0), now, now, _written(content, max_bytes))
    return CommandResult(
        CREATED, content, thing_tag(created.revision), created, ThingChange("created", content, visible=True)
    )


def _retrieve(thing: Thing, command: TwinCommand, content: dict[str, Any], found: Any) -> CommandResult:
    if found is UNSET:
        raise not_found(command.thing_id, _missing(content, command.resource))
    value = found
    if command.fields is not None:
        value = select(thing.whole() if command.resource.kind == "thing" else found, command.fields)
    return CommandResult(OK, value, _tag(command.resource, found, thing), thing)


def _modify(thing: Thing, command: TwinCommand, content: dict[str, Any], found: Any, max_bytes: int) -> CommandResult:
    part, value = command.resource, command.value
    if part.kind == "thing":
        # the policy id is the only member that is kept if the new thing has none
        value = {"thingId": command.thing_id, "policyId": content.get("policyId"), **value}
        changed = _changed(thing, value, command.timestamp, max_bytes)
        change = ThingChange("modified", value, visible=value != content)
        return CommandResult(NO_CONTENT, UNSET, thing_tag(changed.revision), changed, change)
    missing = _missing(content, part)
    if missing.kind == "feature" and part.kind != "feature":
        raise not_found(command.thing_id, missing)
    now = pointers.put(content, part.keys, value)
    changed = _changed(thing, now, command.timestamp, max_bytes)
    if found is UNSET:
        return CommandResult(CREATED, value, part_tag(value), changed, ThingChange("created", value, visible=True))
    return CommandResult(
        NO_CONTENT, UNSET, part_tag(value), changed, ThingChange("modified", value, visible=now != content)
    )


def _merge(thing: Thing, command: TwinCommand, content: dict[str, Any], max_bytes: int) -> CommandResult:
    part, patch = command.resource, command.value
    for key in reversed(part.keys):
        patch = {key: patch}
    now = _valid(merge_patch(content, patch), command.thing_id)
    changed = _changed(thing, now, command.timestamp, max_bytes)
    tag = _tag(part, pointers.find(now, part.keys), changed)
    return CommandResult(NO_CONTENT, UNSET, tag, changed, ThingChange("merged", command.value, visible=now != content))


def _delete(thing: Thing, command: TwinCommand, content: dict[str, Any], found: Any, max_bytes: int) -> CommandResult:
    part = command.resource
    if part.kind == "thing":
        gone = Thing(thing.revision + 1, thing.created, command.timestamp, None)
        return CommandResult(NO_CONTENT, UNSET, None, gone, ThingChange("deleted", UNSET, visible=True))
    if found is UNSET:
        raise not_found(command.thing_id, _missing(content, part))
    changed = _changed(thing, pointers.remove(content, part.keys), command.timestamp, max_bytes)
    return CommandResult(NO_CONTENT, UNSET, None, changed, ThingChange("deleted", UNSET, visible=True))


def _valid(content: Any, thing_id: str) -> dict[str, Any]:
    """Return the content that a merge resulted in, if it is a valid thing."""
    try:
        return things.thing_content(content, thing_id)
    except DittoError as error:
        raise merge_invalid(error.message) from error


def _missing(content: dict[str, Any], part: Resource) -> Resource:
    """Return the resource to report as missing: the feature if it does not exist, else the part."""
    feature = part if part.feature is None else Resource("feature", part.keys[:2], part.feature)
    return feature if pointers.find(content, feature.keys) is UNSET else part


def _changed(thing: Thing, content: dict[str, Any], now: int, max_bytes: int) -> Thing:
    return Thing(thing.revision + 1, thing.created, now, _written(content, max_bytes))


def _written(content: dict[str, Any], max_bytes: int) -> bytes:
    data = encode(content)
    check_depth(data)
    if len(data) > max_bytes:
        raise thing_too_large(len(data), max_bytes)
    return data


def _tag(part: Resource, found: Any, thing: Thing) -> str | None:
    if found is UNSET:
        return None
    return thing_tag(thing.revision) if part.kind == "thing" else part_tag(found)
