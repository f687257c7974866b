"""kill -9 of persist and of a sync destination's mirror: no success is told that the destination does not have."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from ackstream.client.publishing.publisher import Publisher
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Lake, Settings
from tests.harness.processes import Program, alive
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.client.publishing.publications import Receipt

pytestmark = [pytest.mark.integration, pytest.mark.long]

HALF = 300


def _numbers(place: str) -> list[int]:
    table = f"{place}/messages"
    if not DeltaTable.is_deltatable(table):
        return []
    return DeltaTable(table).to_pyarrow_table(columns=["seq"])["seq"].to_pylist()


def test_what_is_told_is_there_and_everything_is_told_whatever_is_killed(kafka: Kafka, tmp_path: Path) -> None:
    settings = Settings(kafka=kafka, lake=Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")))
    ensure_topics(settings)
    there = str(tmp_path / "standby")
    standby = {"name": "standby", "path": there, "type": "sync", "ack_conflation_interval": "100ms"}
    rules = {"ACKSTREAM_DESTINATIONS": json.dumps([standby])}
    missing: list[Receipt] = []

    def look(receipt: Receipt) -> None:
        if not set(range(1, receipt.seq + 1)) <= set(_numbers(there)):
            missing.append(receipt)

    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Program:
            program = Program(name, ["submit", name, *arguments], settings, tmp_path, rules)
            stack.callback(program.kill)
            return program

        def stored(place: str, count: int) -> bool:
            return alive([persist]) and len(_numbers(place)) >= count

        persist = start("persist")
        publisher = stack.enter_context(
            Publisher(kafka, name="p1", windowed=True, on_receipt=look, logon_timeout=PATIENCE_SECONDS)
        )
        for number in range(HALF):
            publisher.publish(b"%d" % number)
        # stored here alone, and not told: there is no mirror yet
        eventually(lambda: stored(settings.lake.path, HALF), "the first half to be stored")
        persist.kill()
        assert publisher.unpersisted_count == HALF
        mirror = start("mirror", "standby")
        persist.start()
        publisher.publish_flush(PATIENCE_SECONDS)
        for number in range(HALF):
            publisher.publish(b"%d" % number)
        eventually(lambda: stored(there, HALF + 1), "some of the second half to be copied")
        mirror.kill()
        mirror.start()
        publisher.publish_flush(PATIENCE_SECONDS)
    assert missing == []
    assert Counter(_numbers(there)) == Counter(_numbers(settings.lake.path)) == Counter(range(1, 2 * HALF + 1))
