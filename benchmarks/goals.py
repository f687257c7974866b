"""The goals of ackstream's speed, and the results: a table of each README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import pages

JOBS = ("correlate", "archive", "twin", "persist", "settle", "queues", "query")
ALL_JOBS = "all in one session"
COLUMNS = ("figure", "asked", "measured", "reached", "benchmark")


@dataclass(frozen=True)
class Goal:
    """A figure of a result, and what it should be.

    :param path: the keys to the figure in ``figures`` of the result; a mapping picks the entry of a list that has these
        values
    :param limit: asked
    :param least: whether it should be at least this, not at most
    :param relative: the path to a figure by which it is divided
    :param unit: how many of the result's units are one of the goal
    """

    what: str
    result: str
    path: tuple[Any, ...]
    limit: float
    least: bool = False
    relative: tuple[Any, ...] | None = None
    unit: float = 1

    def measured(self, results: Mapping[str, dict[str, Any]]) -> float | None:
        """Return the figure, None where it has not been measured; the sum where the path ends at several."""
        try:
            figures = results[self.result]["figures"]
            found: Any = _find(figures, self.path)
            found = (sum(found.values()) if isinstance(found, dict) else found) / self.unit
            return found if self.relative is None else found / _find(figures, self.relative)
        except (KeyError, StopIteration):
            return None

    def row(self, results: Mapping[str, dict[str, Any]]) -> Sequence[str]:
        """Return the row of the table."""
        measured = self.measured(results)
        asked = f"{'≥' if self.least else '≤'} {pages.show(self.limit)}"
        if measured is None:
            return self.what, asked, "-", "not measured", f"`{self.result}`"
        reached = measured >= self.limit if self.least else measured <= self.limit
        return self.what, asked, pages.show(measured), "yes" if reached else "**no**", f"`{self.result}`"


def _find(figures: Any, path: Sequence[Any]) -> Any:
    for step in path:
        if isinstance(step, dict):
            figures = next(entry for entry in figures if step.items() <= entry.items())
        else:
            figures = figures[step]
    return figures


def _latency(what: str, case: str, figure: str, p50: float, p95: float) -> tuple[Goal, Goal]:
    where = ("cases", case, figure)
    return (
        Goal(f"{what}, p50, s", "latency", (*where, "p50"), p50),
        Goal(f"{what}, p95, s", "latency", (*where, "p95"), p95),
    )


def _open(count: int) -> tuple[Any, ...]:
    return "spark", {"shards": 2, "open": count}, "batch_ms"


def _settle(writers: int) -> tuple[Any, ...]:
    return "open", {"open_samples": 1_000_000, "writers": writers, "holes": 0 if writers > 1_000 else 500}, "batch_ms"


MILLION = {"shards": 2, "open": 1_000_000}
TIMES = "correlate_is_times"
FRESH = ("contenders", "ackstream")
GOALS = (
    Goal("correlate's throughput, times quixstreams in 1 process", "throughput", (TIMES, "quixstreams, 1 process"), 2.5,
         least=True),
    Goal("times quixstreams in 2 processes", "throughput", (TIMES, "quixstreams, 2 processes"), 1.7, least=True),
    Goal("times a plain copy", "throughput", (TIMES, "copy"), 0.4, least=True),
    Goal("processor time of a message, broker included, µs", "profile", ("backlog", "microseconds"), 34),
    *_latency("request due to reply, 500/s", "500/s", "reply", 0.33, 0.45),
    Goal("the same, as a fresh program, p50, s", "peers", (*FRESH, "live", "reply", "p50"), 0.45),
    Goal("last acknowledgement to reply, 500/s, p50, s", "latency", ("cases", "500/s", "last_ack", "p50"), 0.2),
    *_latency("the same, archive in the session", "500/s + archive", "reply", 0.6, 1.0),
    *_latency("50/s, the demo's jobs in the session", "50/s + archive, twin, index", "reply", 0.6, 1.0),
    *_latency("a timeout after its deadline, 500/s", "500/s", "late", 0.4, 0.6),
    Goal("silent after kill -9 and a start, s", "peers", (*FRESH, "live", "kill", "silent"), 9),
    Goal("until it has caught up, s", "peers", (*FRESH, "live", "kill", "caught_up"), 15),
    Goal("silent after kill -9 with a standby, s", "peers", ("standby", "kill", "silent"), 5),
    Goal("until that has caught up, s", "peers", ("standby", "kill", "caught_up"), 6),
    Goal("memory of all processes with a backlog, GB", "peers", (*FRESH, "memory_bytes"), 1.8, unit=2**30),
    *(Goal(f"idle: {job}, of a core", "idle", ("jobs", job, "job"), 0.06) for job in JOBS),
    Goal("idle: all jobs in one session, of a core", "idle", ("jobs", ALL_JOBS, "job"), 0.12),
    Goal("idle: their broker, of a core", "idle", ("jobs", ALL_JOBS, "broker"), 0.1),
    Goal("a batch of 1,000 messages, 1,000,000 requests open, ms", "growth", _open(1_000_000), 1_000),
    Goal("100,000 open, times 10,000", "growth", _open(100_000), 1.2, relative=_open(10_000)),
    Goal("first reply after a start, 1,000,000 open, s", "growth", ("program", MILLION, "first_reply_seconds"), 20),
    Goal("its JVM's memory, MB", "growth", ("program", MILLION, "jvm_mb"), 1_500),
    Goal("settle: a shard's batch, 1,000,000 open samples of 1,000 writers, ms", "settling", _settle(1_000),
         1_000),
    Goal("settle: the same of 1,000,000 writers, ms", "settling", _settle(1_000_000), 1_000),
    Goal("queues: a batch, 1,000,000 messages waiting, ms", "queueing",
         ("query_waiting", {"messages": 1_000_000}, "batch"), 500),
    Goal("archive, decisions/s", "archive", ("rates", "records_warm"), 20_000, least=True),
    Goal("archive, of a plain append of its rows", "archive", ("rates", "of_plain"), 0.6, least=True),
    Goal("`twin-persisted` at 200/s, correlate in the session, p50, s", "twin",
         ("latency", "200/s + correlate", "acks", "p50"), 0.8),
    Goal("twin, changes/s, 100,000 things", "twin", ("throughput", "journal", "rate"), 10_000, least=True),
    Goal("the same while its index runs", "twin", ("throughput", "journal + index", "rate"), 10_000, least=True),
    Goal("`things`: bytes written, times those that changed", "index", ("tables", "things", "ratio"), 10),
    Goal("`things_search`: the same", "index", ("tables", "things_search", "ratio"), 10),
)  # fmt: skip


def table(results: Mapping[str, dict[str, Any]]) -> str:
    """Write the table, and when the results were measured."""
    dates = [result["date"][:10] for result in results.values()]
    when = f"Measured from {min(dates)} to {max(dates)}:"
    return "\n".join([when, "", *pages.table(COLUMNS, [goal.row(results) for goal in GOALS])])


def _figure(result: str, *path: Any) -> Goal:
    """Return a figure without a goal."""
    return Goal("", result, path, 0)


NUMBERS = (
    ("request to reply at 500 requests/s, p50", "{} s after warm-up, {} s as a fresh program",
     (_figure("latency", "cases", "500/s", "reply", "p50"), _figure("peers", *FRESH, "live", "reply", "p50"))),
    ("no replies after kill -9 and a start", "{} s, {} s with a standby",
     (_figure("peers", *FRESH, "live", "kill", "silent"), _figure("peers", "standby", "kill", "silent"))),
    ("throughput of a backlog", "{} messages/s after warm-up, {} as a fresh program",
     (_figure("throughput", "messages_a_second", "correlate", "warm"),
      _figure("peers", *FRESH, "messages_a_second", "warm"))),
    ("a batch of 1,000 messages", "{} ms with 1,000,000 open requests", (_figure("growth", *_open(1_000_000)),)),
    ("an idle job", "{} of a core for correlate, {} for all jobs in one session",
     (_figure("idle", "jobs", "correlate", "job"), _figure("idle", "jobs", ALL_JOBS, "job"))),
)  # fmt: skip
"""The figures on the first page: a text, and its values."""


def numbers(results: Mapping[str, dict[str, Any]]) -> str:
    """Write the table of the first page."""
    rows = [
        (about, shown.format(*(pages.show(figure.measured(results)) for figure in figures)))
        for about, shown, figures in NUMBERS
    ]
    return "\n".join(["", *pages.table(("figure", "measured"), rows)])


def results() -> dict[str, dict[str, Any]]:
    """Read the results there are."""
    names = {goal.result for goal in GOALS}
    found = {name: pages.RESULTS / f"{name}.json" for name in sorted(names)}
    return {name: json.loads(path.read_text("utf-8")) for name, path in found.items() if path.exists()}


def main() -> None:
    """Write the tables into the pages."""
    pages.replace(pages.README, "goals", table(results()))
    pages.replace(pages.FRONT, "numbers", numbers(results()))


if __name__ == "__main__":
    main()
