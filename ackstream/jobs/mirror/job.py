"""The mirror of a destination: all rows of the table ``messages`` go to that of another lake, each once.

The destination's newest batch is its position, as batches are copied whole and in order: no checkpoint could be lost,
compaction of either table is harmless, and rows appended before a crash are not written again. An append is a
transaction with its last batch as the version, refused if the table has a later one: a second mirror adds nothing.
"""

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import accumulate

import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.errors import SettingsError, StartError
from ackstream.kafka.connection import Outbox
from ackstream.kafka.parties import PARTIES
from ackstream.kafka.topics import prepare
from ackstream.lake import tables
from ackstream.lake.messages import TABLE, Tail, source_id
from ackstream.lake.schemas import ALL_TABLES
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.metrics import FIGURES, MIRRORED
from ackstream.protocol.messages import Replicated, write_replicated
from ackstream.settings import Destination, Settings
from ackstream.spark.session import check_disks, driver, run_with_settings

SOURCE = "ackstream.source"
"""The property of a destination's table that names the table its rows come from."""

BATCHES_AT_ONCE, ROWS_AT_ONCE = 10_000, 1_000_000
SEND_SECONDS = 30.0
COPY, COPY_SECONDS = "The mirror", 600.0
"""Health check: the mirror looks for new messages at least this often; copying a million of them takes a while."""


def main() -> None:
    """Run the mirror of the destination that the command line names, as ``spark-submit`` starts it."""

    def start(settings: Settings) -> None:
        destination = named(settings, sys.argv[1:])
        prepare(settings, PARTIES["mirror"].topics, PARTIES["mirror"])
        with driver(settings, f"ackstream-mirror-{destination.name}") as (spark, stop):
            run(spark, settings, destination, stop)

    run_with_settings(start, "mirror")


def named(settings: Settings, arguments: Sequence[str]) -> Destination:
    """Return the destination that the arguments name; SettingsError if it is missing or not in the settings."""
    known = {destination.name: destination for destination in settings.destinations}
    if not known:
        raise SettingsError("There are no destinations: name one in [[destinations]] of the settings.")
    name = arguments[0] if len(arguments) == 1 else ""
    if name not in known:
        raise SettingsError(
            f"There is no destination {name!r}: write `ackstream submit mirror NAME`, where NAME is one of"
            f" {', '.join(known)}."
        )
    return known[name]


def run(spark: SparkSession, settings: Settings, destination: Destination, stop: threading.Event) -> None:
    """Copy, and report the destination's position, every interval until ``stop`` is set; raises as :class:`Mirror`."""
    mirror = Mirror(spark, settings, destination)
    topic = settings.kafka.topic("destinations")
    with HEALTH.expecting(COPY, COPY_SECONDS), closing(Outbox(settings.kafka, SEND_SECONDS)) as outbox:
        reported = None
        while True:
            last = mirror.last
            if last != reported:
                value = write_replicated(Replicated(destination.name, mirror.source, last))
                outbox.send([(topic, destination.name, value, ())])
                reported = last
                FIGURES.set(MIRRORED, destination.name, value=last)
            HEALTH.beat(COPY, time.monotonic())
            if stop.wait(0 if mirror.copy() else destination.ack_conflation_interval / 1000):
                return


class Mirror:
    """The table of a destination, and the one its rows come from."""

    def __init__(self, spark: SparkSession, settings: Settings, destination: Destination) -> None:
        """Create a missing table. Raises StartError: its disk, no messages yet, or another lake's table."""
        check_disks(spark, {"destinations.path": destination.path})
        self._spark = spark
        self._here = settings.lake
        self._there = settings.lake.model_copy(update={"path": destination.path})
        self._path = tables.location(self._there, TABLE)
        tables.read(spark, self._here, TABLE)
        self.source = source_id(spark, self._here)
        tables.create(spark, self._there, [TABLE])
        self._claim()
        self.last = self._position()
        """The batch up to which the destination is complete; -1: none."""
        self._tail = Tail(spark, self._here)

    def copy(self) -> bool:
        """Copy new batches, up to a limit; return whether there are more."""
        few = self._tail.advance(self.last)
        if few is not None:
            if few.num_rows:
                until = pc.max(few.column("batch")).as_py()
                where = self._there, TABLE, self.source, until
                self._advance(until, appended=tables.append_rows(self._spark, few, *where, follows=self.last))
            return False
        new = tables.read(self._spark, self._here, TABLE).where(F.col("batch") > self.last)
        counts = new.groupBy("batch").count().orderBy("batch").limit(BATCHES_AT_ONCE).collect()
        if not counts:
            return False
        whole = part([row["count"] for row in counts], ROWS_AT_ONCE)
        rows = sum(row["count"] for row in counts[:whole])
        until = counts[whole - 1].batch
        # the source may have columns of its owner, or of another release
        known = [name for name in ALL_TABLES[TABLE].names if name in new.columns]
        copied = new.where(F.col("batch") <= until).select(*known)
        where = self._there, TABLE, self.source, until
        self._advance(until, appended=tables.append(copied, *where, count=rows, follows=self.last))
        return whole < len(counts) or len(counts) == BATCHES_AT_ONCE

    def _advance(self, until: int, *, appended: bool) -> None:
        # otherwise another mirror has appended, and the table has the position
        self.last = until if appended else self._position()

    def _position(self) -> int:
        """Return the newest batch of rows, or of appends whose rows were deleted (StartError: by a restore) since."""
        newest = tables.newest_batch(tables.read(self._spark, self._there, TABLE))
        appended = tables.transactions(self._spark, self._there, TABLE).get(self.source, -1)
        if newest < appended:
            history = DeltaTable.forPath(self._spark, self._path).history().where("operation IN ('RESTORE', 'WRITE')")
            # a deletion is its owner's right
            if history.agg(F.max_by("operation", "version")).collect()[0][0] == "RESTORE":
                raise StartError(
                    f"The table at {self._path} was restored to an earlier version: it lacks batches"
                    f" {newest + 1} to {appended}, which were copied and reported. Restore it to the version before"
                    " that, or empty the directory, so that everything is copied again."
                )
        return max(newest, appended)

    def _claim(self) -> None:
        """Record in the table's properties which table its rows come from."""
        table = DeltaTable.forPath(self._spark, self._path)
        source = table.detail().select("properties").collect()[0][0].get(SOURCE)
        if source == self.source:
            return
        if source is not None or not table.toDF().isEmpty():
            raise StartError(
                f"The table at {self._path} has the messages of another lake: empty the directory, or point the"
                " destination's path to another one."
            )
        self._spark.sql(f"ALTER TABLE delta.`{self._path}` SET TBLPROPERTIES ('{SOURCE}' = '{self.source}')")


def part(counts: Sequence[int], rows: int) -> int:
    """Return how many leading batches have up to ``rows`` rows together; at least one."""
    return max(1, sum(total <= rows for total in accumulate(counts)))
