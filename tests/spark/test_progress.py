from __future__ import annotations

from typing import Any

import pytest

from ackstream.spark.progress import next_tick

NOW = 1_000


@pytest.mark.parametrize(
    ("consumed", "ends", "unread", "tick"),
    [
        ({}, {}, {}, NOW),
        ({"a": 5}, {"a": 5}, {}, NOW),
        ({}, {"a": 0}, {}, NOW),
        ({"a": 3}, {"a": 5}, {("a", 3): 700}, 700),
        ({"a": 3, "b": 1}, {"a": 5, "b": 2}, {("a", 3): 700, ("b", 1): 600}, 600),
        # a partition that was added is read from its beginning
        ({"a": 5}, {"a": 5, "new": 1}, {("new", 0): 900}, 900),
        # the clock of a broker was set back: a record is later than now
        ({"a": 3}, {"a": 5}, {("a", 3): 1_500}, NOW),
        # the oldest unread record cannot be read: the time cannot be known
        ({"a": 3}, {"a": 5}, {}, None),
    ],
)
def test_time_never_passes_an_unread_record(consumed: Any, ends: Any, unread: Any, tick: int | None) -> None:
    assert next_tick(consumed, ends, NOW, lambda *place: unread.get(place)) == tick
