"""Regular expressions of filters: RE2, whose time grows with the text and with the expression, and never with more.

An engine that backtracks, as Java's and Python's do, takes hours for some expressions of ten characters. RE2 has no
backreferences and does not look around. Its time is bounded by the instructions of the compiled expression times the
bytes of the text, so both are limited here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import re2

MAX_INSTRUCTIONS: Final = 2_000
"""Of all regular expressions of one filter together: ``[a-z]{100}`` has about a hundred."""

MAX_STEPS: Final = 10_000_000
"""Instructions times bytes: 50 ms at worst. What would take more steps matches nothing."""

_MAX_MEMORY: Final = 1 << 20
"""Bytes of the states that an expression keeps; many may be in use at a time."""


class RegularExpressionError(ValueError):
    """It is not a regular expression of RE2, or too large; the text says which."""


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
        raise RegularExpressionError(f"RE2 does not accept it: {why}") from None


def instructions(pattern: str) -> int:
    """Return the size of an expression as a program.

    :raises RegularExpressionError: it is not one, or too large
    """
    size: int = _compiled(pattern).programsize
    if size > MAX_INSTRUCTIONS:
        raise RegularExpressionError(f"it has {size:,} instructions, and {MAX_INSTRUCTIONS:,} are allowed")
    return size


def found(pattern: str, text: bytes | None, limit: int) -> bool | None:
    """Return whether a text (UTF-8) has a part that an expression matches.

    :param limit: in bytes; a longer text is not searched
    :returns: ``None`` for no text, or one that is too long
    """
    if text is None or len(text) > limit:
        return None
    return _compiled(pattern).search(text) is not None
