"""Patterns of names in the settings: ``*`` stands for any run of characters, everything else for itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches the whole name, in a time that is proportional to both at worst."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    *between, last = rest
    position = len(first)
    for part in between:
        position = name.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return len(name) - len(last) >= position and name.endswith(last)


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Return whether at least one pattern matches."""
    return any(matches(pattern, name) for pattern in patterns)


def expression(patterns: Iterable[str]) -> str:
    """Return a regular expression that finds a match exactly in the names that :func:`matches_any` accepts.

    It means the same in Python and in Java, so that Spark's ``rlike`` can evaluate it.
    """
    alternatives = [".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns]
    # (?!) matches nothing; (?!.) is the very end, where $ would allow a line break
    return f"(?s)^(?:{'|'.join(alternatives)})(?!.)" if alternatives else "(?!)"
