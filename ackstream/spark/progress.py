"""The progress of a query, read beside it: its offsets, records that were deleted unread, and figures of its batches.

Spark keeps its offsets in the checkpoint, where no Kafka tool sees them, so they are committed to a consumer group too.
The copy is for people only: no query starts from it. Spark keeps the progress of the last batches on the driver. It is
read once a second, so that batches do no work for it.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.errors import StoppedError
from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import connect_admin, connect_consumer
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.metrics import (
    AHEAD,
    BATCH_SECONDS,
    BATCHES_DONE,
    FIGURES,
    INPUT_ROWS,
    LAG,
    LAST_BATCH,
    LOST,
    OVERDUE,
    PHASE_SECONDS,
    QUERY_ACTIVE,
    SIGN,
    STATE_BYTES,
    TICK,
    Tally,
)
from ackstream.spark.batches import repeating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Kafka
    from ackstream.spark.batches import Work
    from ackstream.spark.clock import ClockReading, QueryClock

    Offsets = Mapping[TopicPartition, int]

log = logging.getLogger(__name__)
SECONDS, LOOK_SECONDS = 1.0, 5.0
"""The intervals of looks at a query, and of looks at the ids of its topics and at its lag."""
SIGN_SECONDS = 20.0
"""A job without a sign of life for this time does not reach Kafka."""
_TOTAL = "triggerExecution"
"""Spark's name of the whole batch among the phases."""
_KAFKA_OFFSET, _RESTORED = "KafkaSourceOffset", "SerializedOffset"
"""Spark's classes of offsets in a batch, and of offsets from a checkpoint."""


def consumed_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets of the query after its last finished batch; empty before the first."""
    return _offsets(query.lastProgress, "endOffset")


def planned_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets of the query after its newest batch, which may be running; empty between batches."""
    # there is no public way: the progress of a batch comes at its end
    return _known(query._jsq.streamingQuery().availableOffsets())  # noqa: SLF001


