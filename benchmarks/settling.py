"""The cost of settle: acknowledgements a second in Python alone and through the query, its state with many holes."""

from __future__ import annotations

import statistics
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ackstream.jobs.settle import job as settle_query
from ackstream.jobs.settle.records import REPORTS, STORED, ReportRecord
from ackstream.jobs.settle.shard import SettleShard
from ackstream.lake import tables
from ackstream.protocol import messages
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import AckInterval, AppAck, write
from ackstream.settings import RequiredRole, Settings, Settle
from benchmarks import broker, common
from benchmarks.common import ROUNDS
from benchmarks.progress import batches, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    Message: TypeAlias = tuple[str, bytes, bytes, list[tuple[str, bytes]]]

REQUIRED = (RequiredRole(role="Logger", quorum=2), RequiredRole(role="Processor", quorum=1))
READERS = {"L1": "Logger", "L2": "Logger", "P1": "Processor"}
BATCH = 10
"""Samples an AppAck adds, beside the interval that was reported before."""
REPEATS = 5
WARM_UP = 1
METHOD = (
    f"The reports of {len(READERS)} readers wait in Kafka, each adds {BATCH} samples, and every quorum is filled in "
    "the end. Each round reads them to the end, with a new checkpoint and new tables, and stores, confirms and tells "
    "all of it. Warm rate = reports / triggerExecution of all batches but the first."
)


def measure(bench: common.Bench) -> dict[str, Any]:
    """Measure the shard alone, many open samples, then the query."""
    return {"pure": _measure_shard(bench), "open": _measure_open(bench), "query": _measure_query(bench)}


def _measure_shard(bench: common.Bench) -> dict[str, Any]:
    """Measure readers that keep up, many writers, and one reader with a hole behind every other sample."""
    reports = 300 if bench.small else 30_000
    holes = 500 if bench.small else 50_000
    repeats = 3 if bench.small else 5
    in_order = _in_order(reports)
    many = _many_writers(reports)
    odd = _record(1, "L1", "w1", 1, *((number, number) for number in range(1, 2 * holes, 2)))
    rules = Settle(required=REQUIRED, max_holes=2 * holes)
    figures = {
        "reports_a_second": reports / seconds(lambda: _shard(rules, in_order), repeats),
        "reports_a_second_of_1000_writers": reports / seconds(lambda: _shard(rules, many), repeats),
        "first_report_with_all_holes_ms": seconds(lambda: _shard(rules, [_stored("w1", 2 * holes), odd]), repeats)
        * 1e3,
    }
    bench.table(
        f"Settle in pure Python, one core, {reports:,} reports; {2 * holes:,} open samples with {holes:,} holes",
        ("what", "figure"),
        figures.items(),
    )
    return {"reports": reports, "open_samples": 2 * holes, "holes": holes, "figures": figures}


