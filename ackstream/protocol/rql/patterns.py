"""Patterns of names and of ``like``, and the effort of evaluating a filter.

In a pattern of names in the settings ``*`` stands for any run of characters, all other characters for themselves; in
one of ``like`` (Eclipse Ditto, ``LikeHelper``) for any run within a line, and ``?`` for any character except a line
break. The parts between its ``*`` are searched one after the other, each at its first match: a later one would leave
less of the text. So a text is read once; each ``?`` may cost a check at each position, which counts as a step. Steps
are limited, since every literal of one client's filter against every value of another's could take minutes.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from ackstream.protocol.errors import rql_expression_expensive


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
    """Return a regular expression that finds a match exactly in the names that :func:`matches_any` accepts."""
    # it means the same in Python and in Java, so that Spark's ``rlike`` can evaluate it
    alternatives = [".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns]
    # (?!) matches nothing; (?!.) is the very end, where $ would allow a line break
    return f"(?s)^(?:{'|'.join(alternatives)})(?!.)" if alternatives else "(?!)"


MAX_STEPS = 30_000
"""The steps that one evaluation may take: less than 100 ms, and enough for 100 comparisons with 300 values each."""

CHARACTERS = 100
"""Number of characters of a text that are read in one step."""


class Effort:
    """The steps that are left."""

    __slots__ = ("_most", "left")

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._most = self.left = steps

    def spend(self, steps: int) -> None:
        """Take some steps. Raises 400 ``rql.expression.expensive`` if no more are left."""
        self.left -= steps
        if self.left < 0:
            raise rql_expression_expensive(self._most)

    @property
    def spent(self) -> int:
        """The steps taken."""
        return self._most - self.left


MAX_WILDCARDS = 50
"""Wildcards in one pattern; a run of ``*`` is one."""

_RUN = re.compile(r"\*+")
_BREAK = re.compile("[\n\r\x85\u2028\u2029]")


class _Segment(msgspec.Struct, frozen=True):
    """A part of a pattern without ``*``: its length, and its texts with their positions, the longest text first."""

    length: int
    texts: tuple[tuple[int, str], ...]
    open: tuple[int, ...]
    """The positions in it where any character but a line break may be."""

    def fits(self, text: str, at: int) -> bool:
        """Return whether it matches a text at a position, where it has room."""
        return all(text.startswith(part, at + offset) for offset, part in self.texts) and not any(
            _BREAK.match(text, at + offset) for offset in self.open
        )

    def find(self, text: str, start: int, last: int, effort: Effort | None) -> int:
        """Return its first position from ``start`` to ``last``, else -1."""
        last = min(last, len(text) - self.length)
        if not self.texts:
            # a run of ?: if a line break is in the way, it is in the way of all later places
            return start if start <= last and self.fits(text, start) else -1
        offset, longest = self.texts[0]
        at = start
        while True:
            at = text.find(longest, at + offset, last + offset + len(longest)) - offset
            if at < 0:
                return -1
            if not self.open:
                return at
            if effort is not None:
                effort.spend(len(self.texts) + len(self.open) + self.length // CHARACTERS)
            if self.fits(text, at):
                return at
            at += 1


def _fit(segments: tuple[_Segment, ...], text: str, effort: Effort | None) -> bool:
    """Return whether the whole text matches a pattern, cut at its ``*``."""
    first, *between = segments
    if not between:
        return len(text) == first.length and first.fits(text, 0)
    last = between.pop()
    end = len(text) - last.length
    if end < first.length or not first.fits(text, 0):
        return False
    at = first.length
    line_end = _line_end(text, at)
    for segment in between:
        # it must begin in the line in which the previous part ends
        at = segment.find(text, at, line_end, effort)
        if at < 0:
            return False
        at += segment.length
        if at > line_end:
            line_end = _line_end(text, at)
    return at <= end <= line_end and last.fits(text, end)


def wildcards(pattern: str) -> int:
    """Return the number of wildcards in a pattern; a run of ``*`` is one."""
    return len(_RUN.findall(pattern)) + pattern.count("?")


def like(pattern: str, value: str, *, ignore_case: bool = False, effort: Effort | None = None) -> bool:
    """Return whether the whole value matches; ``ignore_case`` is that of A to Z. Raises as ``Effort.spend`` does."""
    if effort is not None:
        effort.spend(1 + len(value) // CHARACTERS)
    if ignore_case:
        pattern, value = _lower(pattern), _lower(value)
    return _fit(_segments(pattern), value, effort)


@lru_cache(maxsize=512)
def _segments(pattern: str) -> tuple[_Segment, ...]:
    return tuple(map(_segment, _RUN.split(pattern)))


def _segment(part: str) -> _Segment:
    texts, offset = [], 0
    for text in part.split("?"):
        if text:
            texts.append((offset, text))
        offset += len(text) + 1
    texts.sort(key=lambda placed: len(placed[1]), reverse=True)
    return _Segment(len(part), tuple(texts), tuple(found.start() for found in re.finditer(r"\?", part)))


def _line_end(text: str, start: int) -> int:
    found = _BREAK.search(text, start)
    return len(text) if found is None else found.start()


def _lower(text: str) -> str:
    if text.isascii():
        return text.lower()
    # of bytes only the letters A to Z have a lower case
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
