"""Stores of clients: the SQLite file that survives a crash, and the unacknowledged messages of a publisher."""

import ctypes
import itertools
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

import msgspec

from ackstream.client.errors import StoreError

log = logging.getLogger(__name__)

Statement: TypeAlias = tuple[str, tuple[Any, ...]]

Synchronous: TypeAlias = Literal["normal", "full"]
"""Whether a change waits for the disk (``full``), or may be lost if the machine itself fails (``normal``)."""


class StoreFile:
    """The file of one client; one process at a time may open it. Thread-safe; raises ``StoreError`` for a bad file.

    Each change is in the file when the call returns. If the machine itself fails, the last changes may be missing, but
    the file is not damaged; with ``full`` none is missing.
    """

    def __init__(
        self,
        path: Path,
        client: str,
        *,
        what: str,
        version: int,
        schema: str,
        lost: str,
        synchronous: Synchronous = "normal",
    ) -> None:
        """Open a file, or create it with ``schema``; errors call it ``what``, and ``lost`` if it is moved away."""
        self._path, self._what, self._lost = path, what, lost
        self._lock = threading.Lock()
        try:
            # only its owner can read it, since it has messages; an existing file keeps its rights
            with suppress(OSError):
                # SQLite reports a wrong path. An existing file is not even opened: POSIX takes the locks of
                # this process from a file when any descriptor of it is closed
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            _FILES.add(self)
            try:
                self._prepare(client, version, schema, synchronous)
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def change(self, *statements: Statement, needed: bool = True) -> None:
        """Execute statements in one transaction; not ``needed``: a disk that cannot be written is logged."""
        with self._lock:
            try:
                self._database.execute("BEGIN")
                for statement, values in statements:
                    self._database.execute(statement, values)
                self._database.execute("COMMIT")
            except BaseException as error:
                # an interrupt, too, must not leave a transaction to the next change; another thread may have closed it
                with suppress(sqlite3.ProgrammingError):
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
                if not isinstance(error, sqlite3.Error):
                    raise
                unusable = self._unusable(error)
                if needed or not _may_pass(error):
                    raise unusable from error
                log.warning("%s", unusable)

    def read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._lock:
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._unusable(error) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._database.close()

    def _prepare(self, client: str, version: int, schema: str, synchronous: Synchronous) -> None:
        database = self._database
        # while this connection is open, any other one fails with "locked"
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {synchronous}")
        (verdict,) = database.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found == 0:
            database.executescript(
                f"BEGIN EXCLUSIVE; CREATE TABLE owner (client TEXT NOT NULL); {schema} PRAGMA user_version = {version};"
                " COMMIT"
            )
        if found not in (0, version):
            raise sqlite3.DatabaseError(f"it has version {found}; this release writes {version}")
        # one that was killed before it had an owner has nothing else either
        database.execute("INSERT INTO owner SELECT ? WHERE NOT EXISTS (SELECT * FROM owner)", (client,))
        (owner,) = database.execute("SELECT client FROM owner").fetchone()
        if owner != client:
            raise StoreError(
                f"The {self._what} {self._path} belongs to the client {owner}, not to {client}: give each its own."
            )

    def damaged(self, part: str) -> StoreError:
        """Return the error of a part of the file that cannot be read."""
        return self._unusable(sqlite3.DatabaseError(f"{part} are unreadable"))

    def _unusable(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        if "locked" in text:
            remedy = "another process has it open: end that process, or give this client another name and file"
        elif _IO_ERROR in text:
            remedy = "the disk fails, or has no room (a quota, a limit of the process): the messages in the file stay"
        elif _may_pass(error):
            remedy = "free disk space, or choose a writable directory"
        else:
            remedy = (
                f"it is damaged, perhaps truncated: restore it, or move it away and start a new one, which {self._lost}"
            )
        return StoreError(f"The {self._what} {self._path} cannot be used ({text}): {remedy}.")


_FILES: WeakSet[StoreFile] = WeakSet()


def _after_fork() -> None:
    """Never close the files of the parent: SQLite would delete the write-ahead log that the parent still writes."""
    for file in list(_FILES):
        # at the end of the interpreter, too, which drops every other reference
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(file._database))  # noqa: SLF001 - of this module


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


_IO_ERROR = "disk I/O error"
"""SQLite's text, as Python has its result codes from 3.11 on; a full quota is such an error, too."""


def _may_pass(error: sqlite3.Error) -> bool:
    """Return whether a disk could not be written, which damages nothing."""
    return any(part in str(error) for part in (_IO_ERROR, "disk is full", "unable to open", "readonly"))


_VERSION = 2
_SCHEMA = """
CREATE TABLE messages (seq INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE store (discarded INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO store VALUES (0, 0);
CREATE TABLE identity (store TEXT NOT NULL, session TEXT NOT NULL);
INSERT INTO identity VALUES (lower(hex(randomblob(16))), '');
"""


