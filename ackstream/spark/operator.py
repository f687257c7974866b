"""The shell of a stateful query: one call handles all records of a shard in a batch, its state is a version and a blob.

Grouping by shard instead of by correlation-id was measured to be 30 times faster. Time comes from ticks alone: each
reaches all shards as a row, so that a deadline fires in the batch that reads the tick, and moves the watermark, which
later batches without a tick go by. A shard compares its deadlines with that time in every call, and tells the driver
what it waits for.

A call costs some milliseconds, mostly of pandas, so there are few shards: one for each task, or some. Spark's hash
decides the task of a shard by its key, and puts 0 and 1 into one of two tasks; the keys are chosen so that it spreads
them evenly (:func:`spread`).
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from pyspark import AccumulatorParam, TaskContext

from ackstream.observe import logs
from ackstream.observe.figures import Tally
from ackstream.settings import Log
from ackstream.spark.batches import BATCH_ID, QUERY_ID
from ackstream.spark.kafka import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pandas as pd
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType

    from ackstream.observe.figures import Key

    Handle = Callable[["ShardBatch"], Iterable[pd.DataFrame]]
    State = tuple[int, bytes]
    """A shard's version and blob, as it dumps them."""

STATE_SCHEMA = "version INT, blob BINARY"
SHARD_KEYS = "ackstream.shard.keys"
"""The entry in a session's conf with the keys of the shards, as JSON; a checkpoint remembers them under this name."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SEED = 42
"""Of Spark's hash, by which rows find their task."""
LOG = "ackstream.log"
"""The entry in a session's conf for the log of workers: JSON with the settings ``log`` and what its lines are about."""


class Told(NamedTuple):
    """What shards have told the driver.

    :ivar timeouts: what they wait for, by their keys: see :attr:`Shard.next_timeout`
    :ivar asked: whether a tick has asked all of them, as each tick does
    :ivar gauges: what each of them holds, by their keys
    :ivar tally: what they have counted
    """

    timeouts: Mapping[Any, int | None] = {}
    asked: bool = False
    gauges: Mapping[Any, dict[Key, float]] = {}
    tally: Tally = Tally()

    def due(self, since: int) -> int | None:
        """Return the earliest time from a given one on that one of them waits for."""
        return min((time for time in self.timeouts.values() if time is not None and time >= since), default=None)

    def figures(self) -> Tally:
        """Return what they have counted, and what they hold together."""
        found = Tally().add(self.tally)
        found.merge_gauges(self.gauges.values())
        return found


