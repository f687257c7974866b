"""Publishers' messages a second into their table, beside a plain copy of the same topic into Delta."""

from __future__ import annotations

import json
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from ackstream.jobs.persist import job
from ackstream.lake import tables
from benchmarks import broker, common
from benchmarks.common import ROUNDS, Bench
from benchmarks.progress import batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Settings

WARM_UP = 1
CLIENTS = 5
VALUE = json.dumps({"temperature": 21.5, "humidity": 40, "text": "x" * 200}).encode()
METHOD = (
    f"{CLIENTS} clients' messages of {len(VALUE)} bytes wait in Kafka. Each round reads them to the end, with a new "
    "checkpoint and new tables, in batches of max_offsets_per_trigger: once with persist (ledgers, verdicts, two "
    "tables, acks) and once with Spark's own copy of the records into a Delta table. Warm rate = records / "
    "triggerExecution of all batches but the first."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Persist and copy the same messages, in turn."""
    count, limit, rounds = (5_000, 2_500, 1) if bench.small else (500_000, 100_000, ROUNDS)
    data = bench.settings("persist")
    broker.produce(data.kafka.bootstrap, _messages(count, data.kafka.topic("messages")))
    rates: dict[str, list[float]] = {"persist": [], "copy": []}
    for number in range(rounds):
        settings = bench.settings("persist", prefix=data.kafka.topic_prefix, persist={"max_offsets_per_trigger": limit})
        rates["persist"].append(_persist(bench, settings, count))
        rates["copy"].append(_copy(bench, settings, limit))
        bench.say(f"Round {number + 1}: " + ", ".join(f"{name} {values[-1]:,.0f}/s" for name, values in rates.items()))
    medians = {name: median(values) for name, values in rates.items()}
    share = medians["persist"] / medians["copy"]
    bench.table(
        f"Persist: {count:,} messages into Delta, median of {rounds}",
        ("", "messages/s", "of the copy"),
        [("persist", medians["persist"], share), ("plain copy", medians["copy"], 1.0)],
    )
    return {"method": METHOD, "messages": count, "rates": medians, "share": share, "rounds": rates}


def _messages(count: int, topic: str) -> Iterator[tuple[str, bytes, bytes, list[tuple[str, bytes]]]]:
    for number in range(count):
        client = b"p%d" % (number % CLIENTS)
        seq = b"%d" % (number // CLIENTS + 1)
        yield topic, client, VALUE, [("client", client), ("seq", seq), ("ack", b"persisted"), ("topic", b"weather")]


def _persist(bench: Bench, settings: Settings, count: int) -> float:
    began = job.JOB.start(bench.spark, settings, available_now=True)
    began.awaitTermination()
    rows = tables.read(bench.spark, settings.lake, "messages").where("reason IS NULL").count()
    if rows != count:
        raise RuntimeError(f"{count} messages gave {rows} rows")
    return _rate(began)


def _copy(bench: Bench, settings: Settings, limit: int) -> float:
    copying = (
        bench.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap)
        .option("subscribe", settings.kafka.topic("messages"))
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", limit)
        .load()
        .writeStream.format("delta")
        .option("checkpointLocation", settings.lake.checkpoint(f"copy-{time.monotonic_ns()}"))
        .trigger(availableNow=True)
        .start(f"{settings.lake.path}/copy")
    )
    copying.awaitTermination()
    return _rate(copying)


def _rate(finished: Any) -> float:
    warm = batches(finished)[WARM_UP:]
    return sum(batch.rows for batch in warm) / sum(batch.seconds for batch in warm)


if __name__ == "__main__":
    common.main("persist", measure)
