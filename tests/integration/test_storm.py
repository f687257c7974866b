"""kill -9 at random points of all jobs and clients under one load: nothing lost, doubled, or reported too early.

All eight jobs die at once here, with their clients; other tests kill one job alone, more often and under more load.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.harness.invariants import broken, complete
from tests.harness.storm import CLIENTS, Storm
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.long]

# taken out of the environment, since the settings would not know the name
SEED = int(os.environ.pop("ACKSTREAM_TEST_SEED", time.time_ns() % 1_000_000))
PAUSE_SECONDS = 2.0


def test_whatever_is_killed_nothing_is_lost_doubled_or_reported_too_early(kafka: Kafka, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"again with ACKSTREAM_TEST_SEED={SEED}")  # noqa: T201 - shown when it fails
    with ExitStack() as stack:
        storm = Storm(kafka, tmp_path, stack)
        eventually(storm.is_ready, "the gateway")
        pool = stack.enter_context(ThreadPoolExecutor(6))
        stack.callback(storm.failed.set)
        stack.callback(storm.stopped.set)
        tasks = (storm.fill_the_queue, storm.request, storm.follow, lambda: storm.work("A"), lambda: storm.work("B"))
        load = [pool.submit(task) for task in tasks]
        try:
            first, second, third, fourth = chance.sample(CLIENTS, len(CLIENTS))
            for victims in (("jobs", first), (second, third), (fourth, "jobs")):
                before = storm.progress()
                eventually(lambda: storm.has_gone_on(before), f"every job to go on: {before}")  # noqa: B023
                storm.check_replication()
                for name in victims:
                    time.sleep(chance.uniform(0, PAUSE_SECONDS))
                    print(f"{time.strftime('%X')} kill {name}: {storm.progress()}")  # noqa: T201
                    storm.kill(name)
            # it has come to rest when a request gets its two acknowledgements again
            done = sum(status == 200 for status, _ in storm.answers.values())
            eventually(lambda: sum(status == 200 for status, _ in storm.answers.values()) > done, "a complete answer")
        finally:
            storm.stop.touch()
            storm.stopped.set()
        eventually(lambda: storm.tend() and all(task.done() for task in load), "the end of the load")
        for task in load:
            task.result()
        eventually(lambda: storm.tend() and complete(storm), "tables and readers to be complete")
        for program in storm.programs.values():
            program.kill()
        assert broken(storm) == []