def _known(progress: Any, *others: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    offsets = progress.valuesIterator()
    while offsets.hasNext():
        offset = offsets.next()
        if offset.getClass().getSimpleName() in (_KAFKA_OFFSET, *others):
            # offsets of tables have another format
            with suppress(AttributeError, TypeError, ValueError):
                found |= _partitions(offset.json())
    return found


def first_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the start of its first batch; empty before the end of that batch, and for a new checkpoint."""
    batches = query.recentProgress
    return _offsets(batches[0] if batches else None, "startOffset")


def _offsets(progress: Any, side: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for source in progress.sources if progress is not None else ():
        if source.description.startswith("Kafka"):
            found |= _partitions(getattr(source, side) or "null")
    return found


def _partitions(offsets: str) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in (json.loads(offsets) or {}).items()
        for partition, offset in partitions.items()
    }


def lost_records(before: Offsets, after: Offsets, beginnings: Offsets) -> dict[TopicPartition, int]:
    """Count the deleted records of each partition that a query skipped between two next offsets."""
    # ``beginnings``: the first offsets in Kafka in between; records that were deleted later are not counted
    counts = {
        partition: min(after.get(partition, offset), beginnings.get(partition, 0)) - offset
        for partition, offset in before.items()
    }
    return {partition: count for partition, count in counts.items() if count > 0}


def lags(offsets: Offsets, ends: Offsets) -> Counter[str]:
    """Count the unread records of each topic, in partitions that a query has begun to read, from its next offsets."""
    found = Counter[str]()
    for partition, end in ends.items():
        if partition in offsets:
            found[partition.topic] += max(0, end - offsets[partition])
    return found


def _partitions_of(consumer: Any, topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name in topics for number in consumer.partitions_for_topic(name) or ()]


def compare_ids(known: dict[str, str], found: Mapping[str, str], query: str) -> None:
    """Raise a StoppedError if a topic has another id than before; remember the ids of others in ``known``."""
    for topic, identity in found.items():
        if known.setdefault(topic, identity) != identity:
            raise StoppedError(
                f"The topic {topic} was created anew while {query} read it: its offsets are those of the former topic."
                " A restart names the ways out."
            )


def committer(
    kafka: Kafka, query: StreamingQuery, group: str, topics: Iterable[str], known: dict[str, str], *, measures: bool
) -> AbstractContextManager[None]:
    """Commit the query's offsets to a consumer group until the block ends; report records that were deleted unread.

    A query whose topic is created anew is stopped: Spark would go on at the former topic's offset. The block then ends
    with a StoppedError.

    :param topics: the job's input, without the prefix
    :param known: the ids of the topics (real names) whose offsets the query's checkpoint has
    :param measures: whether to measure the lag
    """
    names = {kafka.topic(topic): topic for topic in topics}
    committed: dict[TopicPartition, int] = {}
    total, looked = 0, -math.inf

    @contextmanager
    def connect() -> Iterator[Work]:
        with closing(connect_consumer(kafka, group)) as consumer, connect_admin(kafka) as admin:

            def first() -> dict[TopicPartition, int]:
                if kafka.on_data_loss == "stop":
                    # Spark ends the query instead
                    return {}
                found: dict[TopicPartition, int] = consumer.beginning_offsets(_partitions_of(consumer, names))
                return found

            beginnings = first()

            def commit() -> None:
                nonlocal committed, beginnings, total, looked
                offsets = consumed_offsets(query)
                if (now := time.monotonic()) >= looked + LOOK_SECONDS:
                    looked = now
                    compare_ids(known, kafka_topics.ids(admin, names), query.name)
                    ends = consumer.end_offsets(_partitions_of(consumer, names)) if measures else {}
                    # the first batch may hang: until its end, the offsets at which it starts count
                    started = query._jsq.streamingQuery().committedOffsets()  # noqa: SLF001
                    for topic, count in lags(offsets or _known(started, _RESTORED), ends).items():
                        FIGURES.set(LAG, query.name, names[topic], value=count)
                if offsets == committed:
                    return
                for partition, count in lost_records(committed or first_offsets(query), offsets, beginnings).items():
                    total += count
                    FIGURES.count(LOST, query.name, names.get(partition.topic, "clock"), by=count)
                    log.error(
                        "%s records of %s were deleted before %s read them; %s since its start.",
                        *(count, "-".join(map(str, partition)), query.name, total),
                    )
                consumer.commit({name: OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()})
                committed, beginnings = offsets, first()

            yield commit

    return repeating("committer", SECONDS, connect, give_up=query.stop)


def take(progress: Mapping[str, Any], tally: Tally) -> None:
    """Count a batch by its progress, Spark's JSON."""
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


def newest(progresses: Any, last: int) -> list[Mapping[str, Any]]:
    """Return the batches after ``last``, in order, from an array of the JVM with the oldest first."""
    new = list(takewhile(lambda progress: progress.batchId() > last, reversed(progresses)))
    return [json.loads(progress.json()) for progress in reversed(new)]


class QueryObservation:
    """The batches of one query, each counted once; ``last`` is the number of the last one, -1 before the first."""

    def __init__(self, name: str) -> None:
        """Start before the first batch of a query."""
        self._name = name
        self.last = -1
        self.tally = Tally()

    def look(self, progresses: Iterable[Mapping[str, Any]], reading: ClockReading | None) -> None:
        """Take new batches, and the state of the clock; ``None``: the query has no clock."""
        tally = Tally().add(self.tally)
        for progress in progresses:
            self.last = progress["batchId"]
            take(progress, tally)
        if reading is not None:
            tally.set(OVERDUE, self._name, value=reading.overdue_ms / 1000)
            tally.set(AHEAD, self._name, value=reading.ahead_ms / 1000)
            if reading.signed_ago is not None:
                tally.set(SIGN, self._name, value=time.time() - reading.signed_ago)
            if reading.tick_ms:
                tally.set(TICK, self._name, value=reading.tick_ms / 1000)
        # replaced, not changed: another thread reads it
        self.tally = tally


@contextmanager
def observed(query: StreamingQuery, name: str, clock: QueryClock | None) -> Iterator[None]:
    """Count the batches of a query until the block ends, and expect its signs of life."""
    observation, kafka = QueryObservation(name), f"Kafka, for {name}"

    def look() -> None:
        reading = None if clock is None else clock.reading()
        if reading is not None and reading.signed_ago is not None and reading.signed_ago < SIGN_SECONDS:
            HEALTH.beat(kafka, time.monotonic())
        # there is no public way that does not read all of it, field by field
        observation.look(newest(query._jsq.recentProgress(), observation.last), reading)  # noqa: SLF001

    FIGURES.set(QUERY_ACTIVE, name, value=1)
    FIGURES.follow(f"batches of {name}", lambda: observation.tally)
    expected = nullcontext() if clock is None else HEALTH.expecting(kafka, SIGN_SECONDS)
    try:
        with expected, repeating(f"observation of {name}", SECONDS, lambda: nullcontext(look)):
            yield
    finally:
        FIGURES.set(QUERY_ACTIVE, name, value=0)
        FIGURES.unfollow(f"batches of {name}")
