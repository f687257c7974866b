"""A filter as its client writes it: a condition in the words of AMPS, or RQL; told apart by what they are.

In RQL a property is a path in the message: ``and(gt(order/price,10),eq(state,"open"))``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import msgspec

from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql import And, Node, Not, Or, check, matches, parse
from ackstream.publishing.queries.filters import BadFilterError, parse_filter

Selection: TypeAlias = "str | Node"
"""Spark SQL over the column ``value``, or a tree of RQL for :func:`fits`."""

_TOP = "attributes"
"""RQL knows the paths of a thing; of those only these are free."""


@lru_cache(maxsize=1024)
def read(text: str) -> Selection:
    """Read a filter.

    :raises BadFilterError: it is neither
    """
    try:
        return parse_filter(text)
    except BadFilterError as error:
        try:
            tree = _below(parse(text))
            check(tree)
        except (DittoError, RecursionError):
            raise error from None
        return tree


def fits(tree: Node, text: str | None) -> bool:
    """Tell whether a message fits RQL; what is no JSON object fits nothing."""
    try:
        message = msgspec.json.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(message, dict) and matches(tree, {_TOP: message})


def _below(node: Node) -> Node:
    match node:
        case And(args=args):
            return And(tuple(map(_below, args)))
        case Or(args=args):
            return Or(tuple(map(_below, args)))
        case Not(arg=arg):
            return Not(_below(arg))
        case leaf:
            return msgspec.structs.replace(leaf, property=f"{_TOP}/{leaf.property.removeprefix('/')}")
