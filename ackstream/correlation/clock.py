"""The ticks that move event time on: never past a record that was not read yet.

A tick says: everything before this time has been read. While the query has caught up that is the broker's present time;
while some partition lags, it is the time of the oldest record not read yet. So a backlog never causes a false timeout.

The broker's time is learnt from the append time of a first, harmless tick (it repeats the last value); only then are
the ends of the partitions asked, and only then is the real tick sent. A record that came in between has a later time
than the tick, whatever the order in which the query reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping


def next_tick(
    consumed: Mapping[Hashable, int],
    ends: Mapping[Hashable, int],
    broker_time: int,
    timestamp_at: Callable[[Hashable, int], int | None],
) -> int | None:
    """Decide up to which time everything has been read.

    :param consumed: for each partition the next offset the query will read; a partition that is not there was not read
    :param ends: for each partition its end, asked after ``broker_time`` was
    :param broker_time: the broker's time, in epoch milliseconds
    :param timestamp_at: the timestamp of the record at (or after) an offset; ``None`` where there is none to read
    :return: epoch milliseconds; ``None`` where it cannot be known
    """
    oldest = broker_time
    for partition, end in ends.items():
        offset = consumed.get(partition, 0)
        if offset < end:
            timestamp = timestamp_at(partition, offset)
            if timestamp is None:
                return None
            oldest = min(oldest, timestamp)
    return oldest
