"""Evaluation of a filter on a thing: the meaning of the property names in it, and the comparison of values.

Source of the rules: Eclipse Ditto, ``ThingPredicateVisitor``, ``ThingPredicatePredicateVisitor``,
``ExistsThingPredicateVisitor``, ``EmptyThingPredicateVisitor``, ``ModelBasedThingsFieldExpressionFactory``,
``FieldExpressionUtil`` and ``JsonObject#getValueFlatteningArrays``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from ackstream.protocol.errors import json_pointer_invalid, rql_expression_invalid
from ackstream.protocol.json import WILDCARD, Keys
from ackstream.protocol.rql import parser
from ackstream.protocol.rql.patterns import CHARACTERS, MAX_WILDCARDS, Effort, like, wildcards

_AT_ONCE = 5
"""Number of values found in one step."""

_ORDER = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}


class _Facts(msgspec.Struct, frozen=True):
    thing: dict[str, Any]
    time: datetime | None
    placeholders: Mapping[str, Mapping[str, str | Sequence[str]]]
    effort: Effort | None

    def spend(self, steps: int) -> None:
        if self.effort is not None:
            self.effort.spend(steps)


def checked(tree: parser.Node) -> parser.Node:
    """Return a filter if it can be evaluated, not only parsed; to be called when a filter is accepted."""
    # DittoError 400 rql.expression.invalid: an unknown property name, or a ``like`` pattern that is not a text or has
    # too many wildcards; json.pointer.invalid: a path with an empty segment
    for leaf in parser.leaves(tree):
        field_of(leaf.property, whole=isinstance(leaf, parser.Existence))
        if isinstance(leaf, parser.Comparison) and leaf.op in ("like", "ilike"):
            if not isinstance(leaf.value, str):
                raise rql_expression_invalid(f"In the {leaf.op} predicate only string values are allowed.")
            if wildcards(leaf.value) > MAX_WILDCARDS:
                raise rql_expression_invalid(f"A {leaf.op} pattern has more than {MAX_WILDCARDS} wildcards.")
    return tree


def matches(
    query: parser.Node | str,
    thing: dict[str, Any],
    /,
    *,
    time: datetime | None = None,
    effort: Effort | None = None,
    **placeholders: Mapping[str, str | Sequence[str]],
) -> bool:
    """Return whether the thing (JSON values, whole or partial) matches the filter (tree or text).

    ``time`` is the value of ``time:now``, with a time zone (else ValueError); the other placeholders are given by
    prefix, each with its names: ``topic={"action": "modified"}``, ``feature={"id": ["a", "b"]}``. One that is not given
    is absent: a field is then missing, a literal is null. ``effort`` limits the steps, for filters written by others
    than the operator of the process. Raises DittoError: as parse() and checked(), before anything is evaluated; as
    Effort.spend().
    """
    if time is not None and time.tzinfo is None:
        raise ValueError(f"The moment of time:now must have a time zone, {time.isoformat()} has none.")
    tree = checked(parser.parse(query) if isinstance(query, str) else query)
    return _holds(tree, _Facts(thing, time, placeholders, effort))


def concerns(tree: parser.Node, selected: Collection[Keys]) -> bool:
    """Return whether a filter refers to one of the selected parts of a thing, into it, or around it."""
    fields = [field_of(leaf.property, whole=isinstance(leaf, parser.Existence)) for leaf in parser.leaves(tree)]
    # the namespace is part of the id
    paths = [("thingId",) if path == ("_namespace",) else path for path in fields if not isinstance(path, SignalFact)]
    pairs = [zip(path, other, strict=False) for path in paths for other in selected]
    return any(all(key in (found, WILDCARD) for found, key in pair) for pair in pairs)


def _holds(node: parser.Node, facts: _Facts) -> bool:  # noqa: PLR0911 - one case per node
    match node:
        case parser.Combination("not", (arg,)):
            return not _holds(arg, facts)
        case parser.Combination(op, args):
            # a loop, not all() or any(): one frame per level
            decisive = op == "or"
            for arg in args:
                if _holds(arg, facts) is decisive:
                    return decisive
            return not decisive
        case parser.Existence("exists", name):
            return bool(_found(name, facts, whole=True).values)
        case parser.Existence(_, name):
            return _is_empty(_found(name, facts, whole=True))
        case parser.Membership(name, values):
            found = _scalars_of(name, facts)
            # null is never a member: Ditto compares members only with ordered values
            literals = [literal for value in values if (literal := _resolved(value, facts)) is not None]
            return any(_is_among(found, literal, facts) for literal in literals)
        case parser.Comparison():
            return _compares(node, facts)


def _compares(node: parser.Comparison, facts: _Facts) -> bool:
    values = _scalars_of(node.property, facts)
    if node.op in ("like", "ilike"):
        pattern, ignore_case = str(node.value), node.op == "ilike"
        return any(_is_like(pattern, value, facts, ignore_case=ignore_case) for value in values)
    literal = _resolved(node.value, facts)
    if node.op in ("eq", "ne"):
        return _is_among(values, literal, facts) is (node.op == "eq")
    if literal is None:
        return False
    fits = _ORDER[node.op]
    return any(value is not None and fits(_compared(value, literal, facts), 0) for value in values)


def _is_among(values: list[Scalar | None], literal: Scalar | None, facts: _Facts) -> bool:
    if literal is None:
        return None in values
    return any(value is not None and _compared(value, literal, facts) == 0 for value in values)


def _resolved(value: parser.Value, facts: _Facts) -> Scalar | None:
    if isinstance(value, parser.Placeholder):
        return None if facts.time is None else parser.resolve(value.placeholder, facts.time)
    return value


def _scalars_of(name: str, facts: _Facts) -> list[Scalar | None]:
    values = list(scalars(_found(name, facts, whole=False).values))
    facts.spend(1 + len(values) // _AT_ONCE)
    return values


def _found(name: str, facts: _Facts, *, whole: bool) -> Found:
    field = field_of(name, whole=whole)
    if not isinstance(field, SignalFact):
        return find(field, facts.thing, facts.effort)
    fact = facts.placeholders.get(field.prefix, {}).get(field.name, ())
    values = (fact,) if isinstance(fact, str) else tuple(fact)
    # of several values a comparison takes the first, while exists and empty take all
    return Found(values if whole else values[:1], in_array=False)


def _is_empty(found: Found) -> bool:
    if found.in_array:
        # an array of the values found: empty only without any
        return not found.values
    return all(value in (None, "", [], {}) for value in found.values)


_SIMPLE = ("thingId", "policyId", "definition", "_namespace", "_revision", "_created", "_modified", "_metadata")
_ID_PARTS = ("id", "namespace", "name")
_TOPIC_PARTS = (
    "full", "namespace", "entityName", "group", "channel", "criterion", "action", "subject", "action-subject"
)  # fmt: skip
PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "topic": _TOPIC_PARTS,
    "resource": ("type", "path"),
    "entity": _ID_PARTS,
    "thing": _ID_PARTS,
    "feature": ("id",),
}
"""The names of placeholders by prefix. ``time:`` is not among them: it can only replace a literal."""

_IN_FEATURE = re.compile("features/[^/]+/(?:definition/?|(?:properties|desiredProperties)/.+)")
_FEATURE_OR_PART = re.compile("features/[^/]+(?:/(?:properties|desiredProperties)/?)?")


class SignalFact(msgspec.Struct, frozen=True):
    """A placeholder about the signal: ``topic:action`` is prefix ``topic``, name ``action``."""

    prefix: str
    name: str


class Found(msgspec.Struct, frozen=True):
    """The values at a path; ``in_array``: they were found in the elements of an array on the way."""

    values: tuple[Any, ...]
    in_array: bool


@lru_cache(maxsize=1024)
def field_of(property_: str, *, whole: bool) -> Keys | SignalFact:
    """Return a property's path in the thing, or its placeholder; raises 400 for an unknown name or an empty segment."""
    # ``whole``: for exists and empty, which accept a feature or its properties
    name = property_.removeprefix("/")
    if name in _SIMPLE:
        return (name,)
    prefix, colon, rest = name.partition(":")
    if colon and rest in PLACEHOLDERS.get(prefix, ()):
        return SignalFact(prefix, rest)
    known = name.startswith(("attributes/", "_metadata/")) or _IN_FEATURE.fullmatch(name) is not None
    if not known and not (whole and _FEATURE_OR_PART.fullmatch(name) is not None):
        raise rql_expression_invalid(f"Unknown property name: {name}")
    if "//" in name:
        raise json_pointer_invalid(f"/{name}")
    # Ditto resolves only one of the two escapes of a JSON pointer, ~0
    return tuple(key.replace("~0", "~") for key in name.split("/") if key)


