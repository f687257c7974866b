"""Where a publisher's messages are kept until they are answered: in memory, or in an SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ackstream.client.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VERSION = 1
_SCHEMA = f"""
CREATE TABLE messages (seq INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE store (client TEXT NOT NULL, discarded INTEGER NOT NULL, last INTEGER NOT NULL);
PRAGMA user_version = {_VERSION};
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
