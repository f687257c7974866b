"""RQL, Ditto's filter language: parse a filter, write it, evaluate it on a thing.

Source of the rules: Eclipse Ditto, "RQL expressions", and the classes ``RqlPredicateParser``,
``ThingPredicatePredicateVisitor`` and ``LikeHelper``.
"""

from ackstream.protocol.rql.evaluation import check, matches
from ackstream.protocol.rql.nodes import (
    And,
    Comparison,
    Empty,
    Exists,
    Leaf,
    Membership,
    Node,
    Not,
    Or,
    Placeholder,
    Value,
    leaves,
    to_dict,
    to_text,
)
from ackstream.protocol.rql.parser import MAX_DEPTH, parse
from ackstream.protocol.rql.values import like

__all__ = [
    "MAX_DEPTH",
    "And",
    "Comparison",
    "Empty",
    "Exists",
    "Leaf",
    "Membership",
    "Node",
    "Not",
    "Or",
    "Placeholder",
    "Value",
    "check",
    "leaves",
    "like",
    "matches",
    "parse",
    "to_dict",
    "to_text",
]
