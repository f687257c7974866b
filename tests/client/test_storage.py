from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client.errors import StoreError
from ackstream.client.storage import MemoryMessages, SqliteMessages

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def messages(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    opened: Any = MemoryMessages() if request.param == "memory" else SqliteMessages(tmp_path / "store", "p1")
    yield opened
    opened.close()


def test_what_is_added_is_kept_until_it_is_dropped(messages: Any) -> None:
    for seq in (1, 2, 5):
        messages.add(seq, b"m%d" % seq)
    assert (len(messages), messages.last, messages.discarded) == (3, 5, 0)
    assert messages.drop(2) == 2
    assert messages.drop(1) == 0
    assert (messages.get(1), messages.get(5)) == (None, b"m5")
    assert list(messages.after(2)) == [(5, b"m5")]
    assert (len(messages), messages.last, messages.discarded) == (1, 5, 2)


def test_dropping_beyond_the_last_moves_the_last(messages: Any) -> None:
    messages.drop(41)
    assert (messages.last, messages.discarded, len(messages)) == (41, 41, 0)


def test_a_file_is_there_again_after_closing(tmp_path: Path) -> None:
    first = SqliteMessages(tmp_path / "store", "p1")
    first.add(1, b"a")
    first.add(2, b"b")
    first.drop(1)
    first.close()
    first.close()
    second = SqliteMessages(tmp_path / "store", "p1")
    assert (list(second.after(0)), second.last, second.discarded) == ([(2, b"b")], 2, 1)
    second.close()


WRITER = """
import sys
from pathlib import Path
from ackstream.client.storage import SqliteMessages
messages = SqliteMessages(Path(sys.argv[1]), "p1")
for seq in range(1, 1_000_000):
    messages.add(seq, b"x" * 100)
    if seq % 3 == 0:
        messages.drop(seq - 2)
    print(seq, flush=True)
"""


def test_what_was_kept_survives_kill_9(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < 200:
            pass
        os.kill(writer.pid, signal.SIGKILL)
        printed = [int(line) for line in writer.stdout if line.endswith("\n")]
    last = max(printed, default=200)
    messages = SqliteMessages(tmp_path / "store", "p1")
    assert messages.last in (last, last + 1)
    assert [seq for seq, _ in messages.after(0)] == list(range(messages.discarded + 1, messages.last + 1))
    messages.close()


def _filled(path: Path) -> Path:
    messages = SqliteMessages(path, "p1")
    for seq in range(1, 400):
        messages.add(seq, b"x" * 100)
    messages.close()
    return path


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_file_that_was_cut_short_is_refused_in_a_sentence(tmp_path: Path, part: float) -> None:
    path = _filled(tmp_path / "store")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(StoreError, match=r"store cannot be used \(.*\): it is damaged"):
        SqliteMessages(path, "p1")


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"these are my notes" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        SqliteMessages(path, "p1")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = _filled(tmp_path / "store")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(StoreError, match="version 9"):
        SqliteMessages(path, "p1")


def test_the_store_of_another_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="belongs to the client p1, not to p2"):
        SqliteMessages(_filled(tmp_path / "store"), "p2")


def test_a_store_is_for_one_at_a_time(tmp_path: Path) -> None:
    first = SqliteMessages(tmp_path / "store", "p1")
    with pytest.raises(StoreError, match="another process has it open"):
        SqliteMessages(tmp_path / "store", "p1")
    first.close()


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    messages = SqliteMessages(tmp_path / "store", "p1")
    messages._file.read("PRAGMA max_page_count = 20")
    for seq in range(1, 10):
        messages.add(seq, b"x" * 1000)
    with pytest.raises(StoreError, match="make room"):
        messages.add(10, b"x" * 100_000)
    kept = [seq for seq, _ in messages.after(0)]
    assert kept == list(range(1, messages.last + 1))
    messages.drop(messages.last)
    messages.add(messages.last + 1, b"again")
    assert len(messages) == 1
    messages.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"missing/store cannot be used .*: make room, or choose a place"):
        SqliteMessages(tmp_path / "missing" / "store", "p1")
