"""Acks about durability wait until the sync destinations have the messages, and until their publisher is due.

The acks of a batch are in its rows of the table ``publishers``, so they survive the process, and a destination that is
silent for hours does not fill memory: only some waiting acks are here too. The column ``told`` of a row is the batch up
to which acks had been sent when it was written; later ones are sent again after a crash, perhaps merged differently.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from functools import partial

import msgspec
from kafka import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.jobs.persist.backlog import AckPacing, Backlog, BatchAcks, DestinationChange, PacedAck
from ackstream.jobs.persist.records import PersistResult
from ackstream.jobs.persist.state import TABLES, StoredStates
from ackstream.kafka.clients import connect_consumer, monotonic_ms
from ackstream.kafka.connection import Outbox
from ackstream.kafka.reader import TopicReader
from ackstream.lake import tables
from ackstream.lake.messages import source_id
from ackstream.lake.schemas import ALL_TABLES
from ackstream.observe.metrics import FIGURES, Tally
from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import CONFLATION_MS, MAX_NUMBER, CommandAck, encode_ack, read_replicated
from ackstream.settings import Settings
from ackstream.spark.batches import Work, repeating
from ackstream.spark.checkpoint import Planned

log = logging.getLogger(__name__)

STEP_SECONDS = 0.1
SEND_SECONDS = 30.0
BATCHES_AT_ONCE = 200
"""The acks of this many batches are read from the table at a time."""
MAX_ACKS_HELD = 10_000
"""Maximum number of waiting acks in memory: reading the table for each batch takes half a second of a core."""

_decode = msgspec.json.Decoder(list[CommandAck]).decode


class DeferredAcks:
    """Sends the acks of committed batches: in order for each publisher, and none before it is due."""

    def __init__(self, spark: SparkSession, settings: Settings, last: Planned | None) -> None:
        """Restore the acks that waited; ``last``: the newest planned batch. StartError: a table has another schema."""
        self._spark, self._settings = spark, settings
        sync = {destination.name for destination in settings.destinations if destination.type == "sync"}
        publishers, messages = (tables.read(spark, settings.lake, name) for name in TABLES)
        newest = F.coalesce(F.max("batch"), F.lit(-1))
        acknowledged, written = publishers.agg(F.coalesce(F.max("told"), newest), newest).collect()[0]
        rows = publishers.where(f"batch > {acknowledged} AND acks IS NOT NULL").select("batch").distinct()
        waiting = [batch for (batch,) in rows.orderBy("batch").collect()]
        replayed = None
        if waiting:
            stored = StoredStates(spark, settings, None if last is None else last.query_id)
            # the acks of one that was interrupted before it had messages are not true
            waiting = [batch for batch in waiting if batch != stored.interrupted]
            # nor are those of one that is about to be replayed, before it has them
            if last is not None and last.unfinished:
                replayed = last.batch + stored.first
        self._backlog = Backlog(
            settings.destinations,
            acknowledged=acknowledged,
            stored=tables.newest_batch(messages) if sync or waiting else -1,
            written=written,
            deferred=waiting,
            replayed=replayed,
            now=monotonic_ms(),
        )
        self._restored = written
        self._held: dict[int, list[BatchAcks]] = {}
        """The acks of waiting batches, as far as there was room."""
        self._urgent: dict[int, set[str]] = {}
        """Clients that want the acks of the other batches at once."""
        self._pacing = AckPacing()
        self._outgoing: list[PacedAck] = []
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._outbox = Outbox(settings.kafka, SEND_SECONDS)
        self._source = source_id(spark, settings.lake) if sync else ""
        self._changes: list[DestinationChange] = []
        if sync:
            tables.create(spark, settings.lake, ("destinations",))
            # the destinations that acks did not wait for at the end of the last run
            modes = tables.read(spark, settings.lake, "destinations").groupBy("destination")
            found = modes.agg(F.max_by("mode", "changed_at").alias("mode")).where("mode = 'async'").collect()
            self._changes = [
                DestinationChange(row.destination, -1, "sync", "start", 0)
                for row in sorted(found)
                if row.destination in sync
            ]

    @property
    def acknowledged_through(self) -> int:
        """The batch up to which all acks were sent."""
        with self._lock:
            waiting = [paced.batch for paced in self._outgoing]
            if self._pacing.oldest is not None:
                waiting.append(self._pacing.oldest)
            return min([self._backlog.acknowledged, *(batch - 1 for batch in waiting)])

    def committed(
        self, batch: int, acks: Mapping[str, Sequence[CommandAck]], result: PersistResult, *, stored: bool, began: int
    ) -> None:
        """Take over the acks (by client, in order) of a batch that is in the tables, and send those that are due."""
        # ``stored``: whether it added messages; ``began``: its start, in monotonic milliseconds
        with self._lock:
            states, urgent = result.changed, result.urgent
            own = [
                BatchAcks(name, found, states[name].conflation, states[name].window, name in urgent)
                for name, found in acks.items()
            ]
            if self._backlog.defers(batch):
                self._backlog.add(batch, monotonic_ms(), stored=stored)
                held = len(self._held) + sum(len(one.acks) for waiting in self._held.values() for one in waiting)
                # the row of a replayed batch decides
                if batch > self._restored and held + sum(map(len, acks.values())) <= MAX_ACKS_HELD:
                    self._held[batch] = own
                else:
                    self._urgent[batch] = urgent
            else:
                self._backlog.pass_over(batch)
                self._pace(batch, own, began)
        try:
            self._release(monotonic_ms())
        except Exception as error:  # noqa: BLE001 - the thread beside the query sends them
            log.warning("Sending acks failed and will be retried: %r", error)

    def follow(self, query: StreamingQuery) -> None:
        """Start the thread; it ends with the query."""
        FIGURES.follow("acks of persist", self.measured)
        threading.Thread(target=partial(self._run, query), name="ackstream-deferred-acks", daemon=True).start()

    def measured(self) -> Tally:
        """Return the gauges of waiting acks."""
        tally = Tally()
        with self._lock:
            self._backlog.measure(tally)
        return tally

    def _release(self, now: int) -> None:
        """Send the acks that are due, in order; failed ones are sent with the next call."""
        with self._sending:
            with self._lock:
                self._outgoing += self._pacing.take(now)
                outgoing = list(self._outgoing)
            if not outgoing:
                return
            topic = self._settings.kafka.topic("publisher-acks")
            self._outbox.send([(topic, paced.client, encode_ack(paced.ack), ()) for paced in outgoing])
            with self._lock:
                del self._outgoing[: len(outgoing)]

    def _run(self, query: StreamingQuery) -> None:
        # a reader waits for reports itself; the query does not run if Spark is gone, of which a closed gateway raises
        # several errors
        pause = 0 if self._source else STEP_SECONDS
        with repeating("sender of acks", pause, self._connect), suppress(Exception):
            while query.isActive:
                time.sleep(STEP_SECONDS)
        # publishers do not wait for the next start; acks that wait for destinations are in the table. Only the first
        # step needs Spark, which may be gone
        for step in (self._catch_up, partial(self._release, MAX_NUMBER)):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the next start sends them
                log.warning("Sending the last acks failed; the next start sends them: %r", error)
        self._outbox.close()

    @contextmanager
    def _connect(self) -> Iterator[Work]:
        kafka = self._settings.kafka
        if not self._source:
            yield partial(self._step, None)
            return
        with closing(TopicReader(connect_consumer(kafka, None, auto_offset_reset="earliest"))) as reader:
            reader.consumer.assign([TopicPartition(kafka.topic("destinations"), 0)])
            yield partial(self._step, reader)

    def _step(self, reader: TopicReader | None) -> None:
        reports = [record.value for record in reader.read()] if reader is not None else []
        with self._lock:
            for value in reports:
                self._read_report(value)
            self._changes += self._backlog.check(monotonic_ms())
        if self._changes:
            self._record_changes()
        self._catch_up()
        self._release(monotonic_ms())

    def _catch_up(self) -> None:
        """Take over the acks of batches that no longer wait, or of the first of them."""
        with self._lock:
            ready = self._backlog.ready(BATCHES_AT_ONCE)
        if not ready:
            return
        # one query for all of them, or none
        missing = [number for number in ready if number not in self._held]
        found = self._stored(missing) if missing else {}
        with self._lock:
            now = monotonic_ms()
            for number in ready:
                self._pace(number, self._held.get(number) or found.get(number, []), now)
            self._backlog.confirm(ready[-1])
            self._urgent = {number: clients for number, clients in self._urgent.items() if number > ready[-1]}
            self._held = {number: own for number, own in self._held.items() if number > ready[-1]}

    def _stored(self, numbers: Sequence[int]) -> dict[int, list[BatchAcks]]:
        publishers = tables.read(self._spark, self._settings.lake, "publishers")
        rows = publishers.where(F.col("batch").isin(*numbers) & F.col("acks").isNotNull())
        terms = [F.get_json_object("state", f"$.{name}").cast("long") for name in ("conflation", "window")]
        found: dict[int, list[BatchAcks]] = {}
        for number, client, acks, conflation, window in rows.select("batch", "client", "acks", *terms).collect():
            pause = CONFLATION_MS if conflation is None else conflation
            urgent = number <= self._restored or client in self._urgent.get(number, ())
            found.setdefault(number, []).append(BatchAcks(client, _decode(acks), pause, window or 0, urgent))
        return found

    def _pace(self, batch: int, acks: Sequence[BatchAcks], since: int) -> None:
        for one in acks:
            self._pacing.add(one, batch, since)

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

    def _record_changes(self) -> None:
        now = datetime.now(timezone.utc)
        rows = [
            (change.destination, now, None if change.cause == "start" else change.batch, *change[2:])
            for change in self._changes
        ]
        path = tables.location(self._settings.lake, "destinations")
        frame = self._spark.createDataFrame(rows, ALL_TABLES["destinations"].schema).coalesce(1)
        frame.write.format("delta").mode("append").save(path)
        for destination, batch, mode, cause, age_ms in self._changes:
            log.warning(
                "The destination %s is %s now (%s): it has everything up to batch %d; the oldest message it lacks is "
                "%d ms old.",
                *(destination, mode, cause, batch, age_ms),
            )
        self._changes = []