def _measure_open(bench: common.Bench) -> list[dict[str, Any]]:
    """Measure a batch with one report on many open samples: of few writers or many, with few holes or many."""
    found = [
        _open(count, writers, holes)
        for count in ((1_000, 10_000) if bench.small else (100_000, 1_000_000))
        for writers, holes in ((1, 0), (1, count // 10), (count // 1_000, 500), (count, 0))
    ]
    bench.table(
        f"A batch of settle's shard in pure Python with one report, median of {REPEATS}",
        ("open samples", "writers", "holes of each", "state, kB", "ms"),
        [tuple(entry.values()) for entry in found],
    )
    return found


def _open(count: int, writers: int, holes: int) -> dict[str, Any]:
    """Measure a shard with these open samples, of which a reader has acknowledged every other one up to the holes."""
    rules = Settle(required=REQUIRED, max_holes=100_000)
    names = [f"w{number}" for number in range(writers)]
    every_other = [(number, number) for number in range(1, 2 * holes, 2)] or [(1, 1)]
    shard = _shard(rules, [_stored(name, count // writers + 1) for name in names])
    shard.process([_record(1, "L1", name, 1, *every_other) for name in names])
    state = shard.dump()

    def step() -> None:
        again = SettleShard(rules)
        again.load(*state)
        again.process([_record(2, "L1", "w0", 2, (2, 2))])
        again.dump()

    return {
        "open_samples": count,
        "writers": writers,
        "holes": holes,
        "state_kilobytes": len(state[1]) / 1e3,
        "batch_ms": seconds(step, REPEATS) * 1e3,
    }


def _measure_query(bench: common.Bench) -> dict[str, Any]:
    """Measure from Kafka through the tables to the topic that readers and publishers read."""
    count, writers, limit, rounds = (3_000, 10, 1_500, 1) if bench.small else (60_000, 50, 10_000, ROUNDS)
    data = bench.settings("settle")
    # one after the other: acknowledged samples were stored before
    broker.produce(data.kafka.bootstrap, _samples(data, count, writers))
    broker.produce(data.kafka.bootstrap, _reports(data, count, writers))
    settle = {"max_offsets_per_trigger": limit, "required": REQUIRED}
    rates = []
    for number in range(rounds):
        settings = bench.settings("settle", prefix=data.kafka.topic_prefix, settle=settle)
        rates.append(_settle(bench, settings, count))
        bench.say(f"Round {number + 1}: {rates[-1]:,.0f} reports/s")
    rate = statistics.median(rates)
    bench.table(
        f"Settle: {count:,} reports about {writers} writers through Kafka, Delta and Kafka, median of {rounds}",
        ("", "a second"),
        [("reports (AppAcks)", rate), ("samples acknowledged", rate * BATCH)],
    )
    return {"method": METHOD, "reports": count, "writers": writers, "rate": rate, "rounds": rates}


def _samples(settings: Settings, count: int, writers: int) -> Iterator[Message]:
    samples = -(-count // (len(READERS) * writers)) * BATCH
    for number in range(writers):
        said = StoredRange(f"w{number}", 1, samples, 0)
        yield settings.kafka.topic("stored"), said.client.encode(), messages.write_stored(said), []


def _reports(settings: Settings, count: int, writers: int) -> Iterator[Message]:
    """Yield reports of all readers in turn, writer by writer."""
    topic = settings.kafka.topic("app-acks")
    turns = ((turn, f"w{number}", reader) for turn in range(count) for number in range(writers) for reader in READERS)
    for turn, name, reader in islice(turns, count):
        yield topic, reader.encode(), _app_ack(reader, name, turn), []


def _settle(bench: common.Bench, settings: Settings, count: int) -> float:
    began = settle_query.JOB.start(bench.spark, settings, available_now=True)
    began.awaitTermination()
    rows = tables.read(bench.spark, settings.lake, "deliveries").selectExpr("sum(last - first + 1)").collect()[0][0]
    if rows != count * BATCH:
        raise RuntimeError(f"{count} reports of {BATCH} samples gave {rows} acknowledgements")
    warm = batches(began)[WARM_UP:]
    return sum(batch.rows for batch in warm) / sum(batch.seconds for batch in warm)


def _app_ack(reader: str, writer: str, turn: int) -> bytes:
    """Return the AppAck of a reader's turn: the reported samples, and the next ones."""
    told = (AckInterval(1, turn * BATCH, reported=True),) if turn else ()
    new = AckInterval(turn * BATCH + 1, (turn + 1) * BATCH)
    return write(AppAck(reader, writer, 1, turn + 1, (*told, new), READERS[reader]))


def _record(offset: int, reader: str, writer: str, count: int, *runs: tuple[int, int]) -> ReportRecord:
    intervals = tuple(AckInterval(first, last) for first, last in runs)
    value = write(AppAck(reader, writer, 1, count, intervals, READERS[reader]))
    return ReportRecord(offset, REPORTS, 0, offset, value)


def _stored(writer: str, last: int) -> ReportRecord:
    return ReportRecord(0, STORED, 0, 0, messages.write_stored(StoredRange(writer, 1, last, 0)))


def _in_order(reports: int) -> list[ReportRecord]:
    """Three readers that acknowledge all samples of a writer, ten at a time."""
    names = list(READERS)
    told = (
        ReportRecord(offset, REPORTS, 0, offset, _app_ack(names[offset % len(names)], "w1", offset // len(names)))
        for offset in range(reports)
    )
    return [_stored("w1", reports * BATCH), *told]


def _many_writers(reports: int) -> list[ReportRecord]:
    """One reader that acknowledges single samples of a thousand writers in turn."""
    return [_stored(f"w{number}", reports) for number in range(1_000)] + [
        _record(offset, "L1", f"w{offset % 1_000}", offset // 1_000 + 1, (offset // 1_000 + 1, offset // 1_000 + 1))
        for offset in range(reports)
    ]


def _shard(rules: Settle, records: list[ReportRecord]) -> SettleShard:
    shard = SettleShard(rules)
    shard.process(records)
    return shard


if __name__ == "__main__":
    common.main("settling", measure)
