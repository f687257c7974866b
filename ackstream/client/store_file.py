"""The SQLite file in which a client keeps what must survive its process."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from ackstream.client.errors import StoreError

if TYPE_CHECKING:
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
