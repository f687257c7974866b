"""The clock of a query: the ticks that move its event time on, and the run that alone may tick.

A tick says: everything before this time has been read. While the query has caught up that is the broker's present time;
while some partition lags, it is the time of the oldest unread record. So a backlog never causes a false timeout.

The broker's time is taken from the append time of a first, harmless tick (it repeats the last value); only then are the
partitions and their ends looked up, and only then is the real tick sent. A record that arrives in between has a later
time than the tick, whatever the order in which the query reads them. Where partitions are on several brokers, whose
clocks differ, and which show a record only once its followers have it, time stays ``clock.slack`` behind. A broker's
clock that jumps is followed slowly (:class:`Pace`).

A tick is keyed by its run, and the query counts those of its own run alone, up to their own append time. A run is named
by the offset of its claim, a record on the same topic. A claim beside a run that ticks is refused; a run that
was killed is replaced once it has been silent for :data:`LEASE_SECONDS`; one that was only paused finds the ticks of
its successor and ends. A job without event time has a clock for this alone.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.admin import OffsetSpec

from ackstream.errors import StartError, StoppedError
from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import close_producer, connect_admin, connect_consumer, connect_producer
from ackstream.kafka.reader import TopicReader
from ackstream.spark.progress import repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from ackstream.settings import Settings
    from ackstream.spark.batches import Work

log = logging.getLogger(__name__)
LEASE_SECONDS, LEASE_INTERVALS = 6.0, 6
SILENT_SECONDS, SILENT_INTERVALS = 60.0, 60
"""How long a clock may fail before its job ends; the longer of both, as for the lease."""

LOOK_SECONDS = 0.2
FETCH_MS = 2_000
SEND_SECONDS = 30.0
GAIN = 0.1
"""How much faster than time itself the clock may catch up with a broker's clock that is ahead of it."""

JUMP_MS = 1_000
MAX_DIGITS = 19
CLAIM, OWNER = b"claim", "owner"
"""The key of a claim, and the record header that names its process on the ticks."""

_PASSING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def passing() -> float:
    """Return the seconds of a clock that nobody can set, and that goes on while the machine sleeps."""
    return time.clock_gettime(_PASSING)


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


def run_of(record: Any) -> int | None:
    """Return the run that a tick is of; ``None`` for any other record."""
    key = record.key or b""
    is_run = key.isdigit() and len(key) <= MAX_DIGITS and int(key) < record.offset
    return int(key) if is_run else None


def living(records: Iterable[Any], own: int) -> dict[int, int]:
    """Return the runs but ``own`` that claimed or ticked and have not ended, with the time of their last sign."""
    found: dict[int, int] = {}
    for record in records:
        run = record.offset if record.key == CLAIM else run_of(record)
        if run is None or run == own:
            continue
        if record.value is None:
            found.pop(run, None)
        else:
            found[run] = record.timestamp
    return found


