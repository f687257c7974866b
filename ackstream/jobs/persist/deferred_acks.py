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
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from kafka import TopicPartition
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.kafka.clients import connect_consumer, connect_producer
from ackstream.lake import tables
from ackstream.lake.messages import source_id
from ackstream.lake.schemas import DESTINATIONS
from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import read_replicated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Destination, Settings

log = logging.getLogger(__name__)

POLL_MS = 100
RETRY_SECONDS = 1.0
SEND_SECONDS = 30.0
BATCHES_AT_ONCE = 200
"""The acks of this many batches are in memory at most."""

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class DestinationChange(NamedTuple):
    """A destination is no longer waited for, or is again; it has everything up to ``batch``."""

    destination: str
    mode: Literal["sync", "async"]
    age_ms: int
    batch: int


class _SyncDestination:
    """The batches that a destination lacks, and whether it is waited for."""

    def __init__(self, settings: Destination) -> None:
        self.reported = -1
        self.sync = True
        self._settings = settings
        self._lacking: deque[tuple[int, int]] = deque()
        self._checks = 0

    def add(self, batch: int, now: int) -> None:
        if batch > self.reported:
            self._lacking.append((batch, now))

    def report(self, batch: int) -> None:
        self.reported = max(self.reported, batch)
        while self._lacking and self._lacking[0][0] <= self.reported:
            self._lacking.popleft()

    def check(self, now: int) -> int | None:
        """Compare ages once per check interval; return the age that changed the mode."""
        checks = now // self._settings.check_interval
        if checks <= self._checks:
            return None
        self._checks = checks
        age = now - self._lacking[0][1] if self._lacking else 0
        downgrade, upgrade = self._settings.downgrade_age, self._settings.upgrade_age
        downgraded = downgrade is not None and age >= downgrade
        upgraded = upgrade is not None and age < upgrade
        if not (downgraded if self.sync else upgraded):
            return None
        self.sync = not self.sync
        return age


