"""Places in the log of messages, and bookmarks: how a place is written for a client (brokers.md 1.1 A22 to A25).

The log is the table ``messages``: its batches in their order, within a batch the partitions in theirs. That is one
order over all messages, which never changes, since a batch is written once. A bookmark belongs to the topic that it
was given for.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from ackstream.publishing.commands import EPOCH, MOST_RECENT, NOW

MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

_BOOKMARK = re.compile(r"(\d{1,18})(?:\|(\d{1,9})\|(\d{1,18}))?\|([0-9a-f]{8})")
_RANGE = re.compile(r"\s*([\[(])\s*([^:\s]+)\s*:\s*([^:\s]*?)\s*([\])])\s*")


class Position(NamedTuple):
    """A message's place: the batch that wrote it, and its Kafka partition and offset."""

    batch: int
    partition: int
    offset: int


BEGINNING: Final = Position(-1, 0, 0)
"""Before all messages."""


class Span(NamedTuple):
    """What a subscription wants: all after a position, up to and with another one (``None``: whatever comes)."""

    after: Position
    stop: Position | None = None


class InvalidBookmarkError(ValueError):
    """A text is no bookmark of this topic in this log."""


def end(batch: int) -> Position:
    """Return the place behind the last message of a batch."""
    return BEGINNING if batch < 0 else Position(batch, MAX_PARTITION, MAX_OFFSET)


def tag(topic: str) -> str:
    """Return what tells the bookmarks of topics apart."""
    return blake2b(topic.encode(), digest_size=4).hexdigest()


def bookmark(position: Position, topic: str) -> str:
    """Write a position as a bookmark: ``batch|partition|offset|tag``, the end of a batch as ``batch|tag``."""
    if position == BEGINNING:
        return EPOCH
    place = str(position.batch) if position == end(position.batch) else "|".join(map(str, position))
    return f"{place}|{tag(topic)}"


def parse(text: str) -> Position:
    """Read a bookmark, of whatever topic.

    :raises InvalidBookmarkError: it is none
    """
    if text == EPOCH:
        return BEGINNING
    batch, partition, offset, _ = _read(text)
    return end(int(batch)) if partition is None else Position(int(batch), int(partition), int(offset))


def span(text: str, topic: str, newest: Position) -> Span:
    """Read where a replay begins and ends: a word, a bookmark, or a range of them such as ``[A:B]`` or ``(A:]``.

    A square bracket takes the message of its bookmark in. ``MOST_RECENT`` is the client's to resolve; who has no
    bookmark yet begins at the beginning.

    :param newest: the end of the log
    :raises InvalidBookmarkError: it is of another topic, beyond the end of the log, or nothing of all that
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        return Span(_place(text, topic, newest))
    left, first, last, right = found.groups()
    after = _place(first, topic, newest)
    stop = _place(last, topic, newest) if last else None
    if left == "[":
        after = _before(after)
    if stop is not None and right == ")":
        stop = _before(stop)
    if stop is not None and stop < after:
        raise InvalidBookmarkError(f"The range {text} ends before it begins.")
    return Span(after, stop)


def ends(text: str) -> bool:
    """Tell whether what :func:`span` reads has an end."""
    found = _RANGE.fullmatch(text)
    return found is not None and bool(found[3])


def _before(position: Position) -> Position:
    """Return a place with nothing between it and a message, on the other side of it; ends of batches stay."""
    whole = position in (BEGINNING, end(position.batch))
    return position if whole else position._replace(offset=position.offset - 1)


def _place(text: str, topic: str, newest: Position) -> Position:
    words = {EPOCH: BEGINNING, MOST_RECENT: BEGINNING, NOW: newest}
    if text in words:
        return words[text]
    *_, owner = _read(text)
    if owner != tag(topic):
        raise InvalidBookmarkError(f"The bookmark {text} is not of the topic {topic}.")
    position = parse(text)
    if position > newest:
        raise InvalidBookmarkError(f"The bookmark {text} lies behind the end of the log.")
    return position


def _read(text: str) -> tuple[str, ...]:
    found = _BOOKMARK.fullmatch(text)
    if found is None:
        raise InvalidBookmarkError(f"{text} is no bookmark.")
    return found.groups()
