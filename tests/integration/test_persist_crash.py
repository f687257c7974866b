"""kill -9 of persist and of publishers: every message is stored once or refused, and no success is told too early."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from ackstream.settings import Kafka, Lake, Settings
from ackstream.topics import ensure_topics
from tests.integration.jobs import Program
from tests.integration.system import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

PUBLISHERS = 3
MESSAGES = 4_000
KILLS = 4
SECRET_EVERY = 50

PROGRAM = """
import sys
from ackstream.client import LogonTimeout, Publisher
from ackstream.settings import load

client, store, told, count, secret_every = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
with open(told, "a", buffering=1) as log:
    while True:
        try:
            publisher = Publisher(
                load().kafka,
                client=client,
                store=store,
                ack_timeout=10,
                on_receipt=lambda receipt: log.write(f"stored {receipt.seq}\\n"),
                on_failed_write=lambda failed: log.write(f"{failed.reason} {failed.seq}\\n"),
            )
        except LogonTimeout:
            continue
        break
    with publisher:
        while (seq := publisher.next_seq) <= count:
            publisher.publish(b"%d" % seq, topic="secret" if seq % secret_every == 0 else "open", seq=seq)
        publisher.publish_flush()
        log.write(f"end {publisher.unpersisted_count}\\n")
"""


def _rows(settings: Settings) -> list[tuple[str, int, str | None]]:
    place = settings.lake.table("messages")
    if not DeltaTable.is_deltatable(place):
        return []
    rows = DeltaTable(place).to_pyarrow_table(columns=["client", "seq", "reason", "value"]).to_pylist()
    assert all(row["value"] == b"%d" % row["seq"] for row in rows)
    return [(row["client"], row["seq"], row["reason"]) for row in rows]


def test_every_message_is_stored_once_or_refused_whatever_is_killed(kafka: Kafka, tmp_path: Path) -> None:
    chance = random.Random(20261121)
    lake = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    settings = Settings(kafka=kafka, lake=lake)
    ensure_topics(settings, ("messages", "publisher-acks"))
    rules = {"ACKSTREAM_PERSIST_ENTITLEMENTS": json.dumps([{"clients": ["*"], "topics": ["open"]}])}
    persist = Program("persist", ["submit", "persist"], settings, tmp_path, rules)
    names = [f"p{number}" for number in range(PUBLISHERS)]
    logs = {name: tmp_path / f"{name}.told" for name in names}
    publishers = [
        Program(
            name,
            ["-c", PROGRAM, name, str(tmp_path / f"{name}.db"), str(logs[name]), str(MESSAGES), str(SECRET_EVERY)],
            settings,
            tmp_path,
        )
        for name in names
    ]

    def told(name: str) -> list[str]:
        return logs[name].read_text("utf-8").splitlines() if logs[name].exists() else []

    try:
        for _ in range(KILLS):
            mark = len(_rows(settings)) + chance.randrange(1, MESSAGES * PUBLISHERS // (KILLS + 2))
            eventually(None, lambda: _alive(persist) and len(_rows(settings)) >= mark, "messages to be stored")  # noqa: B023
            victim = chance.choice([persist, *publishers])
            victim.kill()
            victim.start()
        eventually(
            None,
            lambda: _alive(persist) and all(told(name)[-1:] == ["end 0"] for name in names),
            "all publishers to end with empty stores",
        )
    finally:
        for program in (persist, *publishers):
            program.kill()
    rows = _rows(settings)
    assert Counter(rows) == Counter(
        (name, seq, None if seq % SECRET_EVERY else "not entitled") for name in names for seq in range(1, MESSAGES + 1)
    )
    for name in names:
        lines = set(told(name))
        stored = {int(line.split()[1]) for line in lines if line.startswith("stored ")}
        assert all(seq % SECRET_EVERY for seq in stored)
        assert {line for line in lines if line.startswith("not entitled")} <= {
            f"not entitled {seq}" for seq in range(SECRET_EVERY, MESSAGES + 1, SECRET_EVERY)
        }


def _alive(persist: Program) -> bool:
    persist.check()
    return True
