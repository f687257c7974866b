"""A small run of ``make fuzz``: structured garbage stops no operator, and every record is accounted for."""

from __future__ import annotations

import pytest

from benchmarks.fuzz import ROOMS, run
from benchmarks.fuzzing.garbage import Garbage
from benchmarks.fuzzing.room import Room

SEED = 20_261_122


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_record_stops_an_operator_and_each_is_accounted_for(room: type[Room]) -> None:
    (report,) = run(SEED, round(2_000 / room.share), [room]).values()
    assert report["records"] == 2_000
    assert (report["stops"], report["wrong"], report["nets"]) == (0, 0, {}), "\n".join(report["shown"][:3])


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_the_seed_decides_what_is_sent(room: type[Room]) -> None:
    first, second = ([made.make() for _ in range(200)] for made in (room(Garbage(SEED)), room(Garbage(SEED))))
    assert list(map(str, first)) == list(map(str, second))


def test_all_shares_are_the_whole() -> None:
    assert sum(room.share for room in ROOMS) == pytest.approx(1)


class _Broken(Room):
    name, share = "broken", 1.0

    def make(self) -> int:
        return self.chance.randrange(100)

    def feed(self, records: list[int]) -> None:  # type: ignore[override]
        if 7 in records:
            raise ValueError(7)
        self.counts["fed"] += len(records)


def test_a_record_that_stops_its_batch_is_found_and_the_others_are_fed() -> None:
    (report,) = run(SEED, 3_000, [_Broken]).values()
    assert report["stops"] > 0
    assert report["ends"]["fed"] + report["stops"] == 3_000
    assert report["shown"][0].startswith("7: ")
