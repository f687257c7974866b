"""The life of a job: it checks topics, checkpoint and tables, and runs the query beside its clock and its offsets."""

import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.errors import AckstreamError, StartError, StoppedError, TakenError, cause
from ackstream.kafka.login import not_allowed
from ackstream.kafka.parties import LEASED, PARTIES
from ackstream.kafka.topics import prepare, topic_ids
from ackstream.local.submit import STANDBY, is_local
from ackstream.observe.endpoint import HEALTH, METRICS
from ackstream.observe.metrics import FIGURES
from ackstream.settings import Settings
from ackstream.settings.loading import with_values
from ackstream.spark import checkpoint as checkpoints
from ackstream.spark.batches import Trigger
from ackstream.spark.checkpoint import Checkpoint, CheckpointRules, deciding_values, fixed_values
from ackstream.spark.clock import QueryClock, Watched, clock
from ackstream.spark.kafka import ANY_RUN, FORMER_RUN, FURTHER, REHEARSAL, RUN, disconnect
from ackstream.spark.lease import LeaseLog, lease_seconds, watching
from ackstream.spark.operator import LOG, distribute, told
from ackstream.spark.progress import committer, has_looked, observed, planned_offsets, stop_in_order
from ackstream.spark.session import check_disks, driver, locate, run_with_settings

log = logging.getLogger(__name__)

AWAIT_SECONDS, ENDED_SECONDS = 1, 0.001
STANDBY_SECONDS, REHEARSAL_SECONDS = 0.1, 30.0
"""Seconds between a standby's checks of the lease, and between rehearsals: Spark ends idle workers after 60 s."""
DRIVER, SILENT_SECONDS, FIRST = "The driver", 120.0, "The first batch"
"""Each of its calls to the JVM about its queries is a sign of life; without a first batch the process is not ready."""

