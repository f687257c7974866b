"""The persist job: messages from Kafka to their table, each once; their publishers are acknowledged after the commit.

A batch brings only the headers of its records to the driver, where they are folded over the publishers' states; the
values go from Kafka to the table by themselves. Both tables are written before anything is acknowledged. A batch that
is replayed after a crash starts from the states it started from before: it gives the same rows, which the tables
refuse to store twice, and the same acks, which are sent again with the same ids.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.pandas.types import to_arrow_schema

from ackstream.jobs.persist.admission import Admission
from ackstream.jobs.persist.deferred_acks import DeferredAcks
from ackstream.jobs.persist.metadata import message_rows, metadata_table, read_metadata, with_headers
from ackstream.jobs.persist.publishers import PersistResult, PublisherState, fold, is_durability_ack
from ackstream.lake import tables
from ackstream.lake.schemas import PUBLISHERS
from ackstream.protocol.messages import MAX_NUMBER, encode_ack, write_stored
from ackstream.spark import batches
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.job import Job
from ackstream.spark.kafka import EARLIEST, source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.protocol.messages import CommandAck, StoredRange
    from ackstream.settings import Settings
    from ackstream.spark.batches import Trigger

    Acks = Sequence[tuple[str, CommandAck]]

NAME = "persist"

_STATES = to_arrow_schema(PUBLISHERS)
_RECORDS = pa.schema([("topic", pa.string()), ("key", pa.string()), ("value", pa.binary())])

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PublisherState).decode


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query."""
    tables.create(spark, settings.lake, ("messages", "publishers"))
    limit = settings.persist.max_offsets_per_trigger
    stream = source(spark, settings.kafka, {"messages": EARLIEST}, limit=limit, headers=True)
    deferred = DeferredAcks(spark, settings)
    query = batches.start(stream, settings.lake, NAME, PersistFold(settings, deferred).write, trigger)
    deferred.follow(query)
    return query


JOB = Job(
    name=NAME,
    build=build,
    trigger="persist.interval",
    topics=("messages", "publisher-acks", "stored", "destinations"),
    group="persist.group",
    # a repeated header must not stop the query
    conf=lambda _: {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"},
)


class PersistFold:
    """Folds batches over the publishers' states, which it keeps in memory."""

    def __init__(self, settings: Settings, deferred: DeferredAcks) -> None:
        """Load no states yet: the first batch knows the batch number to restore."""
        self._settings = settings
        self._deferred = deferred
        self._admission = Admission(settings.persist)
        self._states: dict[str, PublisherState] | None = None
        self._first = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Fold one batch, write its messages and states, acknowledge its publishers."""
        spark = frame.sparkSession
        if self._states is None:
            self._first, self._states = load(spark, self._settings, query_id, batch_id)
        # read twice, which costs less than keeping the values in between
        found = with_headers(frame)
        headers = metadata_table(found)
        if not headers.num_rows:
            return
        batch = self._first + batch_id
        floor_ms = self._settings.persist.interval
        result = fold(read_metadata(headers), self._states, self._admission, floor_ms=floor_ms, batch=batch)
        deferred = self._deferred.defers(batch)
        waiting = [entry for entry in result.acks if deferred and is_durability_ack(entry[1])]
        steps = [partial(self._append_messages, found, result, headers.num_rows, query_id, batch)]
        if result.changed:
            steps.append(partial(self._append_states, spark, result, waiting, query_id, batch))
        if deferred:
            # an ack that waits in a state's row is only about messages that are stored
            for step in steps:
                step()
        else:
            batches.at_once(spark, steps)
        self._states.update(result.changed)
        now = [entry for entry in result.acks if not (deferred and is_durability_ack(entry[1]))]
        publish(spark, self._settings, now, result.stored)
        if deferred:
            self._deferred.committed(batch, stored=result.stores(headers.num_rows))

    def _append_messages(self, found: DataFrame, result: PersistResult, count: int, query_id: str, batch: int) -> None:
        rows = message_rows(found, result.rejected, query_id, batch)
        tables.append(rows, self._settings.lake, "messages", query_id, batch, count=count)

    def _append_states(
        self, spark: SparkSession, result: PersistResult, waiting: Acks, query_id: str, batch: int
    ) -> None:
        acks: dict[str, list[CommandAck]] = {}
        for client, ack in waiting:
            acks.setdefault(client, []).append(ack)
        told = self._deferred.acknowledged_through
        states = [
            {
                "client": client,
                "batch": batch,
                "last_seq": state.watermark,
                "told": told,
                "query_id": query_id,
                "state": _encode(state).decode(),
                "acks": _encode(acks[client]).decode() if client in acks else None,
            }
            for client, state in result.changed.items()
        ]
        rows = spark.createDataFrame(pa.Table.from_pylist(states, schema=_STATES))
        tables.append(rows, self._settings.lake, "publishers", query_id, batch)


def load(
    spark: SparkSession, settings: Settings, query_id: str, batch_id: int
) -> tuple[int, dict[str, PublisherState]]:
    """Return the number of the query's first batch, and the states as they were before the given batch.

    The batches of earlier checkpoints precede those of this one. The last of them may have written no state, because
    no client was named in its records or because it was interrupted; or states alone, and its messages are read again.
    """
    publishers, messages = (tables.read(spark, settings.lake, name) for name in ("publishers", "messages"))
    own, batch = F.col("query_id") == query_id, F.col("batch")
    last, begin = publishers.agg(F.max(F.when(~own, batch)), F.min(F.when(own, batch))).collect()[0]
    last = -1 if last is None else last
    # no more than the files in between are read
    behind = messages.where(~own & (batch >= last) & (batch < F.lit(MAX_NUMBER if begin is None else begin)))
    newest = behind.agg(F.coalesce(F.max("batch"), F.lit(-1))).collect()[0][0]
    first = max(last, newest) + 1
    # messages as late as its states, or later: the last one is whole
    before = publishers.where(batch < first + batch_id).where(own | (batch < (last + 1 if newest >= last else last)))
    states = before.groupBy("client").agg(F.max_by("state", "batch").alias("state"))
    return first, {client: _decode(state) for client, state in states.collect()}


def publish(spark: SparkSession, settings: Settings, acks: Acks, stored: Sequence[StoredRange]) -> None:
    """Write acks and stored ranges to their topics, those of a client in order."""
    kafka = settings.kafka
    records = [(kafka.topic("publisher-acks"), client, encode_ack(ack)) for client, ack in acks]
    records += [(kafka.topic("stored"), record.client, write_stored(record)) for record in stored]
    if records:
        spark_kafka.write(spark.createDataFrame(batches.arrow(records, _RECORDS)), kafka)
