""""""

from __future__ import annotations

from typing import Any

import pytest

from ackstream.jobs.settle.presence import Early, Presence, Presences, Report
from ackstream.protocol.readers import AppAck, read
from tests.jobs.settle.logs import Log


def _early(*told: tuple[str, int, int], **others: Any) -> Early:
    """Return reports of a reader, with a count, at a time."""
    log = Log()
    return Early(log.ack(reader, count, (1, 1), at=at, **others) for reader, count, at in told)


def _counts(early: Early, before: int, *lacking: int) -> list[int]:
    def lacks(report: Report) -> bool:
        return isinstance(report, AppAck) and report.count in lacking

    return [report.count for _, report in early.ripe("w1", before, lacks) if isinstance(report, AppAck)]


def test_a_report_waits_until_what_it_lacks_is_there_or_cannot_come() -> None:
    early = _early(("A", 1, 10))
    assert (_counts(early, 10, 1), early.deadline, early.writers) == ([], 10, ["w1"])
    assert _counts(early, 11, 1) == [1]
    assert (early.deadline, early.writers, early.records) == (None, [], [])


def test_what_a_reader_says_later_waits_too_what_others_say_does_not() -> None:
    early = _early(("A", 1, 10), ("A", 2, 11), ("B", 3, 12))
    assert _counts(early, 0, 1) == [3]
    assert _counts(early, 0) == [1, 2]


def test_what_waits_can_be_kept_and_taken_up_again() -> None:
    early = _early(("A", 1, 10), ("B", 2, 11))
    again = Early(early.records)
    assert again.records == early.records
    assert [report for _, report in again.ripe("w1", 99, lambda _: True)] == [
        read(record.value or b"") for record in early.records
    ]
    assert again.ripe("another", 99, lambda _: True) == []


def _presences(**readers: Presence) -> Presences:
    return Presences(lease_ms=30, memory_ms=100, known=dict(readers))


def test_a_reader_lapses_behind_its_lease_and_is_forgotten_behind_its_memory() -> None:
    there, away = Presence(1, None, 1_000), Presence(1, None, 1_000, there=False)
    presences = _presences(there=there, away=away)
    assert (presences.lapsed(1_030), presences.lapsed(1_031)) == ([], ["there"])
    assert (presences.forgotten(1_100), presences.forgotten(1_101)) == ([], ["away"])
    assert presences.deadline == 1_030


def test_one_reader_can_be_asked_after_and_nobody_is_invented() -> None:
    presences = _presences(a=Presence(1, None, 0), b=Presence(1, None, 0))
    assert presences.lapsed(99, "b") == ["b"]
    assert presences.lapsed(99, "c") == presences.forgotten(99, "c") == []


def test_a_durable_reader_never_lapses() -> None:
    presences = _presences(a=Presence(1, None, 0, durable=True))
    assert (presences.lapsed(10**15), presences.deadline) == ([], None)


@pytest.mark.parametrize(("epoch", "stale"), [(1, True), (2, False), (3, False)])
def test_an_older_epoch_is_stale(epoch: int, *, stale: bool) -> None:
    assert _presences(a=Presence(2, None, 0)).stale("a", epoch) is stale
    assert not _presences().stale("a", epoch)


def test_the_readers_of_a_writer_are_those_that_are_there_and_read_it() -> None:
    readers = {
        "all": Presence(1, None, 0, writers=("*",)),
        "plant": Presence(1, None, 0, writers=("x", "plant-*")),
        "none": Presence(1, None, 0),
        "away": Presence(1, None, 0, writers=("*",), there=False),
    }
    assert [name for name, _ in _presences(**readers).of("plant-1")] == ["all", "plant"]
