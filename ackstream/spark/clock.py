"""The clock of a query: the ticks that move its event time on, when something waits for time.

A tick says: everything before this time has been read by the end of the batch that reads the tick. While the query
keeps up that is the broker's present time; while some partition lags, it is the time of the oldest unread record. So a
backlog never causes a false timeout. What the running batch reads counts as read: a tick is in a later batch.

The broker's time is taken from a sign of life on the lease topic (:mod:`ackstream.spark.lease`); only then are the
partitions and their ends looked up, and only then is the tick sent. A record that arrives in between has a later time
than the tick, whatever the order in which the query reads them. Where partitions are on several brokers, whose clocks
differ, and which show a record only once its followers have it, time stays ``clock.slack`` behind. A broker's clock
that jumps is followed slowly (:class:`Pace`).

A tick is sent when a deadline has come, of which the shards tell the driver, and now and then while records are read,
so that what is remembered can be forgotten. Each shard tells its earliest deadline alone, the next one in the batch
that reads the tick: until that has ended the clock goes on looking, so that it can send the next tick at once. Nothing
is sent while nothing waits: an idle query has no batches. Ticks are keyed by their run, and the query counts those of
its own run alone, up to their own append time.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka.admin import OffsetSpec

from ackstream.kafka import topics as kafka_topics
from ackstream.spark.batches import repeating
from ackstream.spark.lease import LEASE_INTERVALS, LEASE_SECONDS, SEND_SECONDS, Lease, LeaseLog, passing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from kafka import TopicPartition

    from ackstream.settings import Settings
    from ackstream.spark.batches import Work
    from ackstream.spark.operator import Told

log = logging.getLogger(__name__)
SILENT_SECONDS, SILENT_INTERVALS = 60.0, 60
"""How long a clock may fail before its job ends; the longer of both, as for the lease."""

LOOK_SECONDS = 0.03
"""How often it looks whether a deadline has come; that costs a comparison."""

RETRY_SECONDS = 0.1
"""How long a deadline that has come waits for the next look at the broker; what it saw last may pass sooner."""

REST_SECONDS = 10.0
"""How often time moves on while records are read and nothing waits for it."""

BEHIND_MS, LOOK_PAUSES = 1_000, 5
"""If what was looked up before has not let a deadline pass for so long, the unread records themselves are looked at;
that takes long, so that the pause after it is this number of times longer."""

MARKS = 32
FETCH_MS = 2_000
GAIN = 0.1
"""How much faster than time itself the clock may catch up with a broker's clock that is ahead of it."""

JUMP_MS = 1_000


# -- the decisions -----------------------------------------------------------------------------------------------------


def next_tick(
    consumed: Mapping[Hashable, int],
    ends: Mapping[Hashable, int],
    broker_time: int,
    timestamp_at: Callable[[Hashable, int, int], int | None],
) -> int:
    """Decide up to which time, in epoch milliseconds, everything has been read.

    :param consumed: for each partition the next offset the query will read; a missing partition has not been read
    :param ends: for each partition its end, looked up after ``broker_time``
    :param broker_time: the broker's time
    :param timestamp_at: gives the timestamp of the first record from an offset up to an end; ``None`` where all those
        have been deleted
    """
    unread = [
        timestamp_at(partition, offset, end)
        for partition, end in ends.items()
        if (offset := consumed.get(partition, 0)) < end
    ]
    return min([broker_time, *(timestamp for timestamp in unread if timestamp is not None)])


class Mark(NamedTuple):
    """A time, and ends of the partitions that were looked up after it: what is behind them is later."""

    time: int
    ends: Mapping[Hashable, int]

    def passed(self, consumed: Mapping[Hashable, int]) -> bool:
        """Return whether everything before the time has been read."""
        return all(consumed.get(partition, 0) >= end for partition, end in self.ends.items())


class Pace:
    """Follows a broker's clock, hardly faster than time passes, so that no leap of it ends anybody's deadline.

    One that is set back is believed; time stands still for the query until it has caught up.
    """

    def __init__(self) -> None:
        self._known: tuple[float, float] | None = None
        self._ahead = False

    def follow(self, broker_time: int, asked: float, answered: float) -> int:
        """Return how much of the broker's time is believed.

        :param broker_time: epoch milliseconds
        :param asked: when it was asked for, in seconds of :func:`passing`
        :param answered: when it was known
        """
        latest, before = self._known or (broker_time, asked)
        believed = min(broker_time, int(latest + (answered - before) * 1000 * (1 + GAIN)))
        # follows a broker's clock that goes slower, but not at once one that is set back for a moment
        self._known = max(believed, latest + (asked - before) * 1000 * (1 - GAIN)), asked
        ahead = broker_time - believed > JUMP_MS
        if ahead and not self._ahead:
            log.warning("The broker's clock leapt ahead by %s ms; time follows it slowly.", broker_time - believed)
        self._ahead = ahead
        return believed


