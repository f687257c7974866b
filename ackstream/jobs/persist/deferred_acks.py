"""Sending the acks that wait for the sync destinations once those have the messages (brokers.md 1.1 A12, A13).

Waiting acks are stored in the table ``publishers`` and read from there, so they survive the process, and a destination
that is silent for hours fills no memory. The column ``told`` of each row is the batch up to which acks had been sent
when it was written; those sent since then are sent again after a crash, with the same ids.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import TopicPartition
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.persist.replication import Backlog, DestinationChange
from ackstream.kafka.clients import connect_consumer, connect_producer
from ackstream.lake import tables
from ackstream.lake.messages import source_id
from ackstream.lake.schemas import DESTINATIONS, REPLICATION_TABLES
from ackstream.protocol.messages import ReplicatedError, read_replicated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

log = logging.getLogger(__name__)

POLL_MS = 100
RETRY_SECONDS = 1.0
SEND_SECONDS = 30.0
BATCHES_AT_ONCE = 200
"""The acks of this many batches are in memory at most."""

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class DeferredAcks:
    """Follows the destinations in a thread beside the query, and sends waiting acks, those of a client in order."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        """Restore what was waiting before the restart.

        :raises StartError: if a table's schema is not that of this version
        """
        sync = {destination.name for destination in settings.destinations if destination.type == "sync"}
        self._spark, self._settings = spark, settings
        publishers, messages = (tables.read(spark, settings.lake, name) for name in ("publishers", "messages"))
        acknowledged, newest = publishers.agg(F.max("told"), F.max("batch")).collect()[0]
        self._sync = bool(sync)
        self._active = self._sync or acknowledged is not None
        stored = messages.agg(F.max("batch")).collect()[0][0] if self._active else None
        self._lock = threading.Lock()
        self._backlog = Backlog(
            settings.destinations,
            acknowledged=_batch(newest if acknowledged is None else acknowledged),
            stored=_batch(stored),
        )
        if acknowledged is not None:
            waiting = publishers.where(f"batch > {acknowledged} AND acks IS NOT NULL").select("batch").distinct()
            for (batch,) in waiting.orderBy("batch").collect():
                self._backlog.add(batch, _now(), stored=False)
        self._source = source_id(spark, settings.lake) if self._active else ""
        self._changes: list[tuple[DestinationChange, str]] = []
        if self._sync:
            tables.create(spark, settings.lake, REPLICATION_TABLES)
            self._changes = [
                (DestinationChange(name, "sync", 0, -1), "start") for name in self._downgraded() if name in sync
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

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self, query: StreamingQuery) -> None:
        while query.isActive:
            try:
                with closing(self._consumer()) as consumer, closing(self._producer()) as producer:
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
        except ReplicatedError as error:
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

    def _downgraded(self) -> list[str]:
        """Return the destinations that were not waited for at the end of the last run."""
        found = tables.read(self._spark, self._settings.lake, "destinations")
        modes = found.groupBy("destination").agg(F.max_by("mode", "changed_at").alias("mode"))
        return sorted(row.destination for row in modes.where("mode = 'async'").collect())

    def _consumer(self) -> Any:
        kafka = self._settings.kafka
        consumer = connect_consumer(kafka, None, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(kafka.topic("destinations"), 0)])
        return consumer

    def _producer(self) -> Any:
        kafka = self._settings.kafka
        return connect_producer(kafka, kafka.topic("publisher-acks"), delivery_timeout=SEND_SECONDS, linger_ms=5)


def _batch(number: int | None) -> int:
    return -1 if number is None else number


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
