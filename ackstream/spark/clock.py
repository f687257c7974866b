"""The clock of a query: it sends the ticks that advance the event time when a deadline is due.

A tick at time t asserts: by the end of the batch that reads the tick, the query has read every record before t. The
broker's time comes from a sign of life on the lease topic (:mod:`ackstream.spark.lease`). The clock looks up the ends
of the partitions after it, and sends the tick last: a record that arrives in between is later than the tick, in any
reading order. While no shard waits, it sends nothing: an idle query has no batches. The run is the key of its ticks;
a query counts only those of its own run, up to their append time. docs/project/architecture.md has the laws of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from ackstream.kafka import topics as kafka_topics
from ackstream.settings import Settings
from ackstream.spark.batches import Work, repeating
from ackstream.spark.lease import SEND_SECONDS, Lease, LeaseLog, Pace, lease_seconds, passing
from ackstream.spark.operator import Told

SILENT_SECONDS, SILENT_INTERVALS = 60.0, 60
"""A clock may fail for the longer of these times before its job ends, as for the lease."""

LOOK_SECONDS = 0.03
"""The interval of the checks for a due deadline; a check costs a comparison."""
RETRY_SECONDS = 0.1
"""The shortest interval of lookups on the broker; the query may pass ends that are already known sooner."""
REST_SECONDS = 10.0
"""The interval of ticks while records are read and no deadline is due."""
BEHIND_MS, LOOK_PAUSES = 1_000, 5
"""If the known ends have held back a deadline for this time, the clock reads the unread records themselves. That is
slow: the pause after it is this number of times longer."""

MARKS = 32
FETCH_MS = 2_000


def next_tick(
    consumed: Mapping[Hashable, int],
    ends: Mapping[Hashable, int],
    broker_time: int,
    timestamp_at: Callable[[Hashable, int, int], int | None],
) -> int:
    """Return the time, in epoch milliseconds, before which every record has been read.

    :param consumed: the next offset of each partition; a missing partition has not been read
    :param ends: the end of each partition, looked up after ``broker_time``
    :param timestamp_at: gives the timestamp of the first record from an offset up to an end; ``None``: all are deleted
    """
    unread = [
        timestamp_at(partition, offset, end)
        for partition, end in ends.items()
        if (offset := consumed.get(partition, 0)) < end
    ]
    return min([broker_time, *(timestamp for timestamp in unread if timestamp is not None)])


class Mark(NamedTuple):
    """A time, and the ends of the partitions after it: records after the ends are later than the time."""

    time: int
    ends: Mapping[Hashable, int]

    def passed(self, consumed: Mapping[Hashable, int]) -> bool:
        """Return whether every record before the time has been read."""
        return all(consumed.get(partition, 0) >= end for partition, end in self.ends.items())


class Watched(NamedTuple):
    """The query that a clock follows: its next offsets, after its newest batch, and the reports of its shards."""

    consumed: Callable[[], Mapping[Any, int]]
    told: Callable[[], Told]


class ClockReading(NamedTuple):
    """The state of a clock in figures.

    :ivar signed_ago: seconds since the last sign of life; ``None`` before the first
    :ivar tick_ms: the last tick in epoch milliseconds; 0 before the first
    :ivar overdue_ms: how long the earliest deadline has been due by the broker's clock, in milliseconds
    :ivar ahead_ms: how far the broker's clock is ahead of the query's time without unread records; negative after it
        was set back
    """

    signed_ago: float | None
    tick_ms: int
    overdue_ms: float
    ahead_ms: float


class QueryClock:
    """The clock of one run of a query, and the run's lease."""

    def __init__(self, lease: Lease, slack_ms: int, interval: float) -> None:
        """Prepare a run; ``slack_ms`` counts with several brokers, ``interval`` (s) is that of signs of life."""
        self._lease, self._slack, self._interval = lease, slack_ms, interval
        self._pace = Pace()
        self._watched: Watched | None = None
        self._stop: Callable[[], object] | None = None
        self._ended = False
        self._last = self._behind = 0
        self._signed = self._ticked = float("-inf")
        self._look_at = 0.0
        self._believed = self._broker_time = 0
        self._consumed: dict[Any, int] = {}
        self._read: Mapping[Any, int] = {}
        self._marks: deque[Mark] = deque(maxlen=MARKS)

    @property
    def run(self) -> str:
        """The key of its ticks."""
        return self._lease.run

    def follow(self, watched: Watched | None, stop: Callable[[], object]) -> None:
        """Follow a query (``None``: it has no event time), which ``stop`` ends when the clock cannot continue."""
        self._watched, self._stop = watched, stop
        if self._ended:
            stop()

    def give_up(self) -> None:
        """Stop the query that is followed now or later."""
        self._ended = True
        if self._stop is not None:
            self._stop()

    def step(self, broker: ClockBroker) -> None:
        """Send a sign of life and a tick, each if due. Raises StoppedError: another run has taken over."""
        asked = passing()
        wanted = self._wanted(asked)
        looks = wanted is not None or self._untold()
        if looks and asked < self._ticked + RETRY_SECONDS:
            # the query may have planned a batch meanwhile
            self._pass(broker, self._passed(), wanted)
            looks = False
        if not looks and asked < self._signed + self._interval:
            return
        self._sign(broker, asked)
        if self._watched is not None and (looks or asked >= self._ticked + REST_SECONDS):
            self._tick(broker, asked, wanted)

    def _sign(self, broker: ClockBroker, asked: float) -> None:
        self._broker_time = self._lease.sign(broker.lease)
        self._believed, self._signed = self._pace.follow(self._broker_time, asked, passing()), asked

    def reading(self) -> ClockReading:
        """Return the present state; for any thread."""
        now = passing()
        if self._signed == float("-inf"):
            return ClockReading(None, 0, 0, 0)
        due = None if self._watched is None else self._watched.told().due(0)
        ahead = self._broker_time - max(self._believed, self._last)
        overdue = 0.0 if due is None else max(0.0, self._present(now) + self._broker_time - self._believed - due)
        return ClockReading(now - self._signed, self._last, overdue, ahead)

    def _present(self, now: float) -> float:
        """Return the time, in epoch milliseconds, before which no deadline may be open."""
        return self._believed + (now - self._signed) * 1000 - self._behind

    def _wanted(self, now: float) -> int | None:
        """Return the deadline that is due, without a request to the broker; ``None``: no deadline is due."""
        if self._watched is None:
            return None
        told = self._watched.told()
        if not told.ticks:
            return self._last if now >= self._ticked + self._interval else None
        # the batch that reads the last tick reports on deadlines before that tick
        due = told.due(self._last)
        # an earlier deadline comes from a clock that was set back within a second
        due = due and max(due, self._last)
        return due if due is not None and due < self._present(now) else None

    def _untold(self) -> bool:
        """Return whether the next deadline is unknown: the batch that reads the last tick will report it."""
        told = self._watched and self._watched.told()
        return told is not None and told.due(0) != told.due(self._last)

    def _tick(self, broker: ClockBroker, now: float, wanted: int | None) -> None:
        self._ticked = now
        ends, several = broker.ends()
        self._behind = self._slack * several
        present = self._believed - self._behind
        self._marks.append(Mark(present, ends))
        tick = self._passed()
        if wanted is None and self._progress() == self._read:
            return
        if tick <= (wanted or self._last) < present - BEHIND_MS and now >= self._look_at:
            tick = max(tick, next_tick(self._consumed, ends, present, partial(self._timestamp_at, broker)))
            self._look_at = passing() + LOOK_PAUSES * (passing() - now)
        self._pass(broker, tick, wanted)

    def _timestamp_at(self, broker: ClockBroker, *record: Any) -> int | None:
        # many partitions that lag would take longer than the lease
        if (now := passing()) >= self._signed + self._interval:
            self._sign(broker, now)
        return broker.timestamp_at(*record)

    def _passed(self) -> int:
        """Return the latest known time before which every record has been read."""
        if self._watched is not None:
            # Spark has no planned offsets between two batches
            self._consumed = {**self._consumed, **self._watched.consumed()}
        return max((mark.time for mark in self._marks if mark.passed(self._consumed)), default=0)

    def _progress(self) -> Mapping[Any, int]:
        """Return the next offsets of the partitions that existed at the last lookup."""
        return {partition: self._consumed.get(partition, 0) for partition in self._marks[-1].ends}

    def _pass(self, broker: ClockBroker, tick: int, wanted: int | None) -> None:
        """Send a tick that passes the deadline that is due; if none is known, one for each batch that reads records."""
        if tick > (wanted or self._last):
            read = self._progress()
            if wanted is not None or read != self._read:
                # a tick counts up to its append time
                self._last, self._read = min(tick, broker.tick(self.run.encode(), tick)), read


