"""Where a publisher's messages are kept until they are answered: in memory, or in an SQLite file."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ackstream.client.store_file import StoreFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VERSION = 1
_SCHEMA = """
CREATE TABLE messages (seq INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE store (discarded INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO store VALUES (0, 0);
"""


class MemoryMessages:
    """Messages in memory: gone with the process, and with it what was not answered."""

    def __init__(self, discarded: int = 0) -> None:
        """Begin after a number."""
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._last = self._discarded = discarded

    @property
    def discarded(self) -> int:
        """The number up to which everything was dropped."""
        return self._discarded

    @property
    def last(self) -> int:
        """The highest number there ever was."""
        return self._last

    def add(self, seq: int, message: bytes) -> None:
        """Keep a message; numbers rise."""
        self._kept[seq] = message
        self._last = seq

    def get(self, seq: int) -> bytes | None:
        """Return a message, ``None`` where it is not kept."""
        return self._kept.get(seq)

    def drop(self, seq: int) -> int:
        """Drop all up to a number; return how many were kept."""
        dropped = 0
        while self._kept and next(iter(self._kept)) <= seq:
            self._kept.popitem(last=False)
            dropped += 1
        self._discarded = max(self._discarded, seq)
        self._last = max(self._last, seq)
        return dropped

    def after(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over what is kept beyond a number, ascending."""
        return iter([(key, message) for key, message in self._kept.items() if key > seq])

    def close(self) -> None:
        """Do nothing."""

    def __len__(self) -> int:
        return len(self._kept)


class SqliteMessages:
    """Messages in an SQLite file: they survive the end of the process, however it comes; see ``store_file``."""

    def __init__(self, path: Path, client: str) -> None:
        """Open a file, or create it.

        :raises StoreError: it is damaged, of another client, in use, or cannot be written
        """
        lost = "loses what it held that was not acknowledged"
        self._file = StoreFile(path, client, what="publish store", version=_VERSION, schema=_SCHEMA, lost=lost)
        self._discarded: int
        self._last: int
        self._count: int
        ((self._discarded, self._last),) = self._file.read("SELECT discarded, last FROM store")
        ((self._count,),) = self._file.read("SELECT count(*) FROM messages")

    @property
    def discarded(self) -> int:
        """The number up to which everything was dropped."""
        return self._discarded

    @property
    def last(self) -> int:
        """The highest number there ever was."""
        return self._last

    def add(self, seq: int, message: bytes) -> None:
        """Keep a message; numbers rise.

        :raises StoreError: there is no room
        """
        self._file.change(("INSERT INTO messages VALUES (?, ?)", (seq, message)), ("UPDATE store SET last = ?", (seq,)))
        self._count += 1
        self._last = seq

    def get(self, seq: int) -> bytes | None:
        """Return a message, ``None`` where it is not kept."""
        found = self._file.read("SELECT message FROM messages WHERE seq = ?", seq)
        return found[0][0] if found else None

    def drop(self, seq: int) -> int:
        """Drop all up to a number; return how many were kept."""
        if seq <= self._discarded:
            return 0
        last = max(self._last, seq)
        dropped = self._file.change(
            ("UPDATE store SET discarded = ?, last = ?", (seq, last)), ("DELETE FROM messages WHERE seq <= ?", (seq,))
        )
        self._count -= dropped
        self._discarded, self._last = seq, last
        return dropped

    def after(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over what is kept beyond a number, ascending."""
        rows = self._file.read("SELECT seq, message FROM messages WHERE seq > ? ORDER BY seq", seq)
        return ((number, message) for number, message in rows)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __len__(self) -> int:
        return self._count
