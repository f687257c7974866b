"""Filters of subscriptions and queries, as AMPS writes them: ``/order/price > 10 AND /state == 'open'``.

A filter is an SQL condition in which a field is a path (``/a/b``) or a name, or RQL, in which a property is a path in
the message: ``and(gt(order/price,10),eq(state,"open"))``. Parsing it rejects an invalid one with ``bad filter`` before
anything runs; AMPS's syntax becomes Spark SQL.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from ackstream.errors import AckstreamError
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.rql.effort import Effort
from ackstream.protocol.rql.evaluation import checked, matches
from ackstream.protocol.rql.parser import Combination, Node, parse

if TYPE_CHECKING:
    from collections.abc import Sequence


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<string>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<path>(?:/@?[A-Za-z_][\w.-]*)+)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<sign>==|!=|<>|<=|>=|\|\||[=<>+\-*/%(),])
    )""",
    re.VERBOSE,
)
_SIGNS: Final = (("OR",), ("AND",), ("+", "-", "||"), ("*", "/", "%"))
OR, AND, SUM, PRODUCT = range(len(_SIGNS))
"""The levels of precedence: conditions are joined by ``OR`` and ``AND``, values in them are sums of products."""

_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "BEGINS", "ENDS", "WITH"}
)
_FUNCTIONS: Final = frozenset(
    {"ABS", "CEILING", "COALESCE", "CONCAT", "FLOOR", "LENGTH", "LOWER", "ROUND", "SUBSTRING", "TRIM", "UPPER"}
)
_LITERAL = re.compile(r"\\.|\[[^\]]*\]", re.DOTALL)
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]|\(\?[a-z]*x")
"""Java recurses for each repetition of a group, so that a long text would overflow the stack.

In the mode ``x`` a comment may stand between group and repetition.
"""

_FIELD: Final = "get_json_object(value, "
MAX_LENGTH: Final = 10_000
"""The maximum length of a filter, in characters."""
MAX_DEPTH: Final = 100


class FilterSyntaxError(AckstreamError):
    """A filter is invalid; the text names the place."""


class SqlFilter(NamedTuple):
    """A condition in Spark SQL (not ANSI); a field is looked up in the JSON text of the column ``value``.

    :ivar patterns: its regular expressions, unvalidated (Java compiles them)
    """

    condition: str
    patterns: tuple[str, ...]


class _FilterParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0
        self._patterns: list[str] = []

    def parse(self) -> SqlFilter:
        condition = self._chain(OR)
        if self._index < len(self._tokens):
            raise self._wrong("the end")
        return SqlFilter(condition, tuple(self._patterns))

    # -- tokens ----------------------------------------------------------------------------------------------------

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._index] if self._index < len(self._tokens) else ("end", "")

    def _take(self, *values: str) -> str | None:
        kind, value = self._peek()
        if kind in ("word", "sign") and value.upper() in values:
            self._index += 1
            return value.upper()
        return None

    def _expect(self, value: str) -> None:
        if self._take(value) is None:
            raise self._wrong(value)

    def _wrong(self, wanted: str) -> FilterSyntaxError:
        found = self._peek()[1] or "the end"
        return FilterSyntaxError(f"The filter {self._text!r} has {found} where {wanted} is expected.")

    # -- grammar ---------------------------------------------------------------------------------------------------

    def _chain(self, level: int) -> str:
        """Read parts joined by signs of one level.

        They are joined without nesting: Spark parses a chain of any length, but only a limited depth of brackets. Each
        level of brackets costs seven frames here.
        """
        parts: list[str] = []
        while True:
            if level == AND:
                parts.append(self._not())
            elif level == PRODUCT:
                parts.append(self._atom())
            else:
                parts.append(self._chain(level + 1))
            sign = self._take(*_SIGNS[level])
            if sign is None:
                return parts[0] if len(parts) == 1 else f"({' '.join(parts)})"
            parts.append(sign)

    def _not(self) -> str:
        negations = 0
        while self._take("NOT"):
            negations += 1
        condition = self._predicate()
        return f"(NOT {condition})" if negations % 2 else condition

    def _predicate(self) -> str:
        left = self._chain(SUM)
        if sign := self._take(*_COMPARISONS):
            return _compared(left, _COMPARISONS[sign], self._chain(SUM))
        if self._take("IS"):
            not_null = "NOT NULL" if self._take("NOT") else "NULL"
            self._expect("NULL")
            return f"({left} IS {not_null})"
        negated = bool(self._take("NOT"))
        test = self._test(left)
        if test is not None:
            return f"(NOT {test})" if negated else test
        if negated:
            raise self._wrong("LIKE, IN, BETWEEN, BEGINS WITH or ENDS WITH")
        return left

    def _test(self, left: str) -> str | None:
        word = self._take("LIKE", "IN", "BETWEEN", "BEGINS", "ENDS")
        if word is None:
            return None
        if word == "LIKE":
            # AMPS matches a regular expression here
            return f"({left} RLIKE {self._pattern()})"
        if word == "IN":
            self._expect("(")
            # one by one: in a list, one text would turn the numbers into texts
            tests = [_compared(left, "=", value) for value in self._list()]
            return tests[0] if len(tests) == 1 else f"({' OR '.join(tests)})"
        if word == "BETWEEN":
            low = self._chain(SUM)
            self._expect("AND")
            return f"({_compared(left, '>=', low)} AND {_compared(left, '<=', self._chain(SUM))})"
        self._expect("WITH")
        return f"{'startswith' if word == 'BEGINS' else 'endswith'}({left}, {self._chain(SUM)})"

    def _pattern(self) -> str:
        kind, value = self._peek()
        if kind != "string":
            raise self._wrong("a regular expression in quotes")
        pattern = _unquoted(value)
        if _REPEATED_GROUP.search(_LITERAL.sub("", pattern)):
            raise FilterSyntaxError(
                f"The filter {self._text!r} repeats a group: write a class such as [ab]* in place of (a|b)*."
            )
        self._patterns.append(pattern)
        return self._value()

    def _atom(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterSyntaxError(f"The filter is nested deeper than {MAX_DEPTH} levels.")
        negative = False
        while self._take("-"):
            negative = not negative
        if self._take("("):
            inner = self._chain(OR)
            self._expect(")")
            value = f"({inner})"
        else:
            value = self._value()
        self._depth -= 1
        return f"(- {value})" if negative else value

    def _value(self) -> str:
        kind, value = self._peek()
        if kind == "word" and value.upper() in ("NULL", "TRUE", "FALSE"):
            kind = "number"
        if kind in ("sign", "end") or (kind == "word" and value.upper() in _KEYWORDS):
            raise self._wrong("a value")
        self._index += 1
        if kind == "number":
            # a double: compared with an integer, the field would be truncated to one
            return f"{value}D" if value[0].isdigit() else value
        if kind == "string":
            return _quoted(_unquoted(value))
        if kind == "path":
            return field(value.replace("/@", "/").split("/")[1:])
        return self._call(value) if self._take("(") else field([value])

    def _call(self, name: str) -> str:
        if name.upper() not in _FUNCTIONS:
            raise FilterSyntaxError(
                f"The filter {self._text!r} calls {name}; known are {', '.join(sorted(_FUNCTIONS))}."
            )
        return f"{name.lower()}({', '.join(self._list())})"

    def _list(self) -> list[str]:
        values = [self._chain(SUM)]
        while self._take(","):
            values.append(self._chain(SUM))
        self._expect(")")
        return values


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise FilterSyntaxError(f"The filter {text!r} cannot be read from character {position + 1} on.")
        tokens.append((str(found.lastgroup), found.group().strip()))
        position = found.end()
    return tokens


def _compared(left: str, sign: str, right: str) -> str:
    """Compare; two fields as numbers if both are numbers, otherwise as texts."""
    as_texts = f"{left} {sign} {right}"
    if not (left.startswith(_FIELD) and right.startswith(_FIELD)):
        return f"({as_texts})"
    return f"coalesce(try_cast({left} AS DOUBLE) {sign} try_cast({right} AS DOUBLE), {as_texts})"


def field(names: Sequence[str]) -> str:
    """Return the Spark SQL of a field by its path."""
    path = "".join(f"['{name}']" for name in names)
    return f"{_FIELD}{_quoted('$' + path)})"


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# -- both syntaxes -----------------------------------------------------------------------------------------------------

Selection: TypeAlias = "SqlFilter | Node"
"""A condition in Spark SQL, or an RQL tree for :func:`fits_filter`."""

_TOP = "attributes"
"""Among the paths of a thing that RQL knows, only those below this one are free."""

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(maxsize=1024)
def read_filter(text: str) -> Selection:
    """Parse a filter in AMPS's syntax, or else in RQL.

    :raises FilterSyntaxError: it is neither, or too long
    """
    if len(text) > MAX_LENGTH:
        raise FilterSyntaxError(f"The filter is longer than {MAX_LENGTH} characters.")
    try:
        return _FilterParser(text).parse()
    except FilterSyntaxError as error:
        try:
            return checked(_below(parse(text)))
        except (DittoError, RecursionError):
            raise error from None


def fits_filter(tree: Node, text: str | None) -> bool:
    """Return whether a message matches RQL; only a JSON object can, and what cannot be evaluated does not.

    Nor does one whose values take too much effort.
    """
    try:
        message = _decode_object(text or "")
    except UNREADABLE:
        return False
    try:
        return matches(tree, {_TOP: message}, effort=Effort())
    except Exception:  # noqa: BLE001 - one message would stop the results of all clients, at every start
        return False


def _below(node: Node) -> Node:
    if isinstance(node, Combination):
        return Combination(node.op, tuple(map(_below, node.args)))
    return msgspec.structs.replace(node, property=f"{_TOP}/{node.property.removeprefix('/')}")