class QueryClock:
    """The clock of one run of a query."""

    def __init__(self, topic: str, slack_ms: int, lease: float) -> None:
        """Prepare a run.

        :param topic: the real name of the topic of its ticks
        :param slack_ms: how far time stays behind where partitions are on several brokers
        :param lease: after so many seconds of silence another run has ended
        """
        self._topic, self._slack, self._lease = topic, slack_ms, lease
        self._pace = Pace()
        self._consumed: Callable[[], Mapping[Any, int]] | None = None
        self._stop: Callable[[], object] | None = None
        self._ended = False
        self._last = self._run = self._seen = 0

    @property
    def run(self) -> str:
        """The key of its ticks."""
        return str(self._run)

    def claim(self, broker: KafkaBroker, wait: Callable[[float], object] = time.sleep) -> None:
        """Begin the run, or wait until the one before has surely ended.

        :raises StartError: another run ticks
        """
        self._run, now = broker.append(CLAIM, b"")
        self._seen = self._run + 1
        first = broker.since(now - round(self._lease * 1000))
        others = living(broker.between(self._run if first is None else first, self._run), self._run)
        until = passing() + self._lease - (now - max(others.values(), default=0)) / 1000
        while others and passing() < until:
            wait(LOOK_SECONDS)
            for record in self._news(broker, broker.end()):
                run = run_of(record)
                if run not in others:
                    continue
                if record.value is not None:
                    broker.append(self.run.encode(), None)
                    raise StartError(self._taken(record))
                del others[run]

    def follow(self, consumed: Callable[[], Mapping[Any, int]] | None, stop: Callable[[], object]) -> None:
        """Begin to move the time of a query on.

        :param consumed: gives the next offset it will read, of each partition; ``None``: it has no event time
        :param stop: stops it when the clock cannot go on
        """
        self._consumed, self._stop = consumed, stop
        if self._ended:
            stop()

    def give_up(self) -> None:
        """Stop the query, or the one that will be followed."""
        self._ended = True
        if self._stop is not None:
            self._stop()

    def step(self, broker: KafkaBroker) -> None:
        """Tick.

        :raises StoppedError: another run has taken over
        """
        key, asked = self.run.encode(), passing()
        offset, broker_time = broker.append(key, str(self._last).encode())
        answered = passing()
        for record in self._news(broker, offset):
            if (run_of(record) or 0) > self._run and record.value is not None:
                raise StoppedError(self._taken(record))
        self._seen = offset + 1
        believed = self._pace.follow(broker_time, asked, answered)
        if self._consumed is None:
            return
        ends, several = broker.ends()
        tick = next_tick(self._consumed(), ends, believed - self._slack * several, broker.timestamp_at)
        if tick > self._last:
            self._last = tick
            offset, _ = broker.append(key, str(tick).encode())
            if offset == self._seen:
                self._seen += 1

    def end(self, broker: KafkaBroker) -> None:
        """End the run; without waiting for a broker that is away."""
        broker.send(self.run.encode(), None)

    def _news(self, broker: KafkaBroker, end: int) -> list[Any]:
        """Return what others have written since the last look."""
        first, self._seen = self._seen, max(self._seen, end)
        return broker.between(first, end) if first < end else []

    def _taken(self, record: Any) -> str:
        owner = b"".join(value or b"" for name, value in record.headers if name == OWNER).decode("utf-8", "replace")
        return (
            f"Another process{f' ({owner})' if owner else ''} runs this job on the same system: it ticks on the topic "
            f"{self._topic}. Stop it first, or give this one a kafka.topic_prefix of its own."
        )


# -- on Kafka ----------------------------------------------------------------------------------------------------------


