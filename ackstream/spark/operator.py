"""The shell of a stateful query: one call handles all records of a shard in a batch; its state is a version and a blob.

Grouping by shard instead of by correlation-id was measured to be 30 times faster; a call costs some milliseconds,
mostly of pandas, so there are one or a few shards for each task. Only ticks advance time. A tick reaches all shards
as a row, so that a deadline fires in the batch that reads the tick, and it advances the watermark: its second is the
time of later batches without a tick.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from pyspark import Accumulator, AccumulatorParam, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from ackstream.observe import logs
from ackstream.observe.metrics import Key, Tally
from ackstream.settings import Log
from ackstream.spark.batches import BATCH_ID, QUERY_ID
from ackstream.spark.kafka import CLOCK, REHEARSAL, WATERMARK

if TYPE_CHECKING:
    import pandas as pd

    Handle = Callable[["ShardBatch"], Iterable[pd.DataFrame]]

State = tuple[int, bytes]
"""A shard's version and blob, as it dumps them."""
STATE_SCHEMA = "version INT, blob BINARY"
SHARD_KEYS = "ackstream.shard.keys"
"""The entry in a session's conf, and in a checkpoint, with the keys of the shards (JSON)."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SEED = 42
"""The seed of Spark's hash, which decides the task of a row."""
LOG = "ackstream.log"
"""The entry in a session's conf for the log of workers: JSON with the settings ``log`` and the fields of its lines."""


class Told(NamedTuple):
    """The reports of shards to the driver: by key :attr:`Shard.next_timeout` and gauges, and the counters of all."""

    timeouts: Mapping[Any, int | None] = {}
    ticks: Mapping[Any, int] = {}
    """By key, the last tick that a shard has read."""
    gauges: Mapping[Any, dict[Key, float]] = {}
    tally: Tally = Tally()

    def due(self, since: int) -> int | None:
        """Return the earliest timeout of a shard at ``since`` or later, or of one that has read a tick of that time."""
        found = ((self.ticks.get(key, 0), time) for key, time in self.timeouts.items() if time is not None)
        return min((time for tick, time in found if max(tick, time) >= since), default=None)

    def figures(self) -> Tally:
        """Return the counters, and the merged gauges."""
        found = Tally().add(self.tally)
        found.merge_gauges(self.gauges.values())
        return found


