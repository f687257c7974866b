"""The table ``messages`` as one ordered log, and its state of the world.

The state of the world has one record per topic and key, its newest message; a message without a key is a record of its
own. A deleted record reappears with the next message of its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.queries import end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, SparkSession

    from ackstream.lake.tail import Tail
    from ackstream.settings import Lake


TABLE = "messages"
POSITION = ("batch", "partition", "offset")
"""The columns that order the log."""

_IDENTITY = ("partition", "offset", "received_at")
"""The columns of a message, stored once or twice; one of a topic that was made anew may have the others' offset."""

_GONE = (
    "partition = gone_partition AND offset = gone_offset"
    " AND (gone_received_at IS NULL OR gone_received_at = received_at)"
)

_COLUMNS = (*POSITION, "subject", "key", "value", "headers", "received_at", "client")


class Moment(NamedTuple):
    """A step of a batch of the query job; records deleted before it are gone."""

    batch: int
    step: int

    def after(self, steps: int) -> Moment:
        """Return the moment so many steps later."""
        return self._replace(step=self.step + steps)


def source_id(spark: SparkSession, lake: Lake) -> str:
    """Return the id of the table ``messages``, by which its copies know it."""
    return str(DeltaTable.forPath(spark, tables.location(lake, TABLE)).detail().select("id").collect()[0][0])


def between(tail: Tail, topics: Iterable[str], after: tuple[int, int, int], upto: tuple[int, int, int]) -> DataFrame:
    """Return the messages of topics after one position, up to and including another.

    :param tail: of the table
    """
    # as text, which has numbers alone: expressions are calls to the JVM. Only batch has statistics to skip files by
    position, near = f"struct({', '.join(POSITION)})", f"batch BETWEEN {after[0]} AND {upto[0]}"
    # unless the position is its end, some of that batch are after it
    found = _accepted(tail.frame(after[0] if after == end(after[0]) else after[0] - 1), topics)
    return found.where(f"{near} AND {position} > {_struct(after)} AND {position} <= {_struct(upto)}")


def world(spark: SparkSession, lake: Lake, topic: str, newest: int, moment: Moment) -> DataFrame:
    """Return the state of the world of a topic.

    :param newest: the last batch of the log to include
    :param moment: deletes before it are applied
    """
    messages = _accepted(tables.read(spark, lake, TABLE), [topic]).where(F.col("batch") <= newest)
    itself = F.when(F.col("key").isNull(), F.struct(*_IDENTITY))
    last = F.max_by(F.struct(*_COLUMNS), F.struct(*POSITION)).alias("last")
    records = messages.groupBy("key", itself.alias("itself")).agg(last).select("last.*")
    before = F.struct("batch", "step") < F.struct(*[F.lit(number).cast("long") for number in moment])
    deleted = tables.read(spark, lake, "sow_deletes").where(before & (F.col("subject") == topic))
    gone = deleted.select(*[F.col(name).alias(f"gone_{name}") for name in _IDENTITY])
    return records.join(gone, F.expr(_GONE), "left_anti").select(*_COLUMNS)


def delete(records: DataFrame, lake: Lake, moment: Moment, own: dict[str, Column], query_id: str) -> None:
    """Remove records from the state of the world; a replayed batch changes nothing.

    :param records: of :func:`world`
    :param own: columns with one value for all: client, cid, deleted_at
    """
    batch, step = moment
    same = {name: F.lit(number).cast("long") for name, number in (("batch", batch), ("step", step))}
    same |= {"query_id": F.lit(query_id), **own}
    rows = records.withColumns(same).select(*ALL_TABLES["sow_deletes"].names)
    tables.append(rows, lake, "sow_deletes", query_id, batch * STEPS + step)


STEPS = 1_000_000
"""An upper bound of the steps of a batch."""


def _accepted(rows: DataFrame, topics: Iterable[str]) -> DataFrame:
    accepted = rows.where("reason IS NULL")
    return accepted.where(F.col("subject").isin(sorted(topics)))


def _struct(position: tuple[int, int, int]) -> str:
    batch, partition, offset = position
    return f"struct({batch}L, {partition}, {offset}L)"