class KafkaBroker:
    """What a clock needs of Kafka; for one thread. Ticks are named by their offsets in partition 0 of their topic."""

    def __init__(self, stack: ExitStack, settings: Settings, ticks: str, topics: Iterable[str]) -> None:
        """Connect; ``stack`` disconnects. Topics are named without the prefix.

        :raises UnreachableError: no broker answers
        """
        kafka = settings.kafka
        self._read = [kafka.topic(topic) for topic in topics]
        self._ticks = TopicPartition(kafka.topic(ticks), 0)
        self._producer = connect_producer(kafka, self._ticks.topic, delivery_timeout=SEND_SECONDS)
        stack.callback(close_producer, self._producer, 1)
        self._admin = stack.enter_context(connect_admin(kafka))
        # what a transaction has not committed yet is unread, too
        level = {"isolation_level": "read_uncommitted"}
        consumer = connect_consumer(kafka, None, fetch_max_wait_ms=50, max_partition_fetch_bytes=65_536, **level)
        stack.callback(consumer.close)
        self._reader = TopicReader(consumer)

    def send(self, key: bytes, value: bytes | None) -> Any:
        """Send a record to the ticks; return the producer's future."""
        headers = [(OWNER, f"{socket.gethostname()}, process {os.getpid()}".encode())]
        return self._producer.send(self._ticks.topic, key=key, value=value, headers=headers, partition=0)

    def append(self, key: bytes, value: bytes | None) -> tuple[int, int]:
        """Append a record to the ticks; return its offset, and the broker's time of it."""
        stored = self.send(key, value).get(timeout=SEND_SECONDS)
        return stored.offset, int(stored.timestamp)

    def since(self, time_ms: int, partition: TopicPartition | None = None) -> int | None:
        """Return the offset of the first record of a time or later, among the ticks unless a partition is given."""
        where = partition or self._ticks
        found = self._admin.list_partition_offsets({where: time_ms})[where].offset
        return found if found >= 0 else None

    def end(self) -> int:
        """Return the offset of the next tick."""
        return kafka_topics.ends(self._admin, [self._ticks])[self._ticks]

    def between(self, first: int, end: int) -> list[Any]:
        """Return ticks by their offsets; what cannot be unpacked is skipped."""
        consumer, found = self._reader.consumer, []
        consumer.assign([self._ticks])
        consumer.seek(self._ticks, first)
        until = passing() + SEND_SECONDS
        while consumer.position(self._ticks) < end:
            if passing() > until:
                raise TimeoutError(f"The records {first} to {end} of {self._ticks.topic} do not arrive.")
            found += self._reader.read()
        return [record for record in found if record.offset < end]

    def ends(self) -> tuple[dict[TopicPartition, int], bool]:
        """Return the end of each partition that exists now, and whether they are on several brokers."""
        replicas = kafka_topics.replicas(self._admin, [self._ticks.topic, *self._read])
        ends = kafka_topics.ends(self._admin, [partition for partition in replicas if partition != self._ticks])
        return ends, len(set().union(*replicas.values())) > 1

    def timestamp_at(self, partition: TopicPartition, offset: int, end: int) -> int | None:
        """Return the timestamp of the first record from an offset up to an end; ``None`` where all are deleted.

        Of a record that this Python cannot unpack, the broker knows the time.
        """
        first = max(offset, self._admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset)
        if first >= end:
            return None
        reader, unreadable = self._reader, self._reader.unreadable
        reader.consumer.assign([partition])
        reader.consumer.seek(partition, first)
        records = reader.read(FETCH_MS, 1)
        return records[0].timestamp if records and reader.unreadable == unreadable else self._search(partition, first)

    def _search(self, partition: TopicPartition, offset: int) -> int:
        """Find the latest time of which a record at an offset or before it is: that of the record."""
        low, high = 0, 1 << 42
        while low < high:
            middle = (low + high + 1) // 2
            first = self.since(middle, partition)
            low, high = (middle, high) if first is not None and first <= offset else (low, middle - 1)
        return low


@contextmanager
def clock(settings: Settings, ticks: str, topics: Iterable[str]) -> Iterator[QueryClock]:
    """Run a clock until the block ends.

    :param ticks: the topic of the ticks, without the prefix; no other query may use it
    :param topics: the topics whose records time must not pass before they are read, without the prefix
    :raises StartError: another process runs the same job
    :raises StoppedError: at the end of the block, if the clock could not go on
    """
    seconds, topics = settings.clock.interval / 1000, list(topics)
    lease = max(LEASE_SECONDS, LEASE_INTERVALS * seconds)
    own = QueryClock(settings.kafka.topic(ticks), settings.clock.slack, lease)

    @contextmanager
    def connect() -> Iterator[Work]:
        with ExitStack() as stack:
            broker = KafkaBroker(stack, settings, ticks, topics)
            yield lambda: own.step(broker)
            # stopped in order: the next run need not wait
            own.end(broker)

    with ExitStack() as stack:
        own.claim(KafkaBroker(stack, settings, ticks, topics))
    with repeating(ticks, seconds, connect, max(SILENT_SECONDS, SILENT_INTERVALS * seconds), own.give_up):
        yield own
