"""Patterns of names, in which ``*`` stands for any run of characters and everything else for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern fits the whole name; in a time that grows with both, whatever the pattern is."""
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
    """Tell whether one of several patterns fits."""
    return any(matches(pattern, name) for pattern in patterns)
