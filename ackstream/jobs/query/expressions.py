"""Filters as conditions of Spark: columns built from the parsed tree, so that no text of a client is ever read as SQL.

The conditions are over the column ``value``, the text of the message; without ANSI, since what cannot be evaluated must
not fail but match nothing.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.query import regular_expressions
from ackstream.jobs.query.amps_filters import FUNCTIONS, AmpsFilter, Constant, FieldPath, PatternSearch
from ackstream.jobs.query.filters import fits_filter, read_filter
from ackstream.jobs.query.regular_expressions import MAX_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext
    from pyspark.sql import Column

    from ackstream.jobs.query.amps_filters import Expression
    from ackstream.protocol.rql.parser import Node


@lru_cache(maxsize=8_192)
def fits(_context: SparkContext, text: str | None) -> Column:
    """Return a filter, if there is one, as a condition; kept, since each node of its tree is a call to the JVM.

    :raises FilterSyntaxError: it is not a filter, or too large
    """
    if text is None:
        return F.lit(True)  # noqa: FBT003 - Spark's way
    selection = read_filter(text)
    if not isinstance(selection, AmpsFilter):
        return _rql(selection)
    limit = MAX_STEPS // max(1, selection.instructions)
    return _column(selection.condition, limit).cast("boolean")


def field(names: Sequence[str]) -> Column:
    """Return a field of the message by its path, as text."""
    # in the syntax of filters, a name has no quotes
    return F.get_json_object("value", "$" + "".join(f"['{name}']" for name in names))


def as_number(text: Column) -> Column:
    """Return a text as a number; null if it is none."""
    return text.try_cast("double")


def _rql(tree: Node) -> Column:
    found: Column = F.udf(lambda value: fits_filter(tree, value), "boolean", useArrow=True)("value")
    return found


def _column(part: Expression, limit: int) -> Column:
    """Return a part of a filter; texts that are longer than ``limit`` are not searched for regular expressions."""
    if isinstance(part, FieldPath):
        return field(part.names)
    if isinstance(part, Constant):
        return F.lit(part.value)
    if isinstance(part, PatternSearch):
        return _searched(_column(part.text, limit).cast("string"), part.pattern, limit)
    arguments = [_column(argument, limit) for argument in part.arguments]
    if part.name in FUNCTIONS:
        return F.call_function(part.name.lower(), *arguments)
    return _OPERATIONS[part.name](*arguments)


def _searched(text: Column, pattern: str, limit: int) -> Column:
    def search(texts: pa.Array) -> pa.Array:
        values = texts.cast(pa.binary()).to_pylist()
        return pa.array([regular_expressions.found(pattern, value, limit) for value in values], pa.bool_())

    found: Column = F.arrow_udf(search, "boolean")(text)
    return found


def _all(*conditions: Column) -> Column:
    return _joined(operator.and_, conditions)


def _any(*conditions: Column) -> Column:
    return _joined(operator.or_, conditions)


def _joined(join: Callable[[Any, Any], Column], parts: Sequence[Column]) -> Column:
    """Join in halves: Spark's rules descend through each level of a condition."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


_OPERATIONS: Final[dict[str, Callable[..., Column]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "||": F.concat,
    "AND": _all,
    "OR": _any,
    "NOT": operator.invert,
    "NEGATIVE": operator.neg,
    "NUMBER": as_number,
    "IS NULL": lambda value: value.isNull(),
    "IS NOT NULL": lambda value: value.isNotNull(),
    "IN": lambda value, *values: value.isin(*values),
    "BEGINS WITH": F.startswith,
    "ENDS WITH": F.endswith,
}
"""What the names in the tree mean; the names of functions are Spark's."""
