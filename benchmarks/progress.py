"""Spark's reports of a query's batches, the duration of a step, and the figures made from them."""

from __future__ import annotations

import datetime as dt
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Batch:
    """A batch as reported in Spark's progress; times in epoch seconds, durations in milliseconds."""

    number: int
    rows: int
    start: float
    seconds: float
    durations: dict[str, int] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it had ended."""
        return self.start + self.seconds


def seconds(step: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a step."""
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def batches(query: StreamingQuery) -> list[Batch]:
    """Return the query's finished batches with records."""
    found = {}
    for progress in query.recentProgress:
        entry = json.loads(progress.json) if hasattr(progress, "json") else progress
        durations = entry["durationMs"]
        if entry["numInputRows"] and "addBatch" in durations:
            began = dt.datetime.fromisoformat(entry["timestamp"].replace("Z", "+00:00")).timestamp()
            found[entry["batchId"]] = Batch(
                entry["batchId"], entry["numInputRows"], began, durations["triggerExecution"] / 1000, durations
            )
    return [batch for _, batch in sorted(found.items())]


def wait(query: StreamingQuery, done: Callable[[], bool], seconds: float, pause: float = 0.25) -> None:
    """Wait until something holds; a query that fails meanwhile ends the wait.

    :raises TimeoutError: it does not hold in time
    :raises RuntimeError: the query failed
    """
    deadline = time.monotonic() + seconds
    while not done():
        if not query.isActive:
            raise RuntimeError(f"The query ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"The query {query.name} was not done after {seconds:.0f} s")
        time.sleep(pause)


WARM_UP = 2
"""The first batches of a query start Python and fill caches: they do not count."""


def warm(found: Sequence[Batch], limit: int) -> Sequence[Batch]:
    """Return the full batches but the first ones.

    :param limit: of the records in a batch; it is divided over the partitions, each part rounded down
    """
    return [batch for batch in found if batch.rows >= 0.9 * limit][WARM_UP:]


def rows_read(query: StreamingQuery) -> int:
    """Return how many records the query has read."""
    return sum(batch.rows for batch in batches(query))


def typical(found: Sequence[Batch]) -> dict[str, float]:
    """Return where a batch's time goes: the median of each of Spark's durations, in milliseconds."""
    names = sorted({name for batch in found for name in batch.durations})
    return {name: statistics.median(batch.durations.get(name, 0) for batch in found) for name in names}


def percentiles(values: Sequence[float], wanted: Sequence[int] = (50, 95, 99)) -> dict[str, float | None]:
    """Return percentiles by nearest rank: ``{"p50": …}``; None where there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {f"p{percent}": None for percent in wanted}
    return {f"p{percent}": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in wanted}


def medians(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the median of each figure over rounds."""
    figures = {name: [entry[name] for entry in found if entry[name] is not None] for name in found[0]}
    return {name: statistics.median(values) if values else None for name, values in figures.items()}
