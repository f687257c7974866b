"""JSON Schemas of values, in the dialect of AsyncAPI 3 (draft 07): of types of ``protocol/``, and of Ditto messages.

The parts that all kinds of Ditto messages share are in ``schemas.json``. A docstring of a type becomes the
description of its schema, each ``:ivar`` that of a property. Readers of ackstream ignore members that they do not know,
so no schema forbids them: a later release may add some.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ackstream.protocol.ditto.labels import BUILT_IN, PATTERN
from ackstream.protocol.ditto.topics import COMMAND_ACTIONS, EVENT_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        # all are pairs of the same type
        found["items"] = found.pop("prefixItems")[0]
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


_SHARED: Json = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())
HEADERS, ERROR, ENTRY, _STATUS, _ENTRIES, _PARTS = (
    _SHARED[name] for name in ("Headers", "DittoError", "AckEntry", "status", "entries", "parts")
)
LABEL: Json = {"type": "string", "pattern": f"^{PATTERN}$", "description": "The label of an acknowledgement."}
HEADERS["properties"]["requested-acks"]["items"] = {"type": "string", "pattern": LABEL["pattern"]}
_ENTRIES["propertyNames"] = LABEL

_CHANNEL = "(?:twin|live)"


def _message(about: str, topic: str, *required: str, **parts: Json) -> Json:
    """Describe a kind of message by the pattern of its topic path, behind the thing."""
    own = {"topic": {"type": "string", "pattern": f"^[^/]*/[^/]+/things/{topic}", "description": "The topic path."}}
    found: Json = {
        "type": "object",
        "description": about,
        "required": ["topic", "path", *required],
        "properties": {**_PARTS, **own, **parts},
    }
    if "status" not in required:
        # it would be an answer
        found["not"] = {"required": ["status"]}
    return found


_COMMANDS = f"{_CHANNEL}/commands/(?:{'|'.join(COMMAND_ACTIONS)})/?$"
_MESSAGES = "live/messages/.+$"
_ISSUED = f"(?!(?:{'|'.join(BUILT_IN)})$){PATTERN}"

DITTO_SCHEMAS: dict[str, Json] = {
    "Headers": HEADERS,
    "DittoError": ERROR,
    "AckEntry": ENTRY,
    "Command": _message("A command to a thing: to its twin, or live to the device.", _COMMANDS),
    "ThingMessage": _message("A message to or from a thing or a feature; the last part is its subject.", _MESSAGES),
    "Acknowledgement": _message(
        "The acknowledgement of one party under its label, the last part of the topic path.",
        f"{_CHANNEL}/acks/{_ISSUED}$",
        "status",
        status=_STATUS,
        value={"description": "The payload of the party: any JSON value."},
    ),
    "Aggregate": _message(
        "Acknowledgements of several labels; the status is that of all together: 424 if some failed.",
        f"{_CHANNEL}/acks/?$",
        "value",
        "status",
        status=_STATUS,
        value=_ENTRIES,
    ),
    "CommandResponse": _message("The response to a command.", _COMMANDS, "status", status=_STATUS),
    "MessageResponse": _message("The response to a message.", _MESSAGES, "status", status=_STATUS),
    "ErrorResponse": _message(
        "Why a command or message has failed.",
        f"{_CHANNEL}/errors/?$",
        "value",
        "status",
        status=_STATUS | {"minimum": ERROR["properties"]["status"]["minimum"]},
        value=reference("DittoError"),
    ),
    "ThingEvent": _message(
        "A change of a thing; the path and the value are the changed part.",
        f"{_CHANNEL}/events/(?:{'|'.join(EVENT_ACTIONS)})/?$",
    ),
}
"""The schemas of all kinds of Ditto messages, by topic path and status, and of their parts, by name."""
