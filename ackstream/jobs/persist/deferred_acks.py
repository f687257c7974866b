"""Acks that wait until the sync destinations have the messages (brokers.md 1.1 A12, A13).

Waiting acks are stored in the table ``publishers`` and read from there, so they survive the process, and a destination
that is silent for hours fills no memory. The column ``told`` of each row is the batch up to which acks had been sent
when it was written; those sent since then are sent again after a crash, with the same ids.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from kafka import TopicPartition
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.kafka.clients import connect_consumer, connect_producer
from ackstream.kafka.reader import TopicReader
from ackstream.lake import tables
from ackstream.lake.messages import source_id
from ackstream.lake.schemas import DESTINATIONS
from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import MAX_NUMBER, read_replicated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Destination, Settings

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
SEND_SECONDS = 30.0
BATCHES_AT_ONCE = 200
"""The acks of this many batches are in memory at most."""

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class DestinationChange(NamedTuple):
    """A destination is no longer waited for, or is again; it has everything up to ``batch``."""

    destination: str
    batch: int
    mode: str
    cause: str
    age_ms: int


@dataclass
class _SyncDestination:
    settings: Destination
    reported: int = -1
    sync: bool = True
    checks: int = 0


class Backlog:
    """The batches whose acks wait until every destination that is waited for has their messages.

    A batch without messages waits for those before it, because no destination ever reports it.
    """

    def __init__(
        self,
        destinations: Iterable[Destination],
        *,
        acknowledged: int,
        stored: int,
        written: int = -1,
        deferred: Iterable[int] = (),
        now: int = 0,
    ) -> None:
        """Start after a restart, waiting for all sync destinations.

        :param acknowledged: the batch up to which all acks were sent
        :param stored: the newest batch with messages, -1 for none
        :param written: the newest batch with states, -1 for none
        :param deferred: the batches whose acks are in the table and were not sent, ascending
        """
        self.acknowledged = acknowledged
        self._written, self._deferred = written, frozenset(deferred)
        self._destinations = {one.name: _SyncDestination(one) for one in destinations if one.type == "sync"}
        self._stored = stored
        self._newest = acknowledged
        self._waiting: deque[tuple[int, int]] = deque()
        """Batches, and the batch with messages that each of them needs."""
        self._lacking: deque[tuple[int, int]] = deque()
        """Batches with messages that some destination lacks, and their times."""
        for batch in sorted(self._deferred):
            self.add(batch, now, stored=False)

    def defers(self, batch: int) -> bool:
        """Return whether the acks of a batch wait: for a sync destination, or for acks before them that still do.

        Those of a replayed batch wait if its row has them, whatever the settings are now.
        """
        if batch <= self._written:
            return batch in self._deferred
        return batch > self.acknowledged and bool(self._destinations or self._waiting)

    def add(self, batch: int, now: int, *, stored: bool = True) -> None:
        """Note a committed batch, and whether it added messages; a replayed one is ignored."""
        if batch <= self._newest:
            return
        self._newest = batch
        if stored:
            self._stored = max(self._stored, batch)
        needed = min(batch, self._stored)
        self._waiting.append((batch, needed))
        if needed > self._everywhere:
            self._lacking.append((needed, now))

    def report(self, name: str, batch: int) -> None:
        """Note that a destination has all messages up to a batch; ignore async ones."""
        destination = self._destinations.get(name)
        if destination is None:
            return
        destination.reported = max(destination.reported, batch)
        while self._lacking and self._lacking[0][0] <= self._everywhere:
            self._lacking.popleft()

    @property
    def _everywhere(self) -> int:
        return min((one.reported for one in self._destinations.values()), default=MAX_NUMBER)

    def check(self, now: int) -> list[DestinationChange]:
        """Compare ages with the settings, once per check interval; return the changes of mode."""
        changes = []
        for name, destination in sorted(self._destinations.items()):
            rules = destination.settings
            checks = now // rules.check_interval
            if checks <= destination.checks:
                continue
            destination.checks = checks
            age = next((now - since for batch, since in self._lacking if batch > destination.reported), 0)
            downgraded = rules.downgrade_age is not None and age >= rules.downgrade_age
            upgraded = rules.upgrade_age is not None and age < rules.upgrade_age
            if downgraded if destination.sync else upgraded:
                destination.sync = not destination.sync
                mode = ("sync", "upgrade") if destination.sync else ("async", "downgrade")
                changes.append(DestinationChange(name, destination.reported, *mode, age))
        return changes

    def ready(self, most: int) -> int:
        """Return the batch up to which acks may be sent now, those of so many batches at most."""
        reported = (one.reported for one in self._destinations.values() if one.sync)
        durable = min(reported, default=None)
        found = self.acknowledged
        for batch, needed in islice(self._waiting, most):
            if durable is not None and needed > durable:
                break
            found = batch
        return found

    def confirm(self, batch: int) -> None:
        """Note that the acks of all batches up to this one were sent."""
        self.acknowledged = batch
        while self._waiting and self._waiting[0][0] <= batch:
            self._waiting.popleft()


class DeferredAcks:
    """Follows the destinations in a thread beside the query, and sends waiting acks, those of a client in order."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        """Restore what was waiting before the restart.

        :raises StartError: if a table's schema is not that of this version
        """
        sync = {destination.name for destination in settings.destinations if destination.type == "sync"}
        self._spark, self._settings = spark, settings
        publishers, messages = (tables.read(spark, settings.lake, name) for name in ("publishers", "messages"))
        told = F.max("told")
        newest = F.coalesce(F.max("batch"), F.lit(-1))
        found = publishers.agg(F.coalesce(told, newest), told.isNotNull(), newest)
        acknowledged, deferred, written = found.collect()[0]
        self._active = bool(sync) or deferred
        stored = messages.agg(F.coalesce(F.max("batch"), F.lit(-1))).collect()[0][0] if self._active else -1
        self._lock = threading.Lock()
        waiting = []
        if deferred:
            rows = publishers.where(f"batch > {acknowledged} AND acks IS NOT NULL").select("batch").distinct()
            waiting = [batch for (batch,) in rows.orderBy("batch").collect()]
        self._backlog = Backlog(
            settings.destinations,
            acknowledged=acknowledged,
            stored=stored,
            written=written,
            deferred=waiting,
            now=_now(),
        )
        self._source = source_id(spark, settings.lake) if self._active else ""
        self._changes: list[DestinationChange] = []
        if sync:
            tables.create(spark, settings.lake, ("destinations",))
            # those that were not waited for at the end of the last run
            modes = tables.read(spark, settings.lake, "destinations").groupBy("destination")
            last = modes.agg(F.max_by("mode", "changed_at").alias("mode")).where("mode = 'async'").collect()
            self._changes = [
                DestinationChange(row.destination, -1, "sync", "start", 0)
                for row in sorted(last)
                if row.destination in sync
            ]

    @property
    def acknowledged_through(self) -> int | None:
        """The batch up to which all acks were sent; ``None`` if no ack has ever waited."""
        return self._backlog.acknowledged if self._active else None

    def defers(self, batch: int) -> bool:
        """Return whether the acks of a batch wait: see :meth:`Backlog.defers`."""
        with self._lock:
            return self._backlog.defers(batch)

    def committed(self, batch: int, *, stored: bool) -> None:
        """Note that a batch is in the tables, and whether it added messages."""
        with self._lock:
            self._backlog.add(batch, _now(), stored=stored)

    def follow(self, query: StreamingQuery) -> None:
        """Start the thread; it ends with the query."""
        if self._active:
            threading.Thread(target=self._run, args=(query,), name="ackstream-deferred-acks", daemon=True).start()

    def _run(self, query: StreamingQuery) -> None:
        kafka, acks = self._settings.kafka, self._settings.kafka.topic("publisher-acks")
        while query.isActive:
            try:
                with (
                    closing(TopicReader(connect_consumer(kafka, None, auto_offset_reset="earliest"))) as reader,
                    closing(connect_producer(kafka, acks, delivery_timeout=SEND_SECONDS, linger_ms=5)) as producer,
                ):
                    reader.consumer.assign([TopicPartition(kafka.topic("destinations"), 0)])
                    while query.isActive:
                        self._step(reader, producer)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop all acks
                log.warning("Sending the acks that wait for destinations failed and will be retried: %r", error)
                time.sleep(RETRY_SECONDS)

    def _step(self, reader: TopicReader, producer: Any) -> None:
        reports = [record.value for record in reader.read()]
        with self._lock:
            for value in reports:
                self._read_report(value)
            self._changes += self._backlog.check(_now())
            batch = self._backlog.ready(BATCHES_AT_ONCE)
        if self._changes:
            self._record_changes()
        if batch > self._backlog.acknowledged:
            self._send(batch, producer)

    def _read_report(self, value: bytes | None) -> None:
        try:
            report = read_replicated(value)
        except RecordError as error:
            log.warning("%s", error)
            return
        if report.source == self._source:
            self._backlog.report(report.destination, report.batch)
        else:
            log.warning("The destination %s has the messages of another lake.", report.destination)

    def _send(self, batch: int, producer: Any) -> None:
        publishers = tables.read(self._spark, self._settings.lake, "publishers")
        span = f"batch > {self._backlog.acknowledged} AND batch <= {batch} AND acks IS NOT NULL"
        topic = self._settings.kafka.topic("publisher-acks")
        sent = [
            producer.send(topic, bytes(ack), client.encode())
            for client, acks in publishers.where(span).orderBy("batch").select("client", "acks").collect()
            for ack in _decode(acks)
        ]
        for future in sent:
            future.get(SEND_SECONDS)
        with self._lock:
            self._backlog.confirm(batch)

    def _record_changes(self) -> None:
        """Write the changes of mode to their table and to the log."""
        now = datetime.now(timezone.utc)
        rows = [
            (change.destination, now, None if change.cause == "start" else change.batch, *change[2:])
            for change in self._changes
        ]
        path = tables.location(self._settings.lake, "destinations")
        self._spark.createDataFrame(rows, DESTINATIONS).coalesce(1).write.format("delta").mode("append").save(path)
        for destination, batch, mode, cause, age_ms in self._changes:
            log.warning(
                "The destination %s is %s now (%s): it has everything up to batch %d; the oldest message it lacks is "
                "%d ms old.",
                *(destination, mode, cause, batch, age_ms),
            )
        self._changes = []


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