class KeptMessage(msgspec.Struct, array_like=True):
    """A message in a store; ``withdrawn``: Kafka refused it for good, and the service does not know that yet."""

    value: bytes
    headers: list[tuple[str, bytes]]
    key: bytes | None = None
    withdrawn: bool = False

    @property
    def size(self) -> int:
        """Its bytes, as far as they are the application's."""
        return len(self.value) + len(self.key or b"") + sum(len(name) + len(value) for name, value in self.headers)


WITHDRAWN = KeptMessage(b"", [], withdrawn=True)


class PublishStore:
    """The unacknowledged messages of a publisher, which a copy in a :class:`StoreFile` lets survive a crash.

    :ivar last: the last used number, at least ``discarded``
    :ivar store: a text that no other file has; empty: there is no file
    :ivar session: the session with which the file took over the numbers of the name, as far as it knows; empty: none
    """

    def __init__(self, path: Path | None = None, client: str = "", synchronous: Synchronous = "normal") -> None:
        """Begin empty, in memory, or with the file of a client, which is created if it does not exist."""
        self.last = self.discarded = 0
        self.store = self.session = ""
        self._kept: dict[int, KeptMessage] = {}
        self._file: StoreFile | None = None
        if path is None:
            return
        lost = "loses the unacknowledged messages in it"
        layout: dict[str, Any] = {"version": _VERSION, "schema": _SCHEMA, "lost": lost}
        self._file = StoreFile(path, client, what="publish store", synchronous=synchronous, **layout)
        ((self.discarded, self.last),) = self._file.read("SELECT discarded, last FROM store")
        ((self.store, self.session),) = self._file.read("SELECT store, session FROM identity")
        kept = self._file.read("SELECT seq, message FROM messages ORDER BY seq")
        self._kept = {seq: _decode(seq, message) for seq, message in kept}

    def add(self, seq: int, *messages: KeptMessage) -> None:
        """Keep messages, all or none, under numbers that rise from ``seq``."""
        last = seq + len(messages) - 1
        try:
            if self._file is not None:
                rows = [(number, msgspec.msgpack.encode(message)) for number, message in enumerate(messages, seq)]
                inserts = [("INSERT INTO messages VALUES (?, ?)", row) for row in rows]
                self._file.change(*inserts, ("UPDATE store SET last = ?", (last,)))
            self._keep(seq, *messages)
        except StoreError:
            raise
        except BaseException:
            # an interrupt: the file may have them already
            if self._file is not None and self._file.read("SELECT last FROM store") == [(last,)]:
                self._keep(seq, *messages)
            raise

    def _keep(self, seq: int, *messages: KeptMessage) -> None:
        self._kept.update(enumerate(messages, seq))
        self.last = seq + len(messages) - 1

    def get(self, seq: int) -> KeptMessage | None:
        """Return a message, ``None`` if it is not kept."""
        return self._kept.get(seq)

    def withdraw(self, seq: int) -> None:
        """Keep the number of a message, but not the message; it may stay in the file, and is then refused again."""
        row = (msgspec.msgpack.encode(WITHDRAWN), seq)
        self._change(("UPDATE messages SET message = ? WHERE seq = ?", row), needed=False)
        self._kept[seq] = WITHDRAWN

    def advance(self, seq: int) -> None:
        """Use no number up to this one for a new message."""
        self._change(("UPDATE store SET last = max(last, ?)", (seq,)))
        self.last = max(self.last, seq)

    def take_over(self, session: str, moves: Mapping[int, int]) -> None:
        """Note a session, and give messages new numbers, which are ascending and after all used ones."""
        last = max(moves.values(), default=self.last)
        self._change(
            ("UPDATE identity SET session = ?", (session,)),
            *[("UPDATE messages SET seq = ? WHERE seq = ?", (new, number)) for number, new in moves.items()],
            ("UPDATE store SET last = ?", (last,)),
        )
        self.session, self.last = session, last
        for number, new in moves.items():
            self._kept[new] = self._kept.pop(number)

    def drop(self, seq: int) -> None:
        """Drop all messages up to a number; they may stay in the file until later ones are dropped."""
        if seq <= self.discarded:
            return
        self._change(
            ("UPDATE store SET discarded = ?, last = max(last, ?)", (seq, seq)),
            ("DELETE FROM messages WHERE seq <= ?", (seq,)),
            needed=False,
        )
        for number in list(itertools.takewhile(lambda kept: kept <= seq, self._kept)):
            del self._kept[number]
        self.discarded, self.last = seq, max(self.last, seq)

    def _change(self, *statements: Statement, needed: bool = True) -> None:
        if self._file is not None:
            self._file.change(*statements, needed=needed)

    def numbers(self) -> list[int]:
        """Return the numbers of the messages that are kept, ascending."""
        return list(self._kept)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._kept)


def _decode(seq: int, message: bytes) -> KeptMessage:
    """Read a row; one with arguments of a wrong type, which could not be sent, must not hold up the others."""
    try:
        return _read(message)
    except msgspec.DecodeError as error:
        log.error("Message %s of the publish store is unusable and is withdrawn: %s", seq, error)  # noqa: TRY400
        return WITHDRAWN


_read = msgspec.msgpack.Decoder(KeptMessage).decode
