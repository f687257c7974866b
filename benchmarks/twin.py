"""The twin: modifies/s with 100,000 things by two designs, and how long twin-persisted takes at a steady rate."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.correlate import job as correlate
from ackstream.jobs.twin import job
from ackstream.lake import tables
from benchmarks import common, starting
from benchmarks.common import ROUNDS, Bench
from benchmarks.contenders.merge import MergingTwin
from benchmarks.progress import batches, medians, percentiles, rows_read, typical, wait
from benchmarks.twin_load import CONTENT, create, modify, produce

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

METHOD = (
    "Things are created through the twin, then modifies of a feature's properties, spread over all things, wait in "
    "Kafka (20,000 a batch). Warm rate = commands / triggerExecution of the batches of modifies, the first left out; "
    "every command is answered on twin-acks and told on events. 'journal' is the product, 'journal + index' with "
    "things and things_search merged beside, 'merge' commits by a MERGE into things instead of the append. Latency: "
    "open loop from another process, from the moment a command was due to its response on twin-acks, and to its reply "
    "where correlate runs beside; the warm-up does not count. Starts: with as many things in the table, the twin "
    "starts as a program of its own, and 1,000 modifies wait; seconds to the first answer on twin-acks, and what its "
    "JVM and its Python have in memory (resident) after the last."
)
DESIGNS = ("journal", "merge", "journal + index")
RATE, MANY, WAITING = 200, 2_000_000, 1_000


def measure(bench: Bench) -> dict[str, Any]:
    """Measure both designs at full speed, and the product at 200 commands a second."""
    things, commands, rounds = (2_000, 8_000, 1) if bench.small else (100_000, 80_000, ROUNDS)
    throughput = {design: _throughput(bench, design, things, commands, rounds) for design in DESIGNS}
    bench.table(
        f"Twin: modifies/s with {things:,} things, median of {rounds}",
        ("design", "modifies/s", "batch s", "load of all things s"),
        [(name, found["rate"], found["batch_seconds"], found["first_batch"]) for name, found in throughput.items()],
    )
    latency = {
        f"{RATE}/s": _latency(bench, things, beside=False),
        f"{RATE}/s + correlate": _latency(bench, things, beside=True),
    }
    bench.table(
        "Latency in seconds",
        ("commands", "on acks p50", "p95", "p99", "reply p50", "p95", "p99", "batch p50", "unanswered"),
        [
            (
                name, *found["acks"].values(), *found["replies"].values(),
                found["batch_seconds"]["p50"], found["unanswered"],
            )
            for name, found in latency.items()
        ],
    )  # fmt: skip
    starts = {str(count): _start_with(bench, count) for count in ((things,) if bench.small else (things, MANY))}
    bench.table(
        "The twin starts as a program of its own",
        ("things", "first answer after s", "JVM MB", "Python MB"),
        [(f"{int(count):,}", *found.values()) for count, found in starts.items()],
    )
    return {"method": METHOD, "things": things, "throughput": throughput, "latency": latency, "starts": starts}


def _throughput(bench: Bench, design: str, things: int, commands: int, rounds: int) -> dict[str, Any]:
    limit = 2_000 if bench.small else 20_000
    found = []
    settings = bench.settings("twin", twin={"max_offsets_per_trigger": limit, "index_trigger": 10_000})
    for number in range(rounds):
        if number == 0:
            produce(settings, (create(thing) for thing in range(things)))
        produce(settings, (modify(number * commands + at, things) for at in range(commands)))
        began = time.monotonic()
        with ExitStack() as stack:
            twin = _start(bench, settings, design)
            stack.callback(twin.stop)
            if design == "journal + index":
                stack.callback(job.INDEX.start(bench.spark, settings).stop)
            total = commands + (things if number == 0 else 0)
            wait(twin, lambda: rows_read(twin) >= total, 600)  # noqa: B023
            # the last batch is over when its progress is there
            done = batches(twin)
        first = done[0].seconds
        # shares of partitions are rounded: a full batch may lack a few
        warm = [batch for batch in done if batch.rows > 0.9 * limit][-(commands // limit) + 1 :]
        rate = sum(batch.rows for batch in warm) / sum(batch.seconds for batch in warm)
        found.append({"rate": rate, "batch_seconds": typical_seconds(warm), "first_batch": first})
        bench.say(f"{design}, round {number + 1}: {rate:,.0f}/s, {time.monotonic() - began:.0f} s")
        durations = typical(warm)
    return medians(found) | {"rounds": found, "durations": durations}


def typical_seconds(found: list[Any]) -> float | None:
    """Return the median duration of batches."""
    return percentiles([batch.seconds for batch in found])["p50"]


def _latency(bench: Bench, things: int, *, beside: bool) -> dict[str, Any]:
    warm_up, seconds = (3, 5) if bench.small else (15, 30)
    settings = bench.settings("twin-latency")
    produce(settings, (create(thing) for thing in range(things)))
    out = bench.directory / "twin-load.json"
    with ExitStack() as stack:
        twin = _start(bench, settings, "journal")
        stack.callback(twin.stop)
        wait(twin, lambda: rows_read(twin) >= things, 600)
        stack.callback(job.INDEX.start(bench.spark, settings).stop)
        if beside:
            running = correlate.JOB.running(bench.spark, settings)
            correlating = stack.enter_context(running)
            wait(correlating, lambda: rows_read(correlating) >= things, 600)
        subprocess.run(
            [
                sys.executable, "-m", "benchmarks.twin_load", "--bootstrap", settings.kafka.bootstrap,
                "--prefix", settings.kafka.topic_prefix, "--out", str(out), "--rate", str(RATE),
                "--seconds", str(warm_up + seconds), "--things", str(things), *(["--replies"] if beside else []),
            ],
            cwd=common.ROOT, check=True,
        )  # fmt: skip
        done = batches(twin)
    report = json.loads(out.read_text("utf-8"))
    began = report["sent"][0] + warm_up

    def spans(name: str) -> list[float]:
        pairs = zip(report["sent"], report[name], strict=True)
        return [came - sent for sent, came in pairs if sent >= began and came]

    return {
        "acks": percentiles(spans("acks")),
        "replies": percentiles(spans("replies")),
        "batch_seconds": percentiles([batch.seconds for batch in done if batch.start >= began]),
        "durations": typical([batch for batch in done if batch.start >= began]),
        "commands": len(report["sent"]),
        "unanswered": sum(not came for came in report["replies" if beside else "acks"]),
    }


def _start_with(bench: Bench, count: int) -> dict[str, float]:
    """Start the twin with these numbers of things and waiting commands."""
    settings = bench.settings("twin-start")
    tables.create(bench.spark, settings.lake, ("thing_events", "things", "things_search"))
    name, content = "org.acme:lamp-%06d", f'{{"thingId":"%s","policyId":"%s",{CONTENT}}}'
    number, identity, created = F.col("id"), F.format_string(name, "id"), F.timestamp_millis(F.lit(1_700_000_000_000))
    values = {
        "thing_id": identity,
        # before the first of the journal
        "batch": F.lit(-1).cast("long"),
        "revision": F.lit(1).cast("long"),
        "modified_at": created,
        "created_at": created,
        "deleted": F.lit(False),  # noqa: FBT003 - a value of a column
        "thing": F.format_string(content, identity, identity, (number / 1000).cast("long"), number % 12, number),
    }
    rows = bench.spark.range(count).select(*(value.alias(column) for column, value in values.items()))
    rows.write.format("delta").mode("append").save(tables.location(settings.lake, "things"))
    produce(settings, (modify(at, count) for at in range(WAITING)))
    return starting.answering(bench, "twin", settings, "twin-acks", WAITING)


def _start(bench: Bench, settings: Settings, design: str) -> StreamingQuery:
    real = job.TwinFold
    if design == "merge":
        job.TwinFold = MergingTwin  # type: ignore[misc]
    try:
        return job.JOB.start(bench.spark, settings)
    finally:
        job.TwinFold = real  # type: ignore[misc]


if __name__ == "__main__":
    common.main("twin", measure)
