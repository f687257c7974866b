"""The table ``messages`` as one ordered log, the tail of that log in memory, and its state of the world.

After each commit, even of a few rows, the next query of Spark over a Delta table reads the log again: 0.3 to 0.9 s of a
core. So the driver of a job that follows the table reads the files of new commits itself. The state of the world has
one record per topic and key, its newest message, which reappears after a deletion, and each message without a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake import commits, files, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.queries import end
from ackstream.protocol.record_headers import FOR_QUEUE
from ackstream.settings import Lake

TABLE = "messages"
POSITION = ("batch", "partition", "offset")
"""The columns that order the log."""

_IDENTITY = ("partition", "offset", "received_at")
"""The columns that identify a message, which may be stored twice; a re-created topic may repeat offsets."""

_GONE = (
    "partition = gone_partition AND offset = gone_offset"
    " AND (gone_received_at IS NULL OR gone_received_at = received_at)"
)

_FOR_ALL = f"NOT coalesce(exists(headers, header -> header.name = '{FOR_QUEUE}'), false)"
"""The condition for messages that are not for one queue only."""

_COLUMNS = (*POSITION, "subject", "key", "value", "headers", "received_at", "client")


class Moment(NamedTuple):
    """A step of a batch of the query job; records deleted before it are gone."""

    batch: int
    step: int

    def after(self, steps: int) -> Moment:
        """Return the moment after further steps."""
        return self._replace(step=self.step + steps)


def source_id(spark: SparkSession, lake: Lake) -> str:
    """Return the id of the table ``messages``, which its copies remember."""
    return str(DeltaTable.forPath(spark, tables.location(lake, TABLE)).detail().select("id").collect()[0][0])


def between(tail: Tail, topics: Iterable[str], after: tuple[int, int, int], upto: tuple[int, int, int]) -> DataFrame:
    """Return the messages of topics after one position, up to and including another."""
    # text, of numbers only, as expressions are calls to the JVM; only batch has statistics that let files be skipped
    position, near = f"struct({', '.join(POSITION)})", f"batch BETWEEN {after[0]} AND {upto[0]}"
    # unless the position is the end of its batch, some messages of the batch are after it
    found = _accepted(tail.frame(after[0] if after == end(after[0]) else after[0] - 1), topics)
    return found.where(f"{near} AND {position} > {_struct(after)} AND {position} <= {_struct(upto)}")


def world(spark: SparkSession, lake: Lake, topic: str, newest: int, moment: Moment) -> DataFrame:
    """Return the state of the world of a topic after batch ``newest``, without records deleted before ``moment``."""
    messages = _accepted(tables.read(spark, lake, TABLE), [topic]).where(F.col("batch") <= newest)
    itself = F.when(F.col("key").isNull(), F.struct(*_IDENTITY))
    last = F.max_by(F.struct(*_COLUMNS), F.struct(*POSITION)).alias("last")
    records = messages.groupBy("key", itself.alias("itself")).agg(last).select("last.*")
    before = F.struct("batch", "step") < F.struct(*[F.lit(number).cast("long") for number in moment])
    deleted = tables.read(spark, lake, "sow_deletes").where(before & (F.col("subject") == topic))
    gone = deleted.select(*[F.col(name).alias(f"gone_{name}") for name in _IDENTITY])
    return records.join(gone, F.expr(_GONE), "left_anti").select(*_COLUMNS)


def delete(records: DataFrame, lake: Lake, moment: Moment, own: dict[str, Column], query_id: str) -> None:
    """Remove records of :func:`world`; a replayed batch changes nothing. ``own``: client, cid and deleted_at."""
    batch, step = moment
    same = {name: F.lit(number).cast("long") for name, number in (("batch", batch), ("step", step))}
    same |= {"query_id": F.lit(query_id), **own}
    rows = records.withColumns(same).select(*ALL_TABLES["sow_deletes"].names)
    tables.append(rows, lake, "sow_deletes", query_id, batch * STEPS + step)


STEPS = 1_000_000
"""An upper bound of the steps of a batch."""


def _accepted(rows: DataFrame, topics: Iterable[str]) -> DataFrame:
    return rows.where("reason IS NULL").where(_FOR_ALL).where(F.col("subject").isin(sorted(topics)))


def _struct(position: tuple[int, int, int]) -> str:
    batch, partition, offset = position
    return f"struct({batch}L, {partition}, {offset}L)"


MOST_BYTES = 8_000_000
"""The limit of rows in memory."""
MOST_COMMITS = 50
"""Number of commits at a time above which Spark is faster."""


class _Part(NamedTuple):
    newest: int
    rows: pa.Table


class Tail:
    """The rows of the newest batches, which are appended in order; earlier rows are in the table only."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake
        self._columns = ALL_TABLES[TABLE].arrow
        self._seen: tuple[str, int] | None = None
        """The table's id, and the version up to which its commits have been read."""
        self._behind = -1
        """The batch up to which rows may be missing here."""
        self._parts: dict[str, _Part] = {}
        self._frame: tuple[Any, DataFrame] | None = None
        """The last frame with its version and batch: a thousand clients may start at one batch."""

    def frame(self, batch: int) -> DataFrame:
        """Return rows of the table, including all of later batches than ``batch``: see :meth:`advance`."""
        found = self.advance(batch)
        if found is None:
            return tables.read(self._spark, self._lake, TABLE)
        if self._frame is None or self._frame[0] != (self._seen, batch):
            # Spark refuses an empty table of Arrow with lists
            rows = found if found.num_rows else []
            self._frame = (self._seen, batch), self._spark.createDataFrame(rows, ALL_TABLES[TABLE].schema)
        return self._frame[1]

    def advance(self, batch: int) -> pa.Table | None:
        """Drop the rows up to a batch, and return those of all later batches; ``None``: only the table has all."""
        self._forget(batch)
        self._follow()
        if self._seen is None or batch < self._behind:
            return None
        rows = pa.concat_tables([self._columns.empty_table(), *(part.rows for part in self._parts.values())])
        return rows.filter(pc.field("batch") > batch)

    def _forget(self, batch: int) -> None:
        self._behind = max(self._behind, batch)
        self._parts = {path: part for path, part in self._parts.items() if part.newest > self._behind}

    def _follow(self) -> None:
        """Read the commits since the last call."""
        table, snapshot = commits.log_and_snapshot(self._spark, tables.location(self._lake, TABLE))
        now = snapshot.metadata().id(), snapshot.version()
        if self._seen == now:
            return
        if not tables.is_plain(snapshot):
            # only Spark can read it
            self._parts, self._seen = {}, None
        elif not self._read(table, now):
            self._parts, self._seen = {}, now
            # looked up after that version, so that later batches are in later commits; and from the rows, as a copied
            # table has no transactions
            self._behind = tables.newest_batch(tables.read(self._spark, self._lake, TABLE))

    def _read(self, table: Any, now: tuple[str, int]) -> bool:
        """Add the files of the commits up to a version; return whether that was possible."""
        seen, (table_id, version) = self._seen, now
        if seen is None or seen[0] != table_id or not 0 < version - seen[1] <= MOST_COMMITS:
            return False
        changed = commits.changed_files(self._spark, table, seen[1], version)
        if changed is None:
            return False
        added, removed = changed
        for path in removed:
            self._parts.pop(path, None)
        for file in added:
            newest = json.loads(file.get("stats") or "{}").get("maxValues", {}).get("batch")
            if newest is not None and newest <= self._behind:
                # a compaction or an erasure of old rows
                continue
            room = MOST_BYTES - sum(part.rows.nbytes for part in self._parts.values())
            rows = files.read(self._spark, table, file, self._columns, room)
            if rows is None:
                if newest is None:
                    return False
                self._forget(newest)
            elif rows.num_rows:
                self._parts[file["path"]] = _Part(pc.max(rows.column("batch")).as_py(), rows)
        self._seen = now
        return True
