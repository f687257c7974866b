"""The shell of a query that folds on the driver, commits, then sends: one function writes each batch.

A batch that is replayed after a crash keeps its number, so tables refuse its rows (``lake.tables.append``) and its
messages are sent again with the same ids.
"""

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import cache, partial
from typing import Any

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ackstream.errors import StoppedError
from ackstream.kafka.clients import Failures
from ackstream.observe.logs import about
from ackstream.settings import Lake

Write = Callable[[DataFrame, int, str], None]
Work = Callable[[], object]
Trigger = Mapping[str, Any]

log = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties with the query and the batch of a thread or a task."""


def start(stream: DataFrame, lake: Lake, name: str, write: Write, trigger: Trigger) -> StreamingQuery:
    """Start a query, with the checkpoint of its name; it passes each batch to ``write`` until it is stopped.

    :param write: gets the batch (also an empty one), its number, and the query's id. A new checkpoint has a new id, and
        numbers from 0
    """
    return (
        stream.writeStream.queryName(name)
        .option("checkpointLocation", lake.checkpoint(name))
        .foreachBatch(_written(name, write))
        .trigger(**trigger)
        .start()
    )


def _written(name: str, write: Write) -> Callable[[DataFrame, int], None]:
    """Return a function that calls ``write``, and collects garbage after it."""
    # Data frames are in reference cycles, and each keeps its batch in the JVM until Python collects it: after a minute
    # of full batches no heap was left. Objects of the first batch stay, so they are frozen and never examined again.
    freeze = cache(gc.freeze)

    def written(frame: DataFrame, batch_id: int) -> None:
        try:
            with about(query=name, batch=batch_id):
                write(frame, batch_id, frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID))
        finally:
            gc.collect()
            freeze()

    return written


@contextmanager
def threads(spark: SparkSession, count: int) -> Iterator[Callable[[Work], Future[None]]]:
    """Yield a function that starts work beside the batch; the block ends when all work has ended."""

    def run(work: Work) -> None:
        # Delta reads it from the JVM thread, where it has to read a log
        type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001
        work()

    with ThreadPoolExecutor(count, thread_name_prefix="ackstream-batch") as pool:
        # with the query's job group, so that stopping the query stops them; and with the log fields of this thread
        yield lambda work: pool.submit(copy_context().run, inheritable_thread_target(spark)(partial(run, work)))


def at_once(spark: SparkSession, works: Sequence[Work]) -> None:
    """Do work in parallel; raise the first error when all work has ended."""
    if works:
        with threads(spark, len(works)) as submit:
            running = [submit(work) for work in works]
        for future in running:
            future.result()


@contextmanager
def repeating(
    name: str,
    seconds: float,
    connect: Callable[[], AbstractContextManager[Work]],
    patience: float = math.inf,
    give_up: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Do the work that ``connect`` yields at an interval of seconds, in a thread that ends with the block.

    :param patience: the seconds of failures after which the thread gives up; until then, it reconnects and repeats
    :param give_up: called then, or when the work raises a StoppedError; the block ends with that error
    """
    stop = threading.Event()
    ended: list[StoppedError] = []
    failures = Failures()

    def run() -> None:
        worked = time.monotonic()
        while not stop.is_set():
            try:
                with connect() as work:
                    while not stop.wait(seconds):
                        work()
                        worked = time.monotonic()
            except StoppedError as error:
                ended.append(error)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would stop time for every request
                silent = time.monotonic() - worked
                if silent > patience:
                    ended.append(StoppedError(f"The {name} has failed for {silent:.0f} s, at last with {error!r}."))
                else:
                    if failures.due(time.monotonic()):
                        log.warning("The %s failed and will be retried: %r", name, error)
                    stop.wait(max(seconds, RETRY_SECONDS))
            if ended:
                log.error("%s", ended[0])
                give_up()
                return

    thread = threading.Thread(target=run, name=f"ackstream-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if ended:
        raise ended[0]


def collect(frame: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Bring the rows of a frame to the driver."""
    for part in frame.toArrow().to_batches():
        yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


def arrow(rows: Iterable[Iterable[Any]], schema: pa.Schema) -> pa.Table:
    """Return at least one row as a table with a schema."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
