"""Apply the access rules to commands, replies and signals.

As in Ditto, a thing without any readable part does not exist for the subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.gateway.errors import thing_not_modifiable
from ackstream.protocol.ditto.access import OPEN
from ackstream.protocol.ditto.envelopes import json_text, raw
from ackstream.protocol.ditto.thing_errors import thing_not_found
from ackstream.protocol.json import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.gateway.operations import Kind
    from ackstream.protocol.ditto.access import Access
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.subscriptions import Publication


CONDITIONS = ("condition", "live-channel-condition")
_NOTHING = 'eq(thingId,"")'


def restrict(access: Access, subjects: tuple[str, ...], kind: Kind, command: Envelope) -> None:
    """Reject a command that its sender may not send; narrow a query for several things to the visible ones.

    :raises DittoError: 404 for a thing without any readable part, 403 for a change that is not permitted
    """
    if kind == "many":
        ids = _decoded(command.value)["thingIds"]
        command.value = raw({"thingIds": [thing_id for thing_id in ids if access.knows(subjects, thing_id)]})
        if command.fields is not None and "*" not in access.whole_things(subjects):
            # the id decides which part of each thing is visible
            command.fields += ",thingId"
    elif kind in ("search", "count"):
        _narrow(access, subjects, command)
    else:
        _check(access, subjects, kind, command)


def _check(access: Access, subjects: tuple[str, ...], kind: Kind, command: Envelope) -> None:
    thing_id = command.topic.thing_id
    if kind == "retrieve":
        allowed = access.knows(subjects, thing_id)
    else:
        # a merge patch changes the paths of those of its values that are not objects
        start = "" if command.path == "/" else command.path
        paths = _leaves(start, _decoded(command.value)) if kind == "merge" else [command.path]
        allowed = all(access.may("WRITE", subjects, thing_id, path) for path in paths)
    if allowed and any(name in command.headers for name in CONDITIONS):
        # the result of a condition reveals every path it may name
        allowed = access.may("READ", subjects, thing_id, "/")
    if not allowed:
        visible = kind != "retrieve" and access.knows(subjects, thing_id)
        raise thing_not_modifiable(thing_id) if visible else thing_not_found(thing_id)


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}/{escape(key)}", inner)
    else:
        yield path or "/"


def _narrow(access: Access, subjects: tuple[str, ...], command: Envelope) -> None:
    """Restrict a search to fully readable things, since a filter may name any path in them."""
    patterns = access.whole_things(subjects)
    if "*" in patterns:
        return
    wanted = _decoded(command.value)
    visible = [f"like(thingId,{json_text(pattern)})" for pattern in patterns] or [_NOTHING]
    only = visible[0] if len(visible) == 1 else f"or({','.join(visible)})"
    wanted["filter"] = f"and({wanted['filter']},{only})" if "filter" in wanted else only
    command.value = raw(wanted)


def visible_part(access: Access, subjects: tuple[str, ...], kind: Kind, command: Envelope, reply: Envelope) -> Any:
    """Return the visible part of the value of a query's reply.

    :raises DittoError: 404 if nothing is visible
    """
    if reply.value is UNSET or reply.topic.criterion != "commands":
        return reply.value
    if kind == "retrieve":
        thing_id = command.topic.thing_id
        if access.may("READ", subjects, thing_id, command.path):
            return reply.value
        value = access.visible(subjects, thing_id, command.path, _decoded(reply.value))
        if value is UNSET:
            raise thing_not_found(thing_id)
        return raw(value)
    if kind == "many" and "*" not in access.whole_things(subjects):
        things = _decoded(reply.value)
        seen = [access.visible(subjects, str(thing.get("thingId")), "/", thing) for thing in things]
        return raw([thing for thing in seen if thing is not UNSET])
    return reply.value


def _decoded(value: Raw | UnsetType) -> Any:
    return None if value is UNSET else msgspec.json.decode(value)


def seen_by(access: Access, subjects: tuple[str, ...], signal: Publication) -> Publication | None:
    """Return the visible part of a signal, or ``None``.

    An event is reduced to the readable part of the change; commands and messages are visible entirely or not at all.
    """
    envelope = signal.envelope
    if access is OPEN or access.may("READ", subjects, signal.thing_id, envelope.path):
        return signal
    if signal.stream not in ("events", "live-events") or envelope.value is UNSET:
        return None
    value = access.visible(subjects, signal.thing_id, envelope.path, msgspec.json.decode(envelope.value))
    if value is UNSET:
        return None
    return msgspec.structs.replace(signal, envelope=msgspec.structs.replace(envelope, value=raw(value)))
