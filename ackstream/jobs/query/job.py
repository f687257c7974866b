"""The query that carries out commands over the messages, for as long as it runs (brokers.md 1.4).

Its source are the commands and what persist says of its batches; that is how far the log is. A batch first remembers
how far it was and who subscribes to what, and only then says anything. One that runs again after a crash takes from
there how far the log was, so that it comes to the same results, with the same ids.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from kafka import KafkaConsumer, TopicPartition
from pyspark import inheritable_thread_target
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.query import filters, requests, results
from ackstream.jobs.query.execution import Terms, carry_out
from ackstream.jobs.query.plan import Counted, Deleted, State, SubscriptionPlan, Told
from ackstream.jobs.query.requests import UnreadableError
from ackstream.kafka.clients import options
from ackstream.lake import messages, tables
from ackstream.lake.messages import Moment
from ackstream.lake.schemas import PUBLISHER_TABLES, QUERY_TABLES, SUBSCRIPTIONS
from ackstream.protocol import queries
from ackstream.protocol.messages import StoredError, read_stored
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.kafka import source
from ackstream.spark.order import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.jobs.query.plan import Step
    from ackstream.jobs.query.requests import QueryRequest
    from ackstream.settings import Kafka, Settings


NAME = "query"
TOPICS = ("queries", "query-results", "stored", "dead-letters")
REMEMBERED = 100
"""After so many batches of messages at the latest, how far the log is is remembered: less is delivered again then."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode


def start(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Make the tables and start the query; it runs until it is stopped.

    :raises StartError: where a table is not as this version writes it
    """
    # persist may be making its own at the same time
    tables.retried(lambda: tables.create(spark, settings.lake, [*PUBLISHER_TABLES, *QUERY_TABLES]))
    topics = [settings.kafka.topic("queries"), settings.kafka.topic("stored")]
    stream = source(
        spark,
        settings.kafka,
        topics,
        starting=ends(settings.kafka, topics),
        limit=settings.query.max_offsets_per_trigger,
        headers=True,
    )
    return (
        stream.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(spark_kafka.each_batch(QueryFold(settings).write))
        .trigger(processingTime=f"{settings.query.interval} milliseconds")
        .start()
    )


class QueryFold:
    """Who subscribes to what, in memory, and what a batch does."""

    def __init__(self, settings: Settings) -> None:
        """Start without a state: the first batch tells as of when it is needed."""
        self._settings = settings
        self._terms = Terms(settings.query.interval, settings.persist.topics)
        self._state: State | None = None
        self._first = self._known = self._newest = self._remembered = 0

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Carry out the commands of one batch, and deliver what has come into the log.

        :param frame: records as Spark's Kafka source gives them; none is fine
        :param batch_id: the batch's number, growing within the query
        """
        spark, kafka = frame.sparkSession, self._settings.kafka
        records = collect(frame)
        if not records:
            return
        now = max(record.time for record in records)
        replayed = self._state is None and self._load(spark, query_id, batch_id, now)
        batch = self._first + batch_id
        if not replayed:
            self._newest = newest_stored_batch(records, kafka.topic("stored"), self._newest)
        asked, dead = read_queries(spark, [record for record in records if record.topic == kafka.topic("queries")])
        state = self._state or State()
        desk = SubscriptionPlan(state, known=self._known, newest=self._newest, now=now)
        desk.deliver(asked)
        for request in asked:
            carry_out(desk, request, self._terms)
        desk.close()
        lasting = desk.lasting or self._newest - self._remembered >= REMEMBERED
        with ThreadPoolExecutor(1, thread_name_prefix=NAME) as pool:
            # beside counting; but before anything is deleted or said, so that a batch that runs again does it alike
            work = inheritable_thread_target(spark)(partial(self._remember, spark, state, query_id, batch))
            remembered = pool.submit(work) if lasting else None
            steps = self._looked_up(spark, desk.steps, batch, query_id, remembered)
            if remembered is not None:
                remembered.result()
        if steps:
            said = results.records(spark, self._settings.lake, steps, self._newest, batch)
            spark_kafka.write(said, kafka, kafka.topic("query-results"))
        if dead:
            spark_kafka.write(dead_letters(spark, dead), kafka, kafka.topic("dead-letters"))
        self._known = self._newest

    def _looked_up(
        self, spark: SparkSession, steps: list[Step], batch: int, query_id: str, remembered: Future[None] | None
    ) -> list[Step]:
        """Delete what is to be deleted, count what is to be counted; return the steps that say something."""
        counted: dict[str, tuple[int, int]] = {}
        rest: list[Step] = []
        for number, step in enumerate(steps):
            moment = Moment(batch, number)
            if isinstance(step, Deleted):
                if "stats" in step.request.command.asked:
                    # counted while it is still there
                    counted[step.request.origin] = self._count(spark, step.request, moment)
                if remembered is not None:
                    remembered.result()
                self._delete(spark, step.request, moment, query_id)
            elif isinstance(step, Counted):
                request = step.request
                numbers = counted.get(request.origin) or self._count(spark, request, moment)
                (ack,) = queries.statistics(request.command, *numbers)
                rest.append(Told(request.client, step.id, msgspec.structs.replace(ack, client=request.client)))
                continue
            rest.append(step)
        return rest

    def _count(self, spark: SparkSession, request: QueryRequest, moment: Moment) -> tuple[int, int]:
        return results.counted(spark, self._settings.lake, request, self._newest, moment)

    def _delete(self, spark: SparkSession, request: QueryRequest, moment: Moment, query_id: str) -> None:
        found = results.selected(spark, self._settings.lake, request, self._newest, moment)
        own = {
            "client": F.lit(request.client),
            "cid": F.lit(request.command.cid).cast("string"),
            "deleted_at": F.timestamp_millis(F.lit(request.time)),
        }
        messages.delete(found, self._settings.lake, moment, own, query_id)

    # -- what is remembered ------------------------------------------------------------------------------------------

    def _load(self, spark: SparkSession, query_id: str, batch_id: int, now: int) -> bool:
        """Take the state as it was before a batch; tell whether the batch has been remembered: it runs again then."""
        # in a cast that fails ANSI stops the query, where a filter shall not match
        spark.conf.set("spark.sql.ansi.enabled", "false")
        lake = self._settings.lake
        rows = tables.read(spark, lake, "subscriptions")
        last = rows.where(F.col("query_id") != query_id).agg(F.max("batch")).collect()[0][0]
        self._first = 0 if last is None else last + 1
        batch = self._first + batch_id
        before = rows.where(F.col("batch") < batch).orderBy(F.col("batch").desc()).limit(1).collect()
        own = rows.where(F.col("batch") == batch).collect()
        self._newest = own[0]["position"] if own else messages.newest_batch(spark, lake)
        self._state = _decode(before[0]["state"]) if before else State()
        self._known = self._remembered = before[0]["position"] if before else self._newest
        for session in self._state.sessions.values():
            # nobody was heard while nobody listened
            session.seen = now
        return bool(own)

    def _remember(self, spark: SparkSession, state: State, query_id: str, batch: int) -> None:
        row = (batch, self._newest, query_id, _encode(state).decode())
        rows = spark.createDataFrame([row], SUBSCRIPTIONS)
        tables.append(rows.coalesce(1), self._settings.lake, "subscriptions", query_id, batch)
        self._remembered = self._newest


# -- What the query job reads: commands, and how far persist says that the log is.


log = logging.getLogger(__name__)


class QueryRecord(NamedTuple):
    """A record of Kafka; ``time`` is the broker's, epoch milliseconds."""

    time: int
    partition: int
    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def ends(kafka: Kafka, topics: list[str]) -> str:
    """Return the present ends of topics, for a new checkpoint.

    Commands that are older have been given up by their clients, and deleting twice is not deleting once. Spark itself
    would look later, and leave out what is sent as soon as the query has been started.
    """
    known = options(kafka, KafkaConsumer.DEFAULT_CONFIG)
    with closing(KafkaConsumer(bootstrap_servers=kafka.bootstrap, **known)) as consumer:
        places = [TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic)]
        found: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        for place, offset in consumer.end_offsets(places).items():
            found[place.topic][str(place.partition)] = offset
    return json.dumps(found)