class Shard(Protocol):
    """What the shell needs of a room's shard; times are epoch milliseconds of event time."""

    def load(self, version: int, blob: bytes) -> None:
        """Restore what :meth:`dump` returned; only called on a new shard."""

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` where nothing is left to remember."""

    @property
    def next_timeout(self) -> int | None:
        """The time the watermark must pass for something to happen; ``None``: only a record makes something happen."""

    def measure(self, tally: Tally) -> None:
        """Set the gauges of what it holds, and add what this batch has counted."""


S = TypeVar("S", bound=Shard)


class ShardBatch:
    """The records of one shard in a batch: one or several frames, none where a timeout has come.

    :ivar key: of the shard
    :ivar frames: can be read once
    :ivar watermark: epoch milliseconds; every record before it was read in an earlier batch
    :ivar tick: epoch milliseconds, not before the watermark; every record before it has been read by the end of this
        batch. It is known when the frames have been read, among which the ticks are
    :ivar told: what the shard waits for, once it has been restored
    :ivar query_id: of the streaming query; empty outside of one
    :ivar batch_id: number of the batch in it; -1 outside of one
    """

    def __init__(self, key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> None:
        """Take over what Spark passes to the operator."""
        context = TaskContext.get()
        self.key = key
        self.frames = self._without_ticks(frames)
        self.watermark = self.tick = max(state.getCurrentWatermarkMs(), 0)
        self.told = Told()
        self.query_id = (context and context.getLocalProperty(QUERY_ID)) or ""
        self.batch_id = int((context and context.getLocalProperty(BATCH_ID)) or -1)
        self._state = state

    @contextmanager
    def restored(self, shard: S) -> Iterator[S]:
        """Give the shard the state it had before the batch; keep its state and its timeout when the block ends."""
        state, before = self._state, None
        if state.exists:
            version, blob = state.get
            before = version, bytes(blob)
            shard.load(*before)
        yield shard
        dumped, timeout = shard.dump(), shard.next_timeout
        if timeout is not None:
            # what this batch has not let happen waits for a later tick; nor would Spark take an earlier timeout
            timeout = max(timeout, self.tick + 1)
        tally = Tally()
        shard.measure(tally)
        gauges, tally.gauges = tally.gauges, {}
        self.told = Told({self.key: timeout}, self.tick > self.watermark, {self.key: gauges}, tally)
        if dumped is not None:
            if dumped != before:
                # what a tick has not changed is not written
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
            self.tick = max(self.tick, int(frame["timestamp"][ticks].max()))
            if not ticks.all():
                yield frame[~ticks]


class _Latest(AccumulatorParam):  # type: ignore[misc]
    """Keeps what each shard has told last."""

    def zero(self, value: Told) -> Told:  # noqa: ARG002 - Spark's signature
        return Told()

    def addInPlace(self, value1: Told, value2: Told) -> Told:  # noqa: N802 - Spark's name
        # not in place: the driver reads it while tasks end
        return Told(
            {**value1.timeouts, **value2.timeouts},
            value1.asked or value2.asked,
            {**value1.gauges, **value2.gauges},
            value1.tally.add(value2.tally),
        )


_TOLD: WeakKeyDictionary[SparkSession, Accumulator[Told]] = WeakKeyDictionary()


def told(spark: SparkSession) -> Told:
    """Return what the shards of a session's query have told since its start."""
    found = _TOLD.get(spark)
    return Told() if found is None else found.value


def spread(shards: int, tasks: int, hash_of: Callable[[int], int]) -> list[int]:
    """Return keys for shards, such that no task gets more of them than another one has to.

    :param hash_of: Spark's hash, which decides the task
    """
    most, taken, found = -(-shards // tasks), Counter[int](), []
    for key in count():
        task = hash_of(key) % tasks
        if taken[task] < most:
            taken[task] += 1
            found.append(key)
            if len(found) == shards:
                break
    return found


def distribute(spark: SparkSession, shards: int, theirs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Choose the keys of shards for a job's session.

    :param theirs: what its checkpoint remembers; nothing for a new one, whose shards are spread over the tasks
    :return: what it is to remember
    """
    # by the whole name: for a.b.c the JVM looks for classes a and a.b in all jars, each time
    murmur = getattr(spark._jvm, "org.apache.spark.unsafe.hash.Murmur3_x86_32")(_SEED)  # noqa: SLF001 - no public way
    # the first releases took the numbers of the shards for their keys
    keys: list[int] = theirs.get(SHARD_KEYS, list(range(shards)))
    if not theirs:
        tasks = int(spark.conf.get(SHUFFLE_PARTITIONS))
        keys = spread(shards, tasks, lambda key: int(murmur.hashInt(key)))
    spark.conf.set(SHARD_KEYS, json.dumps(keys))
    return {SHARD_KEYS: keys}


def shard_keys(spark: SparkSession, shards: int) -> list[int]:
    """Return the keys of shards, in the order of their numbers, as their job has chosen them for its session."""
    found: list[int] = json.loads(spark.conf.get(SHARD_KEYS, "null")) or list(range(shards))
    return found


def operate(records: DataFrame, key: str, handle: Handle, output: StructType) -> DataFrame:
    """Apply ``handle`` to each shard with records, or whose timeout has come.

    :param records: with the watermark column ``clock`` (:func:`~ackstream.spark.kafka.ticked`), and in the column
        ``timestamp`` of the ticks, which are there for each shard, their time in epoch milliseconds
    :param key: the column that names the shard; Spark takes no expression here
    :param output: the columns of the frames that ``handle`` gives
    """
    spark = records.sparkSession
    _TOLD[spark] = spark.sparkContext.accumulator(Told(), _Latest())
    call = operator(handle, _TOLD[spark].add, spark.conf.get(LOG, None))
    return records.groupBy(key).applyInPandasWithState(call, output, STATE_SCHEMA, "append", "EventTimeTimeout")


def operator(
    handle: Handle, tell: Callable[[Told], object] | None = None, log: str | None = None
) -> Callable[[tuple[Any], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard.

    :param tell: gets what the shard waits for
    :param log: how a worker logs, as :data:`LOG` has it
    """

    def call(key: tuple[Any], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        batch = ShardBatch(key[0], frames, state)
        if TaskContext.get() is not None:
            spare_collections()
            _log_as(log)
            logs.remark(batch=batch.batch_id)
        yield from handle(batch)
        if tell is not None:
            tell(batch.told)

    return call


@cache
def _log_as(log: str | None) -> None:
    """Let a worker log as its driver does."""
    if log is not None:
        fields = json.loads(log)
        logs.configure(Log(**fields.pop("log")), **fields)


@cache
def spare_collections() -> None:
    """Freeze what a Python worker has imported, once, and collect nothing within a task.

    A worker runs ``gc.collect()`` after every task, which takes 0.19 s a batch with pandas loaded. The records of a
    batch make no cycles, and looking for some takes its share of every batch.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
