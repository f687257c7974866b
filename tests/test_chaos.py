"""The schedule of ``make chaos``."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.chaos import CLOCKS, DRIVERS, STOP_SECONDS, WEIGHTS, schedule
from tests.harness.storm import CLIENTS

PROGRAMS = [*DRIVERS[3], *CLIENTS]


def test_a_seed_gives_the_same_faults_again_and_another_gives_others() -> None:
    assert schedule(1, 200, PROGRAMS, list(WEIGHTS)) == schedule(1, 200, PROGRAMS, list(WEIGHTS))
    assert schedule(1, 200, PROGRAMS, list(WEIGHTS)) != schedule(2, 200, PROGRAMS, list(WEIGHTS))


def test_every_program_is_killed_and_paused_and_every_clock_forged() -> None:
    faults = schedule(3, 200, PROGRAMS, list(WEIGHTS))
    found = Counter((fault.kind, fault.target) for fault in faults)
    assert len(faults) == 200
    assert {(kind, name) for kind in ("kill", "pause") for name in PROGRAMS} <= found.keys()
    assert {("clock", topic) for topic in CLOCKS} <= found.keys()
    assert all(STOP_SECONDS[0] <= fault.lasts <= STOP_SECONDS[1] for fault in faults if fault.kind.endswith("pause"))


def test_a_machine_that_cannot_fill_a_disk_has_the_other_faults() -> None:
    faults = schedule(3, 200, PROGRAMS, [kind for kind in WEIGHTS if kind != "disk"])
    assert "disk" not in {fault.kind for fault in faults}


@pytest.mark.parametrize("drivers", DRIVERS.values(), ids=map(str, DRIVERS))
def test_every_job_runs_once(drivers: dict[str, tuple[str, ...]]) -> None:
    jobs = [job for names in drivers.values() for job in names]
    everything = ["archive", "correlate", "mirror", "persist", "query", "queues", "settle", "twin", "twin-index"]
    assert sorted(jobs) in ([], everything)
