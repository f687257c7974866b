"""Messages of the log, and an application's progress in its subscriptions: the discarded ones, and where to resume.

The client remembers the discarded messages; the service reports how far the log has grown (brokers.md 1.1 A22 to A25).
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from ackstream.client.core.messages import Message, text
from ackstream.client.core.storage import Statement, StoreFile
from ackstream.protocol import queries, record_headers
from ackstream.protocol.queries import BEGINNING, EPOCH, Position

_VERSION = 1
_SCHEMA = """
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
"""


class SubscriptionProgress:
    """The positions that a client has received and discarded in one subscription."""

    def __init__(self, topic: str, start: Position = BEGINNING, discarded: Iterable[Position] = ()) -> None:
        """Resume a replay after ``start``; the ``discarded`` positions are later ones."""
        self.topic = topic
        self._start = start
        """Everything received up to it is discarded."""
        self._received: set[Position] = set()
        self._ordered: list[Position] = []
        """A heap of the received ones after the start; the first one is outstanding."""
        self._discarded = {position for position in discarded if position > start}
        self._passed: list[Position] = []
        self._persisted: Position | None = None
        self._passed_by = start

    def received(self, position: Position) -> bool:
        """Record a message; return whether the application gets it, which it does not if it has discarded it."""
        if position <= self._start:
            return False
        if position <= self._passed_by:
            # a replay from an earlier bookmark
            self._passed_by = self._start
        if position not in self._received:
            self._received.add(position)
            heappush(self._ordered, position)
        if position not in self._discarded:
            return True
        self._advance()
        return False

    def discard(self, position: Position) -> tuple[bool, list[Position]]:
        """Record a discarded message; return whether to keep it, and kept ones that :attr:`resume_after` implies."""
        if position > self._start:
            self._discarded.add(position)
            self._advance()
        passed, self._passed = self._passed, []
        return position > self._start, passed

    def persisted(self, position: Position) -> None:
        """Record how far the log has grown; an older report is ignored."""
        self._persisted = position if self._persisted is None else max(position, self._persisted)
        if not self._ordered:
            self._passed_by = max(position, self._passed_by)

    @property
    def resume_after(self) -> Position:
        """The position after which to resume: everything up to it was discarded, or did not match.

        With nothing outstanding, that is the last persisted bookmark if it is later than the last message; otherwise
        the older of the two, but not before the last persisted bookmark at a time when nothing was outstanding.
        """
        if self._persisted is None:
            return self._start
        if not self._ordered:
            return max(self._start, self._persisted)
        return max(min(self._start, self._persisted), self._passed_by)

    def _advance(self) -> None:
        while self._ordered and self._ordered[0] in self._discarded:
            self._start = heappop(self._ordered)
            self._received.remove(self._start)
            self._discarded.remove(self._start)
            self._passed.append(self._start)


class Bookmarks:
    """Bookmarks by subscription, in memory or in a file; a file that fails raises ``StoreError``. Thread-safe.

    The file survives the end of the process, even a crash: a discarded message is in it when ``discard`` returns.
    """

    def __init__(self, client: str, path: Path | None = None) -> None:
        """Begin empty, or resume from a file, which is created if it does not exist."""
        self._lock = threading.Lock()
        self._progress: dict[str, SubscriptionProgress] = {}
        self._file: StoreFile | None = None
        if path is not None:
            lost = "delivers messages again that were discarded"
            self._file = StoreFile(path, client, what="bookmark store", version=_VERSION, schema=_SCHEMA, lost=lost)
            for sub_id, topic, resume in self._file.read("SELECT sub_id, topic, resume FROM subscriptions"):
                kept = self._file.read("SELECT bookmark FROM discarded WHERE sub_id = ?", sub_id)
                discarded = [queries.parse_bookmark(text) for (text,) in kept]
                self._progress[sub_id] = SubscriptionProgress(topic, queries.parse_bookmark(resume), discarded)

    def open(self, sub_id: str, topic: str) -> None:
        """Add a subscription; a known one keeps its topic and its progress."""
        with self._lock:
            self._progress.setdefault(sub_id, SubscriptionProgress(topic))

    def most_recent(self, sub_id: str) -> str:
        """Return the bookmark after which a subscription resumes; ``EPOCH`` for an unknown one."""
        with self._lock:
            return self._resume(sub_id) if sub_id in self._progress else EPOCH

    def received(self, sub_id: str, bookmark: str) -> bool:
        """Record a message; return whether the application gets it, which it does not if it has discarded it."""
        with self._lock:
            return self._progress[sub_id].received(queries.parse_bookmark(bookmark))

    def discard(self, sub_id: str, bookmark: str) -> None:
        """Record that the application has discarded a message; ignored for a subscription without bookmarks."""
        with self._lock:
            if (progress := self._progress.get(sub_id)) is not None:
                kept, passed = progress.discard(queries.parse_bookmark(bookmark))
                gone = [(sub_id, queries.bookmark(position, progress.topic)) for position in passed]
                self._save(
                    sub_id,
                    *[("INSERT OR IGNORE INTO discarded VALUES (?, ?)", (sub_id, bookmark))] * kept,
                    *[("DELETE FROM discarded WHERE sub_id = ? AND bookmark = ?", row) for row in gone],
                )

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Record how far the log has grown."""
        with self._lock:
            before = self._resume(sub_id)
            self._progress[sub_id].persisted(queries.parse_bookmark(bookmark))
            if self._resume(sub_id) != before:
                self._save(sub_id)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()

    def _resume(self, sub_id: str) -> str:
        progress = self._progress[sub_id]
        return queries.bookmark(progress.resume_after, progress.topic)

    def _save(self, sub_id: str, *discarded: Statement) -> None:
        """Write where the subscription resumes, and the changes in the positions discarded after that."""
        if self._file is not None:
            resume = "INSERT INTO subscriptions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET resume = excluded.resume"
            self._file.change((resume, (sub_id, self._progress[sub_id].topic, self._resume(sub_id))), *discarded)


