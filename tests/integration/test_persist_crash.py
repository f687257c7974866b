"""kill -9 of persist, publishers and broker: every message is stored once or refused, no success is told too early."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deltalake import DeltaTable

from ackstream.client.core.storage import PublishStore
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.dispositions import SESSION_OVER
from ackstream.protocol.messages import decode_ack
from ackstream.settings import Kafka, Local, Settings
from tests.demo.broker import Broker
from tests.harness.ports import free_ports
from tests.harness.processes import Program, alive
from tests.harness.system import System
from tests.harness.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.long]

PUBLISHERS = 5
MESSAGES = 10_000
"""Of each publisher."""
WINDOW = 500
SECRET_EVERY = 50
KILLS = 2
"""Of persist, of some publisher, of the broker."""
BATCH_SECONDS = 2.0

# notes what it is told, and when, in a file that a kill does not touch
PROGRAM = """
import sys, threading, time
from ackstream.client import LogonTimeout, Publisher
from ackstream.settings import load

client, store, told, count, window, secret_every = *sys.argv[1:4], *map(int, sys.argv[4:])
with open(told, "a", buffering=1) as log:
    while True:
        try:
            publisher = Publisher(
                load().kafka,
                name=client,
                store=store,
                window=window,
                ack_timeout=20,
                on_receipt=lambda receipt: log.write(f"{time.time_ns()},stored,{receipt.seq}\\n"),
                on_failed_write=lambda failed: log.write(f"{time.time_ns()},{failed.reason},{failed.seq}\\n"),
            )
        except LogonTimeout:
            continue
        break
    with publisher:
        while (seq := publisher.next_seq) <= count:
            publisher.publish(b"%d" % seq, topic="secret" if seq % secret_every == 0 else "open")
        publisher.publish_flush()
    log.write("end\\n")
    threading.Event().wait()
"""


class Node:
    """A broker of the test's own."""

    name = "broker"

    def __init__(self, folder: Path) -> None:
        port, controller_port = free_ports(2)
        self._broker = Broker(Settings(local=Local(data=folder, port=port, controller_port=controller_port)))
        self.bootstrap = self._broker.bootstrap
        self.start()

    def start(self) -> None:
        self._broker.start()

    def kill(self) -> None:
        pid = self._broker.pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Row(NamedTuple):
    reason: str | None
    batch: int


def test_every_message_is_stored_once_or_refused_whatever_is_killed(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    names = [f"p{number}" for number in range(PUBLISHERS)]
    notes = {name: tmp_path / f"{name}.told" for name in names}
    stores = {name: tmp_path / f"{name}.db" for name in names}
    with ExitStack() as stack:
        node = Node(tmp_path / "broker")
        stack.callback(node.kill)
        system = stack.enter_context(closing(System(Kafka(bootstrap=node.bootstrap, partitions=2), tmp_path)))
        settings = system.settings
        ensure_topics(settings)
        rules = {"ACKSTREAM_PERSIST_ENTITLEMENTS": json.dumps([{"clients": ["*"], "topics": ["open"]}])}
        programs = {"persist": Program("persist", ["submit", "persist"], settings, tmp_path, rules)}
        stack.callback(programs["persist"].kill)
        for name in names:
            arguments = [name, str(stores[name]), str(notes[name]), *map(str, (MESSAGES, WINDOW, SECRET_EVERY))]
            programs[name] = Program(name, ["-c", PROGRAM, *arguments], settings, tmp_path)
            stack.callback(programs[name].kill)

        kinds = ["persist", "publisher", "broker"] * KILLS
        for kind in chance.sample(kinds, len(kinds)):
            # each kill meets a system that has gone on after the one before, anywhere in its work
            before = _stored(settings)
            eventually(lambda: alive(programs.values()) and _stored(settings) > before, "messages to be stored")  # noqa: B023
            time.sleep(chance.uniform(0, BATCH_SECONDS))
            busy = [name for name in names if not _ended(notes[name])]
            assert busy, "the kills came too late to mean anything"
            victim = node if kind == "broker" else programs["persist" if kind == "persist" else chance.choice(busy)]
            victim.kill()
            victim.start()
        eventually(
            lambda: alive(programs.values()) and all(map(_ended, notes.values())),
            "all publishers to have finished",
        )
        for program in programs.values():
            program.kill()
        answers = system.records("publisher-acks")

    rows, commits = _rows(settings), _commits(settings)
    assert {key: row.reason for key, row in rows.items()} == {
        (name, seq): None if seq % SECRET_EVERY else "not entitled" for name in names for seq in range(1, MESSAGES + 1)
    }
    _check_answers(answers, rows, commits)
    for name in names:
        _check_notes(notes[name], {seq: row for (client, seq), row in rows.items() if client == name}, commits)
        with closing(PublishStore(stores[name], name)) as store:
            assert (len(store), store.last) == (0, MESSAGES)


def _check_answers(answers: list[Any], rows: dict[tuple[str, int], Row], commits: dict[int, int]) -> None:
    """Whatever the service calls a success is in the table at that moment."""
    for record in answers:
        ack = decode_ack(record.value)
        # the answer to a flush has no numbers
        if ack.ack_type == "persisted" and ack.status == "success" and ack.first is not None:
            for seq in range(ack.first, (ack.seq or 0) + 1):
                row = rows[str(ack.client), seq]
                assert row.reason is None
                assert commits[row.batch] // 1_000_000 <= record.timestamp, (ack, row)


def _check_notes(note: Path, rows: dict[int, Row], commits: dict[int, int]) -> None:
    """What a publisher hears is so at that moment, and it hears of every refusal."""
    refused = set()
    for line in note.read_text("utf-8").splitlines():
        if line == "end":
            continue
        moment, what, number = line.split(",")
        row = rows[int(number)]
        assert row.reason == (None if what in ("stored", "duplicate") else what), line
        assert commits[row.batch] <= int(moment), line
        if row.reason is not None:
            refused.add(int(number))
    assert refused == {seq for seq, row in rows.items() if row.reason is not None}


def _stored(settings: Settings) -> int:
    place = settings.lake.table("messages")
    if not DeltaTable.is_deltatable(place):
        return 0
    return sum(DeltaTable(place).get_add_actions(flatten=True)["num_records"].to_pylist())


def _rows(settings: Settings) -> dict[tuple[str, int], Row]:
    """Return the table by client and number; each is there once, with the value that was published."""
    columns = ["client", "seq", "reason", "value", "batch"]
    rows = DeltaTable(settings.lake.table("messages")).to_pyarrow_table(columns=columns).to_pylist()
    # what the connection of a killed publisher still held may arrive after the next logon: its successor sends it too
    rows = [row for row in rows if row["reason"] != SESSION_OVER]
    assert Counter((row["client"], row["seq"]) for row in rows).most_common(1)[0][1] == 1
    assert all(row["value"] == b"%d" % row["seq"] for row in rows)
    return {(row["client"], row["seq"]): Row(row["reason"], row["batch"]) for row in rows}


def _commits(settings: Settings) -> dict[int, int]:
    """Return when each batch was committed: when its log entry got its name, in nanoseconds."""
    found = {}
    for path in Path(settings.lake.table("messages"), "_delta_log").glob("*.json"):
        for line in path.read_text("utf-8").splitlines():
            if "txn" in (action := json.loads(line)):
                found[action["txn"]["version"]] = path.stat().st_ctime_ns
    return found


def _ended(note: Path) -> bool:
    return note.exists() and note.read_bytes().endswith(b"end\n")
