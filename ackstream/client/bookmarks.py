"""The bookmark store: what an application has done with of its subscriptions, in memory or in an SQLite file."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ackstream.client.store_file import StoreFile
from ackstream.publishing.commands import EPOCH
from ackstream.publishing.queries import positions
from ackstream.publishing.queries.bookmarks import Progress
from ackstream.publishing.queries.positions import BEGINNING, Position

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
_SCHEMA = """
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
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
    """Bookmarks in an SQLite file: they survive the end of the process, however it comes; see ``store_file``.

    What was done with is in the file when ``discard`` returns.
    """

    def __init__(self, path: Path, client: str) -> None:
        """Open a file, or create it.

        :raises StoreError: it is damaged, of another client, in use, or cannot be written
        """
        super().__init__()
        lost = "brings messages again that were done with"
        self._file = StoreFile(path, client, what="bookmark store", version=_VERSION, schema=_SCHEMA, lost=lost)
        for sub_id, topic, resume in self._file.read("SELECT sub_id, topic, resume FROM subscriptions"):
            self._topics[sub_id] = topic
            self._progress[sub_id] = Progress(_position(resume), map(positions.parse, self._discarded(sub_id)))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _discarded(self, sub_id: str) -> list[str]:
        return [text for (text,) in self._file.read("SELECT bookmark FROM discarded WHERE sub_id = ?", sub_id)]

    def _keep(self, sub_id: str, discarded: str | None) -> None:
        resume = self._resume(sub_id)
        start = _position(resume)
        known = self._discarded(sub_id) + ([] if discarded is None else [discarded])
        # with nothing before it open, what lies behind the point to go on from is said by that point
        passed = [text for text in known if positions.parse(text) <= start]
        fresh = () if discarded is None or discarded in passed else (discarded,)
        self._file.change(
            (
                "INSERT INTO subscriptions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET resume = excluded.resume",
                (sub_id, self._topics[sub_id], resume),
            ),
            *[("INSERT OR IGNORE INTO discarded VALUES (?, ?)", (sub_id, text)) for text in fresh],
            *[("DELETE FROM discarded WHERE sub_id = ? AND bookmark = ?", (sub_id, text)) for text in passed],
        )


def _position(resume: str) -> Position:
    return BEGINNING if resume == EPOCH else positions.parse(resume)