DATA_LOSS = "failOnDataLoss"
"""The option that Spark names in every message about deleted records, of driver and executors."""
_LOSS = (
    "Kafka deleted records before the job read them, because it was stopped or behind for longer than retention.ms of "
    "their topic. To continue without them, set kafka.on_data_loss = continue (ACKSTREAM_KAFKA_ON_DATA_LOSS): the log "
    "then reports their number."
)
REFUSED = re.compile(r"\b\w+AuthorizationException: [^\n]*")
"""The error of a broker in Spark's clients if an ACL is missing."""
UNFIT = re.compile(r"No module named '\S+'|\[(?:PACKAGE_NOT_INSTALLED|PYTHON_VERSION_MISMATCH)\] [^\n]*?(?=\.\s|$)")
"""The errors of a Python worker that lacks a package, or has another Python version."""
STATE_FILE = re.compile(r"(?:Checksum error: |delta file |state file of )(\S+?/state/\d+/\d+/[^\s:]+)")
"""The errors that name a file of the state: Spark does not name a file that it cannot unpack."""
POOL = "spark.scheduler.pool"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, as its room of ``ackstream.jobs`` describes it; it runs alone (:func:`main`), or with others in a session.

    :ivar name: the name of the query, of its checkpoint, and of the party with its topics
    :ivar build: creates the tables and starts the query with a trigger, in a session of its own
    :ivar trigger: the settings key of the query's trigger: an interval of Spark's, or milliseconds
    :ivar reads: the topics whose offsets its checkpoint counts, without that of its clock
    :ivar further: finds the topics of applications that the settings add to these
    :ivar ticks: the topic of its clock, which never passes an unread record of ``reads``
    :ivar conf: entries for its Spark session
    :ivar answers: whether clients wait for its results: its tasks precede those of other jobs in the session
    :ivar check: refuses inconsistent settings before the first write
    :ivar rehearsal: settings, by their full keys, for a batch of a standby whose results are dropped; for queries that
        write only the emissions of their shards. ``None``: there is no rehearsal
    """

    name: str
    build: Callable[[SparkSession, Settings, Trigger], StreamingQuery]
    trigger: str
    ticks: str | None = None
    reads: tuple[str, ...] = ()
    further: Callable[[Settings], Sequence[str]] = lambda _: ()
    conf: Callable[[Settings], Mapping[str, str]] = lambda _: {}
    answers: bool = True
    check: Callable[[SparkSession, Settings], None] = lambda _, __: None
    rehearsal: Mapping[str, object] | None = None
    keeps: CheckpointRules = field(default_factory=CheckpointRules)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads and writes, without the prefix."""
        return PARTIES[self.name].topics if self.name in PARTIES else ()

    @property
    def lease(self) -> str | None:
        """The topic of its signs of life, so that no second process runs it."""
        return f"{self.name}-lease" if self.name in LEASED else None

    def start(
        self,
        spark: SparkSession,
        settings: Settings,
        *,
        available_now: bool = False,
        clock: QueryClock | None = None,
        further: Sequence[str] | None = None,
    ) -> StreamingQuery:
        """Start the query alone, without its consumer group; it runs until it is stopped.

        :param available_now: stop at the present end of its topics
        :param clock: follows the query; ``None``: the ticks of another publisher count
        :param further: topics of applications; ``None``: those that exist now
        :raises StartError: if settings, checkpoint and tables are inconsistent
        """
        # entries that the job sets, and the query reads at its start, must not reach other queries
        rehearsal = spark.conf.get(REHEARSAL, None) is not None
        own = spark if rehearsal else spark.newSession()
        for key, value in self.conf(settings).items():
            own.conf.set(key, value)
        own.conf.set(LOG, json.dumps({"log": settings.log.model_dump(), "program": self.name, "query": self.name}))
        if clock is not None:
            own.conf.set(RUN, clock.run)
        check_disks(own, fixed_values(settings, ("lake.path", "lake.checkpoints")))
        self.check(own, settings)
        checkpoint = Checkpoint(own, settings.lake.checkpoint(self.name))
        further = self.further(settings) if further is None else further
        own.conf.set(FURTHER, json.dumps(further))
        topics = topic_ids(settings.kafka, filter(None, [*self.reads, *further, self.ticks]))
        last, end = checkpoint.planned, None
        if last is not None and last.unfinished:
            end = checkpoint.planned_end(last.batch, settings.kafka.topic(self.ticks or ""))
        ours = fixed_values(settings, self.keeps.fixed) | topics | {checkpoints.RULES: self.keeps.rules}
        if self.keeps.shards is not None:
            ours |= distribute(own, attrgetter(self.keeps.shards)(settings), checkpoint.remembered)
        query_id, batch = checkpoint.query_id, -1 if last is None else last.batch
        newest = -1 if query_id is None else self.keeps.committed(own, settings, query_id)
        checkpoints.compare_batches(checkpoint.location, batch, newest, self.keeps.otherwise)
        former = checkpoints.guard_checkpoint(
            checkpoint,
            ours,
            self.remedy,
            decides=deciding_values(settings, self.keeps.decides),
            stored=newest >= batch,
            run=ANY_RUN if clock is None else clock.run,
            end=end,
            forgets=settings.kafka.on_data_loss == "continue",
        )
        if former is not None:
            own.conf.set(FORMER_RUN, json.dumps([former, end]))
        every = attrgetter(self.trigger)(settings)
        interval = every if isinstance(every, str) else f"{every} milliseconds"
        # a query inherits the pool of the thread that starts it
        spark.sparkContext.setLocalProperty(POOL, "answering" if self.answers else "following")
        try:
            query = self.build(own, settings, {"availableNow": True} if available_now else {"processingTime": interval})
        finally:
            spark.sparkContext.setLocalProperty(POOL, None)
        if clock is not None:
            watched = Watched(planned_offsets(query), partial(told, own)) if self.ticks else None
            clock.follow(watched, query.stop)
        if not rehearsal:
            FIGURES.follow(f"shards of {self.name}", lambda: told(own).figures())
            how = "repeats" if last and last.unfinished else "continues after"
            where = f"{how} batch {last.batch}" if last else "begins"
            log.info("%s %s; %s in %s.", self.name, self._ways(settings, further), where, checkpoint.location)
        return query

    def _ways(self, settings: Settings, further: Sequence[str]) -> str:
        """Return the topics and tables that it reads and writes, without its clock and lease, as part of a sentence."""
        kafka, sent = settings.kafka, PARTIES[self.name].writes if self.name in PARTIES else ()
        reads = [kafka.topic(name) for name in (*self.reads, *further)] or ["tables"]
        writes = [kafka.topic(name) for name in sent if name not in (self.ticks, self.lease)]
        if not writes or self.keeps.committed is not CheckpointRules.committed:
            writes.append(f"tables in {settings.lake.path}")
        return f"reads {', '.join(reads)}; writes {', '.join(writes)}; uses Kafka at {kafka.bootstrap}"

    def stand_by(self, spark: SparkSession, settings: Settings, over: Callable[[], bool]) -> bool:
        """Wait until no process runs the job, and rehearse now and then; return ``False`` if ``over`` is true first."""
        log.info("Standing by: another process runs %s.", self.name)
        topic, seconds = settings.kafka.topic(self.lease or ""), lease_seconds(settings.clock.interval / 1000)
        with ExitStack() as stack:
            watch = watching(LeaseLog(stack, settings.kafka, topic), seconds)
            rehearsals = stack.enter_context(closing(self._rehearsals(spark, settings)))
            while not over() and not next(watch):
                next(rehearsals, None)
                time.sleep(STANDBY_SECONDS)
        return not over()

    def _rehearsals(self, spark: SparkSession, settings: Settings) -> Generator[None]:
        """Run a batch apart from the system now and then, which loads the code that the query needs."""
        own = spark.newSession()
        own.conf.set(REHEARSAL, self.name)
        # executors elsewhere would keep the files of rehearsals
        while self.rehearsal is not None and is_local(spark.sparkContext.master):
            try:
                with ExitStack() as stack:
                    place = stack.enter_context(TemporaryDirectory(prefix="ackstream-", ignore_cleanup_errors=True))
                    apart = {**self.rehearsal, "lake.checkpoints": f"file:{place}"}
                    query = self.start(own, with_values(settings, apart))
                    stack.callback(query.stop)
                    while query.lastProgress is None and not query.awaitTermination(ENDED_SECONDS):
                        yield
            except Exception as error:  # noqa: BLE001 - a standby that knows less is better than none
                why = query_cause(str(error))
                log.warning("A rehearsal of %s failed, so a take-over may take longer: %s", self.name, why)
            due = time.monotonic() + REHEARSAL_SECONDS
            while time.monotonic() < due:
                yield

    def remedy(self, key: str) -> str:
        """Return the remedy for a setting that is fixed under the checkpoint, as the end of a sentence."""
        if key in self.keeps.movable:
            return f"stop the job and run `ackstream migrate {self.name}`"
        return self.keeps.otherwise

    @contextmanager
    def running(self, spark: SparkSession, settings: Settings, *, ticks: bool = True) -> Iterator[StreamingQuery]:
        """Create missing topics, and run query, clock and commits of offsets until the block ends.

        :param ticks: whether it publishes its ticks itself; if not, it has no lease either
        :raises StartError: if settings, checkpoint, topics and tables are inconsistent, or another process runs the job
        :raises LocalError: if Kafka does not answer
        :raises StoppedError: at the end of the block, if its clock or its lease failed and stopped the query
        """
        further = self.further(settings)
        reads = (*self.reads, *further)
        if self.topics:
            prepare(settings, [*self.topics, *further], PARTIES[self.name])
        with ExitStack() as stack:
            stack.callback(disconnect, self.name)
            own = None
            if self.lease is not None and (self.ticks is None or ticks):
                # the run begins before the query and ends after it
                own = stack.enter_context(clock(settings, self.lease, self.ticks, reads))
            query = self.start(spark, settings, clock=own, further=further)
            stack.callback(stop_in_order, query)
            if settings.metrics.port > 0:
                stack.enter_context(observed(query, self.name, own))
            if reads:
                known = Checkpoint(spark, settings.lake.checkpoint(self.name)).topic_ids
                # another publisher of its ticks may stamp them by its own clock
                topics = [topic for topic in self.topics if own is not None or topic != self.ticks]
                stack.enter_context(committer(settings, query, reads, [*topics, *further], known))
            yield query
        batch = Checkpoint(spark, settings.lake.checkpoint(self.name)).last("commits")
        log.info("Stopped: %s %s.", self.name, f"after batch {batch}" if batch >= 0 else "before its first batch")


