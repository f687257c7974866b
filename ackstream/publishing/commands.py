"""What a command asks for, and the acknowledgements that frame what it does (brokers.md 1.1 A2 to A5, A22, A26)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackstream.publishing.acks import Ack, unsupported
from ackstream.publishing.queries import selections
from ackstream.publishing.queries.filters import BadFilterError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.publishing.acks import Status

NOT_SUPPORTED: Final = "not supported"
BAD_FILTER: Final = "bad filter"
INVALID_BOOKMARK: Final = "invalid bookmark"

STORING_REASONS = frozenset({"duplicate", "sow store failed", "tx store failure", "txn replay failed"})
"""Found at or after storing: the command was processed all right, the failure is told with ``persisted``."""

EPOCH, NOW, MOST_RECENT = "EPOCH", "NOW", "MOST_RECENT"
_RANGE = re.compile(r"([\[(])(\d+):(\d*)([\])])")


@dataclass(frozen=True)
class Command:
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


def refusal(command: Command) -> str | None:
    """Return why a command cannot be done, as far as the command alone tells; ``None``: it can."""
    if command.filter is not None:
        try:
            selections.read(command.filter)
        except BadFilterError:
            return BAD_FILTER
    bookmark = command.bookmark
    if isinstance(bookmark, str) and bookmark not in (EPOCH, NOW, MOST_RECENT) and not bookmark.isdigit():
        return INVALID_BOOKMARK
    if unsupported(command.name, command.asked):
        return NOT_SUPPORTED
    return None


def opening(command: Command, reason: str | None) -> list[Ack]:
    """Return what comes before the command does anything.

    Somebody who asks for a type that the command cannot answer is told so in ``processed``, asked for or not: waiting
    in vain would be worse.
    """
    acks = [Ack(ack_type="received", cid=command.cid)] if "received" in command.asked else []
    if "processed" in command.asked or reason == NOT_SUPPORTED:
        why = None if reason in STORING_REASONS else reason
        acks.append(Ack(ack_type="processed", status=status(why), cid=command.cid, reason=why))
    return acks


def status(reason: str | None) -> Status:
    """Return the status that goes with a reason."""
    return "success" if reason is None else "failure"


def completed(command: Command, bookmark: int | str | None = None) -> list[Ack]:
    """Return the word that the part done at once is over, where it was asked for."""
    if "completed" not in command.asked or (command.name == "sow_delete" and command.filter is None):
        return []
    return [Ack(ack_type="completed", cid=command.cid, bookmark=bookmark)]


def returned(command: Command, matching: int) -> int:
    """Return how many records a query hands over: ``top_n`` cuts, 0 for counting alone."""
    return matching if command.top_n is None else min(matching, command.top_n)


def statistics(command: Command, records: int, matching: int) -> list[Ack]:
    """Return the numbers of a query, where they were asked for.

    :param records: in the topic when the command came, compared or not
    :param matching: those the filter selects
    """
    if "stats" not in command.asked:
        return []
    deleted = command.name == "sow_delete"
    return [
        Ack(
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
