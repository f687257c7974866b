"""Field selectors: the parts of a thing that a requester wants to see.

Source of the rules: Eclipse Ditto, ``ImmutableJsonFieldSelectorFactory`` and ``Thing#toJson``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from ackstream.protocol import json
from ackstream.protocol.ditto.errors import not_available
from ackstream.protocol.ditto.twin.things import NO_POLICIES
from ackstream.protocol.errors import BAD_REQUEST, DittoError, shown

WILDCARD = "*"
"""Any feature in a field selector: ``features/*/properties``."""

UNAVAILABLE_FIELDS = {
    "_policy": NO_POLICIES,
    "_metadata": "No metadata is stored with things.",
}

MAX_CHARACTERS = 10_000
MAX_DEPTH = 250
"""Parentheses in a selector."""

_SELECTED = re.compile(r"([^(),]*)([(),]|$)")


def select(value: Any, selector: str) -> Any:
    """Reduce a JSON object to the fields of a selector, in the object's own order; return other values unchanged.

    :param selector: such as ``thingId,attributes(model,location/city),features/*/properties``
    :raises DittoError: as :func:`parse_selector` does
    """
    tree = _tree(selector)
    return _select(value, [tree]) if isinstance(value, dict) else value


def parse_selector(selector: str) -> tuple[json.Keys, ...]:
    """Return the keys of the fields that a selector names.

    :raises DittoError: 400 ``json.fieldselector.invalid``, ``json.pointer.invalid``
    """
    if len(selector) > MAX_CHARACTERS:
        raise _invalid(selector, f"It may have {MAX_CHARACTERS} characters.")
    return _parsed(selector)


@lru_cache(maxsize=512)
def _parsed(selector: str) -> tuple[json.Keys, ...]:
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


_Tree = dict[str, Any]
"""The next keys of the paths of a selector, each with a tree of its own; ``None``: the whole value there."""


@lru_cache(maxsize=512)
def _tree(selector: str) -> _Tree:
    tree: _Tree = {}
    for path in parse_selector(selector):
        node: _Tree | None = tree
        for key in path[:-1]:
            # a part selected as a whole stays so
            node = None if node is None else node.setdefault(key, {})
        if node is not None:
            node[path[-1]] = None
    return tree


def _select(value: dict[str, Any], trees: list[_Tree], *, depth: int = 0) -> dict[str, Any]:
    result = {}
    for key, entry in value.items():
        names = (key, WILDCARD) if depth == 1 else (key,)
        deeper = [tree[name] for tree in trees for name in names if name in tree]
        if None in deeper:
            result[key] = entry
        elif deeper and isinstance(entry, dict) and (found := _select(entry, deeper, depth=depth + 1)):
            # a path that leads nowhere creates no empty objects
            result[key] = found
    return result


_PARENTHESES = "Check, for example, if the amount of opening parentheses '(' matches the amount of closing ones ')'."


def _invalid(selector: str, reason: str = _PARENTHESES) -> DittoError:
    message = f"The field selector <{shown(selector)}> is invalid!"
    return DittoError(BAD_REQUEST, "json.fieldselector.invalid", message, reason)