class Watched(NamedTuple):
    """What a clock sees of a query whose time it moves.

    :ivar consumed: gives the next offset of each partition after those that its newest batch reads
    :ivar told: gives what its shards have told
    """

    consumed: Callable[[], Mapping[Any, int]]
    told: Callable[[], Told]


class ClockReading(NamedTuple):
    """A clock as its operator sees it.

    :ivar signed_ago: seconds since its last sign of life; ``None``: there was none yet
    :ivar tick_ms: its last tick, epoch milliseconds; 0: none
    :ivar overdue_ms: for how long the earliest deadline has been due, which the query has not let pass
    """

    signed_ago: float | None
    tick_ms: int
    overdue_ms: float


class QueryClock:
    """The clock of one run of a query, and the run's lease."""

    def __init__(self, lease: Lease, slack_ms: int, interval: float) -> None:
        """Prepare a run.

        :param slack_ms: how far time stays behind where partitions are on several brokers
        :param interval: seconds between signs of life
        """
        self._lease, self._slack, self._interval = lease, slack_ms, interval
        self._pace = Pace()
        self._watched: Watched | None = None
        self._stop: Callable[[], object] | None = None
        self._ended = False
        self._last = self._behind = 0
        self._signed = self._ticked = float("-inf")
        self._look_at = 0.0
        self._believed = 0
        self._consumed: dict[Any, int] = {}
        self._read: Mapping[Any, int] = {}
        self._marks: deque[Mark] = deque(maxlen=MARKS)

    @property
    def run(self) -> str:
        """The key of its ticks."""
        return self._lease.run

    def follow(self, watched: Watched | None, stop: Callable[[], object]) -> None:
        """Begin to move the time of a query on.

        :param watched: ``None``: it has no event time
        :param stop: stops it when the clock cannot go on
        """
        self._watched, self._stop = watched, stop
        if self._ended:
            stop()

    def give_up(self) -> None:
        """Stop the query, or the one that will be followed."""
        self._ended = True
        if self._stop is not None:
            self._stop()

    def step(self, broker: ClockBroker) -> None:
        """Give a sign of life and tick, as far as it is time to.

        :raises StoppedError: another run has taken over
        """
        asked = passing()
        wanted = self._wanted(asked)
        looks = wanted is not None or self._untold()
        if looks and asked < self._ticked + RETRY_SECONDS:
            if wanted is not None:
                # the query may have planned a batch meanwhile
                self._pass(broker, self._passed(), wanted)
            looks = False
        if not looks and asked < self._signed + self._interval:
            return
        broker_time = self._lease.sign(broker.lease)
        self._believed, self._signed = self._pace.follow(broker_time, asked, passing()), asked
        if self._watched is not None and (looks or asked >= self._ticked + REST_SECONDS):
            self._tick(broker, asked, wanted)

    def end(self, broker: ClockBroker) -> None:
        """End the run."""
        self._lease.end(broker.lease)

    def reading(self) -> ClockReading:
        """Return its state at this moment; for any thread."""
        now = passing()
        if self._signed == float("-inf"):
            return ClockReading(None, 0, 0)
        due = self._earliest()
        overdue = 0.0 if due is None else max(0.0, self._present(now) - due)
        return ClockReading(now - self._signed, self._last, overdue)

    def _present(self, now: float) -> float:
        """Return the time up to which nothing may be open, in epoch milliseconds."""
        return self._believed + (now - self._signed) * 1000 - self._behind

    def _wanted(self, now: float) -> int | None:
        """Return the time that has come and must pass for something to happen, as far as is known without asking."""
        if self._watched is None:
            return None
        told = self._watched.told()
        if not told.asked:
            return self._last if now >= self._ticked + self._interval else None
        # of what the last tick has passed the batch that reads it will tell
        due = told.due(self._last)
        return due if due is not None and due < self._present(now) else None

    def _earliest(self) -> int | None:
        """Return the earliest deadline that the query has not let pass."""
        return None if self._watched is None else self._watched.told().due(0)

    def _untold(self) -> bool:
        """Return whether what comes after the last tick is not known yet: the batch that reads it will tell."""
        due = self._earliest()
        return due is not None and due < self._last

    def _tick(self, broker: ClockBroker, now: float, wanted: int | None) -> None:
        self._ticked = now
        ends, several = broker.ends()
        self._behind = self._slack * several
        present = self._believed - self._behind
        self._marks.append(Mark(present, ends))
        tick = self._passed()
        if wanted is None and (self._untold() or self._progress() == self._read):
            return
        least = self._last if wanted is None else wanted
        if tick <= least < present - BEHIND_MS and now >= self._look_at:
            tick = max(tick, next_tick(self._consumed, ends, present, broker.timestamp_at))
            self._look_at = passing() + LOOK_PAUSES * (passing() - now)
        self._pass(broker, tick, least)

    def _passed(self) -> int:
        """Return the latest time, of those looked up, before which everything has been read."""
        if self._watched is not None:
            # between two batches Spark knows of none
            self._consumed = {**self._consumed, **self._watched.consumed()}
        return max((mark.time for mark in self._marks if mark.passed(self._consumed)), default=0)

    def _progress(self) -> Mapping[Any, int]:
        """Return how far those partitions have been read that existed at the last look."""
        return {partition: self._consumed.get(partition, 0) for partition in self._marks[-1].ends}

    def _pass(self, broker: ClockBroker, tick: int, least: int) -> None:
        """Send a tick if it is later than a time."""
        if tick > least:
            read = self._progress()
            # it has been sent once the broker has it, and counts up to the broker's time of it
            self._last, self._read = min(tick, broker.tick(self.run.encode(), tick)), read


