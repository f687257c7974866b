"""Whether a thing fits a filter.

Source of the rule: Eclipse Ditto, ``ThingPredicateVisitor``, ``ThingPredicatePredicateVisitor``,
``ExistsThingPredicateVisitor`` and ``EmptyThingPredicateVisitor``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.protocol.pointers import json_pointer_invalid
from ackstream.protocol.rql import values as rql_values
from ackstream.protocol.rql.nodes import (
    And,
    Comparison,
    Empty,
    Exists,
    Membership,
    Node,
    Not,
    Or,
    Placeholder,
    Value,
    leaves,
)
from ackstream.protocol.rql.parser import parse, rql_expression_invalid
from ackstream.protocol.rql.values import Scalar, compare, like_value, scalars

if TYPE_CHECKING:
    from collections.abc import Callable


_ORDER: Mapping[str, Callable[[int], bool]] = {
    "gt": lambda sign: sign > 0,
    "ge": lambda sign: sign >= 0,
    "lt": lambda sign: sign < 0,
    "le": lambda sign: sign <= 0,
}


class _Facts(msgspec.Struct, frozen=True):
    thing: dict[str, Any]
    time: datetime | None
    placeholders: Mapping[str, Mapping[str, str | Sequence[str]]]


def check(tree: Node) -> None:
    """Refuse a filter that can be parsed and not evaluated; to be called when a filter is taken in.

    :raises DittoError: 400 ``rql.expression.invalid`` for an unknown property name or a ``like`` pattern that is no
        text, ``json.pointer.invalid`` for a path with an empty segment
    """
    for leaf in leaves(tree):
        field_of(leaf.property, whole=isinstance(leaf, Exists | Empty))
        if isinstance(leaf, Comparison) and leaf.op in ("like", "ilike") and not isinstance(leaf.value, str):
            raise rql_expression_invalid(f"In the {leaf.op} predicate only string values are allowed.")


def matches(
    query: Node | str,
    thing: dict[str, Any],
    /,
    *,
    time: datetime | None = None,
    **placeholders: Mapping[str, str | Sequence[str]],
) -> bool:
    """Tell whether the thing (JSON values, whole or partial) fits the filter (tree or text).

    ``time`` is the moment ``time:now`` means, with a time zone; the other placeholders come by prefix, each with its
    names: ``topic={"action": "modified"}``, ``feature={"id": ["a", "b"]}``. One that is not given is absent: a field
    is then missing, a literal null.

    :raises DittoError: what ``parse`` and ``check`` raise, before anything is evaluated
    :raises TypeError: a prefix that no placeholder has
    :raises ValueError: a moment without a time zone
    """
    unknown = placeholders.keys() - PLACEHOLDERS.keys()
    if unknown:
        raise TypeError(f"No placeholder has the prefix {min(unknown)!r}; there are {', '.join(PLACEHOLDERS)}.")
    if time is not None and time.tzinfo is None:
        raise ValueError(f"The moment of time:now must have a time zone, {time.isoformat()} has none.")
    if isinstance(query, str):
        tree = _checked(query)
    else:
        check(query)
        tree = query
    return _holds(tree, _Facts(thing, time, placeholders))


@lru_cache(maxsize=512)
def _checked(text: str) -> Node:
    tree = parse(text)
    check(tree)
    return tree


def _holds(node: Node, facts: _Facts) -> bool:  # noqa: C901, PLR0911 - one case a node
    match node:
        # loops, not all() and any(): one frame a level
        case And(args=args):
            for arg in args:  # noqa: SIM110
                if not _holds(arg, facts):
                    return False
            return True
        case Or(args=args):
            for arg in args:  # noqa: SIM110
                if _holds(arg, facts):
                    return True
            return False
        case Not(arg=arg):
            return not _holds(arg, facts)
        case Exists(property=name):
            return bool(_found(name, facts, whole=True).values)
        case Empty(property=name):
            return _is_empty(_found(name, facts, whole=True))
        case Membership(property=name, values=values):
            # null is never a member: Ditto compares members only with what has an order
            return any(
                _any_equals(name, literal, facts)
                for value in values
                if (literal := _resolved(value, facts)) is not None
            )
        case Comparison():
            return _compares(node, facts)


def _compares(node: Comparison, facts: _Facts) -> bool:
    if node.op == "ne":
        return not _any_equals(node.property, _resolved(node.value, facts), facts)
    if node.op == "eq":
        return _any_equals(node.property, _resolved(node.value, facts), facts)
    values = _scalars_of(node.property, facts)
    if node.op in ("like", "ilike"):
        ignore_case = node.op == "ilike"
        return any(like_value(str(node.value), value, ignore_case=ignore_case) for value in values)
    literal = _resolved(node.value, facts)
    if literal is None:
        return False
    fits = _ORDER[node.op]
    return any(value is not None and fits(compare(value, literal)) for value in values)


def _any_equals(name: str, literal: Scalar | None, facts: _Facts) -> bool:
    values = _scalars_of(name, facts)
    if literal is None:
        return None in values
    return any(value is not None and compare(value, literal) == 0 for value in values)


def _resolved(value: Value, facts: _Facts) -> Scalar | None:
    if isinstance(value, Placeholder):
        return None if facts.time is None else rql_values.resolve(value.text, facts.time)
    return value


def _scalars_of(name: str, facts: _Facts) -> list[Scalar | None]:
    return list(scalars(_found(name, facts, whole=False).values))


def _found(name: str, facts: _Facts, *, whole: bool) -> Found:
    field = field_of(name, whole=whole)
    if isinstance(field, Path):
        return find(field, facts.thing)
    fact = facts.placeholders.get(field.prefix, {}).get(field.name, ())
    values = (fact,) if isinstance(fact, str) else tuple(fact)
    # a comparison takes the first value of a placeholder that has several, and exists and empty take them all
    return Found(values if whole else values[:1], in_array=False)


def _is_empty(found: Found) -> bool:
    if found.in_array:
        # an array of what was found: empty only if nothing was
        return not found.values
    return all(value in (None, "", [], {}) for value in found.values)


# -- What a property name of a filter means, and the values a thing has there.
# Source of the rule: Eclipse Ditto, ``ModelBasedThingsFieldExpressionFactory``, ``FieldExpressionUtil`` and
# ``JsonObject#getValueFlatteningArrays``.


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
