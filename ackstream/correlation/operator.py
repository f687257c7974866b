"""The shard operator: applyInPandasWithState around :class:`Shard`.

One call handles all records of a shard in a batch. The state is a version and one blob.
"""

from __future__ import annotations

import gc
from itertools import starmap, zip_longest
from typing import TYPE_CHECKING

import msgspec
import pandas as pd
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from ackstream.correlation.emissions import Emission, Writer
from ackstream.correlation.pending import Record
from ackstream.correlation.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql.streaming.state import GroupState

    from ackstream.correlation.rules import Rules

# A Python worker of Spark runs gc.collect() after every task; with pandas loaded that is 0.19 s a batch. What is alive
# after these imports stays alive: it need not be looked at again. Nor is anything within a task: the records of a batch
# make no cycles, and looking for some takes its share of every batch.
gc.collect()
gc.freeze()
gc.disable()

STATE_SCHEMA = StructType([StructField("version", IntegerType()), StructField("blob", BinaryType())])
BINARY_FIELDS = {"key", "value", "spring_correlation"}
OUTPUT_SCHEMA = StructType(
    [StructField(name, BinaryType() if name in BINARY_FIELDS else StringType()) for name in Emission.__struct_fields__]
)


class _Header(msgspec.Struct):
    key: str
    value: bytes | None = None


# Spark's to_json writes binary as base64, which is how msgspec reads bytes
_headers = msgspec.json.Decoder(list[_Header]).decode


def shard_function(
    rules: Rules,
) -> Callable[[tuple[int], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard with records, or whose timeout has come."""

    def correlate(_key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        query_id = (context and context.getLocalProperty("sql.streaming.queryId")) or ""
        batch_id = int((context and context.getLocalProperty("streaming.sql.batchId")) or -1)
        writer = Writer(rules, query_id, batch_id)
        shard = Shard(rules, writer)
        if state.exists:
            version, blob = state.get
            shard.load(version, bytes(blob))
        watermark = max(state.getCurrentWatermarkMs(), 0)
        shard.process([record for frame in frames for record in read_records(frame)], watermark)
        dumped = shard.dump()
        if dumped is not None:
            state.update(dumped)
            timeout = shard.next_timeout
            if timeout is not None:
                state.setTimeoutTimestamp(max(timeout, watermark + 1))
        elif state.exists:
            state.remove()
        yield write_frame(writer.emissions)

    return correlate


def read_records(frame: pd.DataFrame) -> Iterator[Record]:
    """Read the rows of the input frame (see ``query.records``)."""
    columns = [frame[name].tolist() for name in _INPUT]
    headers = [read_headers(text) if text else {} for text in frame["headers"].tolist()]
    yield from starmap(Record, zip(*columns, headers, strict=True))


_INPUT = (
    "timestamp", "source", "partition", "offset", "hash", "correlation_id", "key", "value", "size"
)  # fmt: skip


def read_headers(text: str) -> dict[str, bytes]:
    """Read record headers as ``query.records`` passes them; names in lower case, of a repeated one the last counts."""
    return {header.key.lower(): header.value for header in _headers(text) if header.value is not None}


def write_frame(emissions: list[Emission]) -> pd.DataFrame:
    """Lay out emissions in the columns of :data:`OUTPUT_SCHEMA`."""
    columns = zip(*map(msgspec.structs.astuple, emissions), strict=True)
    return pd.DataFrame(dict(zip_longest(Emission.__struct_fields__, columns, fillvalue=())), dtype=object)
