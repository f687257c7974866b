"""Field selectors: ``thingId,attributes(model,location/city),features/*/properties``.

Source of the rules: Eclipse Ditto, ``ImmutableJsonFieldSelectorFactory``, ``Thing#toJson``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import UNSET

from ackstream.protocol.errors import BAD_REQUEST, DittoError, shown
from ackstream.protocol.rql import MAX_DEPTH
from ackstream.twin import pointers

WILDCARD = "*"
"""Stands for any feature: ``features/*/properties``."""


def select(value: Any, selector: str) -> Any:
    """Return what a selector leaves of a JSON value, in the value's own order; what is not an object stays as it is.

    :raises DittoError: 400 ``json.fieldselector.invalid``
    """
    paths = parse(selector)
    if not isinstance(value, dict):
        return value
    return _select(value, paths)


@lru_cache(maxsize=512)
def parse(selector: str) -> tuple[pointers.Keys, ...]:
    """Return the paths a selector names.

    :raises DittoError: 400 ``json.fieldselector.invalid``, ``json.pointer.invalid``
    """
    if not selector.strip() or selector.count("(") != selector.count(")") or selector.count("(") > MAX_DEPTH:
        raise _invalid(selector)
    return tuple(dict.fromkeys(_paths(selector)))


def _paths(selector: str) -> list[pointers.Keys]:
    found = []
    for part in _split(selector):
        head, opened, inner = part.strip().partition("(")
        keys = pointers.parse(head)
        if opened:
            if not inner.endswith(")"):
                raise _invalid(selector)
            found += [keys + rest for rest in _paths(inner[:-1])]
        elif keys:
            found.append(keys)
    return found


def _split(selector: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(selector):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth < 0:
                raise _invalid(selector)
        elif character == "," and depth == 0:
            parts.append(selector[start:position])
            start = position + 1
    return [*parts, selector[start:]]


def _select(value: dict[str, Any], paths: tuple[pointers.Keys, ...], *, depth: int = 0) -> dict[str, Any]:
    result = {}
    for key, entry in value.items():
        deeper = [path[1:] for path in paths if path[0] == key or (path[0] == WILDCARD and depth == 1)]
        if () in deeper:
            result[key] = entry
        elif isinstance(entry, dict) and any(_leads(entry, path) for path in deeper):
            # a path that leads nowhere leaves no empty objects
            result[key] = _select(entry, tuple(deeper), depth=depth + 1)
    return result


def _leads(value: Any, path: pointers.Keys) -> bool:
    if WILDCARD in path[:1] and isinstance(value, dict):
        return any(_leads(entry, path[1:]) for entry in value.values())
    return pointers.find(value, path[:1]) is not UNSET and (len(path) == 1 or _leads(value[path[0]], path[1:]))


def _invalid(selector: str) -> DittoError:
    return DittoError(
        BAD_REQUEST,
        "json.fieldselector.invalid",
        f"The field selector <{shown(selector)}> is invalid!",
        "Check, for example, if the amount of opening parentheses '(' matches the amount of closing ones ')'.",
    )
