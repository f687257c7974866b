"""kill -9 at random points: one row an outcome, one row an acknowledgement, no reply lost, no two different answers."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ackstream.jobs.correlate.pending import HOT_BYTES
from tests.harness.lake import count, rows
from tests.harness.processes import Job, Program
from tests.harness.programs import JOBS
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration

PORTION = 2_000
"""Requests that are sent before the first kill, and about each."""
RATE = 1_000
# every so many-th request never gets its second acknowledgement
SILENT_EVERY = 20
TIMEOUT_MS = 10_000
"""About what a job takes to start again: what it then finds unread must not time out."""


def _send(system: System, numbers: range) -> None:
    """Send requests and their acknowledgements at a steady rate, whatever the jobs do meanwhile."""
    start = time.monotonic()
    for place, number in enumerate(numbers):
        while time.monotonic() - start < place / RATE:
            time.sleep(0.002)
        key = f"request-{number}"
        system.post("signals", system.command_json(key, requested_acks=["a-ack", "b-ack"], timeout=f"{TIMEOUT_MS}ms"))
        system.post("acks", system.ack_json(key, "a-ack"))
        if number % SILENT_EVERY:
            system.post("acks", system.ack_json(key, "b-ack"))
    system.producer.flush()


def _rows(system: System, table: str, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row[column] for column in columns) for row in rows(system.settings.lake, table, *columns)]


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.long)])
def test_nothing_is_lost_doubled_or_answered_twice_by_kill_9(kafka: Kafka, tmp_path: Path, kills: int) -> None:
    requests = (kills + 1) * PORTION
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    with closing(System(kafka, tmp_path, max_offsets_per_trigger=20_000)) as system:
        names = ("correlate", "archive")
        if kills > 1:
            jobs: list[Program] = [Job(name, system.settings, tmp_path) for name in names]
        else:
            # both in one driver, which takes as long to start as for one
            jobs = [Program("jobs", ["-c", JOBS, *names], system.settings, tmp_path)]
        # each of them equally often, or once more
        victims = iter(chance.sample(jobs * ((kills + 1) // 2), kills))
        try:
            for portion in range(0, requests, PORTION):
                numbers = range(portion, portion + PORTION)
                if portion == 0:
                    _send(system, numbers)
                    continue
                # a job is killed some way into its work on what was sent last
                job = next(victims)
                mark = _written(system, job) + chance.randrange(1, PORTION // 3)
                _send(system, numbers[: PORTION // 2])
                eventually(lambda: _alive(jobs) and _written(system, job) >= mark, f"{job.name} to write")  # noqa: B023
                job.kill()
                _send(system, numbers[PORTION // 2 :])
                job.start()
            silent = {f"request-{number}" for number in range(0, requests, SILENT_EVERY)}
            expected_acks = 2 * requests - len(silent)
            eventually(
                lambda: _alive(jobs) and _finished(system, requests, expected_acks), "all outcomes and acknowledgements"
            )
        finally:
            for job in jobs:
                job.kill()
        outcomes = _rows(system, "outcomes", "correlation_id", "status", "completed_by", "reply_id")
        acks = Counter(_rows(system, "acknowledgements", "topic", "partition", "offset", "index"))
        signals = Counter(_rows(system, "signals", "correlation_id"))
        dispositions = Counter(_rows(system, "acknowledgements", "disposition"))
        replies = {(r.key.decode(), dict(r.headers)["reply-id"], r.value) for r in system.records("replies")}

    assert Counter(key for key, *_ in outcomes).most_common(1)[0][1] == 1
    assert len(outcomes) == requests
    assert set(signals.values()) == {1}
    assert len(signals) == requests
    assert set(acks.values()) == {1}
    assert len(acks) == expected_acks
    assert dispositions == {("accepted",): expected_acks}
    # every reply arrived, and repeats have the same id and the same bytes
    assert len(replies) == len({key for key, _, _ in replies}) == requests
    by_key = {key: (identity, status) for key, status, _, identity in outcomes}
    assert {key: identity.decode() for key, identity, _ in replies} == {key: i for key, (i, _) in by_key.items()}
    assert {key for key, (_, status) in by_key.items() if status == 424} == silent


@pytest.mark.long
def test_requests_that_are_beside_the_checkpoint_are_answered_once_whenever_correlate_is_killed(
    kafka: Kafka, tmp_path: Path
) -> None:
    """One shard with many more open requests than its state keeps, killed while it puts them aside and finds them."""
    requests, kills = 10_000, 4
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    keys = [f"request-{number}" for number in range(requests)]
    with closing(System(kafka, tmp_path, shards=1, shuffle_partitions=1, max_offsets_per_trigger=250)) as system:
        pieces = Path(system.settings.lake.checkpoint("correlate"), "pieces", "0")

        def aside() -> int:
            return sum(path.stat().st_size for path in pieces.iterdir()) if pieces.is_dir() else 0

        job = Job("correlate", system.settings, tmp_path)
        try:
            for key in keys:
                system.post("signals", system.command_json(key, requested_acks=["a-ack"], timeout="1h"))
            system.producer.flush()
            for _ in range(kills):
                mark = aside() + chance.randrange(1, HOT_BYTES // 4)
                eventually(lambda: _alive([job]) and aside() >= mark, "requests to be put aside")  # noqa: B023
                job.kill()
                job.start()
            for key in chance.sample(keys, requests):
                system.post("acks", system.ack_json(key, "a-ack"))
            system.producer.flush()
            for _ in range(kills):
                answered = system.end("replies") + chance.randrange(1, requests // kills // 2)
                eventually(lambda: _alive([job]) and system.end("replies") >= answered, "replies")  # noqa: B023
                job.kill()
                job.start()
            eventually(lambda: _alive([job]) and len(system.replies()) == requests, "all replies")
        finally:
            job.kill()
        replies = {(r.key.decode(), dict(r.headers)["reply-id"], r.value) for r in system.records("replies")}
        statuses = {reply["status"] for reply in system.replies().values()}
    # repeats have the same id and the same bytes
    assert len(replies) == len({key for key, _, _ in replies}) == requests
    assert statuses == {200}


def _written(system: System, job: Program) -> int:
    return count(system.settings.lake, "outcomes") if job.name == "archive" else system.end("ledger")


def _alive(jobs: Sequence[Program]) -> bool:
    for job in jobs:
        job.check()
    return True


def _finished(system: System, requests: int, expected_acks: int) -> bool:
    # the tables are committed one by one: all of them must be complete
    expected = {"outcomes": requests, "signals": requests, "acknowledgements": expected_acks}
    return all(count(system.settings.lake, table) >= number for table, number in expected.items())
