"""The answers that a responder keeps for copies of its requests."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import UNSET

from ackstream.client import Responder
from ackstream.client.errors import StoreError
from ackstream.client.parties import answers
from ackstream.client.parties.answers import Delayed, Inbox
from ackstream.errors import BadParameterError
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_ack
from ackstream.protocol.ditto.envelopes import encode, raw
from ackstream.testing import RequestSystem
from tests.client.files import dump

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAY = 86_400.0


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Callable[..., Inbox]:
    return lambda group="g", failed=pytest.fail: Inbox(tmp_path / "inbox", group, failed, clock)


def answer(payload: Any = UNSET, delay: float = 0.0) -> Delayed:
    given = payload if payload is UNSET else raw(payload)
    return delay, write_ack(Acknowledgement("a-a", 204, given, {"correlation-id": "c"}), "n:x")


def read(inbox: Inbox, identity: str) -> list[tuple[float, bytes]] | None:
    found = inbox.get(identity)
    return None if found is None else [(delay, encode(message)) for delay, message in found]


GIVEN: list[list[Delayed]] = [[], [answer()], [answer({"n": [1]}, 2.5), answer("text")]]


@pytest.mark.parametrize("given", GIVEN)
def test_the_answers_to_a_request_are_known_to_the_next_process(make: Any, given: list[Delayed]) -> None:
    with_file = make()
    assert with_file.get("r1") is None
    with_file.add("r1", given)
    with_file.close()
    with_file.close()
    again = make()
    assert read(again, "r1") == [(delay, encode(message)) for delay, message in given]
    assert again.get("r2") is None
    again.close()


def test_a_request_is_forgotten_after_two_days_in_which_the_responder_ran(make: Any, clock: Clock) -> None:
    inbox = make()
    inbox.add("r1", [])
    clock.now += 1.5 * DAY
    inbox.add("r2", [])
    inbox.close()
    # the machine is started anew a year later
    clock.now = 0.0
    inbox = make()
    clock.now += 0.4 * DAY
    inbox.add("r3", [])
    assert [inbox.get(f"r{number}") for number in (1, 2, 3)] == [[], [], []]
    clock.now += 0.2 * DAY
    inbox.add("r4", [])
    assert [inbox.get(f"r{number}") for number in (1, 2, 3, 4)] == [None, [], [], []]
    inbox.close()


def test_of_more_answers_than_a_file_may_have_the_oldest_are_forgotten(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "INBOX_BYTES", 10_000)
    for run in (1, 2):
        inbox = make()
        for number in range(50):
            inbox.add(f"r{number}", [answer("x" * 600)])
        kept = [number for number in range(50) if inbox.get(f"r{number}") is not None]
        assert kept == [*range(50 - len(kept), 50)]
        assert 10_000 <= len(kept) * inbox._place / (50 * run) < 11_000, "the first one ends behind the limit"
        inbox.close()


FILE = [
    "BEGIN TRANSACTION;",
    "CREATE TABLE owner (client TEXT NOT NULL);",
    "INSERT INTO \"owner\" VALUES('g');",
    """CREATE TABLE requests (
  place INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, answers BLOB NOT NULL, at REAL NOT NULL
);""",
    "INSERT INTO \"requests\" VALUES(201,'r1',X'90',0.0);",
    "COMMIT;",
    "(1,)",
]


def test_a_file_of_this_version_is_written_as_it_always_was(make: Any, tmp_path: Path) -> None:
    inbox = make()
    inbox.add("r1", [])
    inbox.close()
    assert dump(tmp_path / "inbox") == FILE


def test_the_file_of_another_group_is_refused(make: Any) -> None:
    make().close()
    with pytest.raises(StoreError, match="belongs to the client g, not to other"):
        make("other")


def test_a_file_that_fails_is_an_error_of_the_responder_and_what_was_done_is_answered(make: Any) -> None:
    errors: list[Exception] = []
    inbox = make(failed=errors.append)
    inbox.close()
    inbox.add("r1", [])
    with pytest.raises(StoreError):
        inbox.get("r1")
    assert [type(error) for error in errors] == [StoreError, StoreError]


def test_a_disk_that_is_full_is_logged_and_the_request_is_answered(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = make()

    class Full:
        in_transaction = False

        def execute(self, *_: Any) -> Any:
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(inbox._file, "_database", Full())
    inbox.add("r1", [])
    assert "free disk space" in caplog.text


@pytest.mark.parametrize("wrong", [{"retry": 3}, {"expired": "drop"}, {"once": 5}])
def test_a_wrong_option_leaves_no_file_behind_that_is_locked(tmp_path: Path, wrong: Any) -> None:
    given: dict[str, Any] = {"handler": print, "labels": ["a-a"], "group": "g", "once": tmp_path / "inbox"}
    with pytest.raises(BadParameterError, match=next(iter(wrong))):
        Responder(RequestSystem().connection, **given | wrong)
    assert not (tmp_path / "inbox").exists()


def test_a_responder_without_a_group_has_no_use_for_an_inbox(tmp_path: Path) -> None:
    with pytest.raises(BadParameterError, match="once is set without a group"):
        Responder(RequestSystem().connection, handler=print, labels=["a-a"], once=tmp_path / "inbox")
    assert not (tmp_path / "inbox").exists()
