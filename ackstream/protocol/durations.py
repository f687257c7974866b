"""Durations: amounts with a unit, such as ``10s``, ``500ms`` or ``1m``, and ISO 8601, such as ``PT10S``.

Ditto's headers take only the first notation, with an optional sign and unit (:class:`Duration`; source of the rules:
Eclipse Ditto, ``DittoDuration``). The settings, the command line and the headers of publishers and queries take both,
without a sign and with a unit (:func:`read_duration`).
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from ackstream.protocol.errors import DittoError, timeout_invalid

LONG_MAX = 2**63 - 1
_LONG_MIN = -(2**63)

MAX_MS = 10**17
"""The longest usable duration: three million years; added to a time it fits into 64 bits."""

# longer texts are parsed but not cached
_CACHED_LENGTH = 64

# milliseconds per unit: no unit means seconds; month and year are averages of the Gregorian calendar
_UNITS = {
    "": 1_000,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "mo": 2_629_746_000,
    "y": 31_556_952_000,
}
# Ditto keeps the amount of these units in 32 bits
_NARROW = frozenset({"w", "mo", "y"})
_PATTERN = re.compile(r"([+-]?[0-9]+)(ms|s|mo|m|h|d|w|y|)")
_ISO = re.compile(
    r"P(?=.)(?:(?P<y>[0-9]+)Y)?(?:(?P<mo>[0-9]+)M)?(?:(?P<w>[0-9]+)W)?(?:(?P<d>[0-9]+)D)?"
    r"(?:T(?=.)(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+)(?:[.,](?P<ms>[0-9]{1,9}))?S)?)?"
)
_MAX_CHARACTERS = 100


def read_duration(text: str) -> int | None:
    """Read an amount with its unit, or a duration of ISO 8601; return milliseconds, ``None`` if the text is neither."""
    # a fraction of a millisecond is cut off; not negative, perhaps more than MAX_MS

    # int() takes long for very many digits
    if len(text) > _MAX_CHARACTERS:
        return None
    if (plain := _PATTERN.fullmatch(text)) and plain[2] and text[0].isdecimal():
        parts = {plain[2]: plain[1]}
    elif iso := _ISO.fullmatch(text):
        parts = {unit: amount for unit, amount in iso.groupdict().items() if amount}
        if "ms" in parts:
            parts["ms"] = parts["ms"].ljust(3, "0")[:3]
    else:
        return None
    return sum(int(amount) * _UNITS[unit] for unit, amount in parts.items())


class Duration(msgspec.Struct, frozen=True):
    """A length of time, not negative, in the unit in which it was written."""

    amount: int
    unit: str

    @staticmethod
    def parse(text: str) -> Duration:
        """Read a sign, if any, ASCII digits, and a unit, if any. Raises 400 ``timeout.invalid`` for anything else."""
        return _parse(text) if len(text) <= _CACHED_LENGTH else _parse.__wrapped__(text)

    @staticmethod
    def of_milliseconds(milliseconds: int) -> Duration:
        """Return a duration in the unit ``ms``. Raises ``DittoError`` if it is negative."""
        if milliseconds < 0:
            seconds = f"{milliseconds / 1000:f}".rstrip("0").rstrip(".")
            raise timeout_invalid(f"The duration must not be negative but was <PT{seconds}S>!")
        return Duration(milliseconds, "ms")

    @property
    def milliseconds(self) -> int:
        """The length in milliseconds."""
        # OverflowError: it does not fit into a signed 64-bit number (Ditto fails too when it uses such a value)
        amount = self.amount
        if self.unit in _NARROW:
            amount = (amount + 2**31) % 2**32 - 2**31
            if self.unit == "w" and not -(2**31) <= amount * 7 < 2**31:
                raise OverflowError(f"the days of <{self}> do not fit into 32 bits")
        length = amount * _UNITS[self.unit]
        if not _LONG_MIN <= length <= LONG_MAX:
            raise OverflowError(f"the milliseconds of <{self}> do not fit into 64 bits")
        return length

    def capped(self, maximum: int) -> int:
        """Return the length in milliseconds, at most ``maximum``; an overflow counts as infinite."""
        try:
            length = self.milliseconds
        except OverflowError:
            return maximum
        return min(length, maximum) if length >= 0 else maximum

    def __str__(self) -> str:
        return f"{self.amount}{self.unit}"


@lru_cache(maxsize=4096)
def _parse(text: str) -> Duration:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise _unreadable(text)
    amount_text, unit = match.groups()
    # int() refuses thousands of digits; 64 bits have at most 19 after leading zeros
    digits = amount_text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > 19:  # noqa: PLR2004 - the digits of 2**63
        raise _unreadable(amount_text)
    amount = -int(digits) if amount_text[0] == "-" else int(digits)
    if not _LONG_MIN <= amount <= LONG_MAX:
        raise _unreadable(amount_text)
    if amount < 0:
        raise timeout_invalid(f"The duration must not be negative but was <{amount_text}{unit}>!")
    return Duration(amount, unit)


def _unreadable(text: str) -> DittoError:
    return timeout_invalid(f'A duration is a whole number and a unit, such as 10s, 500ms or 1m: this one is "{text}".')
