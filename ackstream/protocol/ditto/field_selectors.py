"""Field selectors: the parts of a thing that a requester wants to see.

Source of the rules: Eclipse Ditto, ``ImmutableJsonFieldSelectorFactory`` and ``Thing#toJson``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from msgspec import UNSET

from ackstream.protocol import json
from ackstream.protocol.ditto.errors import not_available
from ackstream.protocol.ditto.things import NO_POLICIES
from ackstream.protocol.errors import BAD_REQUEST, DittoError, shown
from ackstream.protocol.rql.parser import MAX_DEPTH

WILDCARD = "*"
"""Any feature in a field selector: ``features/*/properties``."""

UNAVAILABLE_FIELDS = {
    "_policy": NO_POLICIES,
    "_metadata": "No metadata is stored with things.",
}

_SELECTED = re.compile(r"([^(),]*)([(),]|$)")


def select(value: Any, selector: str) -> Any:
    """Reduce a JSON object to the fields of a selector, in the object's own order; return other values unchanged.

    :param selector: such as ``thingId,attributes(model,location/city),features/*/properties``
    :raises DittoError: as :func:`parse_selector` does
    """
    paths = parse_selector(selector)
    return _select(value, paths) if isinstance(value, dict) else value


@lru_cache(maxsize=512)
def parse_selector(selector: str) -> tuple[json.Keys, ...]:
    """Return the keys of the fields that a selector names.

    :raises DittoError: 400 ``json.fieldselector.invalid``, ``json.pointer.invalid``
    """
    if not selector.strip() or selector.count("(") != selector.count(")") or selector.count("(") > MAX_DEPTH:
        raise _invalid(selector)
    paths: list[json.Keys] = []
    outer: list[json.Keys] = [()]
    closed = False
    for text, end in _SELECTED.findall(selector):
        # nothing but the next field follows a closing parenthesis
        if closed and (text.strip() or end == "("):
            raise _invalid(selector)
        if end == "(":
            outer.append(outer[-1] + json.parse_pointer(text.lstrip()))
        elif keys := json.parse_pointer(text.strip()):
            paths.append(outer[-1] + keys)
        closed = end == ")"
        if closed:
            outer.pop()
        if not outer:
            raise _invalid(selector)
    return tuple(dict.fromkeys(paths))


def select_of_thing(thing: dict[str, Any], selector: str) -> Any:
    """Reduce a whole thing to the fields of a selector.

    :raises DittoError: as :func:`check_fields_of_thing` does
    """
    check_fields_of_thing(selector)
    return select(thing, selector)


def check_fields_of_thing(selector: str) -> None:
    """Reject a selector of whole things that names a field which they do not have here.

    :raises DittoError: as :func:`parse_selector` does; 501, it names ``_policy`` or ``_metadata``
    """
    for path in parse_selector(selector):
        if reason := UNAVAILABLE_FIELDS.get(path[0]):
            raise not_available(f"The field <{path[0]}>", reason)


def _select(value: dict[str, Any], paths: tuple[json.Keys, ...], *, depth: int = 0) -> dict[str, Any]:
    result = {}
    for key, entry in value.items():
        deeper = [path[1:] for path in paths if path[0] == key or (path[0] == WILDCARD and depth == 1)]
        if () in deeper:
            result[key] = entry
        elif isinstance(entry, dict) and any(_leads(entry, path) for path in deeper):
            # a path that leads nowhere creates no empty objects
            result[key] = _select(entry, tuple(deeper), depth=depth + 1)
    return result


def _leads(value: Any, path: json.Keys) -> bool:
    if WILDCARD in path[:1] and isinstance(value, dict):
        return any(_leads(entry, path[1:]) for entry in value.values())
    return json.find(value, path[:1]) is not UNSET and (len(path) == 1 or _leads(value[path[0]], path[1:]))


def _invalid(selector: str) -> DittoError:
    return DittoError(
        BAD_REQUEST,
        "json.fieldselector.invalid",
        f"The field selector <{shown(selector)}> is invalid!",
        "Check, for example, if the amount of opening parentheses '(' matches the amount of closing ones ')'.",
    )
