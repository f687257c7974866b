"""What settle costs in Python alone: application acknowledgements a second, and its state with many holes."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from ackstream.delivery.settle_rules import RequiredRole, SettleRules
from ackstream.delivery.settled import REPORTS, STORED, ReportRecord
from ackstream.delivery.settling import Shard
from ackstream.protocol import stored
from ackstream.protocol.app_acks import AckInterval, AppAck, write
from ackstream.protocol.stored import Stored
from benchmarks import common

if TYPE_CHECKING:
    from collections.abc import Callable

REQUIRED = (RequiredRole("Logger", 2), RequiredRole("Processor", 1))
READERS = {"L1": "Logger", "L2": "Logger", "P1": "Processor"}
BATCH = 10
"""Samples an AppAck adds, beside the interval that was reported before."""


def measure(bench: common.Bench) -> dict[str, Any]:
    """Measure readers that keep up, many writers, and one reader with a hole behind every other sample."""
    reports = 300 if bench.small else 30_000
    holes = 500 if bench.small else 50_000
    repeats = 3 if bench.small else 5
    in_order = _in_order(reports)
    many = _many_writers(reports)
    odd = _record(1, "L1", "w1", 1, *((number, number) for number in range(1, 2 * holes, 2)))
    rules = SettleRules(REQUIRED, max_holes=2 * holes)
    shard = _shard(rules, [_stored("w1", 2 * holes), odd])
    version, blob = shard.dump()
    one_more = _record(2, "L1", "w1", 2, (2, 2))

    def batch_on_holes() -> None:
        again = Shard(rules)
        again.load(version, blob)
        again.process([one_more])
        again.dump()

    figures = {
        "reports_a_second": reports / _time(lambda: _shard(rules, in_order), repeats),
        "reports_a_second_of_1000_writers": reports / _time(lambda: _shard(rules, many), repeats),
        "first_report_with_all_holes_ms": _time(lambda: _shard(rules, [_stored("w1", 2 * holes), odd]), repeats) * 1e3,
        "batch_with_one_report_on_all_holes_ms": _time(batch_on_holes, repeats) * 1e3,
        "state_bytes": len(blob),
    }
    bench.table(
        f"Settle in pure Python, one core, {reports:,} reports; {2 * holes:,} open samples with {holes:,} holes",
        ("what", "figure"),
        figures.items(),
    )
    return {
        "method": f"median of {repeats} passes in one process; each report adds {BATCH} samples",
        "reports": reports,
        "open_samples": 2 * holes,
        "holes": holes,
        "figures": figures,
    }


def _record(offset: int, reader: str, writer: str, count: int, *runs: tuple[int, int]) -> ReportRecord:
    intervals = tuple(AckInterval(first, last) for first, last in runs)
    value = write(AppAck(reader, writer, 1, count, intervals, READERS[reader]))
    return ReportRecord(offset, REPORTS, 0, offset, value)


def _stored(writer: str, last: int) -> ReportRecord:
    return ReportRecord(0, STORED, 0, 0, stored.write(Stored(writer, 1, last, 0)))


def _in_order(reports: int) -> list[ReportRecord]:
    """Three readers that acknowledge all samples of a writer, ten at a time."""
    names = list(READERS)
    found = [_stored("w1", reports * BATCH)]
    for offset in range(reports):
        batch, reader = offset // len(names), names[offset % len(names)]
        before = [(1, batch * BATCH)] if batch else []
        found.append(_record(offset, reader, "w1", batch + 1, *before, (batch * BATCH + 1, (batch + 1) * BATCH)))
    return found


def _many_writers(reports: int) -> list[ReportRecord]:
    """One reader that acknowledges single samples of a thousand writers in turn."""
    return [_stored(f"w{number}", reports) for number in range(1_000)] + [
        _record(offset, "L1", f"w{offset % 1_000}", offset // 1_000 + 1, (offset // 1_000 + 1, offset // 1_000 + 1))
        for offset in range(reports)
    ]


def _shard(rules: SettleRules, records: list[ReportRecord]) -> Shard:
    shard = Shard(rules)
    shard.process(records)
    return shard


def _time(step: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a step."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


if __name__ == "__main__":
    common.main("settling", measure, kafka=False)
