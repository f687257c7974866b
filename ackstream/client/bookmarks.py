"""The bookmark store: what an application has done with of its subscriptions, in memory or in an SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING

from ackstream.client.errors import StoreError
from ackstream.publishing import positions
from ackstream.publishing.bookmarks import Progress
from ackstream.publishing.commands import EPOCH
from ackstream.publishing.positions import BEGINNING, Position

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
_SCHEMA = f"""
CREATE TABLE store (client TEXT NOT NULL);
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
PRAGMA user_version = {_VERSION};
"""


class MemoryBookmarks:
    """Bookmarks by subscription, gone with the process. Safe to use from several threads."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._topics: dict[str, str] = {}
        self._progress: dict[str, Progress[Position]] = {}

    def open(self, sub_id: str, topic: str) -> None:
        """Know a subscription; one that is known keeps its topic."""
        with self._lock:
            if sub_id not in self._topics:
                self._topics[sub_id] = topic
                self._progress[sub_id] = Progress(BEGINNING)

    def most_recent(self, sub_id: str) -> str:
        """Return the bookmark after which a subscription goes on, ``EPOCH`` where nothing is known of it."""
        with self._lock:
            return self._resume(sub_id) if sub_id in self._topics else EPOCH

    def received(self, sub_id: str, bookmark: str) -> bool:
        """Note a message; return whether the application gets it: not what it has done with."""
        with self._lock:
            return self._progress[sub_id].received(positions.parse(bookmark))

    def discard(self, sub_id: str, bookmark: str) -> None:
        """Note that the application has done with a message; of a subscription without bookmarks nothing is kept.

        :raises StoreError: it cannot be kept
        """
        with self._lock:
            if sub_id not in self._progress:
                return
            self._progress[sub_id].discard(positions.parse(bookmark))
            self._keep(sub_id, bookmark)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Note how far the log is.

        :raises StoreError: it cannot be kept
        """
        with self._lock:
            before = self._resume(sub_id)
            self._progress[sub_id].persisted(positions.parse(bookmark))
            if self._resume(sub_id) != before:
                self._keep(sub_id, None)

    def close(self) -> None:
        """Do nothing."""

    def _resume(self, sub_id: str) -> str:
        return positions.bookmark(self._progress[sub_id].resume_after, self._topics[sub_id])

    def _keep(self, sub_id: str, discarded: str | None) -> None:
        """Do nothing: memory keeps it."""


class SqliteBookmarks(MemoryBookmarks):
    """Bookmarks in an SQLite file: they survive the end of the process, however it comes.

    What was done with is in the file when ``discard`` returns; when the machine itself fails, the last moments may be
    missing: some messages come again then. One process uses a file at a time.
    """

    def __init__(self, path: Path, client: str) -> None:
        """Open a file, or create it.

        :raises StoreError: it is damaged, of another client, in use, or cannot be written
        """
        super().__init__()
        self._path = path
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            try:
                self._prepare(client)
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._database.close()

    def _prepare(self, client: str) -> None:
        database = self._database
        # whoever opens it next, while this is open, is told that it is locked
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} COMMIT")
            database.execute("INSERT INTO store VALUES (?)", (client,))
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"it has version {version}, this release writes {_VERSION}")
        (owner,) = database.execute("SELECT client FROM store").fetchone()
        if owner != client:
            raise StoreError(
                f"The bookmark store {self._path} belongs to the client {owner}, not to {client}: give each its own."
            )
        for sub_id, topic, resume in database.execute("SELECT sub_id, topic, resume FROM subscriptions").fetchall():
            later = database.execute("SELECT bookmark FROM discarded WHERE sub_id = ?", (sub_id,)).fetchall()
            start = BEGINNING if resume == EPOCH else positions.parse(resume)
            self._topics[sub_id] = topic
            self._progress[sub_id] = Progress(start, [positions.parse(bookmark) for (bookmark,) in later])

    def _keep(self, sub_id: str, discarded: str | None) -> None:
        resume = self._resume(sub_id)
        try:
            self._database.execute("BEGIN")
            self._database.execute(
                "INSERT INTO subscriptions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET resume = excluded.resume",
                (sub_id, self._topics[sub_id], resume),
            )
            if discarded is not None:
                self._database.execute("INSERT OR IGNORE INTO discarded VALUES (?, ?)", (sub_id, discarded))
            # with nothing before it open, what lies behind the point to go on from is said by that point
            known = self._database.execute("SELECT bookmark FROM discarded WHERE sub_id = ?", (sub_id,)).fetchall()
            start = BEGINNING if resume == EPOCH else positions.parse(resume)
            passed = [(sub_id, bookmark) for (bookmark,) in known if positions.parse(bookmark) <= start]
            self._database.executemany("DELETE FROM discarded WHERE sub_id = ? AND bookmark = ?", passed)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        if "locked" in text:
            remedy = "another process has it open: end that one, or give this client another name and file"
        else:
            remedy = "make room, choose a place that can be written, or move a damaged one away and begin a new one"
        return StoreError(f"The bookmark store {self._path} cannot be used ({text}): {remedy}.")