def main(*jobs: Job) -> None:
    """Run jobs in this process, as ``spark-submit`` starts it, until one of them ends, or a signal ends all."""

    def run(settings: Settings) -> None:
        with (
            HEALTH.expecting(DRIVER, SILENT_SECONDS, vital=True),
            HEALTH.expecting(FIRST, math.inf),
            driver(settings, f"ackstream-{jobs[0].name}") as (spark, stop),
            ExitStack() as stack,
        ):
            started: list[tuple[str, StreamingQuery]] = []

            def over(seconds: float = ENDED_SECONDS) -> bool:
                HEALTH.beat(DRIVER, time.monotonic())
                return stop.is_set() or any(_ended(settings, *one, stop, seconds) for one in started)

            waiting = list(jobs)
            while waiting and not stop.is_set():
                try:
                    started.append((waiting[0].name, stack.enter_context(waiting[0].running(spark, settings))))
                    del waiting[0]
                except TakenError:
                    if STANDBY not in sys.argv:
                        raise
                    HEALTH.beat(FIRST, time.monotonic())
                    if not waiting[0].stand_by(spark, settings, over):
                        break
                    HEALTH.expect(DRIVER, SILENT_SECONDS, vital=True)  # a start may take long
                    HEALTH.expect(FIRST, math.inf)
            starting = [query for _, query in started]
            # after a restart, all of them continue from their checkpoints
            while not over(AWAIT_SECONDS):
                if starting and not (starting := [query for query in starting if not has_looked(query)]):
                    own, names = settings.metrics, ", ".join(name for name, _ in started)
                    served = f"at http://{own.host}:{own.port}{METRICS}" if own.port else "off (metrics.port = 0)"
                    HEALTH.beat(FIRST, time.monotonic())
                    log.info("Ready: %s. Metrics are %s.", names, served)

    run_with_settings(run, "+".join(job.name for job in jobs))