def find(path: Keys, thing: dict[str, Any], effort: Effort | None = None) -> Found:
    """Return the values of the thing at the path. An array on the way stands for the objects in it."""
    if path == ("_namespace",):
        # part of the id, which is always present, unlike the field of that name
        thing_id = thing.get("thingId")
        if isinstance(thing_id, str):
            return Found((thing_id.partition(":")[0],), in_array=False)
    values: list[Any] = [thing]
    in_array = False
    for key in path:
        objects: list[dict[str, Any]] = []
        for value in values:
            if isinstance(value, dict):
                objects.append(value)
            elif isinstance(value, list):
                in_array = True
                objects.extend(element for element in value if isinstance(element, dict))
        values = [found[key] for found in objects if key in found]
        if effort is not None and len(objects) > 1:
            effort.spend(len(objects) // _AT_ONCE)
    return Found(tuple(values), in_array=in_array)


Scalar: TypeAlias = str | int | float | bool

_LONG_BOUND = 2.0**63
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7
_TO_PRINT = 4
"""The steps that the text of a number takes."""


def scalars(values: Iterable[Any]) -> Iterator[Scalar | None]:
    """Yield the texts, numbers, booleans and nulls among the values and in their arrays; objects are skipped."""
    rest = list(values)
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest.extend(value)
        elif value is None or isinstance(value, str | int | float):
            yield value


def _compared(value: Scalar, literal: Scalar, facts: _Facts) -> int:
    """Return -1, 0 or 1 as the thing's value is less than, equal to or greater than the filter's literal."""
    # Numbers compare as decimals; a number and a text as numbers if the text is one; two texts, and everything else
    # that differs in type, as texts (by UTF-16 units, as Java does).
    facts.spend(1 + len(value) // CHARACTERS if isinstance(value, str) else 1)
    if type(value) is type(literal) and not isinstance(value, str):
        return _sign(value, literal)
    left = _comparable(value)
    right = _comparable(literal)
    if isinstance(left, Decimal) and isinstance(right, str):
        right = _number(right)
    elif isinstance(left, str) and isinstance(right, Decimal):
        left = _number(left)
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return _sign(left, right)
    return _sign(_utf16(left), _utf16(right))


def _is_like(pattern: str, value: Scalar | None, facts: _Facts, *, ignore_case: bool) -> bool:
    """Return whether the text form of a thing's value matches the pattern. Null has none: only ``*`` matches it."""
    if value is None:
        return bool(pattern) and not pattern.strip("*")
    if isinstance(value, bool):
        value = str(value).lower()
    elif not isinstance(value, str):
        facts.spend(_TO_PRINT)
        value = _printed(value)
    return like(pattern, value, ignore_case=ignore_case, effort=facts.effort)


def _sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _comparable(value: Scalar) -> Decimal | str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return Decimal(value)
    return Decimal(_java_double(value)) if value else Decimal("0.0")


def _number(text: str) -> Decimal | str:
    if _NUMBER.fullmatch(text) is None:
        return text
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return text


def _printed(value: float) -> str:
    # a number of a thing; a floating point number without a fraction is an integer here
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if abs(value) < _LONG_BOUND and value.is_integer() else _java_double(value)


def _java_double(value: float) -> str:
    # as Double.toString of Java does: 0.001, 1.0E-4, 1.0E7
    if _PLAIN_FROM <= abs(value) < _PLAIN_TO or not value:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits))
    power = int(exponent) + len(text) - 1
    return f"{'-' * sign}{text[0]}.{text[1:].rstrip('0') or '0'}E{power}"


def _utf16(value: Decimal | str) -> bytes:
    return str(value).encode("utf-16-be", "surrogatepass")
