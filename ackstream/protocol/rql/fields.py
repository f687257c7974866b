"""What a property name of a filter means, and the values a thing has there.

Source of the rule: Eclipse Ditto, ``ModelBasedThingsFieldExpressionFactory``, ``FieldExpressionUtil`` and
``JsonObject#getValueFlatteningArrays``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.protocol.rql.errors import json_pointer_invalid, rql_expression_invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIMPLE = frozenset(
    {"thingId", "policyId", "definition", "_namespace", "_revision", "_created", "_modified", "_metadata"}
)
_ENTITY_ID = frozenset({"id", "namespace", "name"})
PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "topic": frozenset(
        {
            "full",
            "namespace",
            "entityName",
            "group",
            "channel",
            "criterion",
            "action",
            "subject",
            "action-subject",
        }
    ),
    "resource": frozenset({"type", "path"}),
    "entity": _ENTITY_ID,
    "thing": _ENTITY_ID,
    "feature": frozenset({"id"}),
}
"""Names a property may have after a prefix. ``time:`` is none of them: it stands only where a literal stands."""

_IN_FEATURE = re.compile("features/[^/]+/(?:definition/?|(?:properties|desiredProperties)/.+)")
_FEATURE_OR_PART = re.compile("features/[^/]+(?:/(?:properties|desiredProperties)/?)?")


class Path(msgspec.Struct, frozen=True):
    """A place in the thing's JSON: the keys from the top."""

    keys: tuple[str, ...]


class SignalFact(msgspec.Struct, frozen=True):
    """A placeholder about the signal: ``topic:action`` is prefix ``topic``, name ``action``."""

    prefix: str
    name: str


class Found(msgspec.Struct, frozen=True):
    """The values at a path; ``in_array``: there was an array on the way, and they are what its elements have."""

    values: tuple[Any, ...]
    in_array: bool


@lru_cache(maxsize=1024)
def field_of(property_: str, *, whole: bool) -> Path | SignalFact:
    """Give the field a property names; ``whole``: for exists and empty, where a feature or its properties count too.

    :raises DittoError: 400 ``rql.expression.invalid`` for an unknown name,
        ``json.pointer.invalid`` for an empty segment
    """
    name = property_.removeprefix("/")
    if name in _SIMPLE:
        return Path((name,))
    prefix, colon, rest = name.partition(":")
    if colon and rest in PLACEHOLDERS.get(prefix, ()):
        return SignalFact(prefix, rest)
    known = name.startswith(("attributes/", "_metadata/")) or _IN_FEATURE.fullmatch(name) is not None
    if not known and not (whole and _FEATURE_OR_PART.fullmatch(name) is not None):
        raise rql_expression_invalid(f"Unknown property name: {name}")
    if "//" in name:
        raise json_pointer_invalid(f"/{name}")
    # of the two escapes of a JSON pointer Ditto knows ~0 only
    return Path(tuple(key.replace("~0", "~") for key in name.split("/") if key))


def find(path: Path, thing: dict[str, Any]) -> Found:
    """Give what the thing has at the path. An array on the way stands for the objects in it."""
    if path.keys == ("_namespace",):
        # part of the id, which is always there when the field of that name may not be
        thing_id = thing.get("thingId")
        if isinstance(thing_id, str):
            return Found((thing_id.partition(":")[0],), in_array=False)
    places: list[Any] = [thing]
    in_array = False
    for key in path.keys:
        objects: list[dict[str, Any]] = []
        for place in places:
            if isinstance(place, dict):
                objects.append(place)
            elif isinstance(place, list):
                in_array = True
                objects.extend(element for element in place if isinstance(element, dict))
        places = [found[key] for found in objects if key in found]
    return Found(tuple(places), in_array=in_array)
