"""The progress of a query, read beside it: its offsets, records that were deleted unread, and figures of its batches.

Spark keeps its offsets in the checkpoint, where no Kafka tool sees them, so they are committed to a consumer group too.
The copy is for operators only: no query starts from it. Spark keeps the progress of the last batches on the driver. It
is read once a second, so that batches do no work for it.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import takewhile
from typing import Any

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.errors import StartError, StoppedError
from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import connect_admin, connect_consumer
from ackstream.observe import metrics
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.metrics import FIGURES, Tally
from ackstream.settings import Settings
from ackstream.settings.kafka import real
from ackstream.spark.batches import Work, repeating
from ackstream.spark.clock import ClockReading, QueryClock

Offsets = Mapping[TopicPartition, int]
Transactions = dict[TopicPartition, tuple[int, float]]

log = logging.getLogger(__name__)
SECONDS, LOOK_SECONDS = 1.0, 5.0
"""The intervals of checks of a query, and of checks of its topics and its lag."""
TRANSACTION_SECONDS = 10.0
"""A transaction that is open for this time is reported."""
_TRANSACTION = (
    "An open transaction in the topic %s, partition %d, holds back all records from offset %d on, and the timeouts of"
    " %s, for %.0f s now. `kafka-transactions.sh --bootstrap-server %s describe-producers --topic %s --partition %d`"
    " names its producer; `find-hanging` finds transactions that will never end."
)
STOP_SECONDS, STOP_POLL_SECONDS = 30.0, 0.02
"""The time for the running batch to finish when a job is stopped."""
SIGN_SECONDS = 20.0
"""A job without a sign of life for this time does not reach Kafka."""
_TOTAL = "triggerExecution"
"""Spark's name of the whole batch among the phases."""
_KAFKA_OFFSET, _RESTORED = "KafkaSourceOffset", "SerializedOffset"
"""Spark's classes of offsets in a batch, and of offsets from a checkpoint."""


def stop_in_order(query: StreamingQuery) -> None:
    """Stop a query at the end of the running batch, which Spark would interrupt and repeat at the next start."""
    last, end = query.lastProgress, time.monotonic() + STOP_SECONDS
    # a query that is behind runs batches without a pause, so that its trigger is always active
    while query.isActive and query.status["isTriggerActive"] and query.lastProgress == last and time.monotonic() < end:
        time.sleep(STOP_POLL_SECONDS)
    query.stop()


def has_looked(query: StreamingQuery) -> bool:
    """Return whether a query has looked for records once, and has processed a batch if there were any."""
    return query.lastProgress is not None or query.status["message"].startswith("Waiting")


