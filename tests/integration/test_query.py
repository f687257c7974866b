"""Commands over the messages: publishers, Kafka, the persist and the query job, and clients together."""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, get_args
from unittest.mock import patch

import pytest
from kafka import KafkaProducer

from ackstream.client.core.connection import connection_of
from ackstream.client.errors import (
    BadFilterError,
    CommandTimeout,
    InvalidBookmarkError,
    InvalidTopicError,
    NotEntitledError,
    NotSupportedError,
    RefusedError,
    TakenOverError,
)
from ackstream.client.options import QueryOptions
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.queries._query_link import QueryLink
from ackstream.client.queries.bookmarks import Bookmarks, LogMessage
from ackstream.client.queries.query_client import QueryClient
from ackstream.jobs.persist import job
from ackstream.jobs.query import job as query_job
from ackstream.jobs.query.records import UNSERVED
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.protocol.messages import SUPPORTED, AckType, CommandAck, StoredRange, decode_ack, write_stored
from ackstream.protocol.queries import parse_bookmark
from ackstream.settings import Kafka, Lake, Persist, Query, Settings
from ackstream.settings.jobs import QueryRule
from tests.harness import pages
from tests.harness.calls import count_calls
from tests.harness.kafka import following, records
from tests.harness.stories import Stories
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.client.queries.message_stream import MessageStream

pytestmark = pytest.mark.integration

COLUMNS = "topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, key BINARY, value BINARY, "
COLUMNS += "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


RULES = (
    QueryRule(clients=("*",), topics=("orders*", "trades"), delete=True),
    QueryRule(clients=("keeper",), topics=("vault",), delete=True),
    QueryRule(clients=("visitor",), topics=("vault",)),
)


