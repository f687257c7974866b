"""Ledger records a second into the Delta tables."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ackstream.jobs.archive import job
from ackstream.jobs.correlate.emissions import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.lake import tables
from ackstream.lake.schemas import TABLES
from ackstream.settings import Correlate
from benchmarks import broker, common
from benchmarks.common import ROUNDS
from benchmarks.progress import batches, medians, typical
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.common import Bench

WARM_UP = 2
CHUNK = 10_000
METHOD = (
    "The ledger is written by the shard operator itself, run alone: one record a decided request with its request and "
    "its acknowledgements. It waits in Kafka; each round has new tables and a new checkpoint and stops at the ledger's "
    "end. Warm rate = records / triggerExecution of all batches but the first two; whole-run rate = all records / time "
    "from the query's start, which makes the tables, to its end."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Archive the same ledger three times."""
    requests, limit, rounds = (6_000, 1_500, 1) if bench.small else (300_000, None, ROUNDS)
    data = bench.settings("archive")
    topics = CorrelateTopics()
    written = {"records": 0, "bytes": 0}
    seconds = broker.produce(data.kafka.bootstrap, _ledger(requests, topics, data.kafka.topic("ledger"), written))
    size = written["bytes"] / written["records"]
    bench.say(f"Wrote {written['records']:,} ledger records of {size:,.0f} bytes in {seconds:.0f} s")
    found = []
    for number in range(rounds):
        found.append(_round(bench, data.kafka.topic_prefix, limit, written, requests))
        bench.say(f"Round {number + 1}: {json.dumps(common.rounded(found[-1]['rates']))}")
    rates = medians([entry["rates"] for entry in found])
    bench.table(
        f"Archive: {written['records']:,} ledger records into Delta, median of {rounds}",
        ("", "ledger records/s", "rows/s", "MB/s"),
        [
            ("warm", rates["records_warm"], rates["rows_warm"], rates["mb_warm"]),
            ("whole run", rates["records_whole"], rates["rows_whole"], None),
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
        shard.process(records, 0)
        # beyond every deadline: what lacks an acknowledgement times out
        shard.process([], records[-1].timestamp + 3_600_000)
        for emission in writer.emissions:
            if emission.topic == topics.ledger:
                value = emission.value or b""
                written["records"] += 1
                written["bytes"] += len(value)
                yield topic, emission.key or b"", value, []


def _round(bench: Bench, prefix: str, limit: int | None, written: dict[str, int], requests: int) -> dict[str, Any]:
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
    return {
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


if __name__ == "__main__":
    common.main("archive", measure)
