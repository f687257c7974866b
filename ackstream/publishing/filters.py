"""Filters of subscriptions and queries, as AMPS writes them: ``/order/price > 10 AND /state == 'open'``.

A filter is an SQL condition in which a field is a path (``/a/b``) or a name. It is read here, so that one that cannot
be understood is refused with ``bad filter`` before anything runs, and comes out as Spark SQL.
"""

from __future__ import annotations

import re
from typing import Final

from ackstream.errors import AckstreamError

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
_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "BEGINS", "ENDS", "WITH"}
)
_FUNCTIONS: Final = frozenset(
    {"ABS", "CEILING", "COALESCE", "CONCAT", "FLOOR", "LENGTH", "LOWER", "ROUND", "SUBSTRING", "TRIM", "UPPER"}
)
MAX_DEPTH = 100


class BadFilterError(AckstreamError):
    """A filter that cannot be understood; names the place."""


def parse_filter(text: str) -> str:
    """Return the condition in Spark SQL; a field is looked up in the JSON column ``value``.

    :raises BadFilterError: it is no condition
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0

    def parse(self) -> str:
        condition = self._or()
        if self._index < len(self._tokens):
            raise self._wrong("the end")
        return condition

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

    def _wrong(self, wanted: str) -> BadFilterError:
        found = self._peek()[1] or "the end"
        return BadFilterError(f"The filter {self._text!r} has {found} where {wanted} is expected.")

    # -- grammar ---------------------------------------------------------------------------------------------------

    def _or(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadFilterError(f"The filter is nested deeper than {MAX_DEPTH} levels.")
        condition = self._and()
        while self._take("OR"):
            condition = f"({condition} OR {self._and()})"
        self._depth -= 1
        return condition

    def _and(self) -> str:
        condition = self._not()
        while self._take("AND"):
            condition = f"({condition} AND {self._not()})"
        return condition

    def _not(self) -> str:
        negations = 0
        while self._take("NOT"):
            negations += 1
        condition = self._predicate()
        return f"(NOT {condition})" if negations % 2 else condition

    def _predicate(self) -> str:
        left = self._sum()
        if sign := self._take(*_COMPARISONS):
            return f"({left} {_COMPARISONS[sign]} {self._sum()})"
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
            return f"({left} RLIKE {self._sum()})"
        if word == "IN":
            self._expect("(")
            return f"({left} IN ({self._list()}))"
        if word == "BETWEEN":
            low = self._sum()
            self._expect("AND")
            return f"({left} BETWEEN {low} AND {self._sum()})"
        self._expect("WITH")
        return f"{'startswith' if word == 'BEGINS' else 'endswith'}({left}, {self._sum()})"

    def _sum(self) -> str:
        left = self._product()
        while sign := self._take("+", "-", "||"):
            left = f"({left} {sign} {self._product()})"
        return left

    def _product(self) -> str:
        left = self._atom()
        while sign := self._take("*", "/", "%"):
            left = f"({left} {sign} {self._atom()})"
        return left

    def _atom(self) -> str:
        negative = False
        while self._take("-"):
            negative = not negative
        if self._take("("):
            inner = self._or()
            self._expect(")")
            value = f"({inner})"
        else:
            value = self._value()
        return f"(- {value})" if negative else value

    def _value(self) -> str:
        kind, value = self._peek()
        if kind == "word" and value.upper() in ("NULL", "TRUE", "FALSE"):
            kind = "number"
        if kind in ("sign", "end") or (kind == "word" and value.upper() in _KEYWORDS):
            raise self._wrong("a value")
        self._index += 1
        if kind == "number":
            return value
        if kind == "string":
            return _quoted(value[1:-1].replace(value[0] * 2, value[0]))
        if kind == "path":
            return _field(value.replace("/@", "/").split("/")[1:])
        return self._call(value) if self._take("(") else _field([value])

    def _call(self, name: str) -> str:
        if name.upper() not in _FUNCTIONS:
            raise BadFilterError(f"The filter {self._text!r} calls {name}; known are {', '.join(sorted(_FUNCTIONS))}.")
        return f"{name.lower()}({self._list()})"

    def _list(self) -> str:
        values = [self._sum()]
        while self._take(","):
            values.append(self._sum())
        self._expect(")")
        return ", ".join(values)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise BadFilterError(f"The filter {text!r} cannot be read from character {position + 1} on.")
        tokens.append((str(found.lastgroup), found.group().strip()))
        position = found.end()
    return tokens


def _field(names: list[str]) -> str:
    path = "".join(f"['{name}']" for name in names)
    return f"get_json_object(value, {_quoted('$' + path)})"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
