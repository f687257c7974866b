"""The cost of open and remembered requests: the operator alone, whole batches through Spark, and a start of the job."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ackstream.jobs.correlate import job
from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import SIGNALS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.settings import Correlate, Settings
from ackstream.spark.pieces import Aside
from ackstream.spark.records import Share
from ackstream.testing.system import process
from benchmarks import broker, common, starting
from benchmarks.progress import Batch, batches, rows_read, typical, wait, warm
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.common import Bench

TOPICS, LIMITS = CorrelateTopics(), Correlate()
MESSAGES = 1_000
CHUNK = 20_000
KEEP = 20
PATIENCE = 240.0
MEMORY = "1g"
METHOD = (
    "Alone: one shard's part of the open (or remembered) requests is brought into a shard, which then loads its state, "
    "takes its part of a batch of 1,000 messages and dumps its state, again and again from the same state; medians. "
    "'batch_seconds' is the sum times the number of shards: seconds of one core for a batch that touches every shard. "
    "Spark: the open requests are read in, then the query starts again with maxOffsetsPerTrigger 1,000 on waiting "
    "messages, two of five about those that were open; median of its batches without the first two. "
    "'restart_seconds' is from the start of the query to the end of its first batch. Program: with as many requests "
    "open, correlate starts as a program of its own, with 1 GB for its driver, and has 1,000 new requests with all "
    "their acknowledgements to answer; seconds to its first reply, and what its JVM has in memory (resident) after the "
    "last."
)


@dataclass(frozen=True)
class Size:
    """Numbers of shards, of open requests alone and through Spark, of remembered requests, of measurements.

    ``bounds``: of deadlines that pass at once, and of early acknowledgements of 50 kB.
    """

    shards: tuple[int, ...]
    alone: tuple[int, ...]
    spark: tuple[int, ...]
    remembered: int
    times: int
    spark_batches: int
    bounds: tuple[int, int]


FULL = Size((2, 64), (10_000, 100_000, 1_000_000), (10_000, 100_000, 1_000_000), 1_000_000, 7, 8, (1_000_000, 80_000))
SMALL = Size((2, 8), (400, 2_000), (400, 2_000), 2_000, 3, 4, (2_000, 200))


def measure(bench: Bench) -> dict[str, Any]:
    """Measure the operator alone, then batches."""
    size = SMALL if bench.small else FULL
    alone = []
    for shards in size.shards:
        cases = [(count, 0) for count in size.alone] + [(size.alone[0], size.remembered)]
        alone += [_alone(shards, count, remembered, size.times) for count, remembered in cases]
    bench.table(
        f"The operator alone: a batch of {MESSAGES:,} messages over all shards",
        ("shards", "open", "remembered", "state MB", "load ms", "process ms", "dump ms", "batch s of a core"),
        [
            (str(row["shards"]), row["open"], row["remembered"], row["state_mb"], row["load_ms"], row["process_ms"],
             row["dump_ms"], row["batch_seconds"])
            for row in alone
        ],
    )  # fmt: skip
    uses = {shards: bench.settings(f"growth{shards}", correlate={"shards": shards}) for shards in size.shards}
    through = _spark(bench, size, uses)
    bench.table(
        f"Through Spark: batches of {MESSAGES:,} messages",
        ("shards", "open", "batch ms", "work ms", "batches", "read in, messages/s", "restart s", "why not"),
        [
            (str(row["shards"]), row["open"], row.get("batch_ms"), row.get("durations", {}).get("addBatch"),
             row.get("batches"), row.get("read_in_rate"), row.get("restart_seconds"), row.get("failed", ""))
            for row in through
        ],
    )  # fmt: skip
    bounds = [_bound(case, count) for case, count in zip(_CASES, size.bounds, strict=True)]
    bench.table(
        "Memory of a shard",
        ("case", "count", "MB of records", "peak MB", "state MB", "seconds"),
        [tuple(row.values()) for row in bounds],
    )
    programs = [{"shards": shards, "open": size.spark[-1], **_program(bench, own)} for shards, own in uses.items()]
    bench.table(
        "Correlate as a program of its own",
        ("shards", "open", "first reply after s", "JVM MB"),
        [(str(row["shards"]), row["open"], row["first_reply_seconds"], row["jvm_mb"]) for row in programs],
    )
    return {
        "method": METHOD,
        "messages_a_batch": MESSAGES,
        "alone": alone,
        "spark": through,
        "program": programs,
        "memory": bounds,
    }


# -- alone ------------------------------------------------------------------------------------------------------------


def _alone(shards: int, count: int, remembered: int, times: int) -> dict[str, Any]:
    """Measure one shard's part."""
    with tempfile.TemporaryDirectory(prefix="ackstream-growth-") as directory:
        return _one_shard(Aside(directory, KEEP), shards, count, remembered, times)


