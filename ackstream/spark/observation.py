"""What a query's batches and its clock look like from outside: read from Spark's own progress, beside the query.

Spark keeps the progress of the last batches on the driver. It is read once a second, each batch once, as JSON: the
batches themselves do nothing for it, and a query that is idle is asked for one number.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ackstream.observe.catalogue import (
    BATCH_SECONDS,
    BATCHES_DONE,
    INPUT_ROWS,
    LAST_BATCH,
    OVERDUE,
    PHASE_SECONDS,
    QUERY_ACTIVE,
    SIGN,
    STATE_BYTES,
    TICK,
)
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.figures import FIGURES, Tally
from ackstream.spark.progress import repeating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.spark.batches import Work
    from ackstream.spark.clock import ClockReading, QueryClock

SECONDS = 1.0
SIGN_SECONDS = 20.0
"""A job that has given no sign of life for so long does not reach Kafka."""

_TOTAL = "triggerExecution"
"""Spark's name of the whole batch, among its phases."""


def take(progress: Mapping[str, Any], tally: Tally) -> None:
    """Count a batch.

    :param progress: of the batch, as Spark gives it in JSON
    """
    name, phases = progress["name"], progress.get("durationMs") or {}
    seconds = (phases.get(_TOTAL) or progress.get("batchDuration") or 0) / 1000
    tally.count(BATCHES_DONE, name)
    tally.observe(BATCH_SECONDS, name, values=(seconds,))
    for phase, milliseconds in phases.items():
        if phase != _TOTAL:
            tally.count(PHASE_SECONDS, name, phase, by=milliseconds / 1000)
    tally.count(INPUT_ROWS, name, by=sum(source.get("numInputRows") or 0 for source in progress.get("sources") or ()))
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    tally.set(LAST_BATCH, name, value=began + seconds)
    states = progress.get("stateOperators") or ()
    if states:
        tally.set(STATE_BYTES, name, value=sum(state.get("memoryUsedBytes") or 0 for state in states))


def newest(progresses: Any, last: int) -> Iterator[Mapping[str, Any]]:
    """Yield what is new of the last batches, in their order.

    :param progresses: an array of the JVM, oldest first
    :param last: the number of the batch that was read last
    """
    first = len(progresses)
    while first and progresses[first - 1].batchId() > last:
        first -= 1
    for index in range(first, len(progresses)):
        yield json.loads(progresses[index].json())


class QueryObservation:
    """The batches of one query, each counted once."""

    def __init__(self, name: str) -> None:
        """Start with the next batch of a query."""
        self._name = name
        self._last = -1
        self._tally = Tally()

    def look(self, progresses: Iterable[Mapping[str, Any]], reading: ClockReading | None) -> None:
        """Take what is new, and the state of the clock; ``None``: the query has none."""
        tally = Tally().add(self._tally)
        for progress in progresses:
            self._last = progress["batchId"]
            take(progress, tally)
        if reading is not None:
            tally.set(OVERDUE, self._name, value=reading.overdue_ms / 1000)
            if reading.signed_ago is not None:
                tally.set(SIGN, self._name, value=time.time() - reading.signed_ago)
            if reading.tick_ms:
                tally.set(TICK, self._name, value=reading.tick_ms / 1000)
        # replaced and not changed: another thread reads it
        self._tally = tally

    @property
    def last(self) -> int:
        """The number of the last batch that was counted; -1: none."""
        return self._last

    def tally(self) -> Tally:
        """Return what was counted."""
        return self._tally


@contextmanager
def observed(query: StreamingQuery, name: str, clock: QueryClock | None) -> Iterator[None]:
    """Count the batches of a query for the time of the block, and expect its signs of life."""
    observation, kafka = QueryObservation(name), f"Kafka, for {name}"

    @contextmanager
    def connect() -> Iterator[Work]:
        def look() -> None:
            reading = None if clock is None else clock.reading()
            if reading is not None and reading.signed_ago is not None and reading.signed_ago < SIGN_SECONDS:
                HEALTH.beat(kafka, time.monotonic())
            # there is no public way that does not read all of it, field by field
            observation.look(newest(query._jsq.recentProgress(), observation.last), reading)  # noqa: SLF001

        yield look

    FIGURES.set(QUERY_ACTIVE, name, value=1)
    FIGURES.follow(f"batches of {name}", observation.tally)
    expected = nullcontext() if clock is None else HEALTH.expecting(kafka, SIGN_SECONDS)
    try:
        with expected, repeating(f"observation of {name}", SECONDS, connect):
            yield
    finally:
        FIGURES.set(QUERY_ACTIVE, name, value=0)
        FIGURES.unfollow(f"batches of {name}")
