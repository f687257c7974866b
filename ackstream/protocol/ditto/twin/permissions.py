"""Apply access rules to commands, replies and signals; as in Ditto, a thing without readable parts does not exist."""

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol import errors
from ackstream.protocol.ditto.acknowledgements import with_headers
from ackstream.protocol.ditto.envelopes import Envelope, decoded, json_text, raw
from ackstream.protocol.ditto.headers import CONDITION, IF_EQUAL, LIVE_CHANNEL_CONDITION
from ackstream.protocol.ditto.twin.access import OPEN, Access, Permission
from ackstream.protocol.ditto.twin.subscriptions import Publication
from ackstream.protocol.ditto.twin.things import NO_POLICIES, check_patch
from ackstream.protocol.errors import NOT_FOUND, AccessDeniedError
from ackstream.protocol.json import UNREADABLE

Kind = Literal[
    "create", "retrieve", "modify", "merge", "delete", "message",
    "many", "list", "search", "count", "messages", "whoami", "permissions",
]  # fmt: skip
"""The operation of a command, which decides the required access; the gateway has three without a command."""

MAX_IDS = 1_000
"""Maximum number of things of one query."""

_SEVERAL: dict[str, Kind] = {"/search/things": "search", "/search/things/count": "count"}
_IF_MATCH = "if-match"
_IF_IT_EXISTS = "*,*"
"""The meaning of ``*``, in a form that no client writes."""

_OF_THE_THING = (CONDITION, LIVE_CHANNEL_CONDITION)
_OF_THE_PART = (_IF_MATCH, "if-none-match", IF_EQUAL)
"""Headers that compare the addressed part; the answer to a failed one has its entity tag."""

_ETAG = "etag"
_BOX = re.compile(r"(/features/[^/]+)?/(inbox|outbox)/messages/")


def kind_of(command: Envelope) -> Kind:
    """Return the operation of a command or message."""
    topic = command.topic
    if topic.criterion == "messages":
        return "message"
    match topic.action:
        case "retrieve" if topic.thing_id == "_:_":
            return _SEVERAL.get(command.path, "many")
        case "create" | "retrieve" | "merge" | "delete" as action:
            return action
    return "modify"


def check_address(kind: Kind, command: Envelope) -> None:
    """Raise 400 for a path that does not fit its operation, and a query for several things that does not name them."""
    if (kind == "message" and not addresses_subject(command)) or (kind == "many" and command.path != "/"):
        raise errors.unknown_path(command.path)
    if kind not in ("many", "search", "count"):
        return
    value = decoded(command.value)
    if kind == "many":
        ids = value.get("thingIds") if isinstance(value, dict) else None
        if not isinstance(ids, list) or not all(isinstance(thing_id, str) for thing_id in ids):
            raise errors.json_field_missing("/thingIds")
        if len(ids) > MAX_IDS:
            raise errors.json_format_invalid(f"More than {MAX_IDS} things are queried at once.")
    elif not isinstance(value, dict):
        raise errors.json_type_invalid(json_text(value), "/value", "JsonObject")


def restrict(access: Access, subjects: tuple[str, ...], kind: Kind, command: Envelope) -> None:
    """Reject a command that its sender may not send; narrow a query for several things to the visible ones."""
    # AccessDeniedError 404 for (a part of) a thing that is not readable at all; 403 for a forbidden change
    if kind == "many":
        ids = decoded(command.value)["thingIds"]
        command.value = raw({"thingIds": [thing_id for thing_id in ids if access.knows(subjects, thing_id)]})
        if command.fields is not None and "*" not in access.whole_things(subjects):
            # the id decides which part of each thing is visible
            command.fields += ",thingId"
    elif kind in ("list", "search", "count"):
        # a filter may name any path, so that only fully readable things are searched; the restriction is not part of
        # the filter: a cursor, which has the filter, comes from the client
        patterns = access.whole_things(subjects)
        if "*" not in patterns:
            command.value = raw(decoded(command.value) | {"only": patterns})
    else:
        _check(access, subjects, kind, command)


def _check(access: Access, subjects: tuple[str, ...], kind: Kind, command: Envelope) -> None:
    thing_id, given = command.topic.thing_id, frozenset(command.headers)
    if kind == "retrieve":
        # whether a hidden part exists is hidden, too
        check_visible(access, subjects, thing_id, command.path)
        lacking = ""
    else:
        denied: str | None = command.path
        if kind == "merge":
            patch = decoded(command.value)
            check_patch(patch)
            denied = access.denied_by_merge(subjects, thing_id, command.path, patch)
            # of several members of one name a receiver could take another one than the rules did
            command.value = raw(patch)
        whole = access.may("WRITE", subjects, thing_id, command.path)
        if kind == "merge" and command.path == "/" and not whole:
            # a merge creates a thing that is missing: whole, not only the parts that the sender may change
            command.headers.setdefault(_IF_MATCH, _IF_IT_EXISTS)
        lacking = "" if whole or denied is None else f"WRITE of {denied}"
    if not lacking and any(name in given for name in _OF_THE_THING):
        # the result of a condition reveals every path it may name
        lacking = "" if access.may("READ", subjects, thing_id, "/") else "READ of /, for a condition"
    if not lacking and any(name in given for name in _OF_THE_PART):
        allowed = access.may("READ", subjects, thing_id, command.path)
        lacking = "" if allowed else f"READ of {command.path}, for an entity tag"
    if lacking:
        visible = kind != "retrieve" and access.knows(subjects, thing_id)
        error = errors.thing_not_modifiable(thing_id) if visible else errors.thing_not_found(thing_id)
        raise AccessDeniedError(error, lacking)


