"""The bookmark store: an application's progress in its subscriptions, in memory or in an SQLite file.

The service keeps no read state: the client remembers what it has discarded, and the service reports from time to time
how far the log has grown, whether or not anything matched (brokers.md 1.1 A22 to A25).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ackstream.client.storage import StoreFile
from ackstream.protocol import queries
from ackstream.protocol.queries import BEGINNING, EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ackstream.protocol.queries import Position

_VERSION = 1
_SCHEMA = """
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
"""


class SubscriptionProgress:
    """The positions that a client has received and discarded in one subscription."""

    def __init__(self, start: Position, discarded: Iterable[Position] = ()) -> None:
        """Resume.

        :param start: the position after which a replay begins
        :param discarded: positions after it
        """
        self._start = start
        self._discarded = set(discarded)
        self._received: set[Position] = set()
        self._persisted: Position | None = None

    def received(self, position: Position) -> bool:
        """Record a message; return whether the application gets it, which it does not if it has discarded it."""
        if position <= self._start:
            return False
        self._received.add(position)
        return position not in self._discarded

    def discard(self, position: Position) -> None:
        """Record that the application has discarded a message."""
        if position > self._start:
            self._discarded.add(position)
        self._start = self._discarded_through()
        self._received = {one for one in self._received if one > self._start}
        self._discarded = {one for one in self._discarded if one > self._start}

    def persisted(self, position: Position) -> None:
        """Record how far the log has grown; an older report is ignored."""
        self._persisted = position if self._persisted is None else max(position, self._persisted)

    @property
    def resume_after(self) -> Position:
        """The position after which to resume: everything up to it was discarded, or did not match.

        With nothing outstanding, that is the last persisted bookmark if it is later than the last message; otherwise
        the older of the two.
        """
        discarded = self._discarded_through()
        if self._persisted is None:
            return discarded
        choose = max if self._first_outstanding() is None else min
        return choose(discarded, self._persisted)

    def _first_outstanding(self) -> Position | None:
        return min(self._received - self._discarded, default=None)

    def _discarded_through(self) -> Position:
        outstanding = self._first_outstanding()
        done = (one for one in self._received if outstanding is None or one < outstanding)
        return max(done, default=self._start)


class Bookmarks:
    """Bookmarks by subscription, in memory or in a file. Safe to use from several threads.

    The file survives the end of the process, even a crash: a discarded message is in it when ``discard`` returns.
    """

    def __init__(self, client: str, path: Path | None = None) -> None:
        """Begin empty, or resume from a file, which is created if it does not exist.

        :raises StoreError: the file is damaged, of another client, in use, or cannot be written
        """
        self._lock = threading.Lock()
        self._topics: dict[str, str] = {}
        self._progress: dict[str, SubscriptionProgress] = {}
        self._file: StoreFile | None = None
        if path is not None:
            lost = "delivers messages again that were discarded"
            self._file = StoreFile(path, client, what="bookmark store", version=_VERSION, schema=_SCHEMA, lost=lost)
            for sub_id, topic, resume in self._file.read("SELECT sub_id, topic, resume FROM subscriptions"):
                discarded = map(queries.parse_bookmark, _discarded(self._file, sub_id))
                self._topics[sub_id] = topic
                self._progress[sub_id] = SubscriptionProgress(_position(resume), discarded)

    def open(self, sub_id: str, topic: str) -> None:
        """Add a subscription; a known one keeps its topic and its progress."""
        with self._lock:
            if sub_id not in self._topics:
                self._topics[sub_id] = topic
                self._progress[sub_id] = SubscriptionProgress(BEGINNING)

    def most_recent(self, sub_id: str) -> str:
        """Return the bookmark after which a subscription resumes; ``EPOCH`` for an unknown one."""
        with self._lock:
            return self._resume(sub_id) if sub_id in self._topics else EPOCH

    def received(self, sub_id: str, bookmark: str) -> bool:
        """Record a message; return whether the application gets it, which it does not if it has discarded it."""
        with self._lock:
            return self._progress[sub_id].received(queries.parse_bookmark(bookmark))

    def discard(self, sub_id: str, bookmark: str) -> None:
        """Record that the application has discarded a message; ignored for a subscription without bookmarks.

        :raises StoreError: the file cannot be written
        """
        with self._lock:
            if sub_id in self._progress:
                self._progress[sub_id].discard(queries.parse_bookmark(bookmark))
                self._save(sub_id, bookmark)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Record how far the log has grown.

        :raises StoreError: the file cannot be written
        """
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
        return queries.bookmark(self._progress[sub_id].resume_after, self._topics[sub_id])

    def _save(self, sub_id: str, discarded: str | None = None) -> None:
        if self._file is None:
            return
        resume = self._resume(sub_id)
        start = _position(resume)
        fresh = () if discarded is None or queries.parse_bookmark(discarded) <= start else (discarded,)
        # everything up to the position to resume after is implied by it
        passed = [text for text in _discarded(self._file, sub_id) if queries.parse_bookmark(text) <= start]
        self._file.change(
            (
                "INSERT INTO subscriptions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET resume = excluded.resume",
                (sub_id, self._topics[sub_id], resume),
            ),
            *[("INSERT OR IGNORE INTO discarded VALUES (?, ?)", (sub_id, text)) for text in fresh],
            *[("DELETE FROM discarded WHERE sub_id = ? AND bookmark = ?", (sub_id, text)) for text in passed],
        )


def _discarded(file: StoreFile, sub_id: str) -> list[str]:
    return [text for (text,) in file.read("SELECT bookmark FROM discarded WHERE sub_id = ?", sub_id)]


def _position(resume: str) -> Position:
    return BEGINNING if resume == EPOCH else queries.parse_bookmark(resume)
