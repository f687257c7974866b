from __future__ import annotations

from typing import Any

import pyarrow as pa

from ackstream.jobs.persist.job import PersistFold
from ackstream.jobs.persist.records import DAY_MS
from ackstream.jobs.persist.state import PublisherState
from ackstream.settings import Settings


class Table:
    """The states in the table, and which of them were asked for."""

    def __init__(self, **states: PublisherState) -> None:
        self.complete = True
        self.asked: list[set[str]] = []
        self._states = states

    def before(self, _batch: int, clients: set[str]) -> dict[str, PublisherState]:
        self.asked.append(clients)
        return {client: self._states[client] for client in clients if client in self._states}


def _headers(day: int, *clients: str | None) -> pa.Table:
    times = [day * DAY_MS] * len(clients)
    return pa.table({"client": pa.array(clients, pa.string()), "timestamp": pa.array(times, pa.int64())})


def test_a_publisher_leaves_memory_after_two_days_and_is_looked_up_when_it_sends_again() -> None:
    old, recent = PublisherState(watermark=5, day=10), PublisherState(watermark=7, day=12)
    table: Any = Table(old=old)
    deferred: Any = None
    fold = PersistFold(Settings(), deferred)
    fold._states = {"old": old, "recent": recent}
    fold._recall(table, _headers(11, "new"), 0)
    assert (fold._states.keys(), table.asked) == ({"old", "recent"}, [])
    fold._recall(table, _headers(12, "recent", None), 1)
    assert fold._states.keys() == {"recent"}
    # nothing is looked up while all publishers are in memory
    assert table.asked == [{""}]
    fold._recall(table, _headers(12, "recent", "old", "new"), 2)
    assert fold._states == {"old": old, "recent": recent}
    assert table.asked[1:] == [{"old", "new"}]
    # what is refused for its name is remembered with what has none
    fold._recall(table, _headers(12, "x" * 256), 3)
    assert table.asked[2:] == [{""}]
