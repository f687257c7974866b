from __future__ import annotations

import sys
import threading
from functools import partial

import pytest

from ackstream.client.core import lifetime
from ackstream.client.core.lifetime import Awaited, Client, Lifetime, Parts, Session, call_handler
from ackstream.client.errors import TakenOverError, ThreadDiedError
from ackstream.protocol.readers import KnownReaders, ReaderRemoved, ReaderState


class Counter(Client):
    def __init__(self, lifetime: Lifetime) -> None:
        self._life = lifetime

    def close(self) -> None:
        self._life.close()


def test_a_client_lives_until_it_is_closed():
    client = Counter(Lifetime())
    assert client.alive
    assert not client.wait_closed(0)
    client.close()
    client.close()
    assert not client.alive
    assert client.wait_closed(0)


def test_the_first_error_ends_a_client_and_is_reported_once():
    ended, reported = [], []
    life = Lifetime(ended.append, reported.append)
    first = TakenOverError("first")
    life.fail(first)
    life.fail(TakenOverError("second"))
    life.close()
    assert (ended, reported, life.alive) == ([first], [first], False)
    with pytest.raises(TakenOverError, match="first"):
        Counter(life).wait_closed(0)


def test_changes_of_the_connection_are_reported_once():
    states = []
    life = Lifetime(on_connection=states.append)
    for state in ("disconnected", "connected", "connected", "disconnected", "connected", "resubscribed", "connected"):
        life.enter(state)
    assert states == ["connected", "disconnected", "connected", "resubscribed"]


def test_changes_of_the_connection_are_lines_of_the_log_but_not_the_first_one(caplog):
    life = Lifetime(name="The reader r")
    for state in ("connected", "disconnected", "disconnected", "connected"):
        life.enter(state)
    life.fail(TakenOverError("first"))
    assert [record.getMessage() for record in caplog.records] == [
        "The reader r is disconnected: its records are not stored, or not answered. It tries again.",
        "The reader r is connected again.",
        "The reader r has ended: first",
    ]


def test_the_evidence_of_a_client_is_its_state_from_the_first_connection_on(caplog: pytest.LogCaptureFixture) -> None:
    states: list[str] = []
    life = Lifetime(on_connection=states.append)
    for now, away, waits, state in [
        # not connected yet
        (0, False, True, None),
        (99, True, False, None),
        (100, False, False, "connected"),
        # refused by Kafka: at once
        (101, True, False, "disconnected"),
        (102, False, False, "connected"),
        # an answer that is on its way, and one that is overdue
        (103, False, True, "connected"),
        (113, False, True, "connected"),
        (113.1, False, True, "disconnected"),
        (114, False, False, "connected"),
        (124.2, False, True, "connected"),
    ]:
        life.look(now, away=away, waits=waits)
        assert (states or [None])[-1] == state
    assert states == ["connected", "disconnected"] * 2 + ["connected"]
    # the first connection is no line
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "The client is disconnected",
        "The client is connected again.",
    ] * 2


@pytest.mark.parametrize("wait", [Awaited.wait_for, partial(Awaited.wait_for, ask=int, again=0.01)])
def test_a_wait_that_lasts_is_one_line_of_the_log(wait, caplog, monkeypatch):
    monkeypatch.setattr(lifetime, "LASTING_SECONDS", 0.02)
    state = Awaited()
    assert wait(state, lambda: True, None, lambda: "short")
    assert not wait(state, lambda: False, 0.02, lambda: "short")
    assert not wait(state, lambda: False, 0.1, lambda: "It waits for Godot.")
    assert [record.getMessage() for record in caplog.records] == ["It waits for Godot."]


def test_an_error_after_the_close_is_not_reported():
    reported = []
    life = Lifetime(on_error=reported.append)
    life.close()
    life.fail(TakenOverError("late"))
    assert (reported, life.error) == ([], None)


def test_a_thread_that_dies_ends_its_client():
    reported = []
    life = Lifetime(on_error=reported.append)

    def run() -> None:
        raise KeyError("unforeseen")

    thread = life.thread(run, "reading")
    thread.start()
    with pytest.raises(ThreadDiedError, match=r"reading died of KeyError\('unforeseen'\)"):
        life.wait(10)
    thread.join()
    assert isinstance(reported[0].__cause__, KeyError)


