"""Filters: text to tree, after Ditto's grammar. ``msgspec.to_builtins`` gives the form of a tree as JSON.

    filter   = blanks query end
    query    = (eq|ne|gt|ge|lt|le|like|ilike) "(" property "," literal ")"
             | in "(" property "," literal {"," literal} ")"
             | (and|or) "(" query {"," blanks query} ")" | not "(" query ")"
             | (exists|empty) "(" property ")"
    literal  = (double | long | "text" | 'text' | time:name | true | false | null) blanks

Blanks are part of a property, and stand only at the places of the grammar: ``eq(a, 1)`` is an error.
Source of the rules: Eclipse Ditto, ``RqlPredicateParser``, ``RqlParserBase`` and ``ImmutableTimePlaceholder``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError, rql_expression_invalid

MAX_CHARACTERS = 10_000
MAX_NODES = 200
"""Conditions, and the and, or and not that join them: far below the recursion limit."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_LONG_LENGTH = 20

_NAME = re.compile("and|or|not|in|exists|empty|eq|ne|gt|ge|lt|le|like|ilike")
_BLANKS = re.compile("[ \n\r\t\f]*")
_DOUBLE = re.compile(r"[+-]?(?:[1-9][0-9]+|[0-9])\.[0-9]+")
_LONG = re.compile(r"(?!-0)[+-]?(?:[1-9][0-9]+|[0-9])")
_WORD = re.compile("true|false|null")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_TIME = re.compile(r"time:[^\n\r\x85\u2028\u2029]+")


def _run(stop: str, escaped: str) -> re.Pattern[str]:
    """Characters up to one of ``stop`` (or a backslash that begins no escape), escapes included."""
    return re.compile(rf"[^{stop}\\]*(?:\\(?:[{escaped}\\/bfnrt]|u[0-9A-Fa-f]{{4}})[^{stop}\\]*)*")


_PROPERTY = _run(stop=',)"', escaped='"')
_QUOTED = {'"': _run(stop='"', escaped='"'), "'": _run(stop="'", escaped="'")}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Placeholder(msgspec.Struct, frozen=True):
    """A literal that is resolved when the filter is evaluated, with its prefix: ``time:now-1h``."""

    placeholder: str


Value: TypeAlias = str | int | float | bool | Placeholder | None


class Comparison(msgspec.Struct, frozen=True):
    """One property against one literal; ``like`` and ``ilike`` too."""

    op: Literal["eq", "ne", "gt", "ge", "lt", "le", "like", "ilike"]
    property: str
    value: Value


class Membership(msgspec.Struct, frozen=True, tag_field="op", tag="in"):
    """One property against at least one literal."""

    property: str
    values: tuple[Value, ...]


class Existence(msgspec.Struct, frozen=True):
    """``exists``: the property is present, with any value; ``empty``: it is absent, null or without content."""

    op: Literal["exists", "empty"]
    property: str


class Combination(msgspec.Struct, frozen=True):
    """All or any of at least one filter, or the opposite of exactly one."""

    op: Literal["and", "or", "not"]
    args: tuple[Node, ...]


Leaf: TypeAlias = Comparison | Membership | Existence
Node: TypeAlias = Leaf | Combination


def leaves(tree: Node) -> Iterator[Leaf]:
    """Yield the nodes that name a property, in the order they are written."""
    if isinstance(tree, Combination):
        for arg in tree.args:
            yield from leaves(arg)
    else:
        yield tree


def parse(text: str) -> Node:
    """Read a filter; ``checked`` checks its property names. Raises 400 with the position, and the expected words."""
    if len(text) > MAX_CHARACTERS:
        raise rql_expression_invalid(f"The RQL expression is longer than {MAX_CHARACTERS} characters.")
    return _tree(text)


