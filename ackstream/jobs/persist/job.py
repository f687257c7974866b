"""The persist query: messages from Kafka to their table, each once; what their publishers are told, after the commit.

A batch brings only the headers of its records to the driver, where they are folded over the clients' ledgers; the
values go from Kafka to the table by themselves. Then both tables are written, and only then anything is said. A batch
that runs again after a crash starts from the ledgers as they were before it: it comes to the same rows, which the
tables refuse to take twice, and to the same acks, which are sent again with the same ids.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.persist.account import Fold, Ledger, fold, waits
from ackstream.jobs.persist.admission import Entitlement, Rules
from ackstream.jobs.persist.columns import Columns
from ackstream.jobs.persist.release import Release
from ackstream.jobs.persist.rows import header_table, message_rows, with_headers
from ackstream.lake import tables
from ackstream.lake.schemas import PUBLISHER_TABLES, PUBLISHERS
from ackstream.protocol import messages as protocol_messages
from ackstream.protocol.messages import MAX_NUMBER, encode_ack
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.kafka import source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.protocol.messages import CommandAck, StoredRange
    from ackstream.settings import Settings

NAME = "persist"
TOPICS = ("messages", "publisher-acks", "stored", "destinations")
ROWS_A_FILE = 100_000

_LEDGERS = pa.schema(
    [
        ("client", pa.string()),
        ("last_seq", pa.int64()),
        ("told", pa.int64()),
        ("state", pa.string()),
        ("acks", pa.string()),
    ]
)
_TOLD = pa.schema([("topic", pa.string()), ("key", pa.string()), ("value", pa.binary())])

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ledger).decode


def start(spark: SparkSession, settings: Settings, *, available_now: bool = False) -> StreamingQuery:
    """Make the tables and start the query; it runs until it is stopped.

    :param available_now: stop by itself at the topic's present end
    :raises StartError: where a table is not as this version writes it
    """
    tables.create(spark, settings.lake, PUBLISHER_TABLES)
    # a header that comes twice must not stop the query
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    stream = source(
        spark,
        settings.kafka,
        [settings.kafka.topic("messages")],
        starting="earliest",
        limit=settings.persist.max_offsets_per_trigger,
        headers=True,
    )
    when = {"availableNow": True} if available_now else {"processingTime": f"{settings.persist.interval} milliseconds"}
    release = Release(spark, settings)
    query = (
        stream.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(spark_kafka.each_batch(PersistFold(settings, release).write))
        .trigger(**when)
        .start()
    )
    release.follow(query)
    return query


def rules(settings: Settings) -> Rules:
    """Read from the settings what is refused."""
    persist = settings.persist
    return Rules(
        topics=persist.topics,
        entitlements=tuple(Entitlement(rule.clients, rule.topics) for rule in persist.entitlements),
        subscriptions=persist.subscriptions or None,
        reject_no_match=persist.reject_no_match,
        max_bytes=persist.max_message_bytes,
        daily_quota=persist.daily_quota_bytes,
        reject_over_quota=persist.reject_over_quota,
    )


class PersistFold:
    """The clients' ledgers in memory, and what a batch does with them."""

    def __init__(self, settings: Settings, release: Release) -> None:
        """Start without ledgers: the first batch tells as of when they are needed.

        :param release: tells what waits for the sync destinations
        """
        self._settings = settings
        self._release = release
        self._rules = rules(settings)
        self._ledgers: dict[str, Ledger] | None = None
        self._first = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Fold one batch, write its messages and ledgers, tell the publishers.

        :param frame: records of the messages topic as Spark's Kafka source gives them; none is fine
        :param batch_id: the batch's number, growing within the query
        """
        spark = frame.sparkSession
        if self._ledgers is None:
            self._first, self._ledgers = load(spark, self._settings, query_id, batch_id)
        # read twice, which costs less than keeping the values in between
        found = with_headers(frame)
        facts = header_table(found)
        if not facts.num_rows:
            return
        batch = self._first + batch_id
        floor_ms = self._settings.persist.interval
        result = fold(Columns.of(facts), self._ledgers, self._rules, floor_ms=floor_ms, batch=batch)
        gated = self._release.gates(batch)
        waiting = [entry for entry in result.acks if gated and waits(entry[1])]
        work = [partial(self._append_messages, found, result, facts.num_rows, query_id, batch)]
        if result.changed:
            work.append(partial(self._append_ledgers, spark, result, waiting, query_id, batch))
        if gated:
            # what waits in a ledger's row, ready to be told, is about messages that are stored
            for step in work:
                step()
        else:
            self._at_once(spark, work)
        self._ledgers.update(result.changed)
        now = [entry for entry in result.acks if not (gated and waits(entry[1]))]
        tell(spark, self._settings, now, result.stored)
        if gated:
            self._release.committed(batch, stored=result.stores(facts.num_rows))

    def _at_once(self, spark: SparkSession, work: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(len(work), thread_name_prefix=NAME) as pool:
            # the threads keep the query's job group, so that stopping the query stops them
            for future in [pool.submit(inheritable_thread_target(spark)(step)) for step in work]:
                future.result()

    def _append_messages(self, found: DataFrame, result: Fold, count: int, query_id: str, batch: int) -> None:
        rows = message_rows(found, result.refused, query_id, batch).coalesce(-(-count // ROWS_A_FILE))
        tables.append(rows, self._settings.lake, "messages", query_id, batch)

    def _append_ledgers(
        self, spark: SparkSession, result: Fold, waiting: Sequence[tuple[str, CommandAck]], query_id: str, batch: int
    ) -> None:
        acks: dict[str, list[CommandAck]] = {}
        for client, ack in waiting:
            acks.setdefault(client, []).append(ack)
        ledgers = result.changed.values()
        arrow = pa.Table.from_pydict(
            {
                "client": list(result.changed),
                "last_seq": [ledger.watermark for ledger in ledgers],
                "told": [self._release.told] * len(ledgers),
                "state": [_encode(ledger).decode() for ledger in ledgers],
                "acks": [_encode(acks[client]).decode() if client in acks else None for client in result.changed],
            },
            schema=_LEDGERS,
        )
        own = {"query_id": F.lit(query_id), "batch": F.lit(batch).cast("long")}
        rows = spark.createDataFrame(arrow).withColumns(own).select(*PUBLISHERS.fieldNames())
        tables.append(rows.coalesce(1), self._settings.lake, "publishers", query_id, batch)


def load(spark: SparkSession, settings: Settings, query_id: str, batch_id: int) -> tuple[int, dict[str, Ledger]]:
    """Return the number of the query's first batch, and the ledgers as they were before the given one.

    The batches of earlier checkpoints come before those of this one. The last of them may have left no ledger: its
    records were nobody's, or it did not come to its end. Or ledgers alone: its messages are read again then.
    """
    publishers, messages = (tables.read(spark, settings.lake, name) for name in ("publishers", "messages"))
    own, batch = F.col("query_id") == query_id, F.col("batch")
    last, begin = publishers.agg(F.max(F.when(~own, batch)), F.min(F.when(own, batch))).collect()[0]
    last = -1 if last is None else last
    # no more than the files in between are read
    behind = messages.where(~own & (batch >= last) & (batch < F.lit(MAX_NUMBER if begin is None else begin)))
    newest = behind.agg(F.coalesce(F.max("batch"), F.lit(-1))).collect()[0][0]
    first = max(last, newest) + 1
    # messages as late as its ledgers, or later: the last one is whole
    before = publishers.where(batch < first + batch_id).where(own | (batch < (last + 1 if newest >= last else last)))
    states = before.groupBy("client").agg(F.max_by("state", "batch").alias("state"))
    return first, {client: _decode(state) for client, state in states.collect()}


def tell(
    spark: SparkSession, settings: Settings, acks: Sequence[tuple[str, CommandAck]], stored_now: Sequence[StoredRange]
) -> None:
    """Write to their topics what a batch has to say: of each client in order."""
    kafka = settings.kafka
    told = [(kafka.topic("publisher-acks"), client, encode_ack(ack)) for client, ack in acks]
    told += [(kafka.topic("stored"), record.client, protocol_messages.write_stored(record)) for record in stored_now]
    if not told:
        return
    columns = zip(*told, strict=True)
    arrow = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _TOLD, strict=True)], schema=_TOLD
    )
    spark_kafka.write(spark.createDataFrame(arrow), kafka)
