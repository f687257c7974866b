from __future__ import annotations

from itertools import count

from ackstream.connectivity import system
from ackstream.connectivity.system import Identities


def numbered() -> Identities:
    numbers = count(1)
    return Identities(lambda: str(next(numbers)))


def test_a_fresh_correlation_id_stays_as_it_is() -> None:
    assert numbered().take("a", redelivered=False) == "a"


def test_what_comes_again_gets_a_suffix() -> None:
    found = numbered()
    assert [found.take("a", redelivered=False) for _ in range(3)] == ["a", "a#1", "a#2"]


def test_what_may_have_come_before_gets_a_suffix() -> None:
    assert numbered().take("a", redelivered=True) == "a#1"


def test_two_processes_do_not_use_the_same_suffix() -> None:
    assert Identities().take("a", redelivered=True) != Identities().take("a", redelivered=True)


def test_only_the_last_ones_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(system, "REMEMBERED", 2)
    found = numbered()
    assert [found.take(each, redelivered=False) for each in "abca"] == ["a", "b", "c", "a"]
