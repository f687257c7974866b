"""The SQLite file in which a client keeps what must survive its process."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from ackstream.client.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


Statement: TypeAlias = tuple[str, tuple[Any, ...]]


class StoreFile:
    """A file of one client. Safe to use from several threads; one process uses a file at a time.

    Each change is in the file when the call returns; when the machine itself fails, the last moments may be missing,
    but the file is whole.
    """

    def __init__(self, path: Path, client: str, *, what: str, version: int, schema: str, lost: str) -> None:
        """Open a file, or create it.

        :param what: what it is called in errors
        :param schema: the statements that make its tables
        :param lost: what it means to move a damaged one away
        :raises StoreError: it is damaged, of another client, of another version, in use, or cannot be written
        """
        self._path, self._what, self._lost = path, what, lost
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            try:
                self._prepare(client, version, schema)
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def change(self, *statements: Statement) -> int:
        """Do all or nothing; return how many rows the last statement changed.

        :raises StoreError: it cannot be written
        """
        changed = 0
        with self._lock:
            try:
                self._database.execute("BEGIN")
                for statement, values in statements:
                    changed = self._database.execute(statement, values).rowcount
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise self._unusable(error) from error
        return changed

    def read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        :raises StoreError: it cannot be read
        """
        with self._lock:
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._unusable(error) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._database.close()

    def _prepare(self, client: str, version: int, schema: str) -> None:
        database = self._database
        # whoever opens it next, while this is open, is told that it is locked
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (verdict,) = database.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found == 0:
            database.executescript(
                f"BEGIN EXCLUSIVE; CREATE TABLE owner (client TEXT NOT NULL); {schema} PRAGMA user_version = {version};"
                " COMMIT"
            )
            database.execute("INSERT INTO owner VALUES (?)", (client,))
        elif found != version:
            raise sqlite3.DatabaseError(f"it has version {found}, this release writes {version}")
        (owner,) = database.execute("SELECT client FROM owner").fetchone()
        if owner != client:
            raise StoreError(
                f"The {self._what} {self._path} belongs to the client {owner}, not to {client}: give each its own."
            )

    def _unusable(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        if "locked" in text:
            remedy = "another process has it open: end that one, or give this client another name and file"
        elif "full" in text or "unable to open" in text or "readonly" in text:
            remedy = "make room, or choose a place that can be written"
        else:
            remedy = (
                f"it is damaged, cut short perhaps: restore it, or move it away and begin a new one, which {self._lost}"
            )
        return StoreError(f"The {self._what} {self._path} cannot be used ({text}): {remedy}.")


# -- Where a publisher's messages are kept until they are answered: in memory, or in an SQLite file.


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
