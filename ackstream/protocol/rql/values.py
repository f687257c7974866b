"""Values in RQL: comparison, their text form for ``like``, and the ``time:`` placeholder.

Source of the rules: Eclipse Ditto, ``ThingPredicatePredicateVisitor`` and ``ImmutableTimePlaceholder``.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeAlias

from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql.patterns import like

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.protocol.rql.patterns import Effort


Scalar: TypeAlias = str | int | float | bool

_LONG_BOUND = 2.0**63
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7
_TO_PRINT = 4
"""The steps that the text of a number takes."""


def scalars(values: Iterable[Any]) -> Iterator[Scalar | None]:
    """Yield the texts, numbers, booleans and nulls among the values and in their arrays; objects are skipped."""
    rest = list(values)
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest.extend(value)
        elif value is None or isinstance(value, str | int | float):
            yield value


def compare(value: Scalar, literal: Scalar) -> int:
    """Return -1, 0 or 1 as the thing's value is less than, equal to or greater than the filter's literal.

    Numbers compare as decimals; a number and a text as numbers if the text is one; two texts, and everything else
    that differs in type, as texts (by UTF-16 units, as Java does).
    """
    if type(value) is type(literal) and not isinstance(value, str):
        return _sign(value, literal)
    left = _comparable(value)
    right = _comparable(literal)
    if isinstance(left, Decimal) and isinstance(right, str):
        right = _number(right)
    elif isinstance(left, str) and isinstance(right, Decimal):
        left = _number(left)
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return _sign(left, right)
    return _sign(_utf16(left), _utf16(right))


def like_value(pattern: str, value: Scalar | None, *, ignore_case: bool, effort: Effort | None = None) -> bool:
    """Return whether the text form of a thing's value matches the pattern. Null has none: only ``*`` matches it.

    :raises DittoError: as ``Effort.spend`` does
    """
    if value is None:
        return bool(pattern) and not pattern.strip("*")
    if isinstance(value, bool):
        value = str(value).lower()
    elif not isinstance(value, str):
        if effort is not None:
            effort.spend(_TO_PRINT)
        value = _printed(value)
    return like(pattern, value, ignore_case=ignore_case, effort=effort)


def _sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _comparable(value: Scalar) -> Decimal | str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return Decimal(value)
    return Decimal(_java_double(value)) if value else Decimal("0.0")


def _number(text: str) -> Decimal | str:
    if _NUMBER.fullmatch(text) is None:
        return text
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return text


def _printed(value: float) -> str:
    # a number of a thing; a floating point number without a fraction is an integer here
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if abs(value) < _LONG_BOUND and value.is_integer() else _java_double(value)


def _java_double(value: float) -> str:
    # as Double.toString of Java does: 0.001, 1.0E-4, 1.0E7
    if _PLAIN_FROM <= abs(value) < _PLAIN_TO or not value:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits))
    power = int(exponent) + len(text) - 1
    return f"{'-' * sign}{text[0]}.{text[1:].rstrip('0') or '0'}E{power}"


def _utf16(value: Decimal | str) -> bytes:
    return str(value).encode("utf-16-be", "surrogatepass")


_FORM = re.compile(
    r"time:now(?P<millis>_epoch_millis)?(?:(?P<sign>[+-])(?P<duration>[^\[\]]*))?(?:\[(?P<unit>ms|s|m|h|d|w|mo|y|)\])?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def resolve(text: str, now: datetime) -> str | None:
    """Return the value of a ``time:`` placeholder at ``now`` (with a time zone), ``None`` if it is malformed.

    The placeholder is ``now`` or ``now_epoch_millis``, shifted by a duration and truncated to a unit (``now-1h[d]``);
    its value is a text, ISO 8601 in UTC or decimal epoch milliseconds. Weeks start on Monday.
    """
    form = _FORM.fullmatch(text)
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