def _one_shard(aside: Aside, shards: int, count: int, remembered: int, times: int) -> dict[str, Any]:
    version, blob = _state(aside, -(-count // shards), -(-remembered // shards))
    requests = max(1, MESSAGES // shards // 3)
    batch = Workload(requests, missing=0.0, timeout="1h", first=50_000_000).records(start=_NOW)
    found: dict[str, list[float]] = {"load_ms": [], "process_ms": [], "dump_ms": []}
    for _ in range(times + 1):
        shard = _shard(aside)
        moments = [time.perf_counter()]
        shard.load(version, blob)
        moments.append(time.perf_counter())
        process(shard, batch, _NOW)
        moments.append(time.perf_counter())
        shard.dump()
        moments.append(time.perf_counter())
        for name, start, end in zip(found, moments, moments[1:], strict=False):
            found[name].append((end - start) * 1000)
    # the first one warms up
    figures = {name: statistics.median(values[1:]) for name, values in found.items()}
    return {
        "shards": shards,
        "open": count,
        "remembered": remembered,
        "messages_a_shard": len(batch),
        "state_mb": len(blob) * shards / 2**20,
        "blob_mb": len(blob) / 2**20,
        **figures,
        "batch_seconds": sum(figures.values()) * shards / 1000,
    }


_NOW = 1_700_000_600_000


def _shard(aside: Aside) -> CorrelateShard:
    return CorrelateShard(LIMITS, TOPICS, Writer(TOPICS, "", 0), store=aside.store(0))


def _state(aside: Aside, count: int, remembered: int) -> tuple[int, bytes]:
    """Return the state of a shard with these numbers of open and remembered requests."""
    shard = _shard(aside)
    for first in range(0, count, CHUNK):
        workload = Workload(min(CHUNK, count - first), timeout="1h", missing=1.0, first=first)
        shard = _feed(aside, shard, workload.records(start=_NOW - 500_000))
    for first in range(0, remembered, CHUNK):
        workload = Workload(min(CHUNK, remembered - first), timeout="5s", missing=0.0, first=10_000_000 + first)
        # spread over the whole memory of 60 s
        shard = _feed(aside, shard, workload.records(start=_NOW - 60_000 * (remembered - first) // remembered))
    dumped = shard.dump()
    if dumped is None:
        raise RuntimeError("A shard without state was not what this wanted to measure")
    return dumped


def _feed(aside: Aside, shard: CorrelateShard, records: Sequence[Record]) -> CorrelateShard:
    """Let a shard take records, and forget its output."""
    process(shard, records)
    dumped = shard.dump()
    following = _shard(aside)
    if dumped is not None:
        following.load(*dumped)
    return following


# -- memory -----------------------------------------------------------------------------------------------------------


def _bound(case: Callable[[Aside, int], tuple[int, int]], count: int) -> dict[str, Any]:
    """Measure a case in a process of its own: how far its memory grows above that of the imports."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measured, case, count).result()


def _measured(case: Callable[[Aside, int], tuple[int, int]], count: int) -> dict[str, Any]:
    before, start = _peak_mb(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ackstream-growth-") as directory:
        read, state = case(Aside(directory, KEEP), count)
    return {
        "case": case.__name__.strip("_").replace("_", " "),
        "count": count,
        "mb": read / 2**20,
        "peak_mb": _peak_mb() - before,
        "state_mb": state / 2**20,
        "seconds": time.perf_counter() - start,
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _deadlines_at_once(aside: Aside, count: int) -> tuple[int, int]:
    """Let all open requests of a shard time out in one batch."""
    state, read = None, 0
    for first in range(0, count, CHUNK):
        records = Workload(min(CHUNK, count - first), timeout="1h", missing=1.0, first=first).records(start=_NOW)
        records = [record for record in records if record.source == SIGNALS]
        read += sum(record.size for record in records)
        state = _handed_over(aside, first // CHUNK, state, records, 0)
    state = _handed_over(aside, count, state, [], _NOW + 10 * 3_600_000)
    return read, len(state[1])


def _early_acknowledgements(aside: Aside, count: int) -> tuple[int, int]:
    """Hold acknowledgements whose requests are not read yet, end the holds in one batch."""
    state, read, largest = None, 0, 0
    workload = Workload(count // 2 + 1, missing=0.0)
    acks = [record for record in workload.records(start=_NOW) if record.source != SIGNALS][:count]
    for first in range(0, count, CHUNK // 20):
        records = [_filled(record) for record in acks[first : first + CHUNK // 20]]
        read += sum(record.size for record in records)
        state = _handed_over(aside, first, state, records, 0)
        largest = max(largest, len(state[1]))
    _handed_over(aside, count + 1, state, [], _NOW + 3_600_000)
    return read, largest


def _filled(record: Record) -> Record:
    value = (record.value or b"")[:-1] + b',"value":"' + b"x" * 50_000 + b'"}'
    return replace(record, value=value, size=len(value))


def _handed_over(
    aside: Aside, batch: int, state: tuple[int, bytes] | None, records: list[Record], tick: int
) -> tuple[int, bytes]:
    """Process a batch as the operator does: each part of the emissions is laid out, and forgotten."""
    writer = Writer(TOPICS, "", batch)
    shard = CorrelateShard(LIMITS, TOPICS, writer, store=aside.store(0, batch))
    if state is not None:
        shard.load(*state)
    for _ in shard.process(Share(records, size=sum(record.size for record in records)), tick):
        job.write_frame(writer.take())
    if writer.emissions:
        job.write_frame(writer.take())
    return shard.dump() or (0, b"")


_CASES = _deadlines_at_once, _early_acknowledgements


# -- Spark ------------------------------------------------------------------------------------------------------------


def _spark(bench: Bench, size: Size, uses: Mapping[int, Settings]) -> list[dict[str, Any]]:
    """Measure batches through Spark; the largest last, in case the machine is too small for it."""
    found = []
    filled = dict.fromkeys(uses, 0)
    for count in size.spark:
        for shards, settings in uses.items():
            try:
                row = _stage(bench, settings, count, filled[shards], size.spark_batches)
            except Exception as error:  # noqa: BLE001 - too much for this machine is a result too
                row = {"failed": f"{type(error).__name__}: {error}"[:300]}
            filled[shards] = count
            found.append({"shards": shards, "open": count, **row})
            told = row.get("failed") or f"{row['batch_ms']:,.0f} ms a batch"
            bench.say(f"{shards} shards, {count:,} open: {told}")
    return found


def _stage(bench: Bench, settings: Settings, count: int, before: int, times: int) -> dict[str, Any]:
    """Open requests up to ``count``, then measure small batches."""
    kafka = settings.kafka
    fill = Workload(count - before, timeout="1h", missing=1.0, first=before)
    broker.produce(kafka.bootstrap, fill.kafka(kafka.topic_prefix))
    reading = _run(bench, settings, fill.messages, settings.correlate.max_offsets_per_trigger)
    rest = Workload((times + 2) * MESSAGES // 5, timeout="1h", missing=0.0, first=20_000_000 + before)
    waiting = list(_mixed(fill, rest, kafka.topic_prefix))
    broker.produce(kafka.bootstrap, iter(waiting))
    began = time.time()
    found = _run(bench, settings, len(waiting), MESSAGES)
    small = warm(found, MESSAGES)
    return {
        "restart_seconds": found[0].end - began,
        "batch_ms": statistics.median(batch.seconds for batch in small) * 1000,
        "batches": len(small),
        "durations": typical(small),
        "read_in_rate": fill.messages / sum(batch.seconds for batch in reading),
    }


def _mixed(fill: Workload, rest: Workload, prefix: str) -> Iterator[tuple[str, bytes, bytes, list[tuple[str, bytes]]]]:
    """Give new requests with their acknowledgements, and for each the missing acknowledgement of one that was open."""
    for place, message in enumerate(rest.kafka(prefix)):
        yield message
        if place % 3 == 0:
            for label in range(2):
                yield fill.message(prefix, place // 3 * 7919 % fill.requests, label)


def _program(bench: Bench, settings: Settings) -> dict[str, float]:
    """Start correlate with new requests waiting."""
    fresh = Workload(MESSAGES, timeout="1h", missing=0.0, first=30_000_000)
    broker.produce(settings.kafka.bootstrap, fresh.kafka(settings.kafka.topic_prefix))
    return starting.answering(
        bench, "correlate", settings, "replies", fresh.requests, ACKSTREAM_SPARK_DRIVER_MEMORY=MEMORY
    )


def _run(bench: Bench, settings: Settings, messages: int, batch: int) -> Sequence[Batch]:
    """Run correlate until it has read this many messages; return its batches."""
    correlate = settings.correlate.model_copy(update={"max_offsets_per_trigger": batch})
    settings = settings.model_copy(update={"correlate": correlate})
    with job.JOB.running(bench.spark, settings) as query:
        # ticks count too, so a few messages may be left: they come with the next run
        wait(query, lambda: rows_read(query) >= messages, PATIENCE)
        return batches(query)


if __name__ == "__main__":
    common.main("growth", measure)
