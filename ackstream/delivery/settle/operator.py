"""The shard operator of settle: applyInPandasWithState around :class:`Shard`.

One call handles all records of a shard in a batch. The state is a version and one blob.
"""

from __future__ import annotations

import gc
from itertools import starmap
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from ackstream.delivery.settle.settled import ReportRecord, Settled
from ackstream.delivery.settle.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql.streaming.state import GroupState

    from ackstream.delivery.settle.rules import SettleRules

# a Python worker of Spark runs gc.collect() after every task: what is alive now need not be looked at then
gc.collect()
gc.freeze()

DELIVERY, IGNORED, MESSAGE = "delivery", "ignored", "message"
"""Values of ``kind`` in the output: a row of ``deliveries``, one of ``ignored_reports``, a record for Kafka."""

TEXT, NUMBER, BYTES = StringType(), LongType(), BinaryType()
DELIVERY_FIELDS = {
    "id": TEXT, "writer": TEXT, "reader": TEXT, "role": TEXT, "first": NUMBER, "last": NUMBER, "response": BYTES,
    "auto": TEXT, "epoch": NUMBER, "acknowledged_at": NUMBER, "partition": IntegerType(), "offset": NUMBER,
}  # fmt: skip
IGNORED_FIELDS = {
    "id": TEXT, "reason": TEXT, "detail": TEXT, "writer": TEXT, "reader": TEXT, "first": NUMBER, "last": NUMBER,
    "value": BYTES, "received_at": NUMBER, "topic": TEXT, "partition": IntegerType(), "offset": NUMBER,
}  # fmt: skip
MESSAGE_FIELDS = {"key": TEXT, "value": BYTES}
_FIELDS = {"kind": TEXT, **DELIVERY_FIELDS, **IGNORED_FIELDS, **MESSAGE_FIELDS}
OUTPUT_SCHEMA = StructType([StructField(name, kind) for name, kind in _FIELDS.items()])
STATE_SCHEMA = StructType([StructField("version", IntegerType()), StructField("blob", BYTES)])
_INPUT = ("timestamp", "source", "partition", "offset", "value")


def settle_function(
    rules: SettleRules,
) -> Callable[[tuple[int], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """Return the function that Spark calls for each shard with records, or whose timeout has come."""

    def settle(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        shard = Shard(rules, int(key[0]))
        watermark = max(state.getCurrentWatermarkMs(), 0)
        if state.exists:
            version, blob = state.get
            shard.load(version, bytes(blob), watermark)
        settled = shard.process([record for frame in frames for record in read_records(frame)], watermark)
        state.update(shard.dump())
        if shard.next_timeout is not None:
            state.setTimeoutTimestamp(max(shard.next_timeout, watermark + 1))
        yield write_frame(settled)

    return settle


def read_records(frame: pd.DataFrame) -> Iterator[ReportRecord]:
    """Read the rows of the input (see ``query.records``)."""
    return starmap(ReportRecord, zip(*(frame[name].tolist() for name in _INPUT), strict=True))


def write_frame(settled: Settled) -> pd.DataFrame:
    """Lay out rows and messages in the columns of :data:`OUTPUT_SCHEMA`."""
    kinds = (
        (DELIVERY, DELIVERY_FIELDS, [[getattr(row, name) for name in DELIVERY_FIELDS] for row in settled.deliveries]),
        (IGNORED, IGNORED_FIELDS, [[getattr(row, name) for name in IGNORED_FIELDS] for row in settled.ignored]),
        (MESSAGE, MESSAGE_FIELDS, list(settled.messages())),
    )
    columns: dict[str, list[Any]] = {name: [] for name in OUTPUT_SCHEMA.names}
    for kind, fields, rows in kinds:
        given = dict(zip(fields, zip(*rows, strict=True), strict=False))
        for name, column in columns.items():
            column.extend([kind] * len(rows) if name == "kind" else given.get(name, [None] * len(rows)))
    return pd.DataFrame(columns, dtype=object)
