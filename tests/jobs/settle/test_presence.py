from __future__ import annotations

import pytest

from ackstream.jobs.settle.presence import Presence, ReaderPresences


def _presences(**readers: Presence) -> ReaderPresences:
    return ReaderPresences(lease_ms=30, memory_ms=100, known=dict(readers))


def test_a_reader_lapses_behind_its_lease_and_is_forgotten_behind_its_memory() -> None:
    there, away = Presence(1, None, 1_000), Presence(1, None, 1_000, present=False)
    presences = _presences(there=there, away=away)
    assert (presences.lapsed(1_030), presences.lapsed(1_031)) == ([], ["there"])
    assert (presences.forgotten(1_100), presences.forgotten(1_101)) == ([], ["away"])
    assert presences.deadline == 1_030


def test_lapsed_and_forgotten_can_be_limited_to_one_reader_and_ignore_unknown_names() -> None:
    presences = _presences(a=Presence(1, None, 0), b=Presence(1, None, 0))
    assert presences.lapsed(99, "b") == ["b"]
    assert presences.lapsed(99, "c") == presences.forgotten(99, "c") == []


def test_a_durable_reader_never_lapses() -> None:
    presences = _presences(a=Presence(1, None, 0, durable=True))
    assert (presences.lapsed(10**15), presences.deadline) == ([], None)


@pytest.mark.parametrize(("epoch", "stale"), [(1, True), (2, False), (3, False)])
def test_an_older_epoch_is_stale(epoch: int, *, stale: bool) -> None:
    assert _presences(a=Presence(2, None, 0)).is_stale("a", epoch) is stale
    assert not _presences().is_stale("a", epoch)


def test_the_readers_of_a_writer_are_those_that_are_there_and_read_it() -> None:
    readers = {
        "all": Presence(1, None, 0, writers=("*",)),
        "plant": Presence(1, None, 0, writers=("x", "plant-*")),
        "none": Presence(1, None, 0),
        "away": Presence(1, None, 0, writers=("*",), present=False),
    }
    assert [name for name, _ in _presences(**readers).of("plant-1")] == ["all", "plant"]
