"""kill -9 of twin, correlate, gateway and a subscriber under load: no revision lost or doubled, nothing made up."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from deltalake import DeltaTable

from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.correlation_ids import shown_id
from tests.harness.kafka import committed
from tests.harness.ports import free_ports
from tests.harness.processes import Job, Program
from tests.harness.programs import SUBSCRIBER
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.long]

THINGS = [f"org.acme:lamp-{number}" for number in range(20)]
RATE = 20
SECONDS = 30
REQUESTS = RATE * SECONDS
LABEL = "app:seen"
TIMEOUT_SECONDS = 50
"""Longer than a Spark job usually takes to be killed and started again."""


def test_no_revision_is_lost_or_doubled_and_nothing_is_acknowledged_that_is_not_in_the_table(
    kafka: Kafka, tmp_path: Path
) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    (port,) = free_ports(1)
    notes = tmp_path / "seen.txt"
    notes.touch()
    with closing(System(kafka, tmp_path)) as system:
        ensure_topics(system.settings)
        programs: list[Program] = [
            Job("correlate", system.settings, tmp_path),
            Job("twin", system.settings, tmp_path),
            Program("gateway", ["gateway"], system.settings, tmp_path, {"ACKSTREAM_GATEWAY_PORT": str(port)}),
            Program("subscriber", ["-c", SUBSCRIBER, str(notes)], system.settings, tmp_path),
        ]
        committed_then: dict[tuple[str, int], int] = {}
        try:
            eventually(lambda: _ready(programs, port), "the gateway")
            answers = asyncio.run(_load(f"http://127.0.0.1:{port}", programs, kafka, committed_then, chance))
            # at rest again, a request gets both acknowledgements
            eventually(lambda: _put(port).status_code == 200, "a complete answer")
            sent = {_id(record) for record in system.records("signals")}
            eventually(
                lambda: _alive(programs) and _decided(system) >= sent and _seen(notes) >= _changed(system), "all"
            )
        finally:
            for program in programs:
                program.kill()
        journal = _rows(system, "thing_events", "thing_id", "revision", "correlation_id")
        told = system.records("events")
        events = {(record.key, json.loads(record.value)["revision"], record.value) for record in told}
        persisted = [record for record in system.records("twin-acks") if b"/twin/commands/" in record.value]

    revisions = defaultdict(list)
    for row in journal:
        revisions[row["thing_id"]].append(row["revision"])
    assert {thing: sorted(found) for thing, found in revisions.items()} == {
        thing: list(range(1, len(found) + 1)) for thing, found in revisions.items()
    }
    changes = Counter(row["correlation_id"] for row in journal)
    # a command acts once, and only what is in the journal is said to be persisted, always in the same words
    assert set(changes.values()) == {1}
    assert {_id(record) for record in persisted if _status(record) < 300} <= changes.keys()
    assert len(events) == len({(key, revision) for key, revision, _ in events}) == len(journal)
    # a gateway sends its clients' commands under ids of its own
    shown = set(map(shown_id, changes))
    for key, (status, body) in answers.items():
        if status in (200, 424):
            entry = json.loads(body)["twin-persisted"]
            assert entry["status"] >= 300 or key in shown, key
            assert body.count(b'"correlation-id":"') == body.count(f'"correlation-id":"{key}"'.encode()), key
    statuses = Counter(status for status, _ in answers.values())
    # none at all while the gateway is away; 503 where it cannot reach Kafka
    assert set(statuses) <= {0, 200, 201, 424, 503}, statuses
    # what the subscriber had committed when it was killed does not come again
    handled = Counter(line.split()[1] for line in notes.read_text().splitlines())
    assert handled.keys() == changes.keys()
    final = {_id(record) for record in told if record.offset < committed_then.get((record.topic, record.partition), 0)}
    assert {handled[key] for key in final} <= {1}


async def _load(
    url: str,
    programs: list[Program],
    kafka: Kafka,
    committed_then: dict[tuple[str, int], int],
    chance: random.Random,
) -> dict[str, Any]:
    """Put values at a steady rate, while every program is killed once; return status and body by correlation-id."""
    answers: dict[str, Any] = {}

    async def put(client: httpx.AsyncClient, number: int) -> None:
        key, thing = f"put-{number}", THINGS[number % len(THINGS)]
        # the first of a thing makes it
        part, value = ("", {}) if number < len(THINGS) else ("/attributes/n", number)
        try:
            answer = await client.put(
                f"{url}/api/2/things/{thing}{part}",
                params={"requested-acks": f"twin-persisted,{LABEL}", "timeout": f"{TIMEOUT_SECONDS}s"},
                headers={"correlation-id": key},
                json=value,
            )
            answers[key] = answer.status_code, answer.content
        except httpx.TransportError as error:
            answers[key] = 0, repr(error).encode()

    async def kill(program: Program, moment: float) -> None:
        await asyncio.sleep(moment)
        if program.name == "subscriber":
            committed_then.update(await asyncio.to_thread(committed, kafka, "app", "events"))
        await asyncio.to_thread(program.kill)
        await asyncio.to_thread(program.start)

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    tasks = []
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS + 30, limits=limits) as client:
        await asyncio.gather(*(put(client, number) for number in range(len(THINGS))))
        order = chance.sample(programs, len(programs))
        share = SECONDS / (len(order) + 1)
        for place, program in enumerate(order):
            tasks.append(asyncio.create_task(kill(program, place * share + chance.uniform(0.3, 1) * share)))
        began = time.monotonic()
        for number in range(len(THINGS), REQUESTS):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            tasks.append(asyncio.create_task(put(client, number)))
        await asyncio.gather(*tasks)
    return answers


def _put(port: int) -> httpx.Response:
    return httpx.put(
        f"http://127.0.0.1:{port}/api/2/things/{THINGS[0]}/attributes/last",
        params={"requested-acks": f"twin-persisted,{LABEL}", "timeout": f"{TIMEOUT_SECONDS}s"},
        json=1,
        timeout=TIMEOUT_SECONDS + 30,
    )


def _ready(programs: list[Program], port: int) -> bool:
    _alive(programs)
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/2/things?ids=", timeout=5).status_code > 0
    except httpx.TransportError:
        return False


def _alive(programs: list[Program]) -> bool:
    for program in programs:
        program.check()
    return True


def _id(record: Any) -> str:
    return dict(record.headers)["correlation-id"].decode()


def _status(record: Any) -> int:
    return int(json.loads(record.value)["status"])


def _decided(system: System) -> set[str]:
    return {record["outcome"]["correlation_id"] for record in system.ledger() if "outcome" in record}


def _changed(system: System) -> set[str]:
    return {row["correlation_id"] for row in _rows(system, "thing_events", "correlation_id")}


def _seen(notes: Path) -> set[str]:
    return {line.split()[1] for line in notes.read_text().splitlines()}


def _rows(system: System, table: str, *columns: str) -> list[dict[str, Any]]:
    place = system.settings.lake.table(table)
    return (
        DeltaTable(place).to_pyarrow_table(columns=list(columns)).to_pylist() if DeltaTable.is_deltatable(place) else []
    )
