"""Things as the twin keeps them, the change that a command makes to one, and their usage of quotas.

Pure: a failed command changes nothing, and usage derives from the things alone: replays decide the same wherever
batches are cut. Source: Ditto, ``things/service/…/strategies/commands``, ``ThingConditionValidator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from ackstream.jobs.twin.records import TwinCommand, check_tags
from ackstream.protocol import errors, json
from ackstream.protocol.ditto.envelopes import check_depth
from ackstream.protocol.ditto.headers import SKIP, SKIP_MINIMIZING_MERGE
from ackstream.protocol.ditto.twin import things
from ackstream.protocol.ditto.twin.things import Resource, not_found, select_of_thing
from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql.evaluation import matches
from ackstream.protocol.rql.patterns import Effort, matches_any
from ackstream.settings import Quota

CREATED, OK, NO_CONTENT = 201, 200, 204
_NAMESPACES = 10_000
"""Namespaces whose quotas are remembered."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


class Thing(msgspec.Struct, frozen=True, gc=False):
    """A thing after its last change, times in epoch milliseconds; created again, it has the next revision."""

    revision: int
    created: int
    modified: int
    content: bytes | None
    """Its JSON (thingId, policyId, definition, attributes, features); ``None``: it is deleted."""

    def whole(self) -> dict[str, Any]:
        """Return the JSON that filters and selectors see: with ``_revision``, ``_created`` and ``_modified``."""
        return {
            **decode(self.content or b"{}"),
            "_revision": self.revision,
            "_created": instant(self.created),
            "_modified": instant(self.modified),
        }


def instant(milliseconds: int) -> str:
    """Return epoch milliseconds as ISO 8601 in UTC, always with three digits, so that texts sort as times."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a successful command: status, value and entity tag of the response, and the thing."""

    status: int
    value: Any
    tag: str | None
    thing: Thing
    event: str | None = None
    """The action of a change's event: ``created``, ``modified``, ``merged`` or ``deleted``; ``change`` is its value."""
    change: Any = UNSET
    visible: bool = True
    """Whether the thing's content differs from the one before."""


def apply(thing: Thing | None, command: TwinCommand, max_bytes: int) -> CommandResult:
    """Apply a command to a thing (``None``: it never existed). Raises DittoError 304, 400, 404, 409, 412, 413."""
    # 400 also for a condition that takes too much effort
    if thing is None or thing.content is None:
        return _create(thing, command, max_bytes)
    content = decode(thing.content)
    if command.condition is not None and command.action != "create":
        now = datetime.fromtimestamp(command.timestamp / 1000, timezone.utc)
        if not matches(command.condition, thing.whole(), time=now, effort=Effort()):
            raise errors.condition_failed()
    found = json.find(content, command.resource.keys)
    check_tags(command.if_match, command.if_none_match, _tag(command.resource, found, thing), action=command.action)
    match command.action:
        case "create":
            raise errors.conflict(command.thing_id)
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
    return _tag(part, json.find(decode(thing.content), part.keys), thing)


def _create(deleted: Thing | None, command: TwinCommand, max_bytes: int) -> CommandResult:
    """Create a thing, also by a modify or merge of a whole thing that is missing."""
    if command.resource.kind != "thing" or command.action in ("retrieve", "delete"):
        raise not_found(command.thing_id, Resource("thing", ()))
    check_tags(command.if_match, command.if_none_match, None, action=command.action)
    value = command.value
    if command.action == "merge":
        value = _valid(without_nulls(merge_patch({}, value)), command.thing_id)
    content = {"thingId": command.thing_id, "policyId": value.get("policyId", command.thing_id), **value}
    created = _changed(deleted, content, command.timestamp, max_bytes)
    tag = _tag(command.resource, content, created)
    return CommandResult(CREATED, content, tag, created, "created", content)


