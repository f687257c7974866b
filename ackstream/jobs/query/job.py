"""The query job: commands over the messages, and subscriptions to them (brokers.md 1.4).

It reads the commands, and the topic ``stored``, in which persist reports that the log has grown; the table has the
position. A batch first stores the position of the log and all subscriptions, then it sends. Replayed after a crash, it
takes the position from there, so it gives the same results, with the same ids.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import msgspec
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.jobs.query import results
from ackstream.jobs.query.amps_filters import FilterSyntaxError
from ackstream.jobs.query.filters import read_filter
from ackstream.jobs.query.plan import QueryState, SubscriptionPlan, execute
from ackstream.jobs.query.records import QueryRequest, collect, dead_letters, projected, read_queries
from ackstream.jobs.query.results import Acknowledged, Counted, Deleted, LogSubscription, Step
from ackstream.lake import commits, messages, tables
from ackstream.lake.messages import Moment, Tail
from ackstream.observe.metrics import DEAD_LETTERS, FIGURES
from ackstream.protocol import queries
from ackstream.settings import Lake, Query, Settings
from ackstream.spark import batches
from ackstream.spark import kafka as spark_kafka
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import CheckpointRules
from ackstream.spark.job import Job
from ackstream.spark.kafka import LATEST, limit_copies, source
from ackstream.spark.records import guarded

log = logging.getLogger(__name__)

NAME = "query"
MAX_BATCHES_UNSTORED = 100
"""The position of the log is stored after this many batches of messages at the latest: fewer are delivered again."""

PRUNED_EVERY = 300
"""Rows of the table ``subscriptions`` between removals of old ones."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(QueryState).decode


def build(spark: SparkSession, settings: Settings, trigger: Trigger) -> StreamingQuery:
    """Make the tables and start the query."""
    tables.create(spark, settings.lake, ("messages", "subscriptions", "sow_deletes"))
    limit_copies(spark, settings.kafka, "query-results")
    # clients have given up older commands, and deleting twice is not deleting once
    topics, limit = {"queries": LATEST, "stored": LATEST}, settings.query.max_offsets_per_trigger
    stream = source(spark, settings.kafka, topics, job=NAME, limit=limit, headers=True)
    return batches.start(projected(stream), settings.lake, NAME, QueryFold(settings).write, trigger)


JOB = Job(
    name=NAME,
    build=build,
    trigger="query.interval",
    reads=("queries", "stored"),
    # with ANSI a failing cast stops the query, where a filter must simply not match
    conf=lambda _: {"spark.sql.ansi.enabled": "false"},
    keeps=CheckpointRules(
        committed=partial(tables.newest_own_batch, ("subscriptions",)),
        decides=("query.entitlements", "persist.topics"),
        rules=3,
    ),
)