def _ended(settings: Settings, name: str, query: StreamingQuery, stop: threading.Event, seconds: float) -> bool:
    """Return whether a query ends within the seconds; raise an AckstreamError if it has failed."""
    try:
        return bool(query.awaitTermination(seconds))
    except StreamingQueryException as error:
        if stop.is_set():
            # a signal to all processes also ends Python's workers
            return True
        raise _failed(settings, name, error) from error


def _failed(settings: Settings, name: str, error: StreamingQueryException) -> AckstreamError:
    """Return the error for a failed query; log its stack and its plan."""
    text = str(error)
    if DATA_LOSS in text:
        return StoppedError(_LOSS)
    if (refused := REFUSED.search(text)) is not None:
        return not_allowed(settings.kafka, f"that ({refused[0]})")
    if (unfit := UNFIT.search(text)) is not None:
        return StartError(
            f"Python on a worker cannot run the query {name} ({unfit[0]}): each machine with executors needs Python 3."
            f"{sys.version_info[1]} with 'ackstream[spark]', at PYSPARK_PYTHON or in spark.archives."
        )
    log.error("The query %s has failed.", name, exc_info=error)
    if "CANNOT_LOAD_STATE_STORE" in text:
        named = STATE_FILE.search(f"{text}{getattr(error, '_stackTrace', '')}")
        # an unavailable file system damages nothing
        with suppress(Py4JJavaError):
            file = _damaged(SparkSession.active(), settings.lake.checkpoint(name)) if named is None else named[1]
            if file is not None:
                return StoppedError(f"The file {file} is missing or damaged: {checkpoints.WAY_OUT}")
    return StoppedError(f"The query {name} has failed: {query_cause(text)}. A restart continues from the checkpoint.")


def _damaged(spark: SparkSession, location: str) -> str | None:
    """Return the first file of a checkpoint's state that cannot be unpacked."""
    files, pattern = locate(spark, f"{location}/state/*/*/*.{{delta,snapshot,changelog}}")
    jvm, conf = spark._jvm, spark._jsc.sc().conf()  # noqa: SLF001 - there is no public way
    codecs = getattr(getattr(jvm.org.apache.spark.io, "CompressionCodec$"), "MODULE$")
    codec = codecs.createCodec(conf, spark.conf.get("spark.sql.streaming.stateStore.compression.codec"))
    for found in files.globStatus(pattern):
        with closing(files.open(found.getPath())) as packed, suppress(Py4JJavaError):
            if codec.compressedInputStream(packed).transferTo(jvm.java.io.OutputStream.nullOutputStream()) > 0:
                continue
        return str(found.getPath())
    return None


def query_cause(text: str) -> str:
    """Return the cause of a query's failure: a line of Spark's message, of the last Python stack in it if any."""
    said = text.partition(" terminated with exception: ")[2].partition("=== Streaming Query ===")[0] or text
    stack = said.rpartition("Traceback (most recent call last):\n")[2]
    line = next((line for line in stack.splitlines() if line and not line.startswith(" ")), said)
    if "An error occurred while calling " in line:
        return cause(stack or said)
    return line.partition(" SQLSTATE: ")[0].rstrip(". ")
