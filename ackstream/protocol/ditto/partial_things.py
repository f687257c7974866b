"""What a signal tells of its thing, and of itself: the facts that filters are evaluated on.

Source of the rules: Eclipse Ditto, ``ThingEventToThingConverter``, ``TopicPathPlaceholder``, ``ResourcePlaceholder``,
``FeaturePlaceholder``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.protocol.ditto.envelopes import Envelope


def partial_thing(event: Envelope) -> dict[str, Any]:
    """Return the part of the thing that an event tells: id, revision, timestamp and what has changed, at its place.

    What was deleted is not there, nor is what a merge patch takes away. Signals that are no events tell nothing.
    """
    topic = event.topic
    if topic.criterion != "events":
        return {}
    thing: dict[str, Any] = {}
    if event.value is not msgspec.UNSET and topic.action != "deleted":
        value = msgspec.json.decode(event.value)
        thing = _placed(keys(event.path), without_nulls(value) if topic.action == "merged" else value)
    thing["thingId"] = topic.thing_id
    if event.revision is not None:
        thing["_revision"] = event.revision
    if event.timestamp is not None:
        thing["_modified"] = event.timestamp
    return thing


def keys(pointer: str) -> list[str]:
    """Return the keys of a JSON pointer; none for the whole."""
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/") if key]


def _placed(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value if isinstance(value, dict) else {}


def without_nulls(value: Any) -> Any:
    """Return a merge patch without what it deletes."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return {} if value is None else value


def merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two JSON objects as one, object by object; elsewhere ``over`` wins."""
    result = dict(base)
    for key, value in over.items():
        found = result.get(key)
        result[key] = merged(found, value) if isinstance(found, dict) and isinstance(value, dict) else value
    return result


def placeholders(signal: Envelope, thing: Mapping[str, Any]) -> dict[str, Mapping[str, str | list[str]]]:
    """Return what filters may ask about a signal, by prefix (``topic``, ``resource``, ``entity`` …).

    :param thing: what the signal tells of the thing
    """
    topic = signal.topic
    named = {
        "full": str(topic),
        "namespace": topic.namespace,
        "entityName": topic.entity,
        "group": topic.group,
        "channel": topic.channel,
        "criterion": topic.criterion,
        "action": topic.action,
        "subject": topic.subject,
        "action-subject": topic.action or topic.subject,
    }
    identity = {"id": topic.thing_id, "namespace": topic.namespace, "name": topic.entity}
    kind = "message" if topic.criterion == "messages" else "thing"
    return {
        "topic": {name: text for name, text in named.items() if text is not None},
        "resource": {"type": kind, "path": signal.path},
        "entity": identity,
        "thing": identity,
        "feature": {"id": _features(signal.path, thing)},
    }


def _features(path: str, thing: Mapping[str, Any]) -> list[str]:
    """Return the features a signal is about: the one of its path, else those whose change it tells."""
    match keys(path):
        case ["features", feature, *_]:
            return [feature]
    features = thing.get("features")
    return list(features) if isinstance(features, dict) else []