def test_a_handler_that_exits_ends_its_client():
    life = Lifetime()
    life.thread(lambda: sys.exit(1), "handling").start()
    with pytest.raises(ThreadDiedError, match=r"handling died of SystemExit\(1\)"):
        life.wait(10)


def test_an_error_of_the_product_ends_a_client_as_it_is():
    life = Lifetime()
    error = TakenOverError("names must be unique")

    def run() -> None:
        raise error

    life.guard(run)
    assert life.error is error


def test_handlers_that_raise_harm_nobody(caplog):
    def handler(_: object) -> None:
        raise ValueError("a bug of the application")

    life = Lifetime(on_error=handler)
    life.fail(TakenOverError("x"))
    call_handler(handler, 1)
    call_handler(None, 1)
    assert not life.alive
    assert caplog.text.count("A handler of the application failed: <function test_handlers_that_raise") == 2


class Interrupted(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - of the library
        raise KeyboardInterrupt


def test_ctrl_c_ends_a_wait_without_a_timeout_in_order() -> None:
    life = Lifetime()
    life._over = Interrupted()
    assert Counter(life).wait_closed() is False
    # a caller that looks again and again ends by itself
    with pytest.raises(KeyboardInterrupt):
        Counter(life).wait_closed(1)


def test_those_who_wait_are_woken_by_the_end():
    life = Lifetime()
    woken = threading.Event()
    waiter = threading.Thread(target=lambda: life.wait(None) and woken.set())
    waiter.start()
    life.close()
    waiter.join(10)
    assert woken.is_set()


def test_a_beginning_is_repeated_until_it_is_answered_then_signs_of_life_follow() -> None:
    session: Session[int] = Session(3.0)
    assert [session.due(now) for now in (0.0, 2.9, 3.0)] == ["begin", None, "begin"]
    session.begin(7, 10.0)
    assert [session.due(now) for now in (5.9, 6.0, 15.9, 16.0)] == [None, "alive", None, "alive"]


def test_a_record_that_was_sent_for_another_reason_is_a_sign_of_life() -> None:
    session: Session[int] = Session(3.0)
    session.begin(7, 10.0)
    session.sent(4.0)
    assert [session.due(now) for now in (13.9, 14.0)] == [None, "alive"]


def test_a_session_that_was_lost_begins_again_at_once() -> None:
    session: Session[int] = Session(3.0)
    session.begin(7, 10.0)
    session.sent(4.0)
    session.lapse()
    assert session.position is None
    assert session.due(4.1) == "begin"


def test_only_a_later_session_of_the_name_ends_one_that_has_begun() -> None:
    session: Session[int] = Session()
    assert not session.is_over(9)
    session.begin(7, 10.0)
    assert [session.is_over(position) for position in (6, 7, 8)] == [False, False, True]


def test_an_answer_is_whole_when_each_part_of_each_shard_is_there() -> None:
    parts: Parts[KnownReaders] = Parts()
    assert parts.whole is None
    first, second = KnownReaders("n", 0, 2, part=0, parts=2), KnownReaders("n", 0, 2, part=1, parts=2)
    other = KnownReaders("n", 1, 2)
    assert parts.add(first).add(other).whole is None
    assert parts.add(second).whole == [first, second, other]


def test_a_record_without_parts_is_the_whole_answer_of_its_shard() -> None:
    one, two = ReaderRemoved("r", 0, 2, 1), ReaderRemoved("r", 1, 2, 1)
    parts: Parts[ReaderRemoved] = Parts()
    assert parts.add(one).whole is None
    assert parts.add(two).whole == [one, two]


def test_a_later_answer_of_a_shard_replaces_its_earlier_one() -> None:
    parts: Parts[ReaderState] = Parts()
    early = ReaderState("r", 1, 0, 1, 100, part=0, parts=2)
    late = [ReaderState("r", 1, 0, 1, 200, part=part, parts=2) for part in (1, 0)]
    parts.add(early, early.as_of)
    for state in late:
        parts.add(state, state.as_of)
    assert parts.whole == late
