"""JSON Schemas of the types of ``protocol/``: what msgspec derives, in the dialect of AsyncAPI 3 (draft 07).

A docstring of a type becomes the description of its schema, each ``:ivar`` that of a property. Readers of ackstream
ignore members that they do not know, so no schema forbids them: a later release may add some.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.contract.formats import Json

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
        # of a member that has another name on the wire the type says what it is
        if name in properties and "$ref" not in properties[name]:
            properties[name] = properties[name] | {"description": plain(text)}
    return found


def plain(text: str) -> str:
    """Return the text of a docstring without its markup, and without the sources of the rules, as one line."""
    shown = _SOURCES.sub("", _ROLE.sub(r"`\1`", text)).replace("``", "`")
    return " ".join(shown.split())
