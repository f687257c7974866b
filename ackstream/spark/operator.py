"""The shell of a stateful query: one call handles all records of a shard in a batch, its state is a version and a blob.

Grouping by shard instead of by correlation-id was measured to be 30 times faster. Time comes from the watermark alone.
Spark calls a shard without records only when its timeout has come, so a shard compares its deadlines with the watermark
in every call.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyspark import TaskContext

from ackstream.spark.batches import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType

    Handle = Callable[["ShardBatch"], Iterable[pd.DataFrame]]
    State = tuple[int, bytes]
    """A shard's version and blob, as it dumps them."""

STATE_SCHEMA = "version INT, blob BINARY"


class Shard(Protocol):
    """What the shell needs of a room's shard; times are epoch milliseconds of event time."""

    def load(self, version: int, blob: bytes) -> None:
        """Restore what :meth:`dump` returned; only called on a new shard."""

    def dump(self) -> tuple[int, bytes] | None:
        """Return version and blob; ``None`` where nothing is left to remember."""

    @property
    def next_timeout(self) -> int | None:
        """The time the watermark must pass for something to happen; ``None``: only a record makes something happen."""


S = TypeVar("S", bound=Shard)


class ShardBatch:
    """The records of one shard in a batch: one or several frames, none where a timeout has come.

    :ivar key: of the shard
    :ivar watermark: epoch milliseconds; every record before it has been read
    :ivar query_id: of the streaming query; empty outside of one
    :ivar batch_id: number of the batch in it; -1 outside of one
    """

    def __init__(self, key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> None:
        """Take over what Spark passes to the operator."""
        context = TaskContext.get()
        self.key = key
        self.frames = frames
        self.watermark = max(state.getCurrentWatermarkMs(), 0)
        self.query_id = (context and context.getLocalProperty(QUERY_ID)) or ""
        self.batch_id = int((context and context.getLocalProperty(BATCH_ID)) or -1)
        self._state = state

    @contextmanager
    def restored(self, shard: S) -> Iterator[S]:
        """Give the shard the state it had before the batch; keep its state and its timeout when the block ends."""
        state = self._state
        if state.exists:
            version, blob = state.get
            shard.load(version, bytes(blob))
        yield shard
        dumped = shard.dump()
        if dumped is not None:
            state.update(dumped)
            if shard.next_timeout is not None:
                # Spark refuses a timeout that is not behind the watermark
                state.setTimeoutTimestamp(max(shard.next_timeout, self.watermark + 1))
        elif state.exists:
            state.remove()


def operate(records: DataFrame, key: str, handle: Handle, output: StructType) -> DataFrame:
    """Apply ``handle`` to each shard with records, or whose timeout has come.

    :param records: with the watermark column ``clock`` (:func:`~ackstream.spark.kafka.ticked`)
    :param key: the column that names the shard; Spark takes no expression here
    :param output: the columns of the frames that ``handle`` gives
    """
    return records.groupBy(key).applyInPandasWithState(
        operator(handle), output, STATE_SCHEMA, "append", "EventTimeTimeout"
    )


def operator(handle: Handle) -> Callable[[tuple[Any], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard."""

    def call(key: tuple[Any], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if TaskContext.get() is not None:
            _spare_collections()
        yield from handle(ShardBatch(key[0], frames, state))

    return call


@cache
def _spare_collections() -> None:
    """Freeze what a Python worker has imported, once, and collect nothing within a task.

    A worker runs ``gc.collect()`` after every task, which takes 0.19 s a batch with pandas loaded. The records of a
    batch make no cycles, and looking for some takes its share of every batch.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
