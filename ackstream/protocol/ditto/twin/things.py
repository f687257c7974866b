"""Resources: the part of a thing that a path denotes, the values that are valid there, and the part an event reports.

Source of the rules: Eclipse Ditto, ``ThingModifyPathMatcher``, ``ThingsModelFactory``, ``Thing#toJson``,
``ThingEventToThingConverter``, ``TopicPathPlaceholder``, ``ResourcePlaceholder``, ``FeaturePlaceholder``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from ackstream.protocol import errors, json
from ackstream.protocol.ditto.envelopes import Envelope, json_text
from ackstream.protocol.errors import CATALOGUE, DittoError, shown
from ackstream.protocol.json import keys_of

Kind = Literal[
    "thing", "policyId", "definition", "attributes", "attribute", "features", "feature", "featureDefinition",
    "featureProperties", "featureProperty", "featureDesiredProperties", "featureDesiredProperty",
]  # fmt: skip

MEMBERS = ("thingId", "policyId", "definition", "attributes", "features")
"""The members of a thing in the order they are written; other members of its JSON are ignored."""

NO_POLICIES = "There are no policies: the access rules of the gateway decide the rights of clients. Leave it out."
POLICY_MEMBERS = ("_policy", "_copyPolicyFrom")

_PARTS: dict[str, tuple[Kind, Kind]] = {
    "properties": ("featureProperties", "featureProperty"),
    "desiredProperties": ("featureDesiredProperties", "featureDesiredProperty"),
}

_MEMBERS_OF_FEATURE: dict[str, Kind] = {"definition": "featureDefinition"}
_MEMBERS_OF_FEATURE |= {name: whole for name, (whole, _) in _PARTS.items()}

_NAME = r"[^\x00-\x1f\x7f-\xff/]+"
_ID = re.compile(rf"(?:[a-zA-Z]\w*(?:[.-][a-zA-Z]\w*)*)?:{_NAME}", re.ASCII)
_MAX_ID = 256
_DEFINITION = re.compile(r"[_a-zA-Z0-9\-.]+:[_a-zA-Z0-9\-.]+:[_a-zA-Z0-9\-.]+|https?://[^\s/]\S*")


class Resource(msgspec.Struct, frozen=True):
    """A part of a thing; ``keys`` lead to it from the top; ``feature`` is the feature's id if it is (in) one.

    ``pointer`` leads to it within the attributes or properties if it is one of them, for error texts.
    """

    kind: Kind
    keys: json.Keys
    feature: str | None = None
    pointer: str | None = None

    @property
    def path(self) -> str:
        """The path as it is written in events and responses."""
        return json.write_pointer(self.keys)


def not_found(thing_id: str, part: Resource) -> DittoError:
    """Return the error for a thing that lacks a part."""
    named = [value for value in (thing_id, part.feature, part.pointer) if value is not None]
    return CATALOGUE[f"{part.kind}_not_found"](*named)


@lru_cache(maxsize=4096)
def resource(path: str) -> Resource:
    """Return the resource of a path. Raises 400 ``protocoladapter:unknown.path`` or ``json.pointer.invalid``."""
    keys = json.parse_pointer(path)
    match keys:
        case ():
            return Resource("thing", keys)
        case ("policyId" | "definition" | "attributes" | "features" as kind,):
            return Resource(kind, keys)
        case ("attributes", *rest):
            return Resource("attribute", keys, None, json.write_pointer(rest))
        case ("features", feature):
            return Resource("feature", keys, feature)
        case ("features", feature, "definition"):
            return Resource("featureDefinition", keys, feature)
        case ("features", feature, part, *rest) if part in _PARTS:
            return Resource(_PARTS[part][bool(rest)], keys, feature, json.write_pointer(rest) if rest else None)
    raise errors.unknown_path(path)


def thing_content(value: Any, thing_id: str) -> dict[str, Any]:
    """Return a thing's JSON as it is stored: known members in order, with its id. Raises 400, and 501 for a policy."""
    if not isinstance(value, dict):
        raise _wrong(value, "/", "JsonObject")
    check_policy_members(value)
    if value.get("thingId", thing_id) != thing_id:
        raise errors.id_not_settable()
    for name in MEMBERS[1:]:
        if name in value:
            check(Resource(name, (name,)), value[name])  # type: ignore[arg-type]
    return {name: value.get(name, thing_id) for name in MEMBERS if name == "thingId" or name in value}


_UNAVAILABLE_FIELDS = {"_policy": NO_POLICIES, "_metadata": "No metadata is stored with things."}


def select_of_thing(thing: dict[str, Any], selector: str) -> Any:
    """Reduce a whole thing to the fields of a selector, which :func:`check_fields_of_thing` checks."""
    check_fields_of_thing(selector)
    return json.select(thing, selector)


