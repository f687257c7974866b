"""kill -9 of readers, settle and persist: all who must process every sample, and nothing confirmed comes again."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
from deltalake import DeltaTable

from ackstream.client import Publisher
from ackstream.client.reading.samples import WriterQos
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol import readers
from ackstream.protocol.readers import AppAck, AppAckConf
from tests.harness.processes import Program, alive
from tests.harness.programs import READER
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ackstream.settings import Kafka, Settings

pytestmark = [pytest.mark.integration, pytest.mark.long]

WRITERS = ("w1", "w2")
MESSAGES = 10_000
"""Of each writer."""
ROLES = {"L1": "Logger", "L2": "Logger", "P1": "Processor"}
REQUIRED = [{"role": "Logger", "quorum": 2}, {"role": "Processor", "quorum": 1}]
KILLS = ("reader", "reader", "reader", "settle", "settle", "persist")
UNACKNOWLEDGED = 1_500
"""So far a writer may be ahead of its readers: the kills meet work that is going on."""
PAUSE_SECONDS = 2.0


class Run(NamedTuple):
    """What a reader did from one start to the next: when (epoch milliseconds) it had done with which sample."""

    began: int
    handled: dict[tuple[str, int], int]


def test_every_role_processes_everything_and_nothing_confirmed_comes_again(kafka: Kafka, tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)
    notes = {name: tmp_path / f"{name}.notes" for name in ROLES}
    with ExitStack() as stack:
        system = stack.enter_context(closing(System(kafka, tmp_path)))
        settings = system.settings
        ensure_topics(settings)
        rules = {"ACKSTREAM_SETTLE_REQUIRED": json.dumps(REQUIRED)}
        programs: dict[str, Program] = {}
        for name in ("persist", "settle", *ROLES):
            arguments = ["-c", READER, name, ROLES[name], str(notes[name])] if name in ROLES else ["submit", name]
            programs[name] = Program(name, arguments, settings, tmp_path, rules)
            stack.callback(programs[name].kill)
        writers = stack.enter_context(ThreadPoolExecutor(len(WRITERS)))
        written = [writers.submit(_write, settings, writer, notes) for writer in WRITERS]

        for kind in chance.sample(KILLS, len(KILLS)):
            # each kill meets a system that has gone on after the one before, anywhere in its work
            before = _size(notes.values())
            eventually(lambda: alive(programs.values()) and _size(notes.values()) > before, "readers to go on")  # noqa: B023
            time.sleep(chance.uniform(0, PAUSE_SECONDS))
            assert not all(future.done() for future in written), "the kills came too late to mean anything"
            victim = programs[chance.choice(list(ROLES)) if kind == "reader" else kind]
            victim.kill()
            victim.start()
        eventually(
            lambda: alive(programs.values()) and all(future.done() for future in written), "all acknowledgements"
        )
        for future in written:
            future.result()
        for program in programs.values():
            program.kill()
        reports = [readers.read(record.value) for record in system.records("app-acks")]
        answers = [readers.read_answer(record.value) for record in system.records("publisher-acks")]

    confirmed = {(conf.reader, conf.writer, conf.epoch, conf.count) for conf in answers if isinstance(conf, AppAckConf)}
    acks = [
        ack
        for ack in reports
        if isinstance(ack, AppAck) and (ack.reader, ack.writer, ack.epoch, ack.count) in confirmed
    ]
    confirmed_before: set[tuple[str, int]] = set()
    for name in ROLES:
        runs = _runs(notes[name])
        for run in runs:
            before_it = _samples(ack for ack in acks if ack.reader == name and ack.epoch < run.began)
            confirmed_before |= before_it
            assert not run.handled.keys() & before_it, name
        _check_deliveries(settings, name, runs)
    assert confirmed_before, "no reader was killed after an acknowledgement of it had been confirmed"


def _write(settings: Settings, writer: str, notes: Mapping[str, Path]) -> None:
    """Publish, and wait until settle says that everybody has acknowledged: then everybody has."""
    qos = WriterQos(max_samples=UNACKNOWLEDGED, max_blocking_ms=PATIENCE_SECONDS * 1000)
    with Publisher(
        settings.kafka, name=writer, ack_timeout=20, logon_timeout=PATIENCE_SECONDS, writer_qos=qos
    ) as publisher:
        for seq in range(1, MESSAGES + 1):
            publisher.publish(b"%d" % seq)
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        for note in notes.values():
            handled = {sample for run in _runs(note) for sample in run.handled}
            assert handled >= {(writer, seq) for seq in range(1, MESSAGES + 1)}, note


def _runs(note: Path) -> list[Run]:
    """Read a reader's notes: one line a sample, and one a start. Within one run nothing comes twice."""
    runs: list[Run] = []
    whole, _, _ = note.read_text("utf-8").rpartition("\n")
    for line in whole.splitlines():
        moment, writer, seq = line.split(",")
        if writer == "begin":
            runs.append(Run(int(moment), {}))
        else:
            assert (writer, int(seq)) not in runs[-1].handled, line
            runs[-1].handled[writer, int(seq)] = int(moment)
    return runs


def _samples(acks: Iterable[AppAck]) -> set[tuple[str, int]]:
    return {
        (ack.writer, seq)
        for ack in acks
        for interval in ack.intervals
        for seq in range(interval.first, interval.last + 1)
    }


def _check_deliveries(settings: Settings, reader: str, runs: list[Run]) -> None:
    """The table says that a reader has finished with each sample, once, and not before the reader said so itself."""
    columns = ["writer", "reader", "first", "last", "role", "acknowledged_at"]
    table = DeltaTable(settings.lake.table("deliveries")).to_pyarrow_table(columns=columns).to_pylist()
    found: dict[str, list[int]] = defaultdict(list)
    for row in table:
        if row["reader"] != reader:
            continue
        assert row["role"] == ROLES[reader]
        moment = round(row["acknowledged_at"].timestamp() * 1000)
        for seq in range(row["first"], row["last"] + 1):
            found[row["writer"]].append(seq)
            done = min(run.handled[row["writer"], seq] for run in runs if (row["writer"], seq) in run.handled)
            assert done <= moment, (reader, row, seq)
    assert {writer: sorted(numbers) for writer, numbers in found.items()} == {
        writer: list(range(1, MESSAGES + 1)) for writer in WRITERS
    }


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.exists())
