"""What is remembered of a publisher: which numbers are decided, whose session counts, and what was read."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ackstream.protocol.durations import read_duration
from ackstream.protocol.intervals import Interval
from ackstream.protocol.messages import (
    CONFLATION_MS,
    MAX_SESSION_CHARACTERS,
    MAX_SESSIONS,
    read_number,
)

MAX_CONFLATION_MS = 60_000
"""The longest interval that is granted: acks that wait are sent again after a crash, so they must not wait for ever."""


class RejectedRecord(NamedTuple):
    """A record that is not stored as a message, with the reason; ``None``: it is a command or a duplicate."""

    partition: int
    offset: int
    reason: str | None


class PublisherState(msgspec.Struct):
    """What is remembered of a publisher between batches; the fields are the JSON in the table ``publishers``.

    :ivar watermark: the number up to which all are decided
    :ivar begins: the first number announced by the last logon; it takes effect with the next message
    :ivar held: runs of decided, unacknowledged numbers behind a hole
    :ivar absent: runs of them that are not in the table
    :ivar refused: reasons of rejections, by number
    :ivar unknown_through: up to this number, reasons of rejections may have been forgotten
    :ivar asked: the runs of ``held`` whose acknowledgement was requested
    :ivar withdrawn: the runs of ``held`` that will never arrive
    :ivar flushes: pending flush commands: the number each waits for, and its command id
    :ivar day: the UTC day of ``stored``, counted from 1970
    :ivar stored: bytes stored on that day
    :ivar session: that of the newest logon; empty for a publisher that names none
    :ivar began: when it began, in epoch milliseconds
    :ivar superseded: those before it, of which no message is accepted any more
    :ivar read: by partition: the last record that was read, its offset and the latest timestamp
    :ivar conflation: the interval of its merged acks, in milliseconds, as its last logon asked for
    :ivar window: its publish window, in messages; 0: its logon named none
    :ivar single: of ``held``: numbers whose ack is not merged, with their command ids
    """

    watermark: int = 0
    highest: int = -1
    begins: int = 0
    held: list[Interval] = []
    absent: list[Interval] = []
    refused: dict[int, str] = {}
    unknown_through: int = msgspec.field(default=-1, name="doubt")
    asked: list[Interval] = []
    flushes: list[tuple[int, str | None]] = []
    day: int = 0
    stored: int = 0
    withdrawn: list[Interval] = []
    session: str = ""
    superseded: list[str] = []
    read: dict[int, tuple[int, int]] = {}
    began: int = 0
    conflation: int = CONFLATION_MS
    window: int = 0
    single: dict[int, str] = {}

    def was_read(self, partition: int, offset: int, timestamp: int) -> bool:
        """Return whether a record was read before, as all are that a new checkpoint begins with: it has its answer.

        A topic that was made anew has the same offsets again, but not the same times.
        """
        last, newest = self.read.get(partition, (-1, -1))
        return offset <= last and timestamp <= newest

    def note(self, partition: int, offset: int, timestamp: int) -> None:
        """Note the last record that was read."""
        self.read[partition] = (offset, max(timestamp, self.read.get(partition, (-1, -1))[1]))

    def begin_session(self, session: str | None, partition: int) -> bool:
        """Begin the session that a logon names, which supersedes all before it; return whether it is the latest.

        A later one may have been read before, from another partition. As everywhere, a record counts with the latest
        time of its partition: a clock that was set back makes no logon earlier than the one before.

        :param partition: of the logon, which is noted already
        """
        text = (session or "")[:MAX_SESSION_CHARACTERS]
        _, at = self.read[partition]
        latest = at >= self.began or "" in (text, self.session)
        over = text
        if latest:
            over, self.session, self.began = self.session, text, at
        known = dict.fromkeys((*self.superseded, over))
        self.superseded = [one for one in known if one not in ("", self.session)][-MAX_SESSIONS:]
        return latest

    def agree(self, conflation: str | None, window: str | None, floor_ms: int) -> int | None:
        """Take over the interval and the window that a logon names; return the interval in force if it is another one.

        :param floor_ms: the shortest interval
        """
        # digits alone are milliseconds, which earlier producers name
        wanted = read_number(conflation) if (conflation or "").isdecimal() else read_duration(conflation or "")
        self.conflation = CONFLATION_MS if wanted is None else min(wanted, MAX_CONFLATION_MS)
        self.window = read_number(window) or 0
        granted = max(self.conflation, floor_ms)
        return None if conflation is None or wanted == granted else granted

    def is_superseded(self, session: str | None) -> bool:
        """Return whether a later publisher of the name has logged on: its numbers count, no longer this one's."""
        return session is not None and session[:MAX_SESSION_CHARACTERS] in self.superseded