def check_fields_of_thing(selector: str) -> None:
    """Reject a selector of whole things that names a field which they do not have here. Raises 501, or 400."""
    for path in json.parse_selector(selector):
        if reason := _UNAVAILABLE_FIELDS.get(path[0]):
            raise errors.not_available(f"The field <{path[0]}>", reason)


def check_policy_members(thing: Mapping[str, Any]) -> None:
    """Reject a thing that brings a policy, which would be lost. Raises 501."""
    for name in POLICY_MEMBERS:
        if name in thing:
            raise errors.not_available(f"The member <{name}> of a thing", NO_POLICIES)


def check_policy_id(policy_id: Any, thing_id: str) -> None:
    """Raise 501 for a policy that is not the thing's own: its sender believes that it protects the thing."""
    # other values than texts are rejected elsewhere, by their place
    if isinstance(policy_id, str) and policy_id != thing_id:
        raise errors.not_available(f"The policy <{shown(policy_id)}> of a thing", NO_POLICIES)


def check(part: Resource, value: Any) -> None:
    """Check a value for the part of a thing where it is to be stored. Raises 400."""
    match part.kind:
        case "policyId":
            if not isinstance(value, str):
                raise _wrong(value, "/policyId", "String")
            check_id(value)
        case "definition" if value is not None:
            _check_definition(value, part.path)
        case "featureDefinition" if value is not None:
            if not isinstance(value, list) or not value:
                raise _wrong(value, part.path, "JsonArray")
            for identifier in value:
                _check_definition(identifier, part.path)
        case "features" | "feature" | "attributes" | "featureProperties" | "featureDesiredProperties":
            _check_object(part, value)


MAX_PATCH_MEMBERS = 10_000


def check_patch(patch: Any) -> None:
    """Reject a patch with more members than a thing has; each is read several times. Raises 400."""
    if json.members(patch, MAX_PATCH_MEMBERS) > MAX_PATCH_MEMBERS:
        raise errors.merge_invalid(f"It has more than {MAX_PATCH_MEMBERS} members.")


def check_id(thing_id: str) -> None:
    """Check the id of an entity: ``namespace:name``. Raises 400 ``things:id.invalid``."""
    if len(thing_id) > _MAX_ID or _ID.fullmatch(thing_id) is None:
        raise errors.id_invalid(thing_id)


def _check_definition(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise _wrong(value, path, "String")
    if _DEFINITION.fullmatch(value) is None:
        raise errors.definition_invalid(value)


def _check_object(part: Resource, value: Any) -> None:
    """Accept an object, or null for an empty one."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise _wrong(value, part.path, "JsonObject")
    if part.kind == "features":
        for name, feature in value.items():
            check(Resource("feature", (*part.keys, name)), feature)
    elif part.kind == "feature":
        for name, kind in _MEMBERS_OF_FEATURE.items():
            check(Resource(kind, (*part.keys, name)), value.get(name))


def _wrong(value: Any, path: str, kind: str) -> Exception:
    return errors.json_type_invalid(json_text(value), path, kind)


def partial_thing(event: Envelope) -> dict[str, Any]:
    """Return the part of the thing that an event reports: id, revision, timestamp and the change in its place."""
    # parts that are deleted, or removed by a merge patch, are absent; other signals have no partial thing
    topic = event.topic
    if topic.criterion != "events":
        return {}
    thing: dict[str, Any] = {}
    if event.value is not msgspec.UNSET and topic.action != "deleted":
        value = msgspec.json.decode(event.value)
        change = json.put({}, keys_of(event.path), without_nulls(value) if topic.action == "merged" else value)
        thing = change if isinstance(change, dict) else {}
    thing["thingId"] = topic.thing_id
    if event.revision is not None:
        thing["_revision"] = event.revision
    if event.timestamp is not None:
        thing["_modified"] = event.timestamp
    return thing


def without_nulls(value: Any) -> Any:
    """Return a merge patch without the parts it deletes."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return {} if value is None else value


def merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two JSON objects merged recursively; where both have a value, ``over`` wins."""
    result = dict(base)
    for key, value in over.items():
        found = result.get(key)
        result[key] = merged(found, value) if isinstance(found, dict) and isinstance(value, dict) else value
    return result


def placeholders(signal: Envelope, thing: Mapping[str, Any]) -> dict[str, Mapping[str, str | list[str]]]:
    """Return the placeholders of a signal for filters by prefix; ``thing`` is the partial thing that it reports."""
    found = signal.topic.placeholders
    kind = "message" if signal.topic.criterion == "messages" else "thing"
    return {
        **found,
        "entity": found["thing"],
        "resource": {"type": kind, "path": signal.path},
        "feature": {"id": _features(signal.path, thing)},
    }


def _features(path: str, thing: Mapping[str, Any]) -> list[str]:
    """Return the features that a signal concerns: the one in its path, else those whose change it reports."""
    match keys_of(path):
        case ("features", feature, *_):
            return [feature]
    features = thing.get("features")
    return list(features) if isinstance(features, dict) else []