def _retrieve(thing: Thing, command: TwinCommand, content: dict[str, Any], found: Any) -> CommandResult:
    if found is UNSET:
        raise not_found(command.thing_id, _missing(content, command.resource))
    value = found
    if command.fields is not None:
        if command.resource.kind == "thing":
            value = select_of_thing(thing.whole(), command.fields)
        else:
            value = json.select(found, command.fields)
    return CommandResult(OK, value, _tag(command.resource, found, thing), thing)


def _modify(thing: Thing, command: TwinCommand, content: dict[str, Any], found: Any, max_bytes: int) -> CommandResult:
    part, value = command.resource, command.value
    if part.kind == "thing":
        # the policy id is the only member that is kept if the new thing has none
        now = value = {"thingId": command.thing_id, "policyId": content.get("policyId"), **value}
    else:
        missing = _missing(content, part)
        if missing.kind == "feature" and part.kind != "feature":
            raise not_found(command.thing_id, missing)
        now = json.put(content, part.keys, value)
    _check_equal(command, content, now)
    changed = _changed(thing, now, command.timestamp, max_bytes)
    tag = _tag(part, value, changed)
    if found is UNSET:
        return CommandResult(CREATED, value, tag, changed, "created", value)
    return CommandResult(NO_CONTENT, UNSET, tag, changed, "modified", value, visible=not _is_same(now, content))


def _merge(thing: Thing, command: TwinCommand, content: dict[str, Any], max_bytes: int) -> CommandResult:
    part, change = command.resource, command.value
    patch = change
    for key in reversed(part.keys):
        patch = {key: patch}
    now = _valid(merge_patch(content, patch), command.thing_id)
    _check_equal(command, content, now)
    if command.if_equal == SKIP_MINIMIZING_MERGE:
        change = minimized(change, json.find(content, part.keys))
    changed = _changed(thing, now, command.timestamp, max_bytes)
    tag = _tag(part, json.find(now, part.keys), changed)
    return CommandResult(NO_CONTENT, UNSET, tag, changed, "merged", change, visible=not _is_same(now, content))


def _delete(thing: Thing, command: TwinCommand, content: dict[str, Any], found: Any, max_bytes: int) -> CommandResult:
    part = command.resource
    if part.kind == "thing":
        changed = Thing(thing.revision + 1, thing.created, command.timestamp, None)
    elif found is UNSET:
        raise not_found(command.thing_id, _missing(content, part))
    else:
        changed = _changed(thing, json.remove(content, part.keys), command.timestamp, max_bytes)
    return CommandResult(NO_CONTENT, UNSET, None, changed, "deleted")