# -- on Kafka ----------------------------------------------------------------------------------------------------------


class ClockBroker:
    """What a clock needs of Kafka; for one thread."""

    def __init__(self, lease: LeaseLog, settings: Settings, ticks: str | None, topics: Iterable[str]) -> None:
        """Take a connection.

        :param ticks: the topic of the ticks, without the prefix
        :param topics: the topics whose records time must not pass before they are read, without the prefix
        """
        kafka = settings.kafka
        self.lease = lease
        self._ticks = ticks and kafka.topic(ticks)
        self._read = {kafka.topic(topic) for topic in topics}

    def tick(self, key: bytes, time_ms: int) -> int:
        """Send a tick, and wait until the broker has it; return the broker's time of it, epoch milliseconds."""
        return int(self.lease.send(key, str(time_ms).encode(), self._ticks).get(timeout=SEND_SECONDS).timestamp)

    def ends(self) -> tuple[dict[TopicPartition, int], bool]:
        """Return the end of each partition that exists now, and whether they are on several brokers."""
        own = {self.lease.partition.topic, self._ticks or ""}
        replicas = kafka_topics.replicas(self.lease.admin, [*filter(None, own), *self._read])
        ends = kafka_topics.ends(self.lease.admin, [one for one in replicas if one.topic in self._read])
        return ends, len(set().union(*replicas.values())) > 1

    def timestamp_at(self, partition: TopicPartition, offset: int, end: int) -> int | None:
        """Return the timestamp of the first record from an offset up to an end; ``None`` where all are deleted.

        Of a record that this Python cannot unpack, the broker knows the time.
        """
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
        """Find the latest time of which a record at an offset or before it is: that of the record."""
        low, high = 0, 1 << 42
        while low < high:
            middle = (low + high + 1) // 2
            first = self.lease.since(middle, partition)
            low, high = (middle, high) if first is not None and first <= offset else (low, middle - 1)
        return low


@contextmanager
def clock(settings: Settings, lease: str, ticks: str | None, topics: Iterable[str]) -> Iterator[QueryClock]:
    """Run a clock until the block ends.

    :param lease: the lease topic of the job, without the prefix, as are all
    :param ticks: the topic of the ticks, which no other query may use; ``None``: a job without event time
    :param topics: the topics whose records time must not pass before they are read
    :raises StartError: another process runs the same job
    :raises StoppedError: at the end of the block, if the clock could not go on
    """
    interval, topics, name = settings.clock.interval / 1000, list(topics), settings.kafka.topic(lease)
    own_lease = Lease(name, max(LEASE_SECONDS, LEASE_INTERVALS * interval))
    own = QueryClock(own_lease, settings.clock.slack, interval)

    @contextmanager
    def connect() -> Iterator[Work]:
        with ExitStack() as stack:
            broker = ClockBroker(LeaseLog(stack, settings.kafka, name), settings, ticks, topics)
            yield lambda: own.step(broker)
            # stopped in order: the next run need not wait
            own.end(broker)

    with ExitStack() as stack:
        own_lease.claim(LeaseLog(stack, settings.kafka, name))
    patience = max(SILENT_SECONDS, SILENT_INTERVALS * interval)
    with repeating(ticks or lease, LOOK_SECONDS, connect, patience, own.give_up):
        yield own
