"""What a command asks for, and the acknowledgements that frame what it does (brokers.md 1.1 A2 to A5, A22, A26)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from ackstream.protocol import filters
from ackstream.protocol.filters import FilterSyntaxError
from ackstream.protocol.messages import CommandAck, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.messages import Status


NOT_SUPPORTED: Final = "not supported"
BAD_FILTER: Final = "bad filter"
INVALID_BOOKMARK: Final = "invalid bookmark"

STORING_REASONS = frozenset({"duplicate", "sow store failed", "tx store failure", "txn replay failed"})
"""Found at or after storing: the command was processed all right, the failure is told with ``persisted``."""

EPOCH, NOW, MOST_RECENT = "EPOCH", "NOW", "MOST_RECENT"
_RANGE = re.compile(r"([\[(])(\d+):(\d*)([\])])")


@dataclass(frozen=True)
class QueryCommand:
    """One command of a client.

    :param asked: types of acknowledgement
    :param bookmark: where a replay begins: a word, or the position after which
    :param stop: the last position of a replay that ends; ``None``: it goes on with what is new
    """

    name: str
    cid: str | None = None
    asked: frozenset[str] = frozenset()
    seq: int | None = None
    filter: str | None = None
    bookmark: str | int | None = None
    stop: int | None = None
    top_n: int | None = None


def refusal(command: QueryCommand) -> str | None:
    """Return why a command cannot be done, as far as the command alone tells; ``None``: it can."""
    if command.filter is not None:
        try:
            filters.read_filter(command.filter)
        except FilterSyntaxError:
            return BAD_FILTER
    bookmark = command.bookmark
    if isinstance(bookmark, str) and bookmark not in (EPOCH, NOW, MOST_RECENT) and not bookmark.isdigit():
        return INVALID_BOOKMARK
    if unsupported(command.name, command.asked):
        return NOT_SUPPORTED
    return None


def opening(command: QueryCommand, reason: str | None) -> list[CommandAck]:
    """Return what comes before the command does anything.

    Somebody who asks for a type that the command cannot answer is told so in ``processed``, asked for or not: waiting
    in vain would be worse.
    """
    acks = [CommandAck(ack_type="received", cid=command.cid)] if "received" in command.asked else []
    if "processed" in command.asked or reason == NOT_SUPPORTED:
        why = None if reason in STORING_REASONS else reason
        acks.append(CommandAck(ack_type="processed", status=status(why), cid=command.cid, reason=why))
    return acks


def status(reason: str | None) -> Status:
    """Return the status that goes with a reason."""
    return "success" if reason is None else "failure"


def completed(command: QueryCommand, bookmark: int | str | None = None) -> list[CommandAck]:
    """Return the word that the part done at once is over, where it was asked for."""
    if "completed" not in command.asked or (command.name == "sow_delete" and command.filter is None):
        return []
    return [CommandAck(ack_type="completed", cid=command.cid, bookmark=bookmark)]


def returned(command: QueryCommand, matching: int) -> int:
    """Return how many records a query hands over: ``top_n`` cuts, 0 for counting alone."""
    return matching if command.top_n is None else min(matching, command.top_n)


def statistics(command: QueryCommand, records: int, matching: int) -> list[CommandAck]:
    """Return the numbers of a query, where they were asked for.

    :param records: in the topic when the command came, compared or not
    :param matching: those the filter selects
    """
    if "stats" not in command.asked:
        return []
    deleted = command.name == "sow_delete"
    return [
        CommandAck(
            ack_type="stats",
            cid=command.cid,
            topic_matches=records,
            matches=matching,
            records_deleted=matching if deleted else None,
            records_returned=None if deleted else returned(command, matching),
        )
    ]


def read_range(text: str) -> tuple[int, int | None]:
    """Read ``[10:20]``, a bound outside with a round bracket, the end open without a number.

    :returns: the position after which it begins, and the last one
    :raises ValueError: it is no range
    """
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ValueError(f"{text} is no range such as [10:20].")
    left, first, last, right = found.groups()
    start = int(first) - (left == "[")
    stop = int(last) - (right == ")") if last else None
    if stop is not None and stop < start:
        raise ValueError(f"The range {text} ends before it begins.")
    return start, stop


def asked(types: Iterable[str]) -> frozenset[str]:
    """Return the types a command asks for; ``none`` asks for nothing."""
    return frozenset(types) - {"none", ""}


# -- Places in the log of messages, and bookmarks: how a place is written for a client (brokers.md 1.1 A22 to A25).
# The log is the table ``messages``: its batches in their order, within a batch the partitions in theirs. That is one
# order over all messages, which never changes, since a batch is written once. A bookmark belongs to the topic that it
# was given for.


MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

_BOOKMARK = re.compile(r"(\d{1,18})(?:\|(\d{1,9})\|(\d{1,18}))?\|([0-9a-f]{8})")
_POSITIONS_RANGE = re.compile(r"\s*([\[(])\s*([^:\s]+)\s*:\s*([^:\s]*?)\s*([\])])\s*")


class Position(NamedTuple):
    """A message's place: the batch that wrote it, and its Kafka partition and offset."""

    batch: int
    partition: int
    offset: int


BEGINNING: Final = Position(-1, 0, 0)
"""Before all messages."""


class LogSpan(NamedTuple):
    """What a subscription wants: all after a position, up to and with another one (``None``: whatever comes)."""

    after: Position
    stop: Position | None = None


class BookmarkSyntaxError(ValueError):
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


def parse_bookmark(text: str) -> Position:
    """Read a bookmark, of whatever topic.

    :raises InvalidBookmarkError: it is none
    """
    if text == EPOCH:
        return BEGINNING
    batch, partition, offset, _ = _read(text)
    return end(int(batch)) if partition is None else Position(int(batch), int(partition), int(offset))


def span(text: str, topic: str, newest: Position) -> LogSpan:
    """Read where a replay begins and ends: a word, a bookmark, or a range of them such as ``[A:B]`` or ``(A:]``.

    A square bracket takes the message of its bookmark in. ``MOST_RECENT`` is the client's to resolve; who has no
    bookmark yet begins at the beginning.

    :param newest: the end of the log
    :raises InvalidBookmarkError: it is of another topic, beyond the end of the log, or nothing of all that
    """
    found = _POSITIONS_RANGE.fullmatch(text)
    if found is None:
        return LogSpan(_place(text, topic, newest))
    left, first, last, right = found.groups()
    after = _place(first, topic, newest)
    stop = _place(last, topic, newest) if last else None
    if left == "[":
        after = _before(after)
    if stop is not None and right == ")":
        stop = _before(stop)
    if stop is not None and stop < after:
        raise BookmarkSyntaxError(f"The range {text} ends before it begins.")
    return LogSpan(after, stop)


def ends(text: str) -> bool:
    """Tell whether what :func:`span` reads has an end."""
    found = _POSITIONS_RANGE.fullmatch(text)
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
        raise BookmarkSyntaxError(f"The bookmark {text} is not of the topic {topic}.")
    position = parse_bookmark(text)
    if position > newest:
        raise BookmarkSyntaxError(f"The bookmark {text} lies behind the end of the log.")
    return position


def _read(text: str) -> tuple[str, ...]:
    found = _BOOKMARK.fullmatch(text)
    if found is None:
        raise BookmarkSyntaxError(f"{text} is no bookmark.")
    return found.groups()
