"""What is in the file of a client."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def write(path: Path, content: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(content)


def dump(path: Path) -> list[str]:
    """Return the statements that make the file anew, and its version."""
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump(), str(database.execute("PRAGMA user_version").fetchone())]