class Backlog:
    """The batches whose acks wait until every destination that is waited for has their messages.

    A batch without messages waits for those before it, because no destination ever reports it.
    """

    def __init__(self, destinations: Iterable[Destination], *, acknowledged: int, stored: int) -> None:
        """Start after a restart, waiting for all sync destinations.

        :param acknowledged: the batch up to which all acks were sent
        :param stored: the newest batch with messages, -1 for none
        """
        self.acknowledged = acknowledged
        self._destinations = {one.name: _SyncDestination(one) for one in destinations if one.type == "sync"}
        self._stored = stored
        self._newest = acknowledged
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, batch: int, now: int, *, stored: bool = True) -> None:
        """Note a committed batch; a replayed one is ignored.

        :param stored: whether it added messages
        """
        if batch <= self._newest:
            return
        self._newest = batch
        if stored:
            self._stored = max(self._stored, batch)
        needed = min(batch, self._stored)
        self._waiting.append((batch, needed))
        for destination in self._destinations.values():
            destination.add(needed, now)

    def report(self, name: str, batch: int) -> None:
        """Note that a destination has all messages up to a batch; ignore async ones."""
        if name in self._destinations:
            self._destinations[name].report(batch)

    def check(self, now: int) -> list[DestinationChange]:
        """Compare ages with the settings where a check is due; return the changes of mode."""
        return [
            DestinationChange(name, "sync" if destination.sync else "async", age, destination.reported)
            for name, destination in sorted(self._destinations.items())
            if (age := destination.check(now)) is not None
        ]

    def ready(self, most: int) -> int:
        """Return the batch up to which acks may be sent now.

        :param most: how many batches at once
        """
        reported = (destination.reported for destination in self._destinations.values() if destination.sync)
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
        self._spark, self._settings, self._sync = spark, settings, bool(sync)
        publishers, messages = (tables.read(spark, settings.lake, name) for name in ("publishers", "messages"))
        told = F.max("told")
        acknowledged, deferred = publishers.agg(
            F.coalesce(told, F.max("batch"), F.lit(-1)), told.isNotNull()
        ).collect()[0]
        self._active = self._sync or deferred
        stored = messages.agg(F.coalesce(F.max("batch"), F.lit(-1))).collect()[0][0] if self._active else -1
        self._lock = threading.Lock()
        self._backlog = Backlog(settings.destinations, acknowledged=acknowledged, stored=stored)
        if deferred:
            waiting = publishers.where(f"batch > {acknowledged} AND acks IS NOT NULL").select("batch").distinct()
            for (batch,) in waiting.orderBy("batch").collect():
                self._backlog.add(batch, _now(), stored=False)
        self._source = source_id(spark, settings.lake) if self._active else ""
        self._changes: list[tuple[DestinationChange, str]] = []
        if self._sync:
            tables.create(spark, settings.lake, ("destinations",))
            # those that were not waited for at the end of the last run
            modes = tables.read(spark, settings.lake, "destinations").groupBy("destination")
            last = modes.agg(F.max_by("mode", "changed_at").alias("mode")).where("mode = 'async'").collect()
            self._changes = [
                (DestinationChange(row.destination, "sync", 0, -1), "start")
                for row in sorted(last)
                if row.destination in sync
            ]

    @property
    def acknowledged_through(self) -> int | None:
        """The batch up to which all acks were sent; ``None`` if no ack has ever waited."""
        return self._backlog.acknowledged if self._active else None

    def defers(self, batch: int) -> bool:
        """Return whether the acks of a batch wait; those of a replayed, acknowledged one do not."""
        return self._sync and batch > self._backlog.acknowledged

    def committed(self, batch: int, *, stored: bool) -> None:
        """Note that a batch is in the tables.

        :param stored: whether it added messages
        """
        with self._lock:
            self._backlog.add(batch, _now(), stored=stored)

    def follow(self, query: StreamingQuery) -> None:
        """Start the thread; it ends with the query."""
        if self._active:
            threading.Thread(target=self._run, args=(query,), name="ackstream-deferred-acks", daemon=True).start()

    def _run(self, query: StreamingQuery) -> None:
        kafka = self._settings.kafka
        while query.isActive:
            try:
                with (
                    closing(connect_consumer(kafka, None, auto_offset_reset="earliest")) as consumer,
                    closing(
                        connect_producer(
                            kafka, kafka.topic("publisher-acks"), delivery_timeout=SEND_SECONDS, linger_ms=5
                        )
                    ) as producer,
                ):
                    consumer.assign([TopicPartition(kafka.topic("destinations"), 0)])
                    while query.isActive:
                        self._step(consumer, producer)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop all acks
                log.warning("Sending the acks that wait for destinations failed and will be retried: %r", error)
                time.sleep(RETRY_SECONDS)

    def _step(self, consumer: Any, producer: Any) -> None:
        reports = [record.value for records in consumer.poll(timeout_ms=POLL_MS).values() for record in records]
        with self._lock:
            for value in reports:
                self._read_report(value)
            for change in self._backlog.check(_now()):
                self._changes.append((change, "upgrade" if change.mode == "sync" else "downgrade"))
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
        rows = [
            (change.destination, None if cause == "start" else change.batch, change.mode, cause, change.age_ms)
            for change, cause in self._changes
        ]
        columns = "destination string, batch long, mode string, cause string, age_ms long"
        changes = self._spark.createDataFrame(rows, columns).withColumn("changed_at", F.current_timestamp())
        path = tables.location(self._settings.lake, "destinations")
        changes.select(*DESTINATIONS.fieldNames()).coalesce(1).write.format("delta").mode("append").save(path)
        for change, cause in self._changes:
            log.warning(
                "The destination %s is %s now (%s): it has everything up to batch %d; the oldest message it lacks is "
                "%d ms old.",
                *(change.destination, change.mode, cause, change.batch, change.age_ms),
            )
        self._changes = []


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
