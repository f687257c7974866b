"""Ledger records a second into the Delta tables."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.jobs.archive import job
from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.lake import tables
from ackstream.lake.schemas import TABLES
from ackstream.settings import Correlate, Settings
from ackstream.spark import batches as spark_batches
from ackstream.testing.system import process
from benchmarks import broker, common
from benchmarks.common import ROUNDS, Bench
from benchmarks.progress import batches, medians, seconds, typical
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


WARM_UP = 2
CHUNK = 5_000
"""Requests in a batch of the shard: their emissions, which nothing takes, stay within the budget of a shard."""
METHOD = (
    "The ledger is written by the shard operator itself, run alone: one record a decided request with its request and "
    "its acknowledgements. It waits in Kafka; each round has new tables and a new checkpoint and stops at the ledger's "
    "end. Warm rate = records / triggerExecution of all batches but the first two; whole-run rate = all records / time "
    "from the query's start, which makes the tables, to its end. Plain append: Spark's own writer appends the rows of "
    "a round, which wait parsed in its cache, to new tables of the same columns, all tables at once and as many rows "
    "at once as a batch of the archive has."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Archive the same ledger three times; after each, append the same rows without it."""
    requests, limit, rounds = (6_000, 1_500, 1) if bench.small else (300_000, None, ROUNDS)
    data = bench.settings("archive")
    topics = CorrelateTopics()
    written = {"records": 0, "bytes": 0}
    seconds = broker.produce(data.kafka.bootstrap, _ledger(requests, topics, data.kafka.topic("ledger"), written))
    size = written["bytes"] / written["records"]
    bench.say(f"Wrote {written['records']:,} ledger records of {size:,.0f} bytes in {seconds:.0f} s")
    found = []
    for number in range(rounds):
        settings, entry = _round(bench, data.kafka.topic_prefix, limit, written, requests)
        size_of_batch = entry["batches"][0][0]
        entry["rates"]["rows_plain"] = _plain(bench, settings, size_of_batch / written["records"] * requests)
        entry["rates"]["of_plain"] = entry["rates"]["rows_warm"] / entry["rates"]["rows_plain"]
        found.append(entry)
        bench.say(f"Round {number + 1}: {json.dumps(common.rounded(entry['rates']))}")
    rates = medians([entry["rates"] for entry in found])
    bench.table(
        f"Archive: {written['records']:,} ledger records into Delta, median of {rounds}",
        ("", "ledger records/s", "rows/s", "MB/s"),
        [
            ("warm", rates["records_warm"], rates["rows_warm"], rates["mb_warm"]),
            ("whole run", rates["records_whole"], rates["rows_whole"], None),
            ("plain append", None, rates["rows_plain"], None),
            ("warm / plain append", None, rates["of_plain"], None),
        ],
    )
    return {"method": METHOD, "ledger": written, "rates": rates, "rounds": found}


def _ledger(
    requests: int, topics: CorrelateTopics, topic: str, written: dict[str, int]
) -> Iterator[tuple[str, bytes, bytes, list[tuple[str, bytes]]]]:
    for batch, first in enumerate(range(0, requests, CHUNK)):
        writer = Writer(topics, "3f7f2b1e-0c5d-4b43-8a55-0f2d1f9b8e11", batch)
        shard = CorrelateShard(Correlate(), topics, writer)
        records = Workload(min(CHUNK, requests - first), first=first).records()
        process(shard, records)
        # beyond every deadline: requests without an acknowledgement time out
        process(shard, [], records[-1].timestamp + 3_600_000)
        for emission in writer.emissions:
            if emission.topic == topics.ledger:
                value = emission.value or b""
                written["records"] += 1
                written["bytes"] += len(value)
                yield topic, emission.key or b"", value, []


def _round(
    bench: Bench, prefix: str, limit: int | None, written: dict[str, int], requests: int
) -> tuple[Settings, dict[str, Any]]:
    records = written["records"]
    parts = {"archive": {"max_offsets_per_trigger": limit}} if limit else {}
    settings = bench.settings("archive", prefix=prefix, **parts)
    began = time.monotonic()
    query = job.JOB.start(bench.spark, settings, available_now=True)
    query.awaitTermination()
    seconds = time.monotonic() - began
    found = batches(query)
    warm = found[WARM_UP:]
    rows = {name: tables.read(bench.spark, settings.lake, name).count() for name in TABLES}
    if rows["outcomes"] != requests or rows["signals"] != requests:
        raise RuntimeError(f"{requests} requests gave {rows}")
    rate = sum(batch.rows for batch in warm) / sum(batch.seconds for batch in warm)
    a_record = sum(rows.values()) / records
    return settings, {
        "rates": {
            "records_warm": rate,
            "rows_warm": rate * a_record,
            "mb_warm": rate * written["bytes"] / records / 2**20,
            "records_whole": records / seconds,
            "rows_whole": records / seconds * a_record,
        },
        "rows": rows,
        "batches": [[batch.rows, batch.seconds] for batch in found],
        "durations": typical(warm),
    }


def _plain(bench: Bench, settings: Settings, requests: float) -> float:
    """Append the rows of a round again, those of this many requests at once; return the warm rows/s."""
    spark, lake = bench.spark, bench.settings("plain").lake
    names = [name for name in TABLES if not tables.read(spark, settings.lake, name).isEmpty()]
    tables.create(spark, lake, names)
    newest = tables.newest_batch(tables.read(spark, settings.lake, "outcomes"), "batch_id")
    step = max(round(requests / CHUNK), 1)
    found = []
    for first in range(0, newest + 1, step):
        part = f"batch_id BETWEEN {first} AND {first + step - 1}"
        frames = {name: tables.read(spark, settings.lake, name).where(part).persist() for name in names}
        count = sum(frame.count() for frame in frames.values())
        append = [partial(_write, frame, tables.location(lake, name)) for name, frame in frames.items()]
        found.append((count, seconds(partial(spark_batches.at_once, spark, append), 1)))
        for frame in frames.values():
            frame.unpersist()
    warm = found[WARM_UP:] or found
    return sum(count for count, _ in warm) / sum(seconds for _, seconds in warm)


def _write(frame: DataFrame, place: str) -> None:
    frame.coalesce(1).write.format("delta").mode("append").save(place)


if __name__ == "__main__":
    common.main("archive", measure)
