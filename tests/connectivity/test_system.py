from __future__ import annotations

import re

from ackstream.connectivity import system
from ackstream.connectivity.system import Identities
from ackstream.protocol.correlation_ids import MAX_BYTES, is_too_long


def test_a_fresh_correlation_id_stays_as_it_is() -> None:
    assert Identities().take("a", redelivered=False) == "a"


def test_what_comes_again_gets_a_suffix() -> None:
    found = Identities()
    first, *others = [found.take("a", redelivered=False) for _ in range(3)]
    assert first == "a"
    assert len(set(others)) == 2
    assert all(re.fullmatch("a#[0-9a-f]{8}", other) for other in others)


def test_what_may_have_come_before_gets_a_suffix() -> None:
    assert Identities().take("a", redelivered=True).startswith("a#")


def test_a_suffix_makes_no_correlation_id_too_long() -> None:
    assert not is_too_long(Identities().take("x" * MAX_BYTES, redelivered=True))


def test_two_processes_do_not_use_the_same_suffix() -> None:
    assert Identities().take("a", redelivered=True) != Identities().take("a", redelivered=True)


def test_only_the_last_ones_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(system, "REMEMBERED", 2)
    found = Identities()
    assert [found.take(each, redelivered=False) for each in "abca"] == ["a", "b", "c", "a"]