@dataclass(frozen=True)
class LogMessage(Message):
    """A message of the log, or the newest one of its key.

    :ivar command: ``sow``, a record that a query has found; ``publish``, a message of a subscription
    :ivar bookmark: its place in the log, after which a subscription can begin
    :ivar sub_id: the subscription that it belongs to; ``None`` in the answer to a query
    :ivar omitted: bytes of value and headers left out, for Kafka's limit; the table ``messages`` has them
    """

    command: str
    bookmark: str
    sub_id: str | None
    _bookmarks: Bookmarks | None = field(default=None, repr=False, compare=False)
    omitted: int = 0

    def discard(self) -> None:
        """Mark the message as processed: no resumed subscription repeats it; ``StoreError`` if the file fails.

        It has no effect in a subscription without a ``bookmark`` or without a ``sub_id``.
        """
        if self._bookmarks is not None and self.sub_id is not None:
            self._bookmarks.discard(self.sub_id, self.bookmark)


def read_message(command: str, record: Any, sub_id: str | None, bookmarks: Bookmarks) -> LogMessage:
    """Return the message in a record of ``query-results``."""
    headers = dict(record.headers)
    names = (record_headers.CLIENT, record_headers.TOPIC, record_headers.TIMESTAMP, record_headers.BOOKMARK)
    client, topic, timestamp, bookmark = (text(headers.get(name)) for name in names)
    mark = record_headers.APPLICATION
    own = {name.removeprefix(mark): value for name, value in record.headers if name.startswith(mark)}
    content = (headers.get(record_headers.KEY), record.value, own, int(timestamp))
    omitted = int(headers.get(record_headers.OMITTED) or b"0")
    return LogMessage(client, topic, *content, command, bookmark, sub_id, bookmarks, omitted)