def conceal(access: Access, subjects: tuple[str, ...], kind: Kind, command: Envelope, reply: Envelope) -> None:
    """Reduce a reply to the parts that its receiver may read."""
    # The value of a query is reduced to its visible part. An entity tag, a short hash, confirms a guessed value: only
    # clients that may read the whole addressed value receive it. Raises 404 if nothing (to merge with) is visible.
    if kind == "many":
        if reply.topic.criterion == "commands" and "*" not in access.whole_things(subjects):
            things = decoded(reply.value) or ()
            seen = [access.visible(subjects, str(thing.get("thingId")), "/", thing) for thing in things]
            reply.value = raw([thing for thing in seen if thing is not UNSET])
        return
    thing_id = command.topic.thing_id
    if reply.status == errors.PRECONDITION_FAILED and _nothing_to_merge_with(reply.value):
        raise errors.thing_not_found(thing_id)
    if kind in ("list", "search", "count") or access.may("READ", subjects, thing_id, command.path):
        return
    reply.headers = _without_tag(reply.headers)
    reply.value = with_headers(reply, _without_tag)
    if kind != "retrieve":
        return
    if reply.topic.criterion == "commands" and reply.value is not UNSET:
        value = access.visible(subjects, thing_id, command.path, decoded(reply.value))
        if value is UNSET:
            raise errors.thing_not_found(thing_id)
        reply.value = raw(value)
    elif reply.status == NOT_FOUND:
        # where only hidden parts could be, absent and hidden parts look the same
        raise errors.thing_not_found(thing_id)


def _without_tag(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name != _ETAG}


def _nothing_to_merge_with(value: Raw | UnsetType) -> bool:
    """Return whether an error is that of the precondition that a merge was given; a device's may have any value."""
    error = decoded(value)
    return isinstance(error, dict) and f"'{_IF_IT_EXISTS}'" in str(error.get("message"))


def check_answer(access: Access, subjects: tuple[str, ...], answer: Envelope, *, event: bool) -> None:
    """Reject an answer to a signal that its sender cannot have seen, or a live event it may not send. Raises 404."""
    thing_id = answer.topic.thing_id
    if event and not access.may("WRITE", subjects, thing_id, answer.path):
        raise AccessDeniedError(errors.thing_not_found(thing_id), f"WRITE of {answer.path}")
    if not event and not access.knows(subjects, thing_id):
        raise AccessDeniedError(errors.thing_not_found(thing_id), "READ of any part")


def check_visible(access: Access, subjects: tuple[str, ...], thing_id: str, path: str) -> None:
    """Reject a client that may read nothing of a part of a thing. Raises 404."""
    if not access.knows(subjects, thing_id, path):
        raise AccessDeniedError(errors.thing_not_found(thing_id), f"READ of {path}")


class Asked(msgspec.Struct):
    """One question of ``/checkPermissions``. Source: Eclipse Ditto, ``CheckPermissionsRoute``."""

    resource: str
    entity_id: str = msgspec.field(name="entityId")
    has_permissions: tuple[Permission, ...] = msgspec.field(name="hasPermissions")


MAX_ASKED = 500
_RESOURCE = re.compile(r"(thing|message):(/.*)", re.DOTALL)


def check_permissions(access: Access, subjects: tuple[str, ...], body: bytes) -> dict[str, bool]:
    """Answer the questions of a client about its rights, each by its name. Raises 400, and 501 for a policy."""
    try:
        asked = msgspec.json.decode(body, type=dict[str, Asked])
    except UNREADABLE as error:
        raise errors.json_format_invalid(f"{error}.") from error
    if len(asked) > MAX_ASKED:
        raise errors.json_format_invalid(f"There are more than {MAX_ASKED} entries.")
    answers = {}
    for name, one in asked.items():
        found = _RESOURCE.fullmatch(one.resource)
        if found is None:
            if one.resource.startswith("policy:"):
                raise errors.not_available(f"The resource <{one.resource}>", NO_POLICIES)
            raise errors.json_format_invalid(
                f"The resource '{one.resource}' of '{name}' is not thing:/… or message:/…."
            )
        path = found[2]
        answers[name] = all(access.may(one_of, subjects, one.entity_id, path) for one_of in one.has_permissions)
    return answers


def addresses_subject(message: Envelope) -> bool:
    """Return whether the path of a message (``/inbox/messages/ask``) is that of its subject."""
    # access is granted by path, receivers act on the subject; source: Eclipse Ditto, MessageCommand#getResourcePath
    box = _BOX.match(message.path)
    return box is not None and message.path[box.end() :] == message.topic.subject


def seen_by(access: Access, subjects: tuple[str, ...], signal: Publication) -> Publication | None:
    """Return the visible part of a signal: of an event the readable part, others entirely or not at all (``None``)."""
    envelope = signal.envelope
    # a producer may have written any path
    path = "/" if signal.stream == "messages" and not addresses_subject(envelope) else envelope.path
    if access is OPEN or access.may("READ", subjects, signal.thing_id, path):
        return signal
    if signal.stream not in ("events", "live-events") or envelope.value is UNSET:
        return None
    value = access.visible(subjects, signal.thing_id, envelope.path, msgspec.json.decode(envelope.value))
    if value is UNSET:
        return None
    return msgspec.structs.replace(signal, envelope=msgspec.structs.replace(envelope, value=raw(value)))
