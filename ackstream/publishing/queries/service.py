"""The query that carries out commands over the messages, for as long as it runs (brokers.md 1.4).

Its source are the commands and what persist says of its batches; that is how far the log is. A batch first remembers
how far it was and who subscribes to what, and only then says anything. One that runs again after a crash takes from
there how far the log was, so that it comes to the same results, with the same ids.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from pyspark import inheritable_thread_target
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream import sink
from ackstream.lake import message_log, tables
from ackstream.lake.message_log import Moment
from ackstream.lake.schemas import PUBLISHER_TABLES, QUERY_TABLES, SUBSCRIPTIONS
from ackstream.publishing import commands
from ackstream.publishing.queries import intake, results
from ackstream.publishing.queries.desk import Desk
from ackstream.publishing.queries.execution import Terms, carry_out
from ackstream.publishing.queries.steps import Counted, Deleted, State, Told
from ackstream.source import source

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.publishing.queries.requests import Request
    from ackstream.publishing.queries.steps import Step
    from ackstream.settings import Settings

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
        starting=intake.ends(settings.kafka, topics),
        limit=settings.query.max_offsets_per_trigger,
        headers=True,
    )
    return (
        stream.writeStream.queryName(NAME)
        .option("checkpointLocation", settings.lake.checkpoint(NAME))
        .foreachBatch(sink.each_batch(Service(settings).write))
        .trigger(processingTime=f"{settings.query.interval} milliseconds")
        .start()
    )


class Service:
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
        records = intake.collect(frame)
        if not records:
            return
        now = max(record.time for record in records)
        replayed = self._state is None and self._load(spark, query_id, batch_id, now)
        batch = self._first + batch_id
        if not replayed:
            self._newest = intake.newest_batch(records, kafka.topic("stored"), self._newest)
        asked, dead = intake.read(spark, [record for record in records if record.topic == kafka.topic("queries")])
        state = self._state or State()
        desk = Desk(state, known=self._known, newest=self._newest, now=now)
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
            sink.write(said, kafka, kafka.topic("query-results"))
        if dead:
            sink.write(intake.dead_letters(spark, dead), kafka, kafka.topic("dead-letters"))
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
                (ack,) = commands.statistics(request.command, *numbers)
                rest.append(Told(request.client, step.id, msgspec.structs.replace(ack, client=request.client)))
                continue
            rest.append(step)
        return rest

    def _count(self, spark: SparkSession, request: Request, moment: Moment) -> tuple[int, int]:
        return results.counted(spark, self._settings.lake, request, self._newest, moment)

    def _delete(self, spark: SparkSession, request: Request, moment: Moment, query_id: str) -> None:
        found = results.selected(spark, self._settings.lake, request, self._newest, moment)
        own = {
            "client": F.lit(request.client),
            "cid": F.lit(request.command.cid).cast("string"),
            "deleted_at": F.timestamp_millis(F.lit(request.time)),
        }
        message_log.delete(found, self._settings.lake, moment, own, query_id)

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
        self._newest = own[0]["position"] if own else message_log.newest_batch(spark, lake)
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
