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

from ackstream.lake import tables
from ackstream.lake.schemas import MESSAGES, PUBLISHER_TABLES, PUBLISHERS
from ackstream.protocol import stored
from ackstream.publishing.acks import encode_ack
from ackstream.publishing.columns import Columns
from ackstream.publishing.ledger import Fold, Ledger, fold
from ackstream.publishing.verdicts import Entitlement, Rules
from ackstream.source import source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

NAME = "persist"
TOPICS = ("messages", "publisher-acks", "stored")
ROWS_A_FILE = 100_000

_HEADERS = {
    "client": "client", "seq": "seq", "command": "command", "cid": "cid", "ack": "ack", "subject": "topic",
    "ttl": "ttl", "first": "first", "conflation": "ack-conflation",
}  # fmt: skip
"""Columns, and the record headers they come from."""

_REFUSED = pa.schema(
    [("refused_partition", pa.int32()), ("refused_offset", pa.int64()), ("refused_reason", pa.string())]
)
_LEDGERS = pa.schema([("client", pa.string()), ("last_seq", pa.int64()), ("state", pa.string())])
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
    return (
        stream.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(partial(_write, Persist(settings)))
        .trigger(**when)
        .start()
    )


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


class Persist:
    """The clients' ledgers in memory, and what a batch does with them."""

    def __init__(self, settings: Settings) -> None:
        """Start without ledgers: the first batch tells as of when they are needed."""
        self._settings = settings
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
        records = _with_headers(frame)
        facts = records.select(
            "partition",
            "offset",
            F.unix_millis("timestamp").alias("timestamp"),
            F.coalesce(F.length("value"), F.lit(0)).alias("size"),
            *[F.col(name).alias("topic" if name == "subject" else name) for name in _HEADERS],
        ).toArrow()
        if not facts.num_rows:
            return
        batch = self._first + batch_id
        floor_ms = self._settings.persist.interval
        result = fold(Columns.of(facts), self._ledgers, self._rules, floor_ms=floor_ms, batch=batch)
        work = [partial(self._append_messages, records, result, facts.num_rows, query_id, batch)]
        if result.changed:
            work.append(partial(self._append_ledgers, spark, result, query_id, batch))
        with ThreadPoolExecutor(len(work), thread_name_prefix=NAME) as pool:
            # the threads keep the query's job group, so that stopping the query stops them
            for future in [pool.submit(inheritable_thread_target(spark)(step)) for step in work]:
                future.result()
        self._ledgers.update(result.changed)
        tell(spark, self._settings, result)

    def _append_messages(self, records: DataFrame, result: Fold, count: int, query_id: str, batch: int) -> None:
        rows = _judged(records, result).withColumns(
            {
                "received_at": F.col("timestamp"),
                "query_id": F.lit(query_id),
                "batch": F.lit(batch).cast("long"),
                "seq": F.expr("try_cast(seq AS BIGINT)"),
                "ttl_ms": F.expr("try_cast(ttl AS BIGINT)"),
                "day": F.to_date("timestamp"),
            }
        )
        self._append(
            rows.select(*MESSAGES.fieldNames()).coalesce(-(-count // ROWS_A_FILE)), "messages", query_id, batch
        )

    def _append_ledgers(self, spark: SparkSession, result: Fold, query_id: str, batch: int) -> None:
        clients = list(result.changed)
        ledgers = list(result.changed.values())
        arrow = pa.Table.from_pydict(
            {
                "client": clients,
                "last_seq": [ledger.watermark for ledger in ledgers],
                "state": [_encode(ledger).decode() for ledger in ledgers],
            },
            schema=_LEDGERS,
        )
        own = {"query_id": F.lit(query_id), "batch": F.lit(batch).cast("long")}
        rows = spark.createDataFrame(arrow).withColumns(own).select(*PUBLISHERS.fieldNames())
        self._append(rows.coalesce(1), "publishers", query_id, batch)

    def _append(self, rows: DataFrame, table: str, query_id: str, batch: int) -> None:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", f"{query_id}/{table}")
            .option("txnVersion", batch)
            .save(tables.location(self._settings.lake, table))
        )


def load(spark: SparkSession, settings: Settings, query_id: str, batch_id: int) -> tuple[int, dict[str, Ledger]]:
    """Return the number of the query's first batch, and the ledgers as they were before the given one.

    The batches of earlier checkpoints come before those of this one.
    """
    publishers = tables.read(spark, settings.lake, "publishers")
    last = publishers.where(F.col("query_id") != query_id).agg(F.max("batch")).collect()[0][0]
    first = 0 if last is None else last + 1
    newest = (
        publishers.where(F.col("batch") < first + batch_id)
        .groupBy("client")
        .agg(F.max_by("state", "batch").alias("state"))
    )
    return first, {client: _decode(state) for client, state in newest.collect()}


def tell(spark: SparkSession, settings: Settings, result: Fold) -> None:
    """Write to their topics what a batch has to say: of each client in order."""
    kafka = settings.kafka
    records = [(kafka.topic("publisher-acks"), client, encode_ack(ack)) for client, ack in result.acks]
    records += [(kafka.topic("stored"), record.client, stored.write(record)) for record in result.stored]
    if not records:
        return
    columns = zip(*records, strict=True)
    arrow = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _TOLD, strict=True)], schema=_TOLD
    )
    (
        spark.createDataFrame(arrow)
        # one task: what concerns one client stays in order
        .coalesce(1)
        .write.format("kafka")
        .options(**{f"kafka.{key}": value for key, value in kafka.options.items()})
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("kafka.linger.ms", "5")
        .save()
    )


def _with_headers(frame: DataFrame) -> DataFrame:
    """Give each header that means something a column; the application's own remain in ``headers``."""
    found = {name: F.col("found")[header] for name, header in {**_HEADERS, "key": "key"}.items()}
    ours = [*_HEADERS.values(), "key", "ack-immediately"]
    count = sum((F.col("found")[name].isNotNull().cast("int") for name in ours), F.lit(0))
    own = F.transform(
        F.filter("headers", lambda header: ~header["key"].isin(ours)),
        lambda header: F.struct(header["key"].alias("name"), header["value"].alias("value")),
    )
    # functions over arrays are slow: they are for those records alone that have headers of their own
    others = F.when(F.size("headers") > count, own)
    texts = {name: F.make_valid_utf8(value.cast("string")) for name, value in found.items() if name != "key"}
    return frame.withColumn("found", F.map_from_entries("headers")).select(
        *("topic", "partition", "offset", "timestamp", "value"),
        found["key"].alias("key"),
        others.alias("headers"),
        *[value.alias(name) for name, value in texts.items()],
    )


def _judged(records: DataFrame, result: Fold) -> DataFrame:
    """Leave out what is no message or there already; say of the others why they were refused, if they were."""
    if not result.refused:
        return records.withColumn("reason", F.lit(None).cast("string"))
    columns = zip(*result.refused, strict=True)
    arrow = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _REFUSED, strict=True)], schema=_REFUSED
    )
    refused = F.broadcast(records.sparkSession.createDataFrame(arrow))
    same = (F.col("partition") == F.col("refused_partition")) & (F.col("offset") == F.col("refused_offset"))
    joined = records.join(refused, same, "left").withColumn("reason", F.col("refused_reason"))
    return joined.where(F.col("refused_offset").isNull() | F.col("reason").isNotNull())


def _write(persist: Persist, frame: DataFrame, batch_id: int) -> None:
    persist.write(frame, batch_id, frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
