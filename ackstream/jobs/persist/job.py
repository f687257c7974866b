"""The persist job: messages from Kafka to their table, each once; their publishers are acknowledged after the commit.

A batch brings only the headers of its records to the driver, where they are folded over the publishers' states; the
values go from Kafka to the table by themselves. Both tables are written before anything is acknowledged; acks about
durability then wait until their publishers are due (``deferred_acks``). Replayed after a crash, a batch starts from the
states it had before: it gives the same rows, which the tables refuse to store twice, and the same answers.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.jobs.persist import records as wire
from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.deferred_acks import DeferredAcks
from ackstream.jobs.persist.publishers import PublisherBatch
from ackstream.jobs.persist.records import MessageMetadata
from ackstream.jobs.persist.state import DAYS_IN_MEMORY, TABLES, PublisherState, StoredStates
from ackstream.kafka.clients import monotonic_ms
from ackstream.lake import tables
from ackstream.observe.metrics import FIGURES, KNOWN_PUBLISHERS, MESSAGES
from ackstream.protocol.dispositions import NOT_PROCESSED
from ackstream.protocol.messages import CommandAck, encode_ack, write_stored
from ackstream.settings import Settings
from ackstream.spark import batches
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import Checkpoint, CheckpointRules
from ackstream.spark.job import Job
from ackstream.spark.kafka import EARLIEST, source
from ackstream.spark.records import guarded

log = logging.getLogger(__name__)

NAME = "persist"

_encode = msgspec.json.Encoder().encode


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query."""
    tables.create(spark, settings.lake, ("messages", "publishers"))
    limit = settings.persist.max_offsets_per_trigger
    stream = source(spark, settings.kafka, {"messages": EARLIEST}, job=NAME, limit=limit, headers=True)
    deferred = DeferredAcks(spark, settings, Checkpoint(spark, settings.lake.checkpoint(NAME)).planned)
    query = batches.start(wire.projected(stream), settings.lake, NAME, PersistFold(settings, deferred).write, trigger)
    deferred.follow(query)
    return query


_DECIDING = (
    "max_message_bytes", "daily_quota_bytes", "topics", "entitlements", "subscriptions", "unlogged", "reject_no_match",
    "reject_over_quota",
)  # fmt: skip

