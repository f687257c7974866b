"""Tree to JSON values and back to filter text."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from ackstream.protocol.rql.nodes import And, Comparison, Empty, Exists, Membership, Node, Not, Or, Placeholder, Value

_ESCAPES = {'"': '\\"', "\\": "\\\\", ",": "\\u002c", ")": "\\u0029"}
_ESCAPED_IN_PROPERTY = re.compile(r'[,)"\\]')
_ESCAPED_IN_TEXT = re.compile(r'["\\]')


def to_dict(tree: Node) -> dict[str, Any]:  # noqa: PLR0911 - one return a node
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


def to_text(tree: Node) -> str:  # noqa: PLR0911 - one return a node
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
