"""Command responses: whether one answers a given command.

Source of the rules: Eclipse Ditto, ``CommandAndCommandResponseMatchingValidator``; the names of signals are those of
its command classes (``modifyAttribute``, ``thingMessage`` …).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import shown

if TYPE_CHECKING:
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.requests import Request


def response_matches(request: Request, response: Envelope) -> str | None:
    """Return why a response is not valid for a live or smart command; ``None``: it is.

    Compared are the correlation-id (the same, or with a suffix; where both have one), the type, the thing and the
    resource path. Acknowledgements and errors have no type and no path of their own.
    """
    topic = response.topic
    wanted, found = request.headers.get(CORRELATION_ID), response.headers.get(CORRELATION_ID)
    if wanted is not None and found is not None and not str(found).startswith(str(wanted)):
        return _differs("Correlation ID", found, wanted)
    typed = topic.criterion not in ("acks", "errors")
    if typed:
        # requests that are validated concern things
        wanted = _type("commands", "things", request.criterion, request.action, request.subject, request.path)
        found = _type("responses", topic.group, topic.criterion, topic.action, topic.subject, response.path)
        if found.replace("responses:", "commands:") != wanted:
            found = found.replace("Message", "ResponseMessage")
            return f"Type of live response <{found}> is not related to type of command <{wanted}>."
    if topic.thing_id != request.thing_id:
        return _differs("Entity ID", topic.thing_id, request.thing_id)
    wanted, found = request.path or "/", response.path or "/"
    if typed and request.criterion == "commands" and found != wanted:
        return _differs("Resource path", found, wanted)
    return None


def _differs(what: str, found: object, wanted: object) -> str:
    return (
        f"{what} of live response <{shown(found)}> differs from {what[0].lower() + what[1:]} of command"
        f" <{shown(wanted)}>."
    )


def message_headers(envelope: Envelope) -> dict[str, str]:
    """Return the headers that a message has besides those of its envelope: direction, subject, thing, feature."""
    topic = envelope.topic
    match envelope.path.split("/"):
        case ["", "features", feature, box, *_]:
            of_feature = {"ditto-message-feature-id": feature}
        case ["", box, *_]:
            of_feature = {}
        case _:
            box, of_feature = "", {}
    return {
        "ditto-message-direction": "FROM" if box == "outbox" else "TO",
        "ditto-message-subject": topic.subject or "",
        "ditto-message-thing-id": topic.thing_id,
    } | of_feature


_RESOURCES = {"policyId": "PolicyId", "definition": "ThingDefinition", "features": "Features"}
_FEATURE_RESOURCES = {
    "definition": ("FeatureDefinition", "FeatureDefinition"),
    "properties": ("FeatureProperties", "FeatureProperty"),
    "desiredProperties": ("FeatureDesiredProperties", "FeatureDesiredProperty"),
}


def _type(side: str, group: str, criterion: str, action: str | None, subject: str | None, path: str) -> str:
    """Return Ditto's name of a signal's type, such as ``things.commands:modifyAttribute``."""
    segments = [segment for segment in path.split("/") if segment]
    if criterion == "messages":
        claim = "claimMessage" if subject == "claim" else "thingMessage"
        return f"messages.{side}:{'featureMessage' if segments[:1] == ['features'] else claim}"
    if action == "merge":
        name = "mergeThing"
    elif action == "migrate":
        name = "migrateThingDefinition"
    else:
        name = f"{action}{_resource(segments)}"
    return f"{group}.{side}:{name}"


def _resource(segments: list[str]) -> str:
    match segments:
        case ["attributes"]:
            return "Attributes"
        case ["attributes", *_]:
            return "Attribute"
        case ["features", _]:
            return "Feature"
        case ["features", _, part, *rest] if part in _FEATURE_RESOURCES:
            return _FEATURE_RESOURCES[part][bool(rest)]
        case [part]:
            return _RESOURCES.get(part, "Thing")
    return "Thing"
