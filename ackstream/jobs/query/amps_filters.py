"""Filters in AMPS's syntax, ``/order/price > 10 AND /state == 'open'``: from the text to a tree.

A field is a path (``/a/b``) or a name. Parsing rejects an invalid filter, with a sentence, and one that is too large.
Regular expressions are RE2's, in time bounded by instructions times bytes of text, both limited here: a backtracking
engine (Java, Python) takes hours for some of ten characters. RE2 has no backreferences or lookaround.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeAlias

import re2

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
_SIGNS: Final = (("OR",), ("AND",), ("+", "-", "||"), ("*", "/", "%"))
OR, AND, SUM, PRODUCT = range(len(_SIGNS))
"""The levels of precedence: conditions are joined by ``OR`` and ``AND``, values in them are sums of products."""

_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "BEGINS", "ENDS", "WITH"}
)
_WORDS: Final = {"NULL": None, "TRUE": True, "FALSE": False}
FUNCTIONS: Final = frozenset(
    {"ABS", "CEILING", "COALESCE", "CONCAT", "FLOOR", "LENGTH", "LOWER", "ROUND", "SUBSTRING", "TRIM", "UPPER"}
)

MAX_DEPTH: Final = 100
MAX_NODES: Final = 200
"""Fields, constants and operations of a filter, each as often as it is evaluated; a field counts as several."""
FIELD_NODES: Final = 5
"""To find a field, the whole message is read: 2 ms for a megabyte."""
MAX_INSTRUCTIONS: Final = 2_000
"""Maximum of all regular expressions of one filter together: ``[a-z]{100}`` has about a hundred."""
MAX_STEPS: Final = 10_000_000
"""Instructions times bytes: 50 ms at worst. A search that would take more steps matches nothing."""
_MAX_MEMORY: Final = 1 << 20
"""Bytes of the states that an expression keeps; many expressions may be in use at a time."""
_SHOWN = 60
"""Characters of a filter that a sentence repeats."""


class FilterSyntaxError(AckstreamError):
    """A filter is invalid or too large; the text has the reason and the place."""


class FieldPath(NamedTuple):
    """A field of the message, as text; null where it is absent."""

    names: tuple[str, ...]
    nodes: int = FIELD_NODES


class Constant(NamedTuple):
    """A number, a text, a truth value or null."""

    value: float | str | bool | None
    nodes: int = 1


class PatternSearch(NamedTuple):
    """Whether a regular expression matches a part of a text."""

    text: Expression
    pattern: str
    nodes: int


class Calculation(NamedTuple):
    """An operation or a function, by its name, on its arguments."""

    name: str
    arguments: tuple[Expression, ...]
    nodes: int


Expression: TypeAlias = FieldPath | Constant | PatternSearch | Calculation


class AmpsFilter(NamedTuple):
    """A condition in AMPS's syntax. ``instructions``: the sizes of its regular expressions, together."""

    condition: Expression
    instructions: int = 0


def _calculation(name: str, *arguments: Expression) -> Calculation:
    return Calculation(name, arguments, _counted(arguments))


def _counted(parts: Sequence[Expression]) -> int:
    # checked at each step: a part that is evaluated twice counts twice, so nesting doubles the size per level
    nodes = 1 + sum(part.nodes for part in parts)
    if nodes > MAX_NODES:
        raise FilterSyntaxError(
            f"The filter has more than {MAX_NODES} constants, operations and fields (which count as {FIELD_NODES})."
        )
    return nodes


def parse_filter(text: str) -> AmpsFilter:
    """Parse a filter. Raises FilterSyntaxError if it is not one, or too large."""
    return _FilterParser(text).parse()


