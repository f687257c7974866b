"""Telling what waits for the sync destinations, once they have it (brokers.md 1.1 A12, A13).

What waits is in the table ``publishers`` and is read from there, also after a restart: it is not lost with the process,
and a destination that is silent for hours fills no memory. Each row says what had been told when it was written; what
was told since then is told again after a crash, with the same ids.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
from delta.tables import DeltaTable
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.persist.replication import AgeRule, AgeRules, Backlog, DestinationChange, Replication
from ackstream.kafka.clients import options
from ackstream.lake import tables
from ackstream.lake.schemas import DESTINATIONS, REPLICATION_TABLES
from ackstream.protocol import messages as protocol_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Destination, Settings

log = logging.getLogger(__name__)

POLL_MS = 100
AGAIN_SECONDS = 1.0
SEND_SECONDS = 30.0
BATCHES_AT_ONCE = 200
"""As many are told at once: their acks are in memory meanwhile."""

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Release:
    """Follows the destinations beside the query, and sends acks to their publishers, those of a client in order."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        """Find out what waits since before.

        :raises StartError: where a table is not as this version writes it
        """
        sync = {one.name: _rules(one) for one in settings.destinations if one.type == "sync"}
        self._spark, self._settings = spark, settings
        publishers, messages = (tables.read(spark, settings.lake, name) for name in ("publishers", "messages"))
        told, newest = publishers.agg(F.max("told"), F.max("batch")).collect()[0]
        self._sync = bool(sync)
        self._ever = self._sync or told is not None
        stored = messages.agg(F.max("batch")).collect()[0][0] if self._ever else None
        self._lock = threading.Lock()
        self._backlog = Backlog(
            Replication(sync),
            told=_or_none_yet(newest if told is None else told),
            stored=_or_none_yet(stored),
        )
        if told is not None:
            waiting = publishers.where(f"batch > {told} AND acks IS NOT NULL").select("batch").distinct()
            for (batch,) in waiting.orderBy("batch").collect():
                self._backlog.add(batch, _now(), stored=False)
        self._source = source_id(spark, settings) if self._ever else ""
        self._changes: list[tuple[DestinationChange, str]] = []
        if self._sync:
            tables.create(spark, settings.lake, REPLICATION_TABLES)
            self._changes = [
                (DestinationChange(name, "sync", 0, -1), "start") for name in self._downgraded() if name in sync
            ]

    @property
    def told(self) -> int | None:
        """The batch up to which everything is told; ``None``: nothing has ever waited."""
        return self._backlog.told if self._ever else None

    def gates(self, batch: int) -> bool:
        """Tell whether acks of a batch wait; those of one that runs again and was told before need not."""
        return self._sync and batch > self._backlog.told

    def committed(self, batch: int, *, stored: bool) -> None:
        """Note that a batch is in the tables.

        :param stored: whether it has messages
        """
        with self._lock:
            self._backlog.add(batch, _now(), stored=stored)

    def follow(self, query: StreamingQuery) -> None:
        """Start the thread, which ends with the query."""
        if self._ever:
            threading.Thread(target=self._run, args=(query,), name="ackstream-release", daemon=True).start()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self, query: StreamingQuery) -> None:
        while query.isActive:
            try:
                with closing(self._consumer()) as consumer, closing(self._producer()) as producer:
                    while query.isActive:
                        self._step(consumer, producer)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop all acks
                log.warning("Telling what the destinations have is tried again after: %r", error)
                time.sleep(AGAIN_SECONDS)

    def _step(self, consumer: Any, producer: Any) -> None:
        reports = [record.value for records in consumer.poll(timeout_ms=POLL_MS).values() for record in records]
        with self._lock:
            for value in reports:
                self._report(value)
            for change in self._backlog.check(_now()):
                self._changes.append((change, "upgrade" if change.mode == "sync" else "downgrade"))
            batch = self._backlog.ready(BATCHES_AT_ONCE)
        if self._changes:
            self._record()
        if batch > self._backlog.told:
            self._tell(batch, producer)

    def _report(self, value: bytes | None) -> None:
        try:
            report = protocol_messages.read_replicated(value)
        except protocol_messages.ReplicatedError as error:
            log.warning("%s", error)
            return
        if report.source == self._source:
            self._backlog.report(report.destination, report.batch)
        else:
            log.warning("The destination %s has the messages of another lake.", report.destination)

    def _tell(self, batch: int, producer: Any) -> None:
        publishers = tables.read(self._spark, self._settings.lake, "publishers")
        span = f"batch > {self._backlog.told} AND batch <= {batch} AND acks IS NOT NULL"
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

    def _record(self) -> None:
        """Write changes where analysts see them, and to the log."""
        rows = [
            (change.destination, None if cause == "start" else change.position, change.mode, cause, change.age_ms)
            for change, cause in self._changes
        ]
        columns = "destination string, batch long, mode string, cause string, age_ms long"
        changes = self._spark.createDataFrame(rows, columns).withColumn("changed_at", F.current_timestamp())
        place = tables.location(self._settings.lake, "destinations")
        changes.select(*DESTINATIONS.fieldNames()).coalesce(1).write.format("delta").mode("append").save(place)
        for change, cause in self._changes:
            log.warning(
                "The destination %s is %s now (%s): it has everything up to batch %d, the oldest message it lacks is "
                "%d ms old.",
                *(change.destination, change.mode, cause, change.position, change.age_ms),
            )
        self._changes = []

    def _downgraded(self) -> list[str]:
        """Return what was not waited for at the end of the last run."""
        found = tables.read(self._spark, self._settings.lake, "destinations")
        modes = found.groupBy("destination").agg(F.max_by("mode", "changed_at").alias("mode"))
        return sorted(row.destination for row in modes.where("mode = 'async'").collect())

    def _consumer(self) -> Any:
        kafka = self._settings.kafka
        consumer = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **options(kafka, KafkaConsumer.DEFAULT_CONFIG),
        )
        consumer.assign([TopicPartition(kafka.topic("destinations"), 0)])
        return consumer

    def _producer(self) -> Any:
        kafka = self._settings.kafka
        known = options(kafka, KafkaProducer.DEFAULT_CONFIG)
        # idempotent: what is sent again keeps its place
        return KafkaProducer(
            bootstrap_servers=kafka.bootstrap, acks="all", enable_idempotence=True, linger_ms=5, **known
        )


def source_id(spark: SparkSession, settings: Settings) -> str:
    """Return the id of the table that destinations get their messages from."""
    place = tables.location(settings.lake, "messages")
    return str(DeltaTable.forPath(spark, place).detail().select("id").collect()[0][0])


def _rules(destination: Destination) -> AgeRules:
    every = destination.check_interval
    ages = {"downgrade": destination.downgrade_age, "upgrade": destination.upgrade_age}
    return AgeRules(**{name: AgeRule(every, age) for name, age in ages.items() if age is not None})


def _or_none_yet(batch: int | None) -> int:
    return -1 if batch is None else batch


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
