"""The newest rows of a table of appends, for a job that follows it: the driver reads the files of new commits.

After each commit the next query of Spark over a Delta table reads the log anew: 0.3 to 0.9 s of a core, however few
rows were added.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ackstream.lake import commits, files, tables
from ackstream.lake.schemas import ALL_TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ackstream.settings import Lake

MOST_BYTES = 8_000_000
"""Of rows in memory."""

MOST_COMMITS = 50
"""For more of them at a time, Spark is faster."""


class _Part(NamedTuple):
    newest: int
    rows: pa.Table


class Tail:
    """The rows of the newest batches of a table whose batches are appended in order; others are in the table alone."""

    def __init__(self, spark: SparkSession, lake: Lake, name: str) -> None:
        """Read nothing yet.

        :param name: of a table with a column ``batch``
        """
        self._spark, self._lake, self._name = spark, lake, name
        self._columns = ALL_TABLES[name].arrow
        self._seen: tuple[str, int] | None = None
        """The table's id, and the version up to which its commits have been read."""
        self._behind = -1
        """The batch up to which rows may be missing here."""
        self._parts: dict[str, _Part] = {}
        self._frame: tuple[Any, DataFrame] | None = None
        """The last frame and what it is of: a thousand clients may begin at one batch."""

    def frame(self, batch: int) -> DataFrame:
        """Return rows of the table, all of later batches than the given one among them: see :meth:`advance`."""
        found = self.advance(batch)
        if found is None:
            return tables.read(self._spark, self._lake, self._name)
        if self._frame is None or self._frame[0] != (self._seen, batch):
            # Spark takes no table of Arrow without a row that has lists
            rows = found if found.num_rows else []
            self._frame = (self._seen, batch), self._spark.createDataFrame(rows, ALL_TABLES[self._name].schema)
        return self._frame[1]

    def advance(self, batch: int) -> pa.Table | None:
        """Forget the rows up to a batch, and return those of all later ones.

        :return: ``None`` if not all of them are here: the table has them
        """
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
        """Read what was committed since the last time."""
        table, snapshot = commits.log_and_snapshot(self._spark, tables.location(self._lake, self._name))
        now = snapshot.metadata().id(), snapshot.version()
        if self._seen == now:
            return
        if not tables.is_plain(snapshot):
            # Spark knows how to read it
            self._parts, self._seen = {}, None
        elif not self._read(table, now):
            self._parts, self._seen = {}, now
            # looked up after that version, so that all later batches have come after it; and among the rows: those of a
            # table that was made as a copy have no transactions
            self._behind = tables.newest_batch(tables.read(self._spark, self._lake, self._name))

    def _read(self, table: Any, now: tuple[str, int]) -> bool:
        """Take up the files of the commits up to a version; return whether that was possible."""
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
                # of a compaction or an erasure of old rows
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