class _FilterParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0
        self._instructions = 0

    def parse(self) -> AmpsFilter:
        condition = self._chain(OR)
        if self._index < len(self._tokens):
            raise self._wrong("the end")
        return AmpsFilter(condition, self._instructions)

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
        return FilterSyntaxError(f"The filter {_shown(self._text)} has {found[:_SHOWN]} where {wanted} is expected.")

    def _chain(self, level: int) -> Expression:
        """Read parts joined by signs of one level; each level of brackets costs seven frames here."""
        read = {AND: self._not, PRODUCT: self._atom}.get(level, partial(self._chain, level + 1))
        parts, signs = [read()], []
        while sign := self._take(*_SIGNS[level]):
            signs.append(sign)
            parts.append(read())
        if not signs:
            return parts[0]
        if level in (OR, AND):
            return _calculation(signs[0], *parts)
        whole = parts[0]
        for sign, part in zip(signs, parts[1:], strict=True):
            whole = _calculation(sign, whole, part)
        return whole

    def _not(self) -> Expression:
        negations = 0
        while self._take("NOT"):
            negations += 1
        condition = self._predicate()
        return _calculation("NOT", condition) if negations % 2 else condition

    def _predicate(self) -> Expression:
        left = self._chain(SUM)
        if sign := self._take(*_COMPARISONS):
            return _compared(left, _COMPARISONS[sign], self._chain(SUM))
        if self._take("IS"):
            name = "IS NOT NULL" if self._take("NOT") else "IS NULL"
            self._expect("NULL")
            return _calculation(name, left)
        negated = bool(self._take("NOT"))
        test = self._test(left)
        if test is not None:
            return _calculation("NOT", test) if negated else test
        if negated:
            raise self._wrong("LIKE, IN, BETWEEN, BEGINS WITH or ENDS WITH")
        return left

    def _test(self, left: Expression) -> Expression | None:
        word = self._take("LIKE", "IN", "BETWEEN", "BEGINS", "ENDS")
        if word is None:
            return None
        if word == "LIKE":
            # AMPS matches a regular expression here
            return PatternSearch(left, self._pattern(), _counted([left]))
        if word == "IN":
            self._expect("(")
            return _member(left, self._list())
        if word == "BETWEEN":
            low = self._chain(SUM)
            self._expect("AND")
            return _calculation("AND", _compared(left, ">=", low), _compared(left, "<=", self._chain(SUM)))
        self._expect("WITH")
        return _calculation(f"{word} WITH", left, self._chain(SUM))

    def _pattern(self) -> str:
        kind, value = self._peek()
        if kind != "string":
            raise self._wrong("a regular expression in quotes")
        pattern = _unquoted(value)
        self._instructions += instructions(pattern)
        if self._instructions > MAX_INSTRUCTIONS:
            raise FilterSyntaxError(
                f"The regular expressions of the filter have {self._instructions:,} instructions together, and "
                f"{MAX_INSTRUCTIONS:,} are allowed."
            )
        self._index += 1
        return pattern

    def _atom(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterSyntaxError(f"The filter is nested deeper than {MAX_DEPTH} levels.")
        negative = False
        while self._take("-"):
            negative = not negative
        if self._take("("):
            value = self._chain(OR)
            self._expect(")")
        else:
            value = self._value()
        self._depth -= 1
        return _calculation("NEGATIVE", value) if negative else value

    def _value(self) -> Expression:
        kind, value = self._peek()
        if kind == "word" and value.upper() in _WORDS:
            self._index += 1
            return Constant(_WORDS[value.upper()])
        if kind in ("sign", "end") or (kind == "word" and value.upper() in _KEYWORDS):
            raise self._wrong("a value")
        self._index += 1
        if kind == "number":
            # a double: compared with an integer, the field would be truncated to one
            number = float(value)
            if math.isinf(number):
                raise FilterSyntaxError(f"The filter has the number {value[:_SHOWN]}, which is too large.")
            return Constant(number)
        if kind == "string":
            return Constant(_unquoted(value))
        if kind == "path":
            return FieldPath(tuple(value.replace("/@", "/").split("/")[1:]))
        return self._call(value) if self._take("(") else FieldPath((value,))

    def _call(self, name: str) -> Expression:
        if name.upper() not in FUNCTIONS:
            raise FilterSyntaxError(
                f"The filter {_shown(self._text)} calls {name[:_SHOWN]}; known are {', '.join(sorted(FUNCTIONS))}."
            )
        return _calculation(name.upper(), *self._list())

    def _list(self) -> list[Expression]:
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
            raise FilterSyntaxError(f"The filter {_shown(text)} cannot be read from character {position + 1} on.")
        tokens.append((str(found.lastgroup), found.group().strip()))
        position = found.end()
    return tokens


def _compared(left: Expression, sign: str, right: Expression) -> Expression:
    """Compare; two fields as numbers if both are numbers, otherwise as texts."""
    as_texts = _calculation(sign, left, right)
    if not (isinstance(left, FieldPath) and isinstance(right, FieldPath)):
        return as_texts
    as_numbers = _calculation(sign, _calculation("NUMBER", left), _calculation("NUMBER", right))
    return _calculation("COALESCE", as_numbers, as_texts)


def _member(left: Expression, values: Sequence[Expression]) -> Expression:
    """Compare with each of the values; constants of one type are compared with a field at once."""
    tests: list[Expression] = []
    rest = list(values)
    # apart: in one list, a text would turn the numbers into texts
    for kind in (str, float) if isinstance(left, FieldPath) else ():
        same = [value for value in rest if isinstance(value, Constant) and type(value.value) is kind]
        if len(same) > 1:
            tests.append(_calculation("IN", _calculation("NUMBER", left) if kind is float else left, *same))
            rest = [value for value in rest if not (isinstance(value, Constant) and type(value.value) is kind)]
    tests += [_compared(left, "=", value) for value in rest]
    return tests[0] if len(tests) == 1 else _calculation("OR", *tests)


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error
        raise _wrong_expression(pattern, f"RE2 does not accept it: {why}") from None


def _wrong_expression(pattern: str, why: str) -> FilterSyntaxError:
    return FilterSyntaxError(f"The filter has the regular expression {_shown(pattern)}: {why}.")


def instructions(pattern: str) -> int:
    """Return the size of an expression as a program; FilterSyntaxError if it is too large or not one of RE2."""
    size: int = _compiled(pattern).programsize
    if size > MAX_INSTRUCTIONS:
        raise _wrong_expression(pattern, f"it has {size:,} instructions, and {MAX_INSTRUCTIONS:,} are allowed")
    return size


def found(pattern: str, text: bytes | None, limit: int) -> bool | None:
    """Return whether an expression matches part of a UTF-8 text; ``None``: no text, or over ``limit`` bytes."""
    if text is None or len(text) > limit:
        return None
    return _compiled(pattern).search(text) is not None
