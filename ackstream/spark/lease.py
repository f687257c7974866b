"""The lease of a job, which one run holds: its claim, its signs of life, and the broker's time of these.

The name of a run is the offset of its claim, a record on the lease topic of its job, and the key of its signs of life.
A claim is refused while another run shows signs of life. A run that was killed is replaced after
:data:`LEASE_SECONDS` of silence; a run that was only paused finds the signs of its successor and ends.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from kafka import TopicPartition

from ackstream.errors import StoppedError, TakenError
from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import close_producer, connect_admin, connect_consumer, connect_producer
from ackstream.kafka.reader import TopicReader
from ackstream.protocol.record_headers import OWNER
from ackstream.settings import Kafka

log = logging.getLogger(__name__)
LEASE_SECONDS, LEASE_INTERVALS = 3.0, 3
LOOK_SECONDS = 0.2
SEND_SECONDS = 30.0
MAX_DIGITS = 19
CLAIM = b"claim"
"""The key of a claim; its record header ``owner`` names the process."""

GAIN = 0.1
"""The clock may run faster by this share of the elapsed time, to catch up with a broker's clock that is ahead."""
JUMP_MS = 1_000
STEADY_SECONDS = 60.0
"""A clock that has jumped ahead, and has run steadily for this long since, was corrected."""

_ALIVE = b"0"
_PASSING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def passing() -> float:
    """Return the seconds of a clock that cannot be set, and that runs while the machine sleeps."""
    return time.clock_gettime(_PASSING)


def run_of(record: Any) -> int | None:
    """Return the run of a sign of life; ``None`` for any other record."""
    key = record.key or b""
    is_run = key.isdigit() and len(key) <= MAX_DIGITS and int(key) < record.offset
    return int(key) if is_run else None


def living(records: Iterable[Any], own: int) -> dict[int, int]:
    """Return the runs except ``own`` that have not ended, with the time (ms) of their claim or last sign of life."""
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


def lease_seconds(interval: float) -> float:
    """Return the silence after which a run has ended; ``interval`` (s) is that of signs of life."""
    return max(LEASE_SECONDS, LEASE_INTERVALS * interval)


class Lease:
    """The lease of one run of a job."""

    def __init__(self, topic: str, seconds: float) -> None:
        """Prepare a run; ``topic`` is a real name, and another run counts as ended after ``seconds`` of silence."""
        self._topic, self._seconds = topic, seconds
        self._run = self._seen = 0

    @property
    def run(self) -> str:
        """The name of the run."""
        return str(self._run)

    def claim(self, log: LeaseLog, wait: Callable[[float], object] = time.sleep) -> None:
        """Begin the run once the previous one has certainly ended; raise a TakenError if that is alive."""
        self._run, now = log.append(CLAIM, b"")
        self._seen = self._run + 1
        first = log.since(now - round(self._seconds * 1000))
        others = living(log.between(self._run if first is None else first, self._run), self._run)
        # a sign of life in the future comes from a broker whose clock was set back
        until = passing() + self._seconds - max(0, now - max(others.values(), default=0)) / 1000
        while others and passing() < until:
            wait(LOOK_SECONDS)
            for record in self._news(log, log.end()):
                run = run_of(record)
                if run not in others:
                    continue
                if record.value is not None:
                    log.append(self.run.encode(), None)
                    raise TakenError(self._taken(record))
                del others[run]

    def sign(self, log: LeaseLog) -> int:
        """Send a sign of life; return its append time in epoch milliseconds; StoppedError: another run took over."""
        offset, broker_time = log.append(self.run.encode(), _ALIVE)
        for record in self._news(log, offset):
            if (run_of(record) or 0) > self._run and record.value is not None:
                raise StoppedError(self._taken(record))
        self._seen = offset + 1
        return broker_time

    def end(self, log: LeaseLog) -> None:
        """End the run, without waiting for an unreachable broker."""
        log.send(self.run.encode(), None)

    def _news(self, log: LeaseLog, end: int) -> list[Any]:
        """Return the new records up to an end."""
        first, self._seen = self._seen, max(self._seen, end)
        return log.between(first, end) if first < end else []

    def _taken(self, record: Any) -> str:
        owner = b"".join(value or b"" for name, value in record.headers if name == OWNER).decode("utf-8", "replace")
        return (
            f"Another process{f' ({owner})' if owner else ''} runs this job on the same system: it shows signs of life"
            f" on the topic {self._topic}. Stop it first, or give this one a kafka.topic_prefix of its own."
        )