class QueryFold:
    """Carries out batches of commands; keeps the clients' subscriptions in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state: QueryState | None = None
        self._tail: Tail | None = None
        self._first = self._known = self._newest = self._stored = self._rows = self._read_until = 0
        # whether persist has reported growth of the log since the last read of the table, which has its position
        self._told = True

    def write(self, frame: DataFrame, batch_id: int, query_id: str) -> None:
        """Carry out the commands among :func:`projected` records, and deliver the messages that are new in the log."""
        spark, kafka = frame.sparkSession, self._settings.kafka
        records = collect(frame)
        if not records:
            return
        times = sorted(record.time for record in records)
        now = times[-1]
        replayed = self._state is None and self._load(spark, query_id, batch_id, now)
        batch = self._first + batch_id
        asked, dead = read_queries(spark, [record for record in records if record.topic == kafka.topic("queries")])
        state = self._state or QueryState()
        self._told |= any(record.topic == kafka.topic("stored") for record in records)
        # looked up only if a client needs it: it costs 0.1 to 0.4 s
        if not replayed and self._told and (asked or state.subscriptions):
            # the last batch that persist has committed
            committed = tables.transactions(spark, self._settings.lake, messages.TABLE).values()
            self._newest = max([self._newest, *committed])
            self._told = False
        plan = SubscriptionPlan(state, known=self._known, newest=self._newest, now=now)
        times.insert(0, self._read_until)
        self._read_until = max(times)
        plan.deliver(asked, times)
        # a replayed batch may deliver differently; its commands see and delete at the same steps
        start = Moment(batch, -len(plan.steps))
        for request in asked:
            run(plan, request, self._settings)
        plan.close()
        lasting = plan.lasting or self._newest - self._stored >= MAX_BATCHES_UNSTORED
        with batches.threads(spark, 1) as submit:
            # beside counting; but before anything is deleted or sent, so that a replayed batch does the same
            stored = submit(partial(self._store, spark, state, query_id, batch)) if lasting else None
            steps = self._look_up(spark, plan.steps, start, query_id, stored)
            if stored is not None:
                stored.result()
        if steps:
            self._tail = self._tail or Tail(spark, self._settings.lake)
            records_to_send = results.records(spark, self._settings.lake, self._tail, steps, self._newest, start)
            spark_kafka.write(records_to_send, kafka, kafka.topic("query-results"))
        if dead:
            spark_kafka.send(spark, dead_letters(dead, kafka.topic("dead-letters")), kafka, NAME)
            FIGURES.count(DEAD_LETTERS, NAME, "unreadable", by=len(dead))
        self._known = self._newest
        if self._rows >= PRUNED_EVERY:
            prune(spark, self._settings.lake)
            self._rows = 0

    def _look_up(
        self, spark: SparkSession, steps: list[Step], start: Moment, query_id: str, stored: Future[None] | None
    ) -> list[Step]:
        """Carry out the deletes and the counts among the steps; return those that send something."""
        count = partial(results.counted, spark, self._settings.lake, newest=self._newest)
        counted: dict[str, tuple[int, int]] = {}
        rest: list[Step] = []
        for number, step in enumerate(steps):
            moment = start.after(number)
            if isinstance(step, Deleted):
                if "stats" in step.request.command.asked:
                    # counted before it is deleted
                    counted[step.request.origin] = count(request=step.request, moment=moment)
                if stored is not None:
                    stored.result()
                found = results.selected(spark, self._settings.lake, step.request, self._newest, moment)
                own = {
                    "client": F.lit(step.request.client),
                    "cid": F.lit(step.request.command.cid).cast("string"),
                    "deleted_at": F.timestamp_millis(F.lit(step.request.time)),
                }
                messages.delete(found, self._settings.lake, moment, own, query_id)
            elif isinstance(step, Counted):
                request = step.request
                numbers = counted.get(request.origin) or count(request=request, moment=moment)
                ack = queries.statistics(request.command, *numbers)
                rest.append(Acknowledged(step.id, msgspec.structs.replace(ack, client=request.client)))
                continue
            rest.append(step)
        return rest

    def _load(self, spark: SparkSession, query_id: str, batch_id: int, now: int) -> bool:
        """Load the state as it was before a batch; return whether the batch has stored its own: it is replayed then."""
        lake = self._settings.lake
        rows = tables.read(spark, lake, "subscriptions")
        # the batches of earlier checkpoints precede those of this one
        self._first = tables.newest_batch(rows.where(F.col("query_id") != query_id)) + 1
        batch = self._first + batch_id
        before = rows.where(F.col("batch") < batch).orderBy(F.col("batch").desc()).limit(1).collect()
        own = rows.where(F.col("batch") == batch).collect()
        # a replayed batch has stored the position of the log
        self._newest = own[0]["position"] if own else tables.newest_batch(tables.read(spark, lake, messages.TABLE))
        self._known = self._stored = before[0]["position"] if before else self._newest
        self._state = state = _decode(before[0]["state"]) if before else QueryState()
        self._rows = rows.count()
        for client, why in withdraw(state, self._objection).items():
            log.warning("The session of %r ends: %s", client, why)
        self._read_until = now
        for session in state.sessions.values():
            # clients could not reach the job while it was down
            session.seen = now
        return bool(own)

    def _objection(self, subscription: LogSubscription) -> str | None:
        """Return the reason if the present settings and rules no longer allow a subscription."""
        if not self._settings.query.entitles(subscription.client, subscription.topic):
            return f"it is no longer entitled to {subscription.topic!r}."
        try:
            if subscription.filter is not None:
                read_filter(subscription.filter)
        except FilterSyntaxError as error:
            return str(error)
        return None

    def _store(self, spark: SparkSession, state: QueryState, query_id: str, batch: int) -> None:
        row = {"batch": batch, "position": self._newest, "query_id": query_id, "state": _encode(state).decode()}
        tables.append_rows(spark, pa.Table.from_pylist([row]), self._settings.lake, "subscriptions", query_id, batch)
        self._stored = self._newest
        self._rows += 1


def run(plan: SubscriptionPlan, request: QueryRequest, settings: Settings) -> None:
    """Plan a command; one that fails is refused."""

    def fail(_: QueryRequest, error: Exception) -> None:
        log.error("The command %s of %s cannot be executed.", request.origin, request.client, exc_info=error)
        execute(plan, request.notified(queries.INTERNAL_ERROR), Query())

    topics = settings.persist.topics
    guarded(request, lambda known: execute(plan, known, settings.query, topics), fail, (plan.steps,))


def withdraw(state: QueryState, objection: Callable[[LogSubscription], str | None]) -> dict[str, str]:
    """End the sessions with a subscription that is no longer allowed; return the reasons by client."""
    # such a client notices by its next heartbeat, as one does whose session was forgotten
    reasons: dict[str, str] = {}
    for subscription in state.subscriptions:
        if why := objection(subscription):
            reasons.setdefault(subscription.client, why)
    state.subscriptions = [one for one in state.subscriptions if one.client not in reasons]
    for client in reasons:
        state.sessions.pop(client, None)
    return reasons


def prune(spark: SparkSession, lake: Lake) -> None:
    """Remove the states that no batch is ever restored from again; the table grows by a row per batch."""
    # the newest batch may be replayed: it starts from the state before; the last row of each query marks where it ends
    table = DeltaTable.forPath(spark, tables.location(lake, "subscriptions"))
    rows = table.toDF().select("batch", "query_id")
    newest = [row.batch for row in rows.orderBy(F.col("batch").desc()).limit(2).collect()]
    ends = [row.end for row in rows.groupBy("query_id").agg(F.max("batch").alias("end")).collect()]
    # maintenance may be compacting the table
    commits.retried(lambda: table.delete((F.col("batch") < min(newest)) & ~F.col("batch").isin(ends)))