def _check_equal(command: TwinCommand, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Reject a change without effect that is to be skipped: DittoError 412 ``things:precondition.failed``."""
    if command.if_equal in (SKIP, SKIP_MINIMIZING_MERGE) and _is_same(before, now):
        raise errors.nothing_changed(command.if_equal)


def _is_same(one: Any, other: Any) -> bool:
    # in Python true equals 1
    return bool(one == other) and _encode_sorted(one) == _encode_sorted(other)


def minimized(patch: Any, target: Any) -> Any:
    """Return the part of a merge patch that changes the target."""
    if not isinstance(patch, dict) or not isinstance(target, dict):
        return patch
    kept = {}
    for key, value in patch.items():
        found = json.find(target, (key,))
        if isinstance(value, dict) and isinstance(found, dict):
            if inner := minimized(value, found):
                kept[key] = inner
        elif value is None and found is UNSET:
            continue
        elif value is None or found is UNSET or not _is_same(value, found):
            kept[key] = value
    return kept


def _valid(content: Any, thing_id: str) -> dict[str, Any]:
    """Return the content that a merge resulted in, if it is a valid thing."""
    try:
        return things.thing_content(content, thing_id)
    except DittoError as error:
        raise errors.merge_invalid(error.message) from error


def _missing(content: dict[str, Any], part: Resource) -> Resource:
    """Return the resource to report as missing: the feature if it does not exist, else the part."""
    feature = part if part.feature is None else Resource("feature", part.keys[:2], part.feature)
    return feature if json.find(content, feature.keys) is UNSET else part


def _changed(thing: Thing | None, content: dict[str, Any], now: int, max_bytes: int) -> Thing:
    data = encode(content)
    # merges may have nested it, patch within patch
    check_depth(data)
    if len(data) > max_bytes:
        raise errors.thing_too_large(len(data) / 1024, max_bytes / 1024)
    created = now if thing is None or thing.content is None else thing.created
    return Thing(1 if thing is None else thing.revision + 1, created, now, data)


def _tag(part: Resource, found: Any, thing: Thing) -> str | None:
    """Return the entity tag of a thing or a part of it; equal JSON of a part has equal tags."""
    if found is UNSET:
        return None
    if part.kind == "thing":
        return f'"rev:{thing.revision}"'
    return f'"hash:{blake2b(_encode_sorted(found), digest_size=4).hexdigest()}"'


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396; Ditto, ``JsonMergePatch``) to a copy of the target."""
    # DittoError 400 things:merge.invalid: ``{{/expression/}}: null`` removes matching keys in Ditto, would remove none
    # here
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is not None:
            merged[key] = merge_patch(merged.get(key), value)
            continue
        if key.startswith("{{") and key.endswith("}}"):
            raise errors.merge_invalid(f"The key <{key}> is a regular expression, which is not supported here.")
        merged.pop(key, None)
    return merged


def without_nulls(value: Any) -> Any:
    """Return the value that a patch creates, arrays without nulls; as Ditto's ``ModifyToCreateThingTransformer``."""
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        # an array within an array stays as it is
        return [without_nulls(entry) if isinstance(entry, dict) else entry for entry in value if entry is not None]
    return value


class Usage(NamedTuple):
    """The number of things and their bytes."""

    things: int = 0
    bytes: int = 0


class QuotaUsage:
    """The usage of each quota that limits things."""

    def __init__(self, quotas: Iterable[Quota], things: Mapping[str, Thing]) -> None:
        self._quotas = [quota for quota in quotas if quota.namespaces]
        self._used = [Usage() for _ in self._quotas]
        # of a namespace, which of them count its things
        self._counting = lru_cache(_NAMESPACES)(self._numbers)
        if self._quotas:
            for thing_id, thing in things.items():
                self.add(thing_id, None, thing)

    def copy(self) -> QuotaUsage:
        """Return a copy, to be changed by a part of a batch that may still fail."""
        other = QuotaUsage((), {})
        other._quotas, other._counting, other._used = self._quotas, self._counting, list(self._used)
        return other

    def take(self, other: QuotaUsage) -> None:
        """Take over the usage of a copy."""
        self._used = other._used

    def check(self, thing_id: str, before: Thing | None, after: Thing) -> None:
        """Reject a change that a quota has no room for, if it uses more: DittoError 403 ``things:quota.exceeded``."""
        more = _difference(before, after)
        for number in self._counting(thing_id.partition(":")[0]):
            quota, used = self._quotas[number], self._used[number]
            if more.things > 0 and 0 < quota.max_things < used.things + more.things:
                raise errors.quota_exceeded(thing_id, quota.name, f"{quota.max_things:,} things")
            if more.bytes > 0 and 0 < quota.max_bytes < used.bytes + more.bytes:
                raise errors.quota_exceeded(thing_id, quota.name, f"{quota.max_bytes:,} bytes of things")

    def add(self, thing_id: str, before: Thing | None, after: Thing) -> None:
        """Count a change."""
        more = _difference(before, after)
        for number in self._counting(thing_id.partition(":")[0]):
            used = self._used[number]
            self._used[number] = Usage(used.things + more.things, used.bytes + more.bytes)

    def _numbers(self, namespace: str) -> tuple[int, ...]:
        return tuple(number for number, one in enumerate(self._quotas) if matches_any(one.namespaces, namespace))


def _difference(before: Thing | None, after: Thing) -> Usage:
    """Return how much more a thing uses; a deleted one uses nothing."""
    old = None if before is None else before.content
    new = after.content
    return Usage((new is not None) - (old is not None), len(new or b"") - len(old or b""))