@lru_cache(maxsize=512)
def _tree(text: str) -> Node:
    parser = _Parser(text)
    parser.skip_blanks()
    tree = parser.query()
    if parser.at != len(text):
        parser.unexpected("the end of input")
    return tree


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.nodes = 0

    def query(self) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise rql_expression_invalid(
                f"The RQL expression has more than {MAX_NODES} conditions, which position {self.at + 1} begins."
            )
        op: Any = self._take(_NAME)
        if op is None:
            self.unexpected("one of and, or, not, eq, ne, gt, ge, lt, le, like, ilike, in, exists, empty")
        self._expect("(")
        if op not in ("and", "or", "not"):
            return self._leaf(op)
        args = [self.query()]
        while op != "not" and self._accept(","):
            self.skip_blanks()
            args.append(self.query())
        self._expect(")", None if op == "not" else "',' or ')'")
        return Combination(op, tuple(args))

    def _leaf(self, op: Any) -> Node:
        property_ = _decode(self._run(_PROPERTY))
        if op in ("exists", "empty"):
            self._expect(")")
            return Existence(op, property_)
        self._expect(",")
        values = [self._literal()]
        while op == "in" and self._accept(","):
            values.append(self._literal())
        self._expect(")", "',' or ')'" if op == "in" else None)
        return Membership(property_, tuple(values)) if op == "in" else Comparison(op, property_, values[0])

    def _literal(self) -> Value:
        value: Value
        if self.text.startswith(('"', "'"), self.at):
            value = self._quoted()
        elif self.text.startswith("time:", self.at):
            value = self._placeholder()
        elif (double := self._take(_DOUBLE)) is not None:
            value = float(double)
            if math.isinf(value):
                self._out_of_range(double, "64-bit floating point")
        elif (long := self._take(_LONG)) is not None:
            # the length first: the interpreter refuses to convert thousands of digits
            value = int(long) if len(long) <= _LONG_LENGTH else _LONG_MAX + 1
            if not _LONG_MIN <= value <= _LONG_MAX:
                self._out_of_range(long, "64-bit integers")
        elif (word := self._take(_WORD)) is not None:
            value = _WORDS[word]
        else:
            self.unexpected("a number, a quoted text, true, false, null or time:…")
        self.skip_blanks()
        return value

    def _quoted(self) -> str:
        quote = self.text[self.at]
        self.at += 1
        raw = self._run(_QUOTED[quote])
        self._expect(quote)
        return _decode(raw)

    def _placeholder(self) -> Placeholder:
        raw = self._run(_PROPERTY)
        if _TIME.fullmatch(raw) is None:
            self.unexpected("a name in one line after time:")
        return Placeholder(raw)

    def _run(self, pattern: re.Pattern[str]) -> str:
        raw = self._take(pattern) or ""
        if self.text.startswith("\\", self.at):
            self.unexpected("another character or an escape (the quote, \\\\, \\/, \\b, \\f, \\n, \\r, \\t, \\uXXXX)")
        return raw

    def skip_blanks(self) -> None:
        self._take(_BLANKS)

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def _accept(self, character: str) -> bool:
        found = self.text.startswith(character, self.at)
        self.at += found
        return found

    def _expect(self, character: str, expected: str | None = None) -> None:
        if not self._accept(character):
            self.unexpected(expected or repr(character))

    def _out_of_range(self, number: str, kind: str) -> NoReturn:
        position = self.at - len(number) + 1
        raise rql_expression_invalid(f"The number at position {position} is out of the range of {kind}.")

    def unexpected(self, expected: str) -> NoReturn:
        found = repr(self.text[self.at]) if self.at < len(self.text) else "end of input"
        raise rql_expression_invalid(f"Unexpected {found} at position {self.at + 1}, expected {expected}.")


def _decode(raw: str) -> str:
    text = _ESCAPE.sub(_character, raw) if "\\" in raw else raw
    if _SURROGATE.search(text) is not None:
        # two \u escapes that make one character are one, as in JSON
        text = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    return text


def _character(escape: re.Match[str]) -> str:
    code, character = escape.groups()
    return _CONTROLS.get(character, character) if code is None else chr(int(code, 16))


_TIME_FORM = re.compile(
    r"time:now(?P<millis>_epoch_millis)?(?:(?P<sign>[+-])(?P<duration>[^\[\]]*))?(?:\[(?P<unit>ms|s|m|h|d|w|mo|y|)\])?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def resolve(text: str, now: datetime) -> str | None:
    """Return the value of a ``time:`` placeholder at ``now`` (with a time zone), ``None`` if it is malformed."""
    # The placeholder is ``now`` or ``now_epoch_millis``, shifted by a duration and truncated to a unit (``now-1h[d]``);
    # its value is a text, ISO 8601 in UTC or decimal epoch milliseconds. Weeks start on Monday.
    form = _TIME_FORM.fullmatch(text)
    if form is None:
        return None
    moment = now.astimezone(timezone.utc)
    try:
        if form["sign"]:
            distance = timedelta(milliseconds=Duration.parse(form["duration"]).milliseconds)
            moment = moment + distance if form["sign"] == "+" else moment - distance
    except (DittoError, ValueError, OverflowError):
        return None
    if form["unit"] is not None:
        moment = _cut(moment, form["unit"])
    return str((moment - _EPOCH) // timedelta(milliseconds=1)) if form["millis"] else _iso(moment)


_KEPT = {"y": 1, "mo": 2, "w": 3, "d": 3, "h": 4, "m": 5, "s": 6, "": 6}
"""By unit, how many of the fields of a moment it keeps; the others are as in ``_FIRST``."""

_FIRST = (1, 1, 1, 0, 0, 0)


def _cut(moment: datetime, unit: str) -> datetime:
    if unit == "ms":
        return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    if unit == "w":
        moment -= timedelta(days=moment.weekday())
    kept = _KEPT[unit]
    year, month, day, hour, minute, second = (*moment.timetuple()[:kept], *_FIRST[kept:])
    return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)


def _iso(moment: datetime) -> str:
    # Java prints zero, three or six fractional digits; since texts are compared, it matters
    micros = moment.microsecond
    precision = "seconds" if not micros else "microseconds" if micros % 1000 else "milliseconds"
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