def consumed_offsets(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offsets of the query after its last finished batch; empty before the first."""
    return _offsets(query.lastProgress, "endOffset")


def planned_offsets(query: StreamingQuery) -> Callable[[], Offsets]:
    """Return a function that finds the next offsets of the query after its newest batch, which may be running."""
    # there is no public way: the progress of a batch comes at its end. Most calls find the same text
    execution = query._jsq.streamingQuery()  # noqa: SLF001
    text, known = "", dict[TopicPartition, int]()

    def planned() -> Offsets:
        nonlocal text, known
        progress = execution.availableOffsets()
        if (found := progress.toString()) != text:
            text, known = found, _known(progress)
        return known

    return planned


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
                f"The topic {topic} was re-created while {query} read it: its offsets are those of the former topic."
                " A restart names the ways out."
            )


def compare_partitions(known: dict[str, int], found: Mapping[str, int], query: str) -> None:
    """Raise a StoppedError if a topic has fewer partitions than before; remember the new numbers in ``known``."""
    for topic, count in found.items():
        if count < known.get(topic, 0):
            raise StoppedError(
                f"The topic {topic} was re-created with {count} partitions while {query} ran, and had {known[topic]}"
                " before: a producer would wait for the missing ones. A restart continues with the new ones."
            )
    known.update(found)


def open_transactions(known: Transactions, stable: Offsets, ends: Offsets, now: float) -> Transactions:
    """Return the start of the oldest open transaction in each partition, and the time of the check that found it."""
    # ``known``: from the previous check; ``stable``: the next offset of readers, before the end while one is open
    found = {partition: (offset, now) for partition, offset in stable.items() if offset < ends.get(partition, 0)}
    return {
        partition: before if (before := known.get(partition, new))[0] == new[0] else new
        for partition, new in found.items()
    }


class TopicWatch:
    """The topics of a query at the last check; the first check is at its start."""

    def __init__(self, settings: Settings, query: str, reads: Iterable[str], topics: Collection[str]) -> None:
        """Prepare; ``reads`` are those of the job's ``topics`` (without the prefix) whose offsets count."""
        self._settings, self._query, self._topics = settings, query, topics
        self.names = {settings.kafka.topic(topic): topic.removeprefix(real("")) for topic in reads}
        """The topics that it reads, by their real names."""
        self._partitions: dict[str, int] = {}
        self._transactions: Transactions = {}
        self.looked = -math.inf

    def look(self, consumer: Any, admin: Any, known: dict[str, str], now: float) -> Offsets:
        """Return the next offsets of readers; report transactions, and raise a StoppedError if the query must end."""
        before, self.looked = self.looked, now
        compare_ids(known, kafka_topics.ids(admin, known.keys() | self.names.keys()), self._query)
        try:
            compare_partitions(self._partitions, kafka_topics.check(admin, self._settings, self._topics), self._query)
        except StartError as error:
            raise StoppedError(f"{error} It was changed while {self._query} ran.") from error
        partitions = _partitions_of(consumer, self.names)
        ends = kafka_topics.ends(admin, partitions)
        stable: Offsets = consumer.end_offsets(partitions)
        self._transactions = open_transactions(self._transactions, stable, ends, now)
        for partition, (offset, since) in self._transactions.items():
            if before < since + TRANSACTION_SECONDS <= now:
                bootstrap = self._settings.kafka.bootstrap
                log.warning(_TRANSACTION, *partition, offset, self._query, now - since, bootstrap, *partition)
        for topic, name in self.names.items():
            held = [now - since for partition, (_, since) in self._transactions.items() if partition.topic == topic]
            FIGURES.set(metrics.TRANSACTION, self._query, name, value=max(held, default=0))
        return stable


def committer(
    settings: Settings, query: StreamingQuery, reads: Iterable[str], topics: Collection[str], known: dict[str, str]
) -> AbstractContextManager[None]:
    """Commit the query's offsets to its consumer group until the block ends, and check its topics.

    Records that were deleted unread, and transactions that block others, are reported. A query is stopped if a topic
    that it reads is re-created (Spark would continue at the former topic's offset), or one that it writes with fewer
    partitions, or if one has no longer the configuration that a start demands: the block then ends with a StoppedError.

    :param reads: the job's input, without the prefix; ``topics``: all of its topics
    :param known: the ids of the topics (real names) whose offsets the query's checkpoint has
    """
    kafka, watch = settings.kafka, TopicWatch(settings, query.name, reads, topics)
    committed: dict[TopicPartition, int] = {}
    total = 0

    @contextmanager
    def connect() -> Iterator[Work]:
        group = kafka.group_of(query.name)
        with closing(connect_consumer(kafka, group)) as consumer, connect_admin(kafka) as admin:

            def first() -> Offsets:
                # otherwise Spark ends the query
                goes_on = kafka.on_data_loss == "continue"
                return dict(consumer.beginning_offsets(_partitions_of(consumer, watch.names))) if goes_on else {}

            beginnings = first()

            def commit() -> None:
                nonlocal committed, beginnings, total
                offsets = consumed_offsets(query)
                if (now := time.monotonic()) >= watch.looked + LOOK_SECONDS:
                    ends = watch.look(consumer, admin, known, now)
                    # the first batch may hang: until its end, the offsets at which it starts count
                    started = query._jsq.streamingQuery().committedOffsets()  # noqa: SLF001
                    for topic, count in lags(offsets or _known(started, _RESTORED), ends).items():
                        FIGURES.set(metrics.LAG, query.name, watch.names[topic], value=count)
                if offsets == committed:
                    return
                for partition, count in lost_records(committed or first_offsets(query), offsets, beginnings).items():
                    total += count
                    FIGURES.count(metrics.LOST, query.name, watch.names.get(partition.topic, "clock"), by=count)
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
    tally.count(metrics.BATCHES_DONE, name)
    tally.observe(metrics.BATCH_SECONDS, name, values=(seconds,))
    for phase, milliseconds in phases.items():
        if phase != _TOTAL:
            tally.count(metrics.PHASE_SECONDS, name, phase, by=milliseconds / 1000)
    rows = sum(source.get("numInputRows") or 0 for source in progress.get("sources") or ())
    tally.count(metrics.INPUT_ROWS, name, by=rows)
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    tally.set(metrics.LAST_BATCH, name, value=began + seconds)
    states = progress.get("stateOperators") or ()
    if states:
        tally.set(metrics.STATE_BYTES, name, value=sum(state.get("memoryUsedBytes") or 0 for state in states))


def newest(progresses: Any, last: int) -> list[Mapping[str, Any]]:
    """Return the batches after ``last``, in order, from an array of the JVM with the oldest first."""
    new = list(takewhile(lambda progress: progress.batchId() > last, reversed(progresses)))
    return [json.loads(progress.json()) for progress in reversed(new)]


class QueryObservation:
    """The batches of one query, each counted once; ``last`` is the number of the last one, -1 before the first."""

    def __init__(self, name: str) -> None:
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
            tally.set(metrics.OVERDUE, self._name, value=reading.overdue_ms / 1000)
            tally.set(metrics.AHEAD, self._name, value=reading.ahead_ms / 1000)
            if reading.signed_ago is not None:
                tally.set(metrics.SIGN, self._name, value=time.time() - reading.signed_ago)
            if reading.tick_ms:
                tally.set(metrics.TICK, self._name, value=reading.tick_ms / 1000)
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

    FIGURES.set(metrics.QUERY_ACTIVE, name, value=1)
    FIGURES.follow(f"batches of {name}", lambda: observation.tally)
    expected = nullcontext() if clock is None else HEALTH.expecting(kafka, SIGN_SECONDS)
    try:
        with expected, repeating(f"observation of {name}", SECONDS, lambda: nullcontext(look)):
            yield
    finally:
        FIGURES.set(metrics.QUERY_ACTIVE, name, value=0)
        FIGURES.unfollow(f"batches of {name}")
