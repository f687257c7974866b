"""The partial thing that an event reports, and the placeholders of a signal: the facts that filters are evaluated on.

Source of the rules: Eclipse Ditto, ``ThingEventToThingConverter``, ``TopicPathPlaceholder``, ``ResourcePlaceholder``,
``FeaturePlaceholder``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.protocol.pointers import Keys, keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.protocol.ditto.envelopes import Envelope


def partial_thing(event: Envelope) -> dict[str, Any]:
    """Return the part of the thing that an event reports: id, revision, timestamp and the change in its place.

    Deleted parts are absent, as are those that a merge patch removes. Other signals report nothing.
    """
    topic = event.topic
    if topic.criterion != "events":
        return {}
    thing: dict[str, Any] = {}
    if event.value is not msgspec.UNSET and topic.action != "deleted":
        value = msgspec.json.decode(event.value)
        thing = _nested(keys_of(event.path), without_nulls(value) if topic.action == "merged" else value)
    thing["thingId"] = topic.thing_id
    if event.revision is not None:
        thing["_revision"] = event.revision
    if event.timestamp is not None:
        thing["_modified"] = event.timestamp
    return thing


def _nested(path: Keys, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value if isinstance(value, dict) else {}


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
    """Return the placeholders of a signal for filters, by prefix (``topic``, ``resource``, ``entity`` …).

    :param thing: the partial thing that the signal reports
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
    """Return the features that a signal concerns: the one in its path, else those whose change it reports."""
    match keys_of(path):
        case ("features", feature, *_):
            return [feature]
    features = thing.get("features")
    return list(features) if isinstance(features, dict) else []
