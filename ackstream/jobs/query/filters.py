"""Filters of subscriptions and queries, in either syntax: AMPS's, or RQL, in which a property is a path in the message.

``/order/price > 10 AND /state == 'open'`` and ``and(gt(order/price,10),eq(state,"open"))`` select the same messages.

A filter becomes a condition of Spark over the text of the message, built from the parsed tree: no text of a client is
read as SQL. Spark runs without ANSI here: a message for which it cannot be evaluated does not match.
"""

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.query import amps_filters
from ackstream.jobs.query.amps_filters import MAX_NODES, FilterSyntaxError
from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql.evaluation import checked, matches
from ackstream.protocol.rql.parser import Combination, Membership, Node, leaves, parse
from ackstream.protocol.rql.patterns import Effort

MAX_LENGTH: Final = 10_000
"""The maximum length of a filter, in characters."""

_VARIABLE = "${"

_TOP = "attributes"
"""Among the paths of a thing that RQL knows, only those below this one are free."""

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(maxsize=8_192)
def read_filter(text: str) -> amps_filters.AmpsFilter | Node:
    """Parse a filter in AMPS's syntax, or else in RQL (a tree); FilterSyntaxError: it is neither, or too large."""
    if len(text) > MAX_LENGTH:
        raise FilterSyntaxError(f"The filter is longer than {MAX_LENGTH:,} characters.")
    if _VARIABLE in text:
        # Spark's language has variables of this form, with the secrets of the job among them
        place = text.index(_VARIABLE) + 1
        raise FilterSyntaxError(f"The filter has {_VARIABLE} from character {place} on: filters have no variables.")
    try:
        return amps_filters.parse_filter(text)
    except FilterSyntaxError as error:
        try:
            tree = checked(_below(parse(text)))
        except (DittoError, RecursionError):
            raise error from None
    if sum(1 + len(leaf.values) if isinstance(leaf, Membership) else 2 for leaf in leaves(tree)) > MAX_NODES:
        raise FilterSyntaxError(f"The filter has more than {MAX_NODES} properties and values.")
    return tree


def fits_filter(tree: Node, text: str | None) -> bool:
    """Return whether a message matches RQL; one that is not a JSON object, fails, or takes too much effort does not."""
    try:
        return matches(tree, {_TOP: _decode_object(text or "")}, effort=Effort())
    except Exception:  # noqa: BLE001 - one message would stop the results of all clients, at every start
        return False


def _below(node: Node) -> Node:
    if isinstance(node, Combination):
        return Combination(node.op, tuple(map(_below, node.args)))
    return msgspec.structs.replace(node, property=f"{_TOP}/{node.property.removeprefix('/')}")


@lru_cache(maxsize=8_192)
def fits(_context: SparkContext, text: str | None) -> Column:
    """Return a filter as a condition, kept: each node is a call to the JVM; FilterSyntaxError: invalid, too large."""
    if text is None:
        return F.lit(True)  # noqa: FBT003 - Spark's way
    selection = read_filter(text)
    if not isinstance(selection, amps_filters.AmpsFilter):
        condition: Column = F.udf(lambda value: fits_filter(selection, value), "boolean", useArrow=True)("value")
        return condition
    limit = amps_filters.MAX_STEPS // max(1, selection.instructions)
    return _column(selection.condition, limit).cast("boolean")


def field(names: Sequence[str]) -> Column:
    """Return a field of the message by its path, as text."""
    # in the syntax of filters, a name has no quotes
    return F.get_json_object("value", "$" + "".join(f"['{name}']" for name in names))


def as_number(text: Column) -> Column:
    """Return a text as a number; null for other texts."""
    return text.try_cast("double")


def _column(part: amps_filters.Expression, limit: int) -> Column:
    """Return a part of a filter; texts that are longer than ``limit`` are not searched for regular expressions."""
    if isinstance(part, amps_filters.FieldPath):
        return field(part.names)
    if isinstance(part, amps_filters.Constant):
        return F.lit(part.value)
    if isinstance(part, amps_filters.PatternSearch):
        return _searched(_column(part.text, limit).cast("string"), part.pattern, limit)
    arguments = [_column(argument, limit) for argument in part.arguments]
    if part.name in amps_filters.FUNCTIONS:
        return F.call_function(part.name.lower(), *arguments)
    return _OPERATIONS[part.name](*arguments)


def _searched(text: Column, pattern: str, limit: int) -> Column:
    def search(texts: pa.Array) -> pa.Array:
        values = texts.cast(pa.binary()).to_pylist()
        return pa.array([amps_filters.found(pattern, value, limit) for value in values], pa.bool_())

    result: Column = F.arrow_udf(search, "boolean")(text)
    return result


def _joined(join: Callable[[Any, Any], Column], *parts: Column) -> Column:
    """Join in halves: Spark's rules descend through each level of a condition."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_joined(join, *parts[:middle]), _joined(join, *parts[middle:]))


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
    "AND": partial(_joined, operator.and_),
    "OR": partial(_joined, operator.or_),
    "NOT": operator.invert,
    "NEGATIVE": operator.neg,
    "NUMBER": as_number,
    "IS NULL": lambda value: value.isNull(),
    "IS NOT NULL": lambda value: value.isNotNull(),
    "IN": lambda value, *values: value.isin(*values),
    "BEGINS WITH": F.startswith,
    "ENDS WITH": F.endswith,
}
"""Operations of Spark by their names in the tree; the names of functions are Spark's."""