class ClockBroker:
    """The connection of a clock to Kafka; for one thread."""

    def __init__(self, lease: LeaseLog, settings: Settings, ticks: str | None, topics: Iterable[str]) -> None:
        """Take a connection; time never passes an unread record of ``topics``. Topics come without the prefix."""
        kafka = settings.kafka
        self.lease = lease
        self._ticks = ticks and kafka.topic(ticks)
        self._read = {kafka.topic(topic) for topic in topics}

    def tick(self, key: bytes, time_ms: int) -> int:
        """Send a tick, wait until the broker has it, and return its append time in epoch milliseconds."""
        return int(self.lease.send(key, str(time_ms).encode(), self._ticks).get(timeout=SEND_SECONDS).timestamp)

    def ends(self) -> tuple[dict[TopicPartition, int], bool]:
        """Return the end of each existing partition, and whether they are on several brokers."""
        own = {self.lease.partition.topic, self._ticks or ""}
        replicas = kafka_topics.replicas(self.lease.admin, [*filter(None, own), *self._read])
        ends = kafka_topics.ends(self.lease.admin, [one for one in replicas if one.topic in self._read])
        return ends, len(set().union(*replicas.values())) > 1

    def timestamp_at(self, partition: TopicPartition, offset: int, end: int) -> int | None:
        """Return the timestamp of the first record from an offset up to an end; ``None``: all are deleted."""
        # For a record that this Python cannot decompress, the broker looks up the time.
        beginnings = self.lease.admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})
        first = max(offset, beginnings[partition].offset)
        if first >= end:
            return None
        reader = self.lease.reader
        unreadable = reader.unreadable
        reader.consumer.assign([partition])
        reader.consumer.seek(partition, first)
        records = reader.read(FETCH_MS, 1)
        return records[0].timestamp if records and reader.unreadable == unreadable else self._search(partition, first)

    def _search(self, partition: TopicPartition, offset: int) -> int:
        """Find the timestamp of the record at an offset: the latest time whose first record is not after it."""
        low, high = 0, 1 << 42
        while low < high:
            middle = (low + high + 1) // 2
            first = self.lease.since(middle, partition)
            low, high = (middle, high) if first is not None and first <= offset else (low, middle - 1)
        return low


