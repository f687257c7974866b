from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ackstream.client.core.storage import WITHDRAWN, KeptMessage, PublishStore
from ackstream.client.errors import StoreError
from tests.client.files import dump, write


def message(value: bytes) -> KeptMessage:
    return KeptMessage(value, [("topic", b"t")], b"k")


@pytest.fixture(params=["memory", "sqlite"])
def messages(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    opened: Any = PublishStore() if request.param == "memory" else PublishStore(tmp_path / "store", "p1")
    yield opened
    opened.close()


def test_what_is_added_is_kept_until_it_is_dropped(messages: Any) -> None:
    for seq in (1, 2, 5):
        messages.add(seq, message(b"m%d" % seq))
    assert (len(messages), messages.last, messages.discarded) == (3, 5, 0)
    messages.drop(2)
    messages.drop(1)
    assert (messages.get(1), messages.get(5)) == (None, message(b"m5"))
    assert (messages.numbers(), len(messages), messages.last, messages.discarded) == ([5], 1, 5, 2)


def test_dropping_beyond_the_last_moves_the_last(messages: Any) -> None:
    messages.drop(41)
    assert (messages.last, messages.discarded, len(messages)) == (41, 41, 0)


def test_numbers_can_be_passed_over_without_dropping_messages(messages: Any) -> None:
    messages.add(1, message(b"a"))
    messages.advance(900)
    messages.advance(7)
    assert (messages.numbers(), messages.last, messages.discarded) == ([1], 900, 0)


def test_a_withdrawn_message_leaves_its_number(messages: Any) -> None:
    messages.add(1, message(b"a"))
    messages.withdraw(1)
    assert (messages.numbers(), messages.get(1)) == ([1], WITHDRAWN)


def test_a_file_has_its_messages_after_reopening(tmp_path: Path) -> None:
    first = PublishStore(tmp_path / "store", "p1")
    first.add(1, message(b"a"))
    first.add(2, message(b"b"))
    first.drop(1)
    first.close()
    first.close()
    second = PublishStore(tmp_path / "store", "p1")
    assert (second.numbers(), second.get(2), second.last, second.discarded) == ([2], message(b"b"), 2, 1)
    second.withdraw(2)
    second.advance(40)
    second.close()
    third = PublishStore(tmp_path / "store", "p1")
    assert (third.numbers(), third.get(2), third.last) == ([2], WITHDRAWN, 40)
    third.close()


ROWS = {
    1: b"\x93\xc4\x01a\x91\x92\xa5topic\xc4\x01t\xc4\x01k",
    2: b"\x93\xc4\x01b\x90\xa7order-7",
    3: b"\x93\xc4\x01c\x90\xc0",
}
"""Messages, with fewer fields than are written; the key of the second is a text, which Kafka does not take."""


def test_an_unusable_message_in_the_file_holds_nothing_up(tmp_path: Path) -> None:
    PublishStore(tmp_path / "store", "p1").close()
    with sqlite3.connect(tmp_path / "store") as database:
        database.executemany("INSERT INTO messages VALUES (?, ?)", ROWS.items())
        database.execute("UPDATE store SET last = 3")
    database.close()
    messages = PublishStore(tmp_path / "store", "p1")
    assert [messages.get(seq) for seq in (1, 2, 3)] == [message(b"a"), WITHDRAWN, KeptMessage(b"c", [])]
    messages.close()


STORE = """
PRAGMA user_version = 2;
CREATE TABLE owner (client TEXT NOT NULL);
INSERT INTO owner VALUES ('p1');
CREATE TABLE messages (seq INTEGER PRIMARY KEY, message BLOB NOT NULL);
INSERT INTO messages VALUES (7, x'94c401619192a5746f706963c40174c4016bc2'), (9, x'94c40090c0c3');
CREATE TABLE store (discarded INTEGER NOT NULL, last INTEGER NOT NULL);
INSERT INTO store VALUES (6, 9);
CREATE TABLE identity (store TEXT NOT NULL, session TEXT NOT NULL);
INSERT INTO identity VALUES ('0123456789abcdef0123456789abcdef', 'logon-1');
"""
"""7 waits for its ack, 9 was withdrawn; the numbers are those of the session logon-1."""


def test_a_file_of_this_version_is_read_and_written_as_it_always_was(tmp_path: Path) -> None:
    write(tmp_path / "store", STORE)
    messages = PublishStore(tmp_path / "store", "p1")
    assert (messages.discarded, messages.last, messages.numbers()) == (6, 9, [7, 9])
    assert (messages.get(7), messages.get(9)) == (message(b"a"), WITHDRAWN)
    assert (messages.store, messages.session) == ("0123456789abcdef0123456789abcdef", "logon-1")
    messages.close()
    new = PublishStore(tmp_path / "new", "p1")
    new.drop(6)
    new.add(7, message(b"a"))
    new.add(9, message(b"b"))
    new.withdraw(9)
    new.take_over("logon-1", {})
    new.close()
    assert [line.replace(new.store, messages.store) for line in dump(tmp_path / "new")] == dump(tmp_path / "store")


def test_a_new_file_gets_an_identity_that_no_other_file_has(tmp_path: Path) -> None:
    stores = set()
    for name in ("a", "b"):
        for _ in range(2):
            messages = PublishStore(tmp_path / name, "p1")
            stores.add(messages.store)
            messages.close()
    assert sorted(map(len, stores)) == [32, 32]


def test_messages_can_be_given_new_numbers(tmp_path: Path) -> None:
    messages = PublishStore(tmp_path / "store", "p1")
    messages.add(7, message(b"a"), message(b"b"), message(b"c"))
    messages.take_over("logon-2", {8: 10, 9: 11})
    for _ in range(2):
        assert (messages.numbers(), messages.get(10), messages.last) == ([7, 10, 11], message(b"b"), 11)
        assert messages.session == "logon-2"
        messages.close()
        messages = PublishStore(tmp_path / "store", "p1")
    messages.close()


@pytest.mark.parametrize("owners", [0, 1])
def test_a_file_that_was_killed_before_it_had_an_owner_is_usable(tmp_path: Path, owners: int) -> None:
    PublishStore(tmp_path / "store", "p1").close()
    with sqlite3.connect(tmp_path / "store") as database:
        database.execute("DELETE FROM owner WHERE ? = 0", (owners,))
    database.close()
    for _ in range(2):
        PublishStore(tmp_path / "store", "p1").close()
    with pytest.raises(StoreError, match="belongs to the client p1"):
        PublishStore(tmp_path / "store", "p2")


@pytest.mark.parametrize(("synchronous", "found"), [("normal", 1), ("full", 2)])
def test_a_change_waits_for_the_disk_if_that_is_wanted(tmp_path: Path, synchronous: Any, found: int) -> None:
    messages = PublishStore(tmp_path / "store", "p1", synchronous)
    assert messages._file.read("PRAGMA synchronous") == [(found,)]
    messages.close()


WRITER = """
import sys
from pathlib import Path
from ackstream.client.core.storage import KeptMessage, PublishStore
messages = PublishStore(Path(sys.argv[1]), "p1")
for seq in range(1, 1_000_000):
    messages.add(seq, KeptMessage(b"x" * 100, []))
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
    messages = PublishStore(tmp_path / "store", "p1")
    assert messages.last in (last, last + 1)
    assert messages.numbers() == list(range(messages.discarded + 1, messages.last + 1))
    messages.close()


def _filled(path: Path) -> Path:
    messages = PublishStore(path, "p1")
    for seq in range(1, 400):
        messages.add(seq, message(b"x" * 100))
    messages.close()
    return path


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused_in_a_sentence(tmp_path: Path, part: float) -> None:
    path = _filled(tmp_path / "store")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(StoreError, match=r"store cannot be used \(.*\): it is damaged"):
        PublishStore(path, "p1")


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"these are my notes" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        PublishStore(path, "p1")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = _filled(tmp_path / "store")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(StoreError, match="version 9"):
        PublishStore(path, "p1")


def test_the_store_of_another_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="belongs to the client p1, not to p2"):
        PublishStore(_filled(tmp_path / "store"), "p2")


def test_a_store_is_for_one_at_a_time(tmp_path: Path) -> None:
    first = PublishStore(tmp_path / "store", "p1")
    with pytest.raises(StoreError, match="another process has it open"):
        PublishStore(tmp_path / "store", "p1")
    first.close()


def test_an_attempt_to_open_a_store_again_leaves_it_locked_for_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first = PublishStore(path, "p1")
    with pytest.raises(StoreError, match="another process has it open"):
        PublishStore(path, "p1")
    other = f"from ackstream.client.core.storage import PublishStore; PublishStore({str(path)!r}, 'p1')"
    refused = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "another process has it open" in refused.stderr
    first.close()
    subprocess.run([sys.executable, "-c", other], check=True)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    messages = PublishStore(tmp_path / "store", "p1")
    messages._file.read("PRAGMA max_page_count = 20")
    for seq in range(1, 10):
        messages.add(seq, message(b"x" * 1000))
    with pytest.raises(StoreError, match="free disk space"):
        messages.add(10, message(b"x" * 100_000))
    assert messages.numbers() == list(range(1, messages.last + 1))
    messages.drop(messages.last)
    messages.add(messages.last + 1, message(b"again"))
    assert len(messages) == 1
    messages.close()


class Broken:
    """A database whose disk fails at each commit."""

    def __init__(self, database: sqlite3.Connection, error: str) -> None:
        self.database, self.error = database, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        if statement == "COMMIT":
            raise sqlite3.OperationalError(self.error)
        return self.database.execute(statement, values)


@pytest.mark.parametrize("error", ["database or disk is full", "disk I/O error"])
def test_what_is_acknowledged_is_dropped_though_the_disk_cannot_be_written(
    tmp_path: Path, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages = PublishStore(tmp_path / "store", "p1")
    messages.add(1, message(b"a"), message(b"b"), message(b"c"))
    database = messages._file._database
    messages._file._database = Broken(database, error)  # type: ignore[assignment]
    messages.drop(1)
    messages.withdraw(2)
    assert (messages.numbers(), messages.get(2), messages.discarded) == ([2, 3], WITHDRAWN, 1)
    assert caplog.text.count(error) == 2
    with pytest.raises(StoreError, match="the messages in the file stay" if "I/O" in error else "free disk space"):
        messages.add(4, message(b"d"))
    messages._file._database = database
    messages.drop(2)
    messages.close()
    again = PublishStore(tmp_path / "store", "p1")
    assert (again.numbers(), again.discarded) == ([3], 2)
    again.close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"missing/store cannot be used .*: free disk space, or choose a writable"):
        PublishStore(tmp_path / "missing" / "store", "p1")