def collect(frame: DataFrame) -> Sequence[QueryRecord]:
    """Bring the records of a batch to the driver, in the order of their times."""
    found = []
    for row in frame.selectExpr("unix_millis(timestamp) AS time", *QueryRecord._fields[1:]).toArrow().to_pylist():
        headers = [(entry["key"], entry["value"]) for entry in row["headers"] or ()]
        found.append(QueryRecord(**{**row, "headers": headers}))
    topics = sorted({record.topic for record in found})
    return in_order(found, lambda record: (record.time, topics.index(record.topic), record.partition, record.offset))


def newest_stored_batch(records: Iterable[QueryRecord], topic: str, known: int) -> int:
    """Return the last batch of the log: the one that is known, or a later one that persist has told of.

    :param topic: the topic ``stored`` by its real name
    """
    newest = known
    for record in records:
        if record.topic == topic:
            try:
                newest = max(newest, read_stored(record.value or b"").batch)
            except StoredError as error:
                log.warning("A record of %s is left out (offset %s): %s", topic, record.offset, error)
    return newest


def read_queries(
    spark: SparkSession, records: Iterable[QueryRecord]
) -> tuple[list[QueryRequest], list[tuple[QueryRecord, str]]]:
    """Return the commands among records, and those that are none, with the reason."""
    asked, dead = [], []
    for record in records:
        origin = f"{record.partition}-{record.offset}"
        try:
            request = requests.read(record.key, record.headers, origin, record.time)
        except UnreadableError as error:
            dead.append((record, str(error)))
        else:
            text = request.command.filter
            unsound = text is not None and request.reason is None and not _sound(spark, text)
            asked.append(request.refused(queries.BAD_FILTER) if unsound else request)
    return asked, dead


def dead_letters(spark: SparkSession, dead: Sequence[tuple[QueryRecord, str]]) -> DataFrame:
    """Return dead letters as records: key, value, and in the headers the reason and where they stood."""
    rows = []
    for record, reason in dead:
        said = {"reason": reason, "topic": record.topic, "partition": record.partition, "offset": record.offset}
        rows.append((record.key, record.value, [(name, str(value).encode()) for name, value in said.items()]))
    return spark.createDataFrame(rows, "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")


@lru_cache(maxsize=1024)
def _sound(spark: SparkSession, text: str) -> bool:
    """Tell whether Spark and Java take a filter that has been read."""
    try:
        for pattern in filters.patterns(text) if isinstance(filters.read_filter(text), str) else ():
            spark._jvm.java.util.regex.Pattern.compile(pattern)  # noqa: SLF001 - Spark asks it no sooner than it runs
        spark.createDataFrame([], "value STRING").where(results.fits(text))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is this command's affair
        log.info("Spark does not take the filter %r: %s", text, error)
        return False
    return True
