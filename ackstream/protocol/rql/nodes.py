"""The tree of an RQL filter, small frozen values for ``match``, and its form as JSON and as text."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator


Operator: TypeAlias = Literal["eq", "ne", "gt", "ge", "lt", "le", "like", "ilike"]


class Placeholder(msgspec.Struct, frozen=True):
    """A literal that is resolved when the filter is evaluated; ``text`` has its prefix, ``time:now-1h``."""

    text: str


Value: TypeAlias = str | int | float | bool | Placeholder | None


class Comparison(msgspec.Struct, frozen=True):
    """One property against one literal; ``like`` and ``ilike`` too."""

    op: Operator
    property: str
    value: Value


class Membership(msgspec.Struct, frozen=True):
    """``in``: one property against at least one literal."""

    property: str
    values: tuple[Value, ...]


class Exists(msgspec.Struct, frozen=True):
    """The property is present, whatever its value."""

    property: str


class Empty(msgspec.Struct, frozen=True):
    """The property is absent, null or without content."""

    property: str


class And(msgspec.Struct, frozen=True):
    """All of at least one filter."""

    args: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    """Any of at least one filter."""

    args: tuple[Node, ...]


class Not(msgspec.Struct, frozen=True):
    """The opposite of one filter."""

    arg: Node


Leaf: TypeAlias = Comparison | Membership | Exists | Empty
Node: TypeAlias = Leaf | And | Or | Not


def leaves(tree: Node) -> Iterator[Leaf]:
    """Yield the nodes that name a property, in the order they are written."""
    rest = [tree]
    while rest:
        node = rest.pop()
        match node:
            case And(args=args) | Or(args=args):
                rest.extend(reversed(args))
            case Not(arg=arg):
                rest.append(arg)
            case _:
                yield node


_ESCAPES = {'"': '\\"', "\\": "\\\\", ",": "\\u002c", ")": "\\u0029"}
_ESCAPED_IN_PROPERTY = re.compile(r'[,)"\\]')
_ESCAPED_IN_TEXT = re.compile(r'["\\]')


def to_dict(tree: Node) -> dict[str, Any]:  # noqa: PLR0911 - one return per node
    """Write the tree as JSON values: ``{"op", "property", "value" | "values"}`` or ``{"op", "args": […]}``.

    A placeholder literal is ``{"placeholder": "time:now"}``.
    """
    match tree:
        case And(args=args):
            return {"op": "and", "args": [to_dict(arg) for arg in args]}
        case Or(args=args):
            return {"op": "or", "args": [to_dict(arg) for arg in args]}
        case Not(arg=arg):
            return {"op": "not", "args": [to_dict(arg)]}
        case Exists(property=name):
            return {"op": "exists", "property": name}
        case Empty(property=name):
            return {"op": "empty", "property": name}
        case Membership(property=name, values=values):
            return {"op": "in", "property": name, "values": [_value_to_json(value) for value in values]}
        case Comparison(op=op, property=name, value=value):
            return {"op": op, "property": name, "value": _value_to_json(value)}


def to_text(tree: Node) -> str:  # noqa: PLR0911 - one return per node
    """Write the filter in its shortest form; ``parse`` gives the same tree again."""
    match tree:
        case And(args=args):
            return f"and({','.join([to_text(arg) for arg in args])})"
        case Or(args=args):
            return f"or({','.join([to_text(arg) for arg in args])})"
        case Not(arg=arg):
            return f"not({to_text(arg)})"
        case Exists(property=name):
            return f"exists({_escape(_ESCAPED_IN_PROPERTY, name)})"
        case Empty(property=name):
            return f"empty({_escape(_ESCAPED_IN_PROPERTY, name)})"
        case Membership(property=name, values=values):
            literals = ",".join([_value_to_text(value) for value in values])
            return f"in({_escape(_ESCAPED_IN_PROPERTY, name)},{literals})"
        case Comparison(op=op, property=name, value=value):
            return f"{op}({_escape(_ESCAPED_IN_PROPERTY, name)},{_value_to_text(value)})"


def _value_to_json(value: Value) -> Any:
    return {"placeholder": value.text} if isinstance(value, Placeholder) else value


def _value_to_text(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Placeholder(text=text):
            return text
        case str():
            return f'"{_escape(_ESCAPED_IN_TEXT, value)}"'
        case int():
            return str(value)
        case float():
            # the grammar has no exponent and wants a fraction
            digits = format(Decimal(repr(value)), "f")
            return digits if "." in digits else digits + ".0"


def _escape(characters: re.Pattern[str], text: str) -> str:
    return characters.sub(lambda found: _ESCAPES[found.group()], text)