class Shard(Protocol):
    """A shard of a room, as the shell calls it; times are epoch milliseconds of event time."""

    def load(self, version: int, blob: bytes) -> None:
        """Restore the result of :meth:`dump`; only called on a new shard."""

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` for an empty state."""

    @property
    def next_timeout(self) -> int | None:
        """The earliest deadline, which the watermark must pass; ``None`` without a deadline."""

    def measure(self, tally: Tally) -> None:
        """Set the gauges of the state, and add the counters of this batch."""


S = TypeVar("S", bound=Shard)


class ShardBatch:
    """The records of one shard in a batch: one or several frames, or none after a timeout.

    :ivar frames: can be read once
    :ivar watermark: epoch milliseconds, a whole second; every record before it was read in an earlier batch
    :ivar tick: epoch milliseconds, the latest of ``ticks`` and the watermark; every record before it is read by the end
        of this batch. Both are known once the frames, which include the ticks, have been read
    :ivar told: the report of the shard, at the end of :meth:`restored`
    :ivar query_id: empty outside of a streaming query
    :ivar batch_id: -1 outside of a streaming query
    """

    def __init__(self, key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> None:
        context = TaskContext.get()
        self.key = key
        self.frames = self._without_ticks(frames)
        self.watermark = self.tick = max(state.getCurrentWatermarkMs(), 0)
        self.ticks: list[int] = []
        self.told = Told()
        self.query_id = (context and context.getLocalProperty(QUERY_ID)) or ""
        self.batch_id = int((context and context.getLocalProperty(BATCH_ID)) or -1)
        self._state = state

    @contextmanager
    def restored(self, shard: S) -> Iterator[S]:
        """Load the state into the shard; store its state and its timeout when the block ends."""
        state, before = self._state, None
        if state.exists:
            version, blob = state.get
            before = version, bytes(blob)
            shard.load(*before)
        yield shard
        dumped, timeout = shard.dump(), shard.next_timeout
        if timeout is not None:
            # a deadline that is still open waits for a later tick; Spark also refuses an earlier timeout
            timeout = max(timeout, self.tick + 1)
        tally = Tally()
        shard.measure(tally)
        gauges, tally.gauges = tally.gauges, {}
        ticks = {self.key: self.tick} if self.tick > self.watermark else {}
        self.told = Told({self.key: timeout}, ticks, {self.key: gauges}, tally)
        if dumped is not None:
            if dumped != before:
                # a state that a tick has not changed is not written
                state.update(dumped)
            if timeout is not None:
                state.setTimeoutTimestamp(timeout)
        elif state.exists:
            state.remove()

    def _without_ticks(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            ticks = frame[CLOCK].notna()
            if not ticks.any():
                yield frame
                continue
            self.ticks += (found := list(map(int, frame["timestamp"][ticks])))
            self.tick = max(self.tick, *found)
            if not ticks.all():
                yield frame[~ticks]


class _Latest(AccumulatorParam):  # type: ignore[misc]
    """Keeps the last report of each shard."""

    def zero(self, value: Told) -> Told:  # noqa: ARG002 - Spark's signature
        return Told()

    def addInPlace(self, value1: Told, value2: Told) -> Told:  # noqa: N802 - Spark's name
        # not in place: the driver reads the value while tasks end
        return Told(
            {**value1.timeouts, **value2.timeouts},
            {**value1.ticks, **value2.ticks},
            {**value1.gauges, **value2.gauges},
            value1.tally.add(value2.tally),
        )


_TOLD: WeakKeyDictionary[SparkSession, Accumulator[Told]] = WeakKeyDictionary()


def told(spark: SparkSession) -> Told:
    """Return the reports of the shards of a session's query since its start."""
    found = _TOLD.get(spark)
    return Told() if found is None else found.value


def spread(shards: int, tasks: int, hash_of: Callable[[int], int]) -> list[int]:
    """Return keys that Spark's hash distributes evenly over the tasks; it puts 0 and 1 into one of two tasks."""
    most, keys = -(-shards // tasks), Counter[int]()

    def fits(key: int) -> bool:
        keys[task := hash_of(key) % tasks] += 1
        return keys[task] <= most

    return list(islice(filter(fits, count()), shards))


def distribute(spark: SparkSession, shards: int, theirs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Choose the keys of shards for a session; return the entry for its checkpoint, which holds ``theirs`` so far."""
    # by the whole name: for a.b.c the JVM searches all jars for classes a and a.b, each time
    murmur = getattr(spark._jvm, "org.apache.spark.unsafe.hash.Murmur3_x86_32")(_SEED)  # noqa: SLF001 - no public way
    tasks = int(spark.conf.get(SHUFFLE_PARTITIONS))
    keys = theirs[SHARD_KEYS] if theirs else spread(shards, tasks, lambda key: int(murmur.hashInt(key)))
    spark.conf.set(SHARD_KEYS, json.dumps(keys))
    return {SHARD_KEYS: keys}


def shard_keys(spark: SparkSession, shards: int) -> list[int]:
    """Return the keys of shards in a job's session, in the order of the shard numbers."""
    found: list[int] = json.loads(spark.conf.get(SHARD_KEYS, "null")) or list(range(shards))
    return found


def operate(records: DataFrame, key: str, handle: Handle, output: StructType | str) -> DataFrame:
    """Apply ``handle`` to each shard that has records or whose timeout has come.

    :param records: with the column ``clock`` of the watermark (:func:`~ackstream.spark.kafka.ticked`), and ticks for
        each shard, whose column ``timestamp`` is their time in epoch milliseconds
    :param key: the column that names the shard; Spark accepts no expression here
    :param output: the columns of the frames that ``handle`` yields
    """
    spark = records.sparkSession
    if spark not in _TOLD:
        _TOLD[spark] = spark.sparkContext.accumulator(Told(), _Latest())
    drops = spark.conf.get(REHEARSAL, None) is not None
    call = operator(handle, _TOLD[spark].add, spark.conf.get(LOG, None), drops=drops)
    # last: Spark compiles no code across it, so that each row is copied before and after it
    rows = records.withWatermark(CLOCK, WATERMARK).groupBy(key)
    return rows.applyInPandasWithState(call, output, STATE_SCHEMA, "append", "EventTimeTimeout")


def operator(
    handle: Handle, tell: Callable[[Told], object] | None = None, log: str | None = None, *, drops: bool = False
) -> Callable[[tuple[Any], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard; ``drops``: without results. ``log``: see :data:`LOG`."""

    def call(key: tuple[Any], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        batch = ShardBatch(key[0], frames, state)
        if TaskContext.get() is not None:
            spare_collections()
            _log_as(log)
            logs.remark(batch=batch.batch_id)
        yield from (frame for frame in handle(batch) if not drops)
        if tell is not None:
            tell(batch.told)

    return call


@lru_cache(maxsize=1)
def _log_as(log: str | None) -> None:
    """Configure the log of a worker like that of the driver; a worker serves the queries of a session in turn."""
    if log is not None:
        fields = json.loads(log)
        logs.configure(Log(**fields.pop("log")), **fields)


@cache
def spare_collections() -> None:
    """Freeze the imported objects of a Python worker once, and disable collection within a task."""
    # a worker runs gc.collect() after every task: 0.19 s a batch with pandas loaded; the records of a batch make no
    # cycles, and the search for cycles slows every batch
    gc.collect()
    gc.freeze()
    gc.disable()
