"""The cost of work queues: messages a second in Python alone and through the query, a batch of a long queue."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.queues import job as queue_query
from ackstream.jobs.queues.endpoint import Endpoint
from ackstream.jobs.queues.records import Arrival, ConsumerReport
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.queues import MAX_BACKLOG, Bind, SettleMessages, write
from ackstream.settings.jobs import QueueSettings
from benchmarks import broker, common
from benchmarks.common import ROUNDS
from benchmarks.progress import batches, rows_read, seconds, typical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.settings import Settings

REPEATS = 5
QUEUE, CONSUMER = "q", "A"
LATE_MS = 100_000_000
"""Longer than a benchmark lasts, and than it pretends."""
HOUR_MS = 3_600_000
BATCH = 1_000
"""Messages of a batch on a long queue."""
SIGNS, WARM_UP = 20, 5
"""Small batches on a long queue, and how many of them do not count."""
SETTLED_TOGETHER = 100
"""Messages in a record of settlements."""

PATIENCE_SECONDS = 300
METHOD = (
    "The messages wait in their table. A consumer binds that may hold all of them, and accepts them "
    f"{SETTLED_TOGETHER} by {SETTLED_TOGETHER}. Rates = messages / triggerExecution of the batches from the bind, and "
    "from the first settlement, until all rows are in queue_events; the values are not fetched."
)


def measure(bench: common.Bench) -> dict[str, Any]:
    """Measure the endpoint alone and the query, each also on long queues."""
    return {
        "pure": _measure_endpoint(bench),
        "waiting": _measure_waiting(bench),
        "query": _measure_query(bench),
        "query_waiting": _measure_batches(bench),
    }


def _measure_endpoint(bench: common.Bench) -> dict[str, Any]:
    count = 2_000 if bench.small else 100_000
    arrivals = [Arrival(1_000, "messages", 0, offset, 0, "orders/new") for offset in range(count)]
    settles = list(_settles(count))

    def waiting() -> Endpoint:
        endpoint = _endpoint()
        list(endpoint.process(arrivals, [], 0))
        return endpoint

    full = waiting()
    figures = {
        "arrivals_a_second": count / seconds(waiting, REPEATS),
        "deliveries_a_second": count
        / seconds(lambda: list(full.process([], [ConsumerReport(2_000, 0, 0, b"A", write(_bind()))], 0)), 1),
        "settlements_a_second": count / seconds(lambda: list(full.process([], settles, 0)), 1),
    }
    bench.table(f"A queue in pure Python, one core, {count:,} messages", ("what", "figure"), figures.items())
    return {"messages": count, "figures": figures}


def _measure_waiting(bench: common.Bench) -> list[dict[str, Any]]:
    """Measure a batch on a queue in which many messages wait: alike, then each with a topic and a time to live."""
    found = [
        _waiting(count, alike=alike)
        for count in ((1_000, 10_000) if bench.small else (10_000, 100_000, 1_000_000))
        for alike in (True, False)
    ]
    bench.table(
        f"A batch on a queue in pure Python, ms, median of {REPEATS}",
        (
            "waiting",
            "alike",
            "state, kB",
            "1 arrives",
            f"{BATCH:,} arrive",
            f"{BATCH:,} are delivered",
            f"{BATCH:,} expire",
        ),
        [tuple(entry.values()) for entry in found],
    )
    return found


def _waiting(count: int, *, alike: bool) -> dict[str, Any]:
    some = min(BATCH, count // 2)
    chance = random.Random(count)
    at = 1_000
    endpoint = _endpoint()
    for offset in range(count):
        # three partitions in no order, at most 500 messages a second
        at += 0 if alike else chance.randrange(4)
        subject = "orders/new" if alike else f"orders/{chance.randrange(1_000_000)}/new"
        ttl = 0 if alike else LATE_MS + chance.randrange(HOUR_MS) - at
        place = 0 if alike else chance.randrange(3)
        list(endpoint.process([Arrival(at, "messages", place, offset, offset // 1_000, subject, ttl)], [], 0))
    state = endpoint.dump()
    assert state is not None

    def batch(arrivals: int = 0, said: Sequence[ConsumerReport] = (), now: int = 0) -> float:
        new = [Arrival(at + 1, "messages", 0, count + offset, 0, "orders/new") for offset in range(arrivals)]

        def step() -> None:
            taken = _endpoint()
            taken.load(*state)
            list(taken.process(new, said, now))
            taken.dump()

        return seconds(step, REPEATS) * 1e3

    bind = ConsumerReport(at + 1, 0, 0, b"A", write(Bind(QUEUE, CONSUMER, 1, some)))
    return {
        "messages": count,
        "alike": alike,
        "state_kilobytes": len(state[1]) / 1e3,
        "one_arrives": batch(1),
        "many_arrive": batch(some),
        "many_are_delivered": batch(said=[bind]),
        "many_expire": None if alike else batch(now=LATE_MS + HOUR_MS * some // count),
    }


def _endpoint() -> Endpoint:
    rules = QueueSettings(name=QUEUE, topics=("*",), max_backlog=0, max_depth=0, respect_ttl=True)
    return Endpoint(rules, LATE_MS)


def _measure_query(bench: common.Bench) -> dict[str, Any]:
    count, rounds = (1_000, 1) if bench.small else (50_000, ROUNDS)
    found = []
    for number in range(rounds):
        found.append(_round(bench, count))
        bench.say(f"Round {number + 1}: {', '.join(f'{name} {rate:,.0f}/s' for name, rate in found[-1].items())}")
    rates = {name: statistics.median(entry[name] for entry in found) for name in found[0]}
    bench.table(f"Queues through Spark, Delta and Kafka, {count:,} messages", ("what", "a second"), rates.items())
    return {"method": METHOD, "messages": count, "rates": rates, "rounds": found}


def _measure_batches(bench: common.Bench) -> list[dict[str, Any]]:
    """Measure small batches of the query on a queue in which many messages wait."""
    found = []
    for count in (100, 1_000) if bench.small else (10_000, 100_000, 1_000_000):
        settings = _settings(bench, max_depth=0)
        _store(bench, settings, count)
        query = queue_query.JOB.start(bench.spark, settings)
        try:
            _wait(lambda query=query, count=count: rows_read(query) >= count)
            # each changes the queue, which is restored and kept, and nothing in its table
            for session in range(SIGNS):
                _spend(settings, query, [Bind(QUEUE, CONSUMER, session + 1, stopped=True)])
            times = typical(batches(query)[-SIGNS + WARM_UP :])
        finally:
            query.stop()
        found.append({"messages": count, "batch": times["triggerExecution"], "work": times["addBatch"]})
    bench.table(
        "A batch with one bind on a queue through Spark, ms, median",
        ("messages that wait", "whole", "work"),
        [tuple(entry.values()) for entry in found],
    )
    return found


def _settings(bench: common.Bench, **rules: Any) -> Settings:
    queue = QueueSettings(name=QUEUE, topics=("*",), **rules)
    return bench.settings("queue").model_copy(update={"queues": (queue,)})


def _round(bench: common.Bench, count: int) -> dict[str, float]:
    settings = _settings(bench, max_backlog=0)
    _store(bench, settings, count)
    query = queue_query.JOB.start(bench.spark, settings)
    try:
        # a new checkpoint reads reports from its first batch on
        _wait(lambda: query.lastProgress is not None)
        return {
            "deliveries": count / _spent(bench, settings, query, [_bind()], "delivered", count),
            "settlements": count / _spent(bench, settings, query, list(_records(count)), "left", count),
        }
    finally:
        query.stop()


def _store(bench: common.Bench, settings: Settings, count: int) -> None:
    """Write messages to their table as persist does."""
    tables.create(bench.spark, settings.lake, ("messages",))
    known = {
        "topic": F.lit("messages"), "partition": F.lit(0), "offset": F.col("id"), "batch": F.lit(0).cast("long"),
        "received_at": F.current_timestamp(), "query_id": F.lit("q"), "day": F.current_date(),
        "value": F.lit(b"message"), "subject": F.lit("orders/new"),
    }  # fmt: skip
    columns = ALL_TABLES["messages"].schema
    rows = bench.spark.range(count).select(
        *[known.get(column.name, F.lit(None)).cast(column.dataType).alias(column.name) for column in columns]
    )
    tables.append(rows, settings.lake, "messages", "q", 0)


def _spent(
    bench: common.Bench,
    settings: Settings,
    query: StreamingQuery,
    said: list[Bind | SettleMessages],
    event: str,
    count: int,
) -> float:
    """Send a record; return the seconds of the batches until the table has this many rows of an event."""

    def done() -> bool:
        rows = tables.read(bench.spark, settings.lake, "queue_events")
        return bool(rows.where(rows.event == event).count() >= count)

    return _spend(settings, query, said, done)


def _spend(
    settings: Settings,
    query: StreamingQuery,
    said: list[Bind | SettleMessages],
    done: Callable[[], bool] = lambda: True,
) -> float:
    """Send a record; return the seconds of the batches until a condition holds, at least one."""
    before = len(batches(query))
    topic = settings.kafka.topic("app-acks")
    broker.produce(settings.kafka.bootstrap, ((topic, CONSUMER.encode(), write(record), []) for record in said))
    _wait(done)
    _wait(lambda: len(batches(query)) > before)
    return sum(batch.seconds for batch in batches(query)[before:])


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the queue did not get through its messages")
        time.sleep(0.5)


def _bind() -> Bind:
    return Bind(QUEUE, CONSUMER, 1, MAX_BACKLOG)


def _records(count: int) -> Iterator[SettleMessages]:
    for first in range(0, count, SETTLED_TOGETHER):
        last = min(count, first + SETTLED_TOGETHER)
        yield SettleMessages(QUEUE, CONSUMER, 1, tuple(f"messages-0-{offset}" for offset in range(first, last)))


def _settles(count: int) -> Iterator[ConsumerReport]:
    for offset, record in enumerate(_records(count)):
        yield ConsumerReport(3_000, 0, offset, CONSUMER.encode(), write(record))


if __name__ == "__main__":
    common.main("queueing", measure)