JOB = Job(
    name=NAME,
    build=build,
    trigger="persist.interval",
    reads=("messages",),
    # a repeated header must not stop the query
    conf=lambda _: {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"},
    keeps=CheckpointRules(
        committed=partial(tables.newest_own_batch, TABLES),
        # some queues refuse messages
        decides=("queues", *(f"persist.{name}" for name in _DECIDING)),
    ),
)


def fold(
    records: Iterable[MessageMetadata | wire.MessageRun],
    states: Mapping[str, PublisherState],
    admission: Admission,
    *,
    floor_ms: int,
    batch: int,
) -> wire.PersistResult:
    """Apply the records of a batch to copies of the publishers' states."""
    # ``floor_ms``: the shortest interval of merged acks; records are each partition's in the order of their offsets; a
    # publisher whose records fail has them all refused
    clients, newest = _by_client(records)
    result = wire.PersistResult([], [], [], {}, set())

    def decide(client: str) -> None:
        publisher = PublisherBatch(client, states.get(client), admission, floor_ms, newest)
        for item in clients[client]:
            publisher.add(item)
        state = publisher.close()
        acks = [(client, ack.identified()) for ack in publisher.acks]
        result.stored.extend(publisher.stored(batch))
        result.rejected.extend(publisher.rejected)
        result.acks.extend(acks)
        result.changed[client] = state
        if publisher.urgent:
            result.urgent.add(client)

    def refuse(client: str, error: Exception) -> None:
        log.error("The records of the publisher %.80r in batch %d are refused.", client, batch, exc_info=error)
        for message in (message for item in clients[client] for message in wire.members(item)):
            result.rejected.append(wire.RejectedRecord(message.partition, message.offset, NOT_PROCESSED))
            if message.command == "logon":
                # its publisher waits for an answer, and the next logon may succeed
                ack = CommandAck(ack_type="processed", status="retry", client=client, cid=message.cid)
                result.acks.append((client, msgspec.structs.replace(ack, reason=NOT_PROCESSED).identified()))

    for client in clients:
        guarded(client, decide, refuse, (result.stored,))
    return result


def _by_client(
    records: Iterable[MessageMetadata | wire.MessageRun],
) -> tuple[dict[str, list[MessageMetadata | wire.MessageRun]], int]:
    """Return the records of each state, and the latest of their times; the order within a partition is kept."""
    clients: dict[str, list[MessageMetadata | wire.MessageRun]] = {}
    nameless: list[MessageMetadata] = []
    newest = 0
    for item in records:
        message, timestamp = (item.first, item.newest) if isinstance(item, wire.MessageRun) else (item, item.timestamp)
        newest = max(newest, timestamp)
        if client := wire.state_name(message.client):
            clients.setdefault(client, []).append(item)
        else:
            nameless += wire.members(item)
    if nameless:
        # the state of the empty name only notes which of them were read
        clients[""] = sorted(nameless, key=attrgetter("partition", "offset"))
    return clients, newest


PRUNED_EVERY = 300
"""Batches between removals of old states, which the job does itself: they conflict with appends of other processes."""


class PersistFold:
    """Folds batches over the publishers' states, of which it keeps the recent ones in memory."""

    def __init__(self, settings: Settings, deferred: DeferredAcks) -> None:
        self._settings = settings
        self._deferred = deferred
        self._admission = Admission(settings.persist, settings.queues)
        self._table: StoredStates | None = None
        self._states: dict[str, PublisherState] = {}
        self._day = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Fold one batch of :func:`projected` records, write its messages and states, acknowledge its publishers."""
        spark, began = frame.sparkSession, monotonic_ms()
        if self._table is None:
            self._table = StoredStates(spark, self._settings, query_id)
            self._states = self._table.before(batch_id)
        # read twice, which costs less than keeping the values in between
        headers = frame.select("metadata.*").toArrow()
        if not headers.num_rows:
            return
        self._recall(self._table, headers, batch_id)
        batch = self._table.first + batch_id
        floor_ms = self._settings.persist.interval
        result = fold(wire.read_metadata(headers), self._states, self._admission, floor_ms=floor_ms, batch=batch)
        durable: dict[str, list[CommandAck]] = {}
        for client, ack in result.acks:
            if wire.is_durability_ack(ack):
                durable.setdefault(client, []).append(ack)
        lake, count, of = self._settings.lake, headers.num_rows, (query_id, batch)
        steps: list[batches.Work] = [
            lambda: tables.append(wire.message_rows(frame, result.rejected, *of), lake, "messages", *of, count=count)
        ]
        if result.changed:
            steps.append(lambda: tables.append_rows(spark, self._rows(result, durable), lake, "publishers", *of))
        batches.at_once(spark, steps)
        self._states.update(result.changed)
        kafka = self._settings.kafka
        outgoing = [(kafka.topic("stored"), one.client, write_stored(one), ()) for one in result.stored]
        arrivals = [(client, ack) for client, ack in result.acks if not wire.is_durability_ack(ack)]
        outgoing += [(kafka.topic("publisher-acks"), client, encode_ack(ack), ()) for client, ack in arrivals]
        spark_kafka.send(spark, outgoing, kafka, NAME)
        self._deferred.committed(batch, durable, result, stored=result.stores(count), began=began)
        FIGURES.set(KNOWN_PUBLISHERS, value=len(self._states))
        for reason, many in result.ends(count).items():
            FIGURES.count(MESSAGES, reason, by=many)
        if batch % PRUNED_EVERY == PRUNED_EVERY - 1:
            self._table.prune()

    def _recall(self, table: StoredStates, headers: pa.Table, batch_id: int) -> None:
        """Forget publishers that have been silent, and load those of the batch that were forgotten."""
        day = pc.max(headers.column("timestamp")).as_py() // wire.DAY_MS
        if day > self._day:
            self._day = day
            recent = {client: state for client, state in self._states.items() if state.day >= day - DAYS_IN_MEMORY}
            table.complete = table.complete and len(recent) == len(self._states)
            self._states = recent
        if not table.complete:
            clients = {wire.state_name(name) for name in pc.unique(headers.column("client")).to_pylist()}
            if unknown := clients - self._states.keys():
                self._states |= table.before(batch_id, unknown)

    def _rows(self, result: wire.PersistResult, acks: Mapping[str, Sequence[CommandAck]]) -> pa.Table:
        told = self._deferred.acknowledged_through
        states = [
            {
                "client": client,
                "last_seq": state.watermark,
                "told": told,
                "state": _encode(state).decode(),
                "acks": _encode(acks[client]).decode() if client in acks else None,
            }
            for client, state in result.changed.items()
        ]
        return pa.Table.from_pylist(states)