def watching(log: LeaseLog, seconds: float) -> Iterator[bool]:
    """Yield at each check whether another process's run has ended or been silent for the lease; write nothing."""
    # Silence counts from the first check on, without the time that a broker takes to answer.
    run, seen, until = None, log.end(), passing() + seconds
    while True:
        asked, first = passing(), seen
        seen = max(first, log.end())
        for record in log.between(first, seen) if first < seen else ():
            found = run_of(record)
            if found is not None and record.value is not None:
                run, until = found, passing() + seconds
            elif found is not None and found == run:
                until = asked
        until += max(0.0, passing() - asked - LOOK_SECONDS)
        yield passing() >= until


class Pace:
    """Follows a broker's clock, at most by :data:`GAIN` faster than real time: a jump expires no deadline.

    After a jump that lasts, which is a correction, the broker's time is accepted once the clock has been steady for
    :data:`STEADY_SECONDS`. A clock that is set back is followed; the query's time stands still until it has caught up.
    """

    def __init__(self) -> None:
        self._known: tuple[float, float] | None = None
        self._jumped: _Answer | None = None

    def follow(self, broker_time: int, asked: float, answered: float) -> int:
        """Return the time to accept for a broker's (epoch ms); ``asked``, ``answered``: :func:`passing` around it."""
        answer = _Answer(broker_time, asked, answered)
        latest, before = self._known or (broker_time, asked)
        believed = min(broker_time, int(latest + (answered - before) * 1000 * (1 + GAIN)))
        if broker_time - believed <= JUMP_MS:
            self._jumped = None
        elif self._jumped is None:
            self._jumped = answer
            log.warning("The broker's clock jumped ahead by %s ms; time follows it slowly.", broker_time - believed)
        elif not self._jumped.agrees(answer):
            self._jumped = answer
        elif asked >= self._jumped.answered + STEADY_SECONDS:
            log.warning("The broker's clock has been steady since: time jumps by %s ms.", broker_time - believed)
            self._jumped, believed = None, broker_time
        # follows a slower clock, but not at once a clock that is set back for a moment
        self._known = max(believed, latest + (asked - before) * 1000 * (1 - GAIN)), asked
        return believed


class _Answer(NamedTuple):
    """A broker's time (epoch ms) with the seconds, of :func:`passing`, between which it was read."""

    time: int
    asked: float
    answered: float

    def agrees(self, later: _Answer) -> bool:
        """Return whether the clock has run steadily until a later answer."""
        gone = later.time - self.time
        least, most = (later.asked - self.answered) * 1000, (later.answered - self.asked) * 1000
        return least - JUMP_MS <= gone <= most + JUMP_MS


class LeaseLog:
    """A lease topic on Kafka, which has one partition; for one thread."""

    def __init__(self, stack: ExitStack, kafka: Kafka, topic: str) -> None:
        """Connect, until ``stack`` closes; ``topic`` is a real name. Raise an UnreachableError if no broker answers."""
        self.partition = TopicPartition(topic, 0)
        self._producer = connect_producer(kafka, topic, delivery_timeout=SEND_SECONDS)
        stack.callback(close_producer, self._producer, 1)
        self.admin = stack.enter_context(connect_admin(kafka))
        # records of an open transaction are unread, too
        level = {"isolation_level": "read_uncommitted"}
        consumer = connect_consumer(kafka, None, fetch_max_wait_ms=50, max_partition_fetch_bytes=65_536, **level)
        stack.callback(consumer.close)
        self.reader = TopicReader(consumer)

    def send(self, key: bytes, value: bytes | None, topic: str | None = None) -> Any:
        """Send a record to the lease topic, or to partition 0 of another one; return the producer's future."""
        headers = [(OWNER, f"{socket.gethostname()}, process {os.getpid()}".encode())]
        return self._producer.send(topic or self.partition.topic, key=key, value=value, headers=headers, partition=0)

    def append(self, key: bytes, value: bytes | None) -> tuple[int, int]:
        """Append a record; return its offset and its append time in epoch milliseconds."""
        stored = self.send(key, value).get(timeout=SEND_SECONDS)
        return stored.offset, int(stored.timestamp)

    def since(self, time_ms: int, partition: TopicPartition | None = None) -> int | None:
        """Return the first offset of a time or later, on the lease topic unless a partition is given."""
        where = partition or self.partition
        found = self.admin.list_partition_offsets({where: time_ms})[where].offset
        return found if found >= 0 else None

    def end(self) -> int:
        """Return the offset of the next record."""
        return kafka_topics.ends(self.admin, [self.partition])[self.partition]

    def between(self, first: int, end: int) -> list[Any]:
        """Return records by their offsets, without records that cannot be decompressed."""
        return list(self.reader.between(self.partition, first, end))