class System:
    """Both jobs, topics and tables of their own."""

    def __init__(self, spark: SparkSession, broker: str, path: Path) -> None:
        kafka = Kafka(bootstrap=broker, topic_prefix=f"query{os.getpid()}-", partitions=2)
        self.settings = Settings(
            kafka=kafka,
            persist=Persist(topics=("orders*", "trades", "vault")),
            query=Query(entitlements=RULES),
            lake=Lake(path=str(path / "lake"), checkpoints=str(path / "checkpoints")),
        )
        self.kafka, self.path = kafka, path
        ensure_topics(self.settings, {*job.JOB.topics, *query_job.JOB.topics})
        self.spark = spark
        self.persist = job.JOB.start(spark, self.settings)
        self.query = query_job.JOB.start(spark, self.settings)
        self._publisher = Publisher(kafka, name="p1", logon_timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        self._publisher.close()
        self.persist.stop()
        self.query.stop()

    def restart(self) -> None:
        self.query.stop()
        self.query = query_job.JOB.start(self.spark, self.settings)

    def publish(self, topic: str, values: Iterable[Any], *, keyed: bool = False) -> None:
        for value in values:
            key = str(value["id"]).encode() if keyed else None
            self._publisher.publish(json.dumps(value).encode(), topic=topic, key=key)
        self._publisher.publish_flush(PATIENCE_SECONDS)

    def client(self, name: str, **options: Any) -> QueryClient:
        return QueryClient(self.kafka, name=name, timeout=PATIENCE_SECONDS, **options)

    def records(self, topic: str, key: str | None = None) -> list[Any]:
        """Read a topic whole, or the records of a key."""
        return [found for found in records(self.kafka, topic) if key is None or found.key == key.encode()]

    def acks(self, client: str) -> list[CommandAck]:
        """Return all acknowledgements for a client."""
        records = self.records("query-results", client)
        return [decode_ack(record.value) for record in records if dict(record.headers)["command"] == b"ack"]

    def seen(self, client: str, cid: str) -> list[str]:
        """Return what a command has brought, in order: types of acks, values of messages."""
        found = []
        for record in self.records("query-results", client):
            said = dict(record.headers)
            if said.get("cid") == cid.encode():
                command = said["command"].decode()
                found.append(
                    f"ack:{decode_ack(record.value).ack_type}"
                    if command == "ack"
                    else command
                    if record.value is None
                    else str(json.loads(record.value)["n"])
                )
        return found


@pytest.fixture(scope="module")
def system(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    started = System(spark, broker, tmp_path_factory.mktemp("query"))
    with following(started.kafka):
        yield started
    started.close()


story = Stories()


@pytest.fixture(scope="module")
def stories(system: System) -> Iterator[dict[str, Future[None]]]:
    with story.running(system) as running:
        yield running


def _numbers(messages: Iterable[LogMessage]) -> list[int]:
    return [json.loads(message.value or b"")["n"] for message in messages]


def _next(stream: MessageStream, count: int) -> list[LogMessage]:
    found = [stream.receive(PATIENCE_SECONDS) for _ in range(count)]
    return [message for message in found if message is not None]


def _together(*calls: Callable[[], Any]) -> list[Any]:
    """Do several things at once, which mostly go in one batch; return their results, or what they have raised."""

    def tried(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RefusedError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(tried, calls))


@story
def amps_23_24_a_replay_is_complete_where_the_log_ended_and_a_range_where_it_stops(system: System) -> None:
    topic = "orders-23"
    system.publish(topic, [{"n": n} for n in range(1, 101)])
    with system.client("replayer") as client:
        stream = client.execute("subscribe", ["received", "completed"], topic=topic, bookmark="EPOCH")
        old = _next(stream, 100)
        assert stream.wait("completed", PATIENCE_SECONDS).bookmark
        # a range takes its ends in, or not
        ends = f"{old[9].bookmark}:{old[19].bookmark}"
        closed, half = _together(
            lambda: client.subscribe(topic, bookmark=f"[{ends}]"), lambda: client.subscribe(topic, bookmark=f"({ends})")
        )
        assert _numbers(closed) == list(range(10, 21))
        assert _numbers(half) == list(range(11, 20))
        system.publish(topic, [{"n": n} for n in range(101, 104)])
        new = _next(stream, 3)
        assert _numbers([*old, *new]) == list(range(1, 104))
        framed = ["ack:received", "ack:processed", *map(str, range(1, 101)), "ack:completed", "101", "102", "103"]
        assert system.seen("replayer", stream.cid) == framed
        assert system.seen("replayer", closed.cid) == ["ack:processed", *map(str, range(10, 21)), "ack:completed"]


@story
def acknowledgements_stand_between_the_messages_of_their_command(system: System) -> None:
    topic = "orders-frames"
    system.publish(topic, [{"n": n} for n in range(3)])
    seen: list[CommandAck | LogMessage] = []
    with system.client("listener", on_ack=seen.append) as client:
        stream = client.subscribe(topic, bookmark="EPOCH", handler=seen.append)
        stream.wait("completed", PATIENCE_SECONDS)
        system.publish(topic, [{"n": 3}])
        eventually(lambda: sum(isinstance(one, LogMessage) for one in seen) == 4, "the new message", system.query)
    own = [one for one in seen if isinstance(one, LogMessage) or one.cid == stream.cid]
    framed = [_numbers([one])[0] if isinstance(one, LogMessage) else one.ack_type for one in own]
    assert framed == ["processed", 0, 1, 2, "completed", 3]


@story
def each_command_has_every_acknowledgement_of_its_set_and_is_refused_with_another_one(system: System) -> None:
    topic = "orders-sets"
    system.publish(topic, [{"id": 1, "n": 1}], keyed=True)
    given: dict[str, dict[str, str]] = {
        "subscribe": {"topic": topic, "bookmark": "EPOCH"},
        "sow": {"topic": topic},
        "sow_and_subscribe": {"topic": topic},
        "sow_delete": {"topic": topic, "filter": "/n > 1"},
        "unsubscribe": {"sub_id": "all"},
        "flush": {},
        "heartbeat": {},
    }
    assert given.keys() | {"publish", "logon"} == SUPPORTED.keys()
    with system.client("sets") as client:
        for command, headers in given.items():
            stream = client.execute(command, SUPPORTED[command], **headers)
            found = {stream.wait(kind, PATIENCE_SECONDS).ack_type for kind in SUPPORTED[command]}
            assert (command, found) == (command, set(SUPPORTED[command]))
        others = {command: {*get_args(AckType)} - SUPPORTED[command].keys() for command in given}
        others |= {command: set() for command in UNSERVED}
        calls = [
            partial(client.execute, command, types, **given.get(command, {"topic": topic}))
            for command, types in others.items()
            if types or command in UNSERVED
        ]
        assert {type(error) for error in _together(*calls)} == {NotSupportedError}


@story
def amps_25_26_a_subscription_goes_on_where_the_application_was_and_where_nothing_matched(
    system: System,
) -> None:
    topic, store = "orders-25", system.path / "reader.bookmarks"
    system.publish(topic, [{"n": n} for n in range(1, 6)])
    with system.client("reader", bookmarks=store) as client:
        stream = client.subscribe(topic, bookmark="MOST_RECENT", sub_id="mine")
        messages = _next(stream, 5)
        for index in (0, 1, 3):
            messages[index].discard()
    with system.client("reader", bookmarks=store) as client:
        stream = client.subscribe(topic, "/n <= 5", bookmark="MOST_RECENT", sub_id="mine")
        again = _next(stream, 2)
        assert _numbers(again) == [3, 5]
        for message in again:
            message.discard()
        before = stream.wait("persisted", PATIENCE_SECONDS).bookmark
        # what comes now matches nothing, and the bookmark goes on
        system.publish(topic, [{"n": n} for n in range(6, 9)])
        eventually(lambda: stream.wait("persisted").bookmark != before, "a later bookmark", system.query)
        newest = stream.wait("persisted").bookmark
    kept = Bookmarks("reader", store)
    assert parse_bookmark(kept.most_recent("mine")) >= parse_bookmark(str(newest))
    kept.close()


@story
def amps_27_28_queries_and_deletes_count(system: System) -> None:
    topic = "orders-27"
    # each key twice: the second message counts
    values = [{"id": n, "n": n, "price": n * again} for again in (0, 1) for n in range(200)]
    system.publish(topic, values, keyed=True)
    with system.client("analyst") as client:
        found, counted = _together(
            lambda: client.sow(topic, "/price < 24", top_n=10, order_by="/price DESC"),
            lambda: client.sow(topic, "lt(price,24)", top_n=0),
        )
        assert _numbers(found) == list(range(23, 13, -1))
        assert list(counted) == []
        assert [{ack.cid for ack in stream.acks} for stream in (found, counted)] == [{found.cid}, {counted.cid}]
        assert (found.stats.topic_matches, found.stats.matches, found.stats.records_returned) == (200, 24, 10)
        assert (counted.stats.topic_matches, counted.stats.matches, counted.stats.records_returned) == (200, 24, 0)
        assert system.seen("analyst", found.cid) == [
            "ack:processed", "group_begin", *map(str, range(23, 13, -1)), "group_end", "ack:completed", "ack:stats",
        ]  # fmt: skip
        numbered = partial(
            client.execute, "sow_delete", ["completed", "persisted", "stats"], topic=topic, filter="/price < 6", seq=7
        )
        deleted, gone = _together(numbered, lambda: client.sow_delete(topic, keys=["100", "101"]))
        stats = deleted.wait("stats", PATIENCE_SECONDS)
        # which of the two came first is open
        assert stats.topic_matches in (198, 200)
        assert (stats.matches, stats.records_deleted, gone.records_deleted) == (6, 6, 2)
        client.flush()
        merged = [ack for ack in system.acks("analyst") if ack.seq is not None]
        assert [(ack.ack_type, ack.seq, ack.cid) for ack in merged] == [("persisted", 7, None)]
        numbers = count(8)

        def merge() -> list[CommandAck]:
            deletes = [
                partial(
                    client.execute, "sow_delete", ["persisted"], topic=topic, filter="/price < 0", seq=next(numbers)
                )
                for _ in range(5)
            ]
            _together(*deletes)
            client.flush()
            acks = [ack for ack in system.acks("analyst") if ack.seq is not None]
            return [ack for ack in acks if ack.first != ack.seq]

        (run, *_) = eventually(merge, "an acknowledgement of several deletes", system.query)
        assert 8 <= int(run.first or 0) < int(run.seq or 0) < next(numbers)
        # a record that was deleted comes back with the next message of its key
        system.publish(topic, [{"id": 3, "n": 3, "price": 1}], keyed=True)
        both = client.sow_and_subscribe(topic, "/price < 8")
        assert _numbers(_next(both, 3)) == [6, 7, 3]
        system.publish(topic, [{"id": 500, "n": 500, "price": 9}, {"id": 501, "n": 501, "price": 2}], keyed=True)
        update = both.receive(PATIENCE_SECONDS)
        assert update is not None
        assert (update.command, update.key) == ("publish", b"501")


@story
def a_delete_comes_after_what_a_publisher_has_published_and_before_what_it_publishes_then(system: System) -> None:
    topic = "orders-tidy"
    with system.client("tidy") as client, Publisher(system.kafka, name="p-tidy", stage="accepted") as publisher:
        for number in range(5):
            publisher.publish(b'{"n": %d}' % number, topic=topic, key=b"%d" % number)
        assert client.sow_delete(topic, "/n < 10", after=publisher).records_deleted == 5
        publisher.publish(b'{"n": 1}', topic=topic, key=b"1")
        publisher.publish_flush(PATIENCE_SECONDS, stage="persisted")
        assert _numbers(client.sow(topic)) == [1]


@story
def a_client_that_was_away_logs_on_again_and_its_subscriptions_go_on_where_they_were(system: System) -> None:
    topic = "orders-away"
    states: list[str] = []
    with system.client("away", heartbeat=1.0, on_connection=states.append) as client:
        kept = client.subscribe(topic, bookmark="EPOCH", sub_id="kept")
        plain = client.subscribe(topic)
        quiet = client.subscribe(f"{topic}-quiet")
        both = client.sow_and_subscribe(f"{topic}-quiet")
        system.publish(topic, [{"n": 1}])
        assert _numbers(_next(kept, 1)) == _numbers(_next(plain, 1)) == [1]
        send, numbers = client._link.send, iter(range(2, 10_000))
        published: list[int] = []

        def send_no_heartbeat(command: str, *rest: Any) -> None:
            if command != "heartbeat":
                send(command, *rest)

        def is_forgotten() -> bool:
            # a session ends with a batch
            published.append(next(numbers))
            system.publish(topic, [{"n": published[-1]}])
            rows = tables.read(system.spark, system.settings.lake, "subscriptions").orderBy("batch", ascending=False)
            return '"away"' not in rows.first().state

        with patch.object(client._link, "send", send_no_heartbeat):
            eventually(is_forgotten, "the end of the session")
            system.publish(f"{topic}-quiet", [{"n": 1}])
            # it does not hide that the others are gone
            later = client.subscribe(f"{topic}-later")
        system.publish(f"{topic}-later", [{"n": 1}])
        eventually(lambda: states[-1:] == ["resubscribed"], "the subscriptions")
        for stream in (kept, plain):
            assert _numbers(_next(stream, len(published))) == published
        for stream in (quiet, both, later):
            assert _numbers(_next(stream, 1)) == [1], "they had received nothing before"


@story
def amps_29_what_cannot_be_done_is_told_with_its_reason_and_stops_nobody(system: System) -> None:
    topic = "orders-29"
    with system.client("careless") as client:
        healthy = client.subscribe(topic, bookmark="NOW")
        elsewhere = str(healthy.wait("completed", PATIENCE_SECONDS).bookmark)
        wrong = ("/x ==", "/x LIKE '('", "ROUND(/x, /y) > 1", "(")
        raised = _together(
            *[partial(client.subscribe, topic, text) for text in wrong],
            lambda: client.subscribe("orders-30", bookmark=elsewhere),
            lambda: client.subscribe(topic, bookmark="yesterday"),
            lambda: client.execute("sow", ["persisted"], topic=topic),
            lambda: client.sow("unheard-of"),
            lambda: client.execute("dance", []),
            # the server's own
            lambda: client.execute("ack", []),
        )
        kinds = [BadFilterError] * 4 + [InvalidBookmarkError] * 2 + [NotSupportedError, InvalidTopicError]
        assert [type(error) for error in raised] == [*kinds, RefusedError, RefusedError]
        failed = [(ack.ack_type, ack.reason) for ack in system.acks("careless") if ack.status == "failure"]
        assert sorted(failed) == sorted(("processed", error.reason) for error in raised)
        # nobody who could be told
        with KafkaProducer(bootstrap_servers=system.kafka.bootstrap) as producer:
            producer.send(system.kafka.topic("queries"), b"x", headers=[("command", b"sow")]).get(PATIENCE_SECONDS)
        system.publish(topic, [{"n": 1}])
        assert _numbers(_next(healthy, 1)) == [1]
        letters = eventually(lambda: system.records("dead-letters"), "a dead letter", system.query)
        assert dict(letters[0].headers)["reason"] == b"no client name"


@story
def no_filter_reads_the_environment_of_the_job_or_holds_it(system: System) -> None:
    topic = "orders-34"
    system.publish(topic, [{"id": n, "n": n, "x": "a" * 20_000} for n in range(2)], keyed=True)
    with system.client("spy") as client:
        for text in ("'${env:PATH}' BEGINS WITH '/'", "'${spark.app.name}' IS NOT NULL", 'eq(x,"${system:user.name}")'):
            with pytest.raises(BadFilterError, match=r"has \$\{ from character \d+ on: filters have no variables"):
                client.sow(topic, text)
        # hours with an engine that goes back, and with a comparison for each of 3 to the 40 copies of a field
        assert list(client.sow(topic, "/x LIKE '(a*)*(a|aa)*b$'")) == []
        with pytest.raises(BadFilterError, match="more than 200"):
            client.sow(topic, "(" * 40 + "/x" + " IN (1, 'a', NULL))" * 40)
        assert _numbers(client.sow(topic, "/x LIKE '^(a|b)+$' AND /n = '1' || ''")) == [1]


@story
def only_who_is_entitled_to_a_topic_reads_it_or_deletes_in_it(system: System) -> None:
    system.publish("vault", [{"id": 1, "n": 1}], keyed=True)
    with system.client("outsider") as outsider, system.client("visitor") as visitor, system.client("keeper") as keeper:
        for forbidden in (
            lambda: outsider.sow("vault"),
            lambda: outsider.subscribe("vault", bookmark="EPOCH"),
            lambda: outsider.sow_and_subscribe("vault"),
            lambda: outsider.sow_delete("vault", "/id = 1"),
            lambda: visitor.sow_delete("vault", "/id = 1"),
        ):
            with pytest.raises(NotEntitledError):
                forbidden()
        assert _numbers(visitor.sow("vault")) == [1]
        keeper.sow_delete("vault", "/id = 1")
        assert _numbers(visitor.sow("vault")) == []


@story
def a_second_client_of_a_name_ends_the_first(system: System) -> None:
    with system.client("twice") as first:
        stream = first.subscribe("orders-33")
        with system.client("twice") as second:
            with pytest.raises(TakenOverError, match="as twice"):
                stream.receive(PATIENCE_SECONDS)
            other = second.subscribe("orders-33")
            with pytest.raises(TakenOverError):
                first.flush()
            # what it does at its end concerns nobody else
            first.close()
            system.publish("orders-33", [{"n": 1}])
            assert _numbers(_next(other, 1)) == [1]


@story
def a_forged_report_of_what_is_stored_hides_no_message(system: System) -> None:
    with system.client("wary") as client:
        stream = client.subscribe("orders-36")
        forged = write_stored(StoredRange("nobody", 1, 1, 2**40))
        with KafkaProducer(bootstrap_servers=system.kafka.bootstrap) as producer:
            producer.send(system.kafka.topic("stored"), forged, b"nobody").get(PATIENCE_SECONDS)
        # a batch with the forged report has been carried out
        client.flush()
        system.publish("orders-36", [{"n": 1}])
        assert _numbers(_next(stream, 1)) == [1]
        later = client.subscribe("orders-36")
        system.publish("orders-36", [{"n": 2}])
        assert _numbers(_next(later, 1)) == _numbers(_next(stream, 1)) == [2]


@pytest.mark.parametrize("name", story)
def test_story(stories: dict[str, Future[None]], name: str) -> None:
    stories[name].result()


def test_amps_30_a_command_that_nobody_processes_is_taken_back(kafka: Kafka) -> None:
    ensure_topics(Settings(kafka=kafka), query_job.JOB.topics)
    options = QueryOptions(kafka, name="waiter", timeout=0.2, heartbeat=PATIENCE_SECONDS)
    link = QueryLink(connection_of(kafka), options, Bookmarks("p1"))
    try:
        with pytest.raises(CommandTimeout, match=r"within 0\.2 s"):
            link.execute("subscribe", {"processed"}, {"topic": "orders"})
    finally:
        link.close()
    sent = eventually(lambda: found if len(found := records(kafka, "queries")) == 3 else None, "three commands")
    said = [dict(record.headers) for record in sent]
    assert [headers["command"] for headers in said] == [b"subscribe", b"unsubscribe", b"unsubscribe"]
    assert said[1]["sub_id"] == said[0]["cid"]


def test_a_restart_of_the_job_loses_nothing_of_a_subscription_and_doubles_nothing(system: System) -> None:
    with system.client("steady") as client:
        stream = client.subscribe("orders-31", "/n % 2 = 0")
        system.publish("orders-31", [{"n": n} for n in range(10)])
        assert _numbers(_next(stream, 5)) == [0, 2, 4, 6, 8]
        system.query.stop()
        system.publish("orders-31", [{"n": n} for n in range(10, 20)])
        system.restart()
        assert _numbers(_next(stream, 5)) == [10, 12, 14, 16, 18]
        client.flush()
        assert stream.receive(0) is None


EXAMPLES = pages.examples("docs/guides/query-messages.md")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_page_runs(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    system.publish("orders", [{"id": n, "n": n, "price": n, "state": "open"} for n in range(20)], keyed=True)
    pages.run(example, Settings(kafka=system.kafka), tmp_path, monkeypatch)


def test_a_batch_of_messages_is_few_calls_to_the_jvm(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "orders-40"
    with system.client("busy") as client:
        messages = client.subscribe(topic)
        # the first of them lays out what is kept
        system.publish(topic, [{"n": 0}])
        assert _numbers(_next(messages, 1)) == [0]
        calls = count_calls(monkeypatch, query_job.NAME)
        for n in range(1, 4):
            system.publish(topic, [{"n": n}])
            assert _numbers(_next(messages, 1)) == [n]
    # 1,600 where each batch builds the columns of its results
    assert 0 < max(calls.values()) < 500


def test_a_batch_that_runs_again_says_the_same_again_although_the_log_has_grown(system: System) -> None:
    """As after a crash between the commit and the answers: Spark gives the batch again to a job that knows nothing.

    The last test of this module: it stops the job.
    """
    topic = "orders-32"
    system.publish(topic, [{"n": 1}])
    system.query.stop()
    headers = [(name, text.encode()) for name, text in {
        "command": "sow_and_subscribe", "cid": "again", "topic": topic, "ack": "processed,completed,stats",
    }.items()]  # fmt: skip
    frame = _batch(system, ("queries", 10_000, b"crashed", b"", headers))
    query_job.QueryFold(system.settings).write(frame, 0, "crashed")
    system.publish(topic, [{"n": 2}])
    query_job.QueryFold(system.settings).write(frame, 0, "crashed")
    told = [(record.headers, record.value) for record in system.records("query-results", "crashed")]
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    assert system.seen("crashed", "again")[: len(told) // 2] == [
        "ack:processed", "group_begin", "1", "group_end", "ack:completed", "ack:stats",
    ]  # fmt: skip
    # a delete of a job that has delivered in several batches, of which the one that runs again knows nothing
    fold = query_job.QueryFold(system.settings)
    stored = _batch(system, ("stored", 10_000, b"p", b"", []))
    fold.write(stored, 1, "crashed")
    system.publish(topic, [{"n": 3}])
    fold.write(stored, 2, "crashed")
    headers = [(name, text.encode()) for name, text in {
        "command": "sow_delete", "cid": "gone", "topic": topic, "filter": "/n > 0", "ack": "stats",
    }.items()]  # fmt: skip
    frame = _batch(system, ("queries", 10_001, b"crashed", b"", headers))
    fold.write(frame, 3, "crashed")
    query_job.QueryFold(system.settings).write(frame, 3, "crashed")
    found = [json.loads(record.value) for record in system.records("query-results", "crashed") if record.value]
    first, second = [ack for ack in found if ack.get("cid") == "gone"]
    assert first == second
    assert first["records_deleted"] == 3


def _batch(system: System, *rows: tuple[str, int, bytes, bytes, list[tuple[str, bytes]]]) -> DataFrame:
    """Return records (topic, offset, key, value, headers) as the query job gets them."""
    session = system.spark.newSession()
    for key, value in query_job.JOB.conf(system.settings).items():
        session.conf.set(key, value)
    placed = [(system.kafka.topic(topic), 0, offset, None, *rest) for topic, offset, *rest in rows]
    records = session.createDataFrame(placed, COLUMNS).selectExpr(
        "topic", "partition", "offset", "timestamp_millis(1) AS timestamp", "key", "value", "headers"
    )
    return query_job.projected(records)
