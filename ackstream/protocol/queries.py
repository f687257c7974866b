"""Commands of query clients, the acknowledgements that frame their results, and bookmarks (brokers.md 1.1 A2 to A26).

A bookmark is a position in the message log, written for a client. The log is the table ``messages``: its batches in
order, and within a batch the partitions in order. That is a total order which never changes, because a batch is
written once. A bookmark belongs to the topic for which it was issued.
"""

import re
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from ackstream.protocol.messages import ClientCommand, CommandAck

BAD_FILTER: Final = "bad filter"
INVALID_BOOKMARK: Final = "invalid bookmark"
INTERNAL_ERROR: Final = "internal error"
TOO_MANY: Final = "too many subscriptions"

TEMPORARY: Final = frozenset({INTERNAL_ERROR, TOO_MANY})
"""Reasons that may no longer apply when the same command is sent again."""

EPOCH, NOW, MOST_RECENT = "EPOCH", "NOW", "MOST_RECENT"

MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

_BOOKMARK = re.compile(r"(\d{1,18})(?:\|(\d{1,9})\|(\d{1,18}))?\|([0-9a-f]{8})")
_RANGE = re.compile(r"\s*([\[(])\s*([^:\s]+)\s*:\s*([^:\s]*?)\s*([\])])\s*")


def statistics(command: ClientCommand, records: int, matching: int) -> CommandAck:
    """Return the ``stats`` acknowledgement of a query: records of the topic when it arrived, and those that match."""
    of = partial(CommandAck, ack_type="stats", cid=command.cid, topic_matches=records, matches=matching)
    if command.name == "sow_delete":
        return of(records_deleted=matching)
    return of(records_returned=matching if command.top_n is None else min(matching, command.top_n))


class Position(NamedTuple):
    """The position of a message: the batch that wrote it, and its Kafka partition and offset."""

    batch: int
    partition: int
    offset: int


BEGINNING: Final = Position(-1, 0, 0)
"""Before the first message."""


class LogSpan(NamedTuple):
    """The part of the log that a subscription wants: after one position, up to and including another (if any)."""

    after: Position
    stop: Position | None = None


class BookmarkSyntaxError(ValueError):
    """A text is not a bookmark of this topic in this log."""


def end(batch: int) -> Position:
    """Return the position after the last message of a batch."""
    return BEGINNING if batch < 0 else Position(batch, MAX_PARTITION, MAX_OFFSET)


def tag(topic: str) -> str:
    """Return the part of a bookmark that identifies its topic."""
    return blake2b(topic.encode(), digest_size=4).hexdigest()


def bookmark(position: Position, topic: str) -> str:
    """Write a position as a bookmark: ``batch|partition|offset|tag``, the end of a batch as ``batch|tag``."""
    if position == BEGINNING:
        return EPOCH
    text = str(position.batch) if position == end(position.batch) else "|".join(map(str, position))
    return f"{text}|{tag(topic)}"


def parse_bookmark(text: str) -> Position:
    """Read a bookmark of any topic. Raises ``BookmarkSyntaxError`` if it is not one."""
    return BEGINNING if text == EPOCH else _read(text)[0]


def span(text: str, topic: str, newest: Position) -> LogSpan:
    """Read where a replay begins and ends: a word, a bookmark, or a range of them such as ``[A:B]`` or ``(A:]``."""
    # A square bracket includes the message of its bookmark. The client resolves MOST_RECENT; without a bookmark of its
    # own it begins at the beginning. ``newest``: the end of the log. BookmarkSyntaxError: it is malformed, belongs to
    # another topic, or lies beyond the end.
    found = _RANGE.fullmatch(text)
    if found is None:
        return LogSpan(_position(text, topic, newest))
    left, first, last, right = found.groups()
    after = _position(first, topic, newest)
    stop = _position(last, topic, newest) if last else None
    if left == "[":
        after = _before(after)
    if stop is not None and right == ")":
        stop = _before(stop)
    if stop is not None and stop < after:
        raise BookmarkSyntaxError(f"The range {text} ends before it begins.")
    return LogSpan(after, stop)


def ends(text: str) -> bool:
    """Return whether the span that :func:`span` reads from a text has an end."""
    found = _RANGE.fullmatch(text)
    return found is not None and bool(found[3])


def _before(position: Position) -> Position:
    """Return the position just before a message; ends of batches stay as they are."""
    whole = position in (BEGINNING, end(position.batch))
    return position if whole else position._replace(offset=position.offset - 1)


def _position(text: str, topic: str, newest: Position) -> Position:
    words = {EPOCH: BEGINNING, MOST_RECENT: BEGINNING, NOW: newest}
    if text in words:
        return words[text]
    position, owner = _read(text)
    if owner != tag(topic):
        raise BookmarkSyntaxError(f"The bookmark {text} does not belong to the topic {topic}.")
    if position > newest:
        raise BookmarkSyntaxError(f"The bookmark {text} lies beyond the end of the log.")
    return position


def _read(text: str) -> tuple[Position, str]:
    """Return the position of a bookmark, and the tag of its topic."""
    found = _BOOKMARK.fullmatch(text)
    if found is None:
        raise BookmarkSyntaxError(f"{text} is not a bookmark.")
    batch, partition, offset, owner = found.groups()
    return end(int(batch)) if partition is None else Position(int(batch), int(partition), int(offset)), owner