@contextmanager
def clock(settings: Settings, lease: str, ticks: str | None, topics: Iterable[str]) -> Iterator[QueryClock]:
    """Run a clock until the block ends; the topics come without the prefix.

    :param ticks: the topic of the ticks, which no other query may use; ``None``: a job without event time
    :param topics: time never passes an unread record of these
    :raises TakenError: another process runs the same job
    :raises StoppedError: at the end of the block, if the clock could not continue
    """
    interval, topics, name = settings.clock.interval / 1000, list(topics), settings.kafka.topic(lease)
    own_lease = Lease(name, lease_seconds(interval))
    own = QueryClock(own_lease, settings.clock.slack, interval)

    @contextmanager
    def connect() -> Iterator[Work]:
        with ExitStack() as stack:
            broker = ClockBroker(LeaseLog(stack, settings.kafka, name), settings, ticks, topics)
            yield lambda: own.step(broker)
            # after a clean shutdown, the next run need not wait
            own_lease.end(broker.lease)

    with ExitStack() as stack:
        own_lease.claim(LeaseLog(stack, settings.kafka, name))
    patience = max(SILENT_SECONDS, SILENT_INTERVALS * interval)
    with repeating(ticks or lease, LOOK_SECONDS, connect, patience, own.give_up):
        yield own
