"""The cost of a record on a request topic that requests nothing: processor time of correlate, with and without them."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ackstream.jobs.correlate import job
from benchmarks import broker, common, starting
from benchmarks.common import ROUNDS
from benchmarks.contenders.running import members, processor
from benchmarks.latency import load
from benchmarks.profile import recorded, samples, watched
from benchmarks.progress import rows_read, wait
from benchmarks.sampling import parts
from tests.harness.processes import alive
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.settings import Settings
    from benchmarks.common import Bench
    from tests.harness.processes import Program

TOPIC, VALUE = "orders", b'{"article":7,"cents":1999}'
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KINDS: dict[str, list[tuple[str, bytes]]] = {
    "without headers": [],
    "with 3 headers": [("content-type", b"application/json"), ("traceparent", TRACE), ("source", b"shop")],
}
RATE, TRIGGER = 100, "1s"
"""Requests per second that are answered all the time, and how often a batch begins: with and without the others."""
TRIES, UNEVEN = 2, 0.05
"""Twice as many rounds as needed are tried; the batches of one may differ in number by this part."""
STEP_SECONDS, PATIENCE_SECONDS = 0.02, 300.0
METHOD = (
    "correlate as a program of its own answers 100 requests/s of the Ditto Protocol, in a batch per second. Windows of "
    "one length take turns: nothing else; records of 26 bytes without headers, evenly, on a topic of "
    "correlate.request_topics; such records with three headers; nothing else again. The processor time of all "
    "processes of correlate in a window with them, minus the mean of those without them before and after, divided by "
    "their number; medians of three rounds, after one that does not count. The producer and the broker are other "
    "processes. 'backlog': the same "
    "records alone, waiting in Kafka, read by correlate in the session of the benchmark: its processor time by kind of "
    "thread and, by samples of the flight recorder, by part, µs per record."
)


class Size(NamedTuple):
    """Records of a kind in a window, its seconds, and rounds."""

    records: int
    seconds: float
    rounds: int


FULL, SMALL = Size(2_000_000, 30.0, ROUNDS), Size(20_000, 5.0, 1)


def measure(bench: Bench) -> dict[str, Any]:
    """Measure with and without them side by side, then where the time of a backlog goes."""
    size = SMALL if bench.small else FULL
    beside = _beside(bench, size)
    bench.table(
        "µs of processor per record that asks for nothing",
        ("", "median", "rounds"),
        [(kind, one["microseconds"], one["rounds"]) for kind, one in beside["kinds"].items()],
    )
    backlog = {kind: _backlog(bench, size, headers) for kind, headers in KINDS.items()}
    for kind, found in backlog.items():
        bench.table(f"A backlog, {kind}", ("where", "µs"), found.items())
    return {"method": METHOD, "records": size.records, **beside, "backlog": backlog}


def _settings(bench: Bench, label: str, **correlate: Any) -> Settings:
    settings = bench.settings(label)
    name = settings.kafka.topic(TOPIC)
    bench.offsets.create(name, settings.kafka.partitions)
    own = {"request_topics": (re.escape(name),), **correlate}
    return settings.model_copy(update={"correlate": settings.correlate.model_copy(update=own)})


# -- side by side ------------------------------------------------------------------------------------------------------


def _beside(bench: Bench, size: Size) -> dict[str, Any]:
    settings = _settings(bench, "unasked")
    more = {
        "ACKSTREAM_CORRELATE_REQUEST_TOPICS": json.dumps(settings.correlate.request_topics),
        "ACKSTREAM_CORRELATE_TRIGGER": TRIGGER,
    }
    windows = TRIES * (1 + size.rounds) * (2 + len(KINDS))
    rounds: list[dict[str, tuple[float, int]]] = []
    with starting.running(bench, "correlate", ["submit", "correlate"], settings, **more) as program:
        command = load(settings, bench.directory / "load.json", RATE, windows * (size.seconds + 5.0))
        with subprocess.Popen(command, cwd=common.ROOT) as beside:
            try:
                replies = settings.kafka.topic("replies")
                eventually(lambda: alive([program]) and bench.offsets.count(replies) > RATE, "the first replies")
                for number in range(TRIES * (1 + size.rounds)):
                    found = {"nothing": _window(program, settings, size, None)}
                    found |= {kind: _window(program, settings, size, own) for kind, own in KINDS.items()}
                    # correlate becomes faster for minutes
                    found["nothing again"] = _window(program, settings, size, None)
                    bench.say(f"Round {number}: {json.dumps(found)}")
                    # where batches were longer than their second there were fewer, and these cost less
                    batches = [one for _, one in found.values()]
                    if bench.small or max(batches) - min(batches) <= size.seconds * UNEVEN:
                        rounds.append(found)
                    if len(rounds) > size.rounds:
                        break
                else:
                    raise RuntimeError("The machine has other work: batches took longer than a second")
            finally:
                beside.kill()
    kinds = {}
    for kind in KINDS:
        each = [
            (found[kind][0] - (found["nothing"][0] + found["nothing again"][0]) / 2) / size.records * 1e6
            for found in rounds[1:]
        ]
        kinds[kind] = {"microseconds": statistics.median(each), "rounds": each}
    windows_ = [{kind: dict(zip(("seconds", "batches"), one, strict=True)) for kind, one in found.items()}
                for found in rounds[1:]]  # fmt: skip
    return {"kinds": kinds, "windows": windows_, "window_seconds": size.seconds}


def _window(
    program: Program, settings: Settings, size: Size, headers: list[tuple[str, bytes]] | None
) -> tuple[float, int]:
    """Return the processor seconds and the batches of correlate in a window; ``headers``: those of the records."""
    before, done, began = _used(program), _batches(settings), time.monotonic()
    if headers is not None:
        _send(settings, size, headers)
    time.sleep(max(0.0, began + size.seconds - time.monotonic()))
    spent = sum(max(0.0, used - before.get(pid, 0.0)) for pid, used in _used(program).items())
    batches = _batches(settings) - done
    program.check()
    # the next window begins with nothing left
    time.sleep(3.0)
    return spent, batches


def _send(settings: Settings, size: Size, headers: list[tuple[str, bytes]]) -> None:
    """Write the records, evenly over nearly all of a window."""
    target, topic = broker.producer(settings.kafka.bootstrap), settings.kafka.topic(TOPIC)
    began, sent = time.monotonic(), 0
    while sent < size.records:
        part = (time.monotonic() - began) / (size.seconds - 3.0)
        for number in range(sent, due := min(size.records, int(part * size.records))):
            target.produce(topic, VALUE, b"%d" % (number % 1_000), headers=headers)
        sent = due
        target.poll(STEP_SECONDS)
    target.flush()


def _used(program: Program) -> dict[int, float]:
    return {pid: processor(pid) for pid in members({program.session})}


def _batches(settings: Settings) -> int:
    names = (path.name for path in (Path(settings.lake.checkpoint("correlate")) / "commits").iterdir())
    return max((int(name) for name in names if name.isdigit()), default=-1)


# -- a backlog ---------------------------------------------------------------------------------------------------------


def _backlog(bench: Bench, size: Size, headers: list[tuple[str, bytes]]) -> dict[str, float]:
    """Read the records as fast as possible; return µs per record by kind of thread, that of tasks by part."""
    settings = _settings(bench, "unasked-backlog")
    name = settings.kafka.topic(TOPIC)
    records = ((name, b"%d" % (number % 1_000), VALUE, headers) for number in range(size.records))
    broker.produce(settings.kafka.bootstrap, records)
    record = bench.directory / "unasked.jfr"
    found = [_read(bench, settings, size) for _ in range(1 + size.rounds)][-1]
    with recorded(bench.spark, record):
        _read(bench, settings, size)
    counted = parts(samples(bench.spark, record))
    tasks = found.pop("tasks")
    by_part = {f"tasks: {part}": tasks * count / sum(counted.values()) for part, count in counted.most_common()}
    return by_part | found


def _read(bench: Bench, settings: Settings, size: Size) -> dict[str, float]:
    # a checkpoint of its own
    own = bench.settings("unasked-read", prefix=settings.kafka.topic_prefix)
    # correlate refuses a new one at earliest beside decisions
    everything = datetime.fromtimestamp(0, timezone.utc)
    own = own.model_copy(update={"correlate": settings.correlate.model_copy(update={"starting": everything})})
    with watched(bench) as used, job.JOB.running(bench.spark, own) as query:
        wait(query, lambda: rows_read(query) >= size.records, PATIENCE_SECONDS)
    return _spent(used, size.records)


def _spent(used: Sequence[Any], records: int) -> dict[str, float]:
    first, last = used[0].seconds, used[-1].seconds
    names = [name for name in last if name not in ("broker", "driver in Python, this benchmark")]
    return {name: (last[name] - first[name]) / records * 1e6 for name in names}


if __name__ == "__main__":
    common.main("unasked", measure)
