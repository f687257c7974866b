"""Publishers, persist, the work queues and their consumers together, on Kafka, Spark and Delta."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition

from ackstream.client.core.connection import connection_of
from ackstream.client.errors import BindTimeout, UnknownQueueError
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.queues.queue_consumer import QueueConsumer
from ackstream.client.queues.queued_messages import FlowQos, MessageFetcher, QueueMessage
from ackstream.errors import NotConnectedError, OutcomeNotEnabledError, StartError
from ackstream.jobs.persist import job as persist
from ackstream.jobs.queues.job import JOB
from ackstream.kafka import clients
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.login import operator
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import tables
from ackstream.protocol import queues
from ackstream.protocol.queues import Alive, Bind, SettleMessages, Unbind, Unbound
from ackstream.redriving import redrive
from ackstream.settings import Clock, Kafka, Lake, Persist, QueueJob, Settings
from ackstream.settings.jobs import QueueBackoff, QueueSettings
from ackstream.spark.migration import migrate, with_values
from tests.harness import pages
from tests.harness.stories import Stories
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.integration.scenarios.patience import ALLOWANCE_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

SESSION = 15.0
OUTCOMES: tuple[Any, ...] = ("failed", "rejected")


def _queue(name: str, **rules: Any) -> QueueSettings:
    return QueueSettings(name=name, topics=(f"{name}/*",), **rules)


QUEUES = (
    _queue("terminal"),
    _queue("drained", max_backlog=1, backoff=QueueBackoff(initial="1h", max="1h")),  # type: ignore[arg-type]
    _queue("restarted", max_backlog=2),
    _queue("moved"),
    _queue("retired"),
    _queue("revived"),
    QueueSettings(name="bystander", topics=("revived/*",)),
    _queue("orders"),
    _queue("fair", fairness="proportional"),
    _queue("delayed", backoff=QueueBackoff()),
    _queue("shared", max_backlog=4),
    _queue("unbound"),
    _queue("lost"),
    _queue("standby", type="exclusive"),
    _queue("twice"),
    _queue("undeclared"),
    _queue("failing", max_deliveries=2, backoff=QueueBackoff(initial="300ms")),  # type: ignore[arg-type]
    _queue("cancelled", preset="amps", max_failures=2),
    _queue("once", max_deliveries=1),
    _queue("leased", preset="amps", lease="8s"),
    _queue("strict", preset="amps", settler="strict"),
    _queue("sublet", preset="amps"),
    _queue("wide", preset="amps", max_backlog=3),
    _queue("short", max_ttl="1s"),
    _queue("mortal", respect_ttl=True),
    _queue("automatic"),
    _queue("cancelling"),
    _queue("gathered", preset="amps", max_backlog=5),
    _queue("again", max_backlog=1),
    _queue("full", max_depth=2),
    _queue("flow", max_backlog=100),
    _queue("stopped"),
    _queue("batched"),
)


class System:
    """The running jobs; the queues' can be stopped and started again."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.settings = settings
        self.kafka = settings.kafka
        self._publisher = Publisher(self.kafka, name="p", ack_timeout=30.0, logon_timeout=PATIENCE_SECONDS)
        self._producer = clients.connect_producer(self.kafka, None, delivery_timeout=PATIENCE_SECONDS)
        self._queues = ExitStack()
        self.start()

    def start(self, queues: tuple[QueueSettings, ...] = QUEUES) -> None:
        settings = self.settings.model_copy(update={"queues": queues})
        self.query = self._queues.enter_context(JOB.running(self.spark, settings))

    def stop(self) -> None:
        self._queues.close()

    def close(self) -> None:
        self.stop()
        self._publisher.close()
        clients.close_producer(self._producer, 1)

    def publish(
        self,
        queue: str,
        *values: str,
        stored: bool = False,
        headers: tuple[tuple[str, bytes], ...] = (),
        ttl_ms: int | None = None,
    ) -> None:
        own = [("colour", b"red"), *headers]
        for value in values:
            self._publisher.publish(value.encode(), topic=f"{queue}/x", key=b"k", headers=own, ttl_ms=ttl_ms)
        if stored:
            self._publisher.publish_flush(PATIENCE_SECONDS)

    def consumer(self, queue: str, name: str = "A", **more: Any) -> QueueConsumer:
        return QueueConsumer(self.kafka, queue=queue, name=name, bind_timeout=PATIENCE_SECONDS, **more)

    def events(self, queue: str) -> list[Any]:
        rows = tables.read(self.spark, self.settings.lake, "queue_events")
        return sorted(
            rows.where(rows.queue == queue).collect(), key=lambda row: (row.at, row.offset or 0, row["count"])
        )

    def wait_for_exits(self, queue: str, number: int) -> None:
        eventually(lambda: sum(event.event == "left" for event in self.events(queue)) >= number, "all exits")

    def say(self, record: queues.QueueRequest) -> None:
        """Say something as a consumer that is none of the SDK's."""
        self.say_bytes(queues.write(record), record.consumer.encode())

    def say_bytes(self, value: bytes, key: bytes = b"nobody") -> None:
        self._producer.send(self.kafka.topic("app-acks"), value, key).get(PATIENCE_SECONDS)

    def dead_letters(self, queue: str, number: int) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
        """Return (key, value, headers) of the queue's dead letters when so many have come."""
        found: list[Any] = []
        with _reading(self.kafka, "dead-letters") as poll:
            eventually(
                lambda: (
                    found.extend(record for record in poll() if dict(record.headers).get("queue") == queue.encode())
                    or len(found) >= number
                ),
                "the records and events",
            )
        return [(record.key, record.value, dict(record.headers)) for record in found]


@contextmanager
def _reading(kafka: Kafka, topic: str) -> Iterator[Callable[[], list[Any]]]:
    consumer = clients.connect_consumer(kafka, None, auto_offset_reset="earliest")
    name = kafka.topic(topic)
    consumer.assign([TopicPartition(name, number) for number in consumer.partitions_for_topic(name)])
    consumer.seek_to_beginning()
    try:
        yield lambda: [record for records in consumer.poll(timeout_ms=200).values() for record in records]
    finally:
        consumer.close(autocommit=False)


def _take(consumer: QueueConsumer, number: int) -> list[QueueMessage]:
    """Receive so many messages."""
    taken = []
    for _ in range(number):
        message = consumer.receive(PATIENCE_SECONDS)
        assert message is not None
        taken.append(message)
    return taken


def _values(messages: list[QueueMessage]) -> list[str]:
    return [(message.value or b"").decode() for message in messages]


@pytest.fixture(scope="module")
def system(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    place = tmp_path_factory.mktemp("queues")
    settings = Settings(
        kafka=Kafka(bootstrap=broker, topic_prefix=f"queues{os.getpid()}-", partitions=2),
        lake=Lake(path=str(place / "lake"), checkpoints=str(place / "checkpoints")),
        persist=Persist(interval="100ms"),  # type: ignore[arg-type]
        queue=QueueJob(interval="100ms", session=f"{SESSION:g}s"),  # type: ignore[arg-type]
        clock=Clock(interval="300ms"),  # type: ignore[arg-type]
        queues=QUEUES,
    )
    ensure_topics(settings, (*persist.JOB.topics, *JOB.topics, "audit"))
    persisting = persist.JOB.start(spark, settings)
    made = System(spark, settings)
    # one commit for all tests
    for queue in QUEUES[10:]:
        made.publish(queue.name, *map(str, range(1, 6 if queue.name != "shared" else 21)))
    made.publish("gathered", "6", headers=(("barrier", b"true"),))
    made.publish("received", "6")
    made.publish("mortal", "6", headers=(("dmq-eligible", b"false"),), ttl_ms=900, stored=True)
    yield made
    made.close()
    persisting.stop()


@pytest.fixture(scope="module")
def stories(system: System) -> Iterator[dict[str, Future[None]]]:
    """Run all stories at once: each has a queue of its own, and most of their time is waiting."""
    with story.running(system) as running:
        yield running


story = Stories()


@story
def consumers_of_a_shared_queue_share_its_messages_and_each_is_accepted_once(system: System) -> None:
    got: dict[str, list[str]] = {"A": [], "B": []}
    done = threading.Event()

    def consume(name: str) -> None:
        with system.consumer("shared", name, ack_batch=2, ack_timeout=0.2) as consumer:
            while not done.is_set():
                message = consumer.receive(0.2)
                if message is not None:
                    assert (message.count, message.topic, message.key) == (1, "shared/x", b"k")
                    assert message.headers == {"colour": b"red"}
                    got[name] += _values([message])
                    message.settle()
                    if sum(map(len, got.values())) == 20:
                        done.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(consume, got))
    assert sorted(got["A"] + got["B"], key=int) == [str(number) for number in range(1, 21)]
    assert all(got.values())
    system.wait_for_exits("shared", 20)
    kinds = Counter((event.event, event.outcome, event.reason) for event in system.events("shared"))
    assert kinds == {("delivered", None, None): 20, ("left", "settled", "accepted"): 20}


@story
def sol_20_who_unbinds_leaves_the_rest_to_others_and_it_is_marked(system: System) -> None:
    with system.consumer("unbound") as first:
        messages = _take(first, 5)
        for index in (3, 1):
            messages[index].settle()
    with pytest.raises(NotConnectedError):
        messages[0].settle()
    with system.consumer("unbound", "B") as second:
        again = _take(second, 3)
        assert _values(again) == ["1", "3", "5"]
        assert all(message.redelivered and message.count == 2 for message in again)
        assert second.receive(0.5) is None


@story
def sol_15_16_17_18_what_has_arrived_is_reported_and_stays_in_the_queue(system: System) -> None:
    system.publish("flow", *map(str, range(6, 101)), stored=True)
    with _reading(system.kafka, "app-acks") as poll:
        reports: list[Alive] = []

        def read() -> list[Alive]:
            found = [queues.read(record.value) for record in poll() if record.key in (b"flow-10", b"flow-255")]
            reports.extend(one for one in found if isinstance(one, Alive) and one.queue == "flow")
            return reports

        # answers to the bind and to reports have numbers, too; at 60 % of ten there is a report, the rest has the timer
        with system.consumer("flow", "flow-10", backlog=10, flow=FlowQos(window=10)) as consumer:
            _take(consumer, 10)
            eventually(lambda: any((one.received or 0) >= 7 for one in read()), "the threshold")
            eventually(lambda: any((one.received or 0) >= 11 for one in read()), "the timer")
        # the backlog, 100, is smaller than the window
        with system.consumer("flow", "flow-255") as consumer:
            messages = _take(consumer, 100)
            assert sorted(_values(messages), key=int) == [str(number) for number in range(1, 101)]
            assert sum(message.redelivered for message in messages) == 10
            eventually(lambda: any((one.received or 0) >= 61 for one in read()), "60 % of the backlog")
    assert not [event for event in system.events("flow") if event.event == "left"], "transport acks remove nothing"


@story
def a_stopped_flow_gets_nothing_until_it_is_started(system: System) -> None:
    with system.consumer("stopped", backlog=2) as stopped:
        first, second = _take(stopped, 2)
        stopped.stop()
        first.settle()
        second.settle()
        assert stopped.receive(3.0) is None
        with system.consumer("stopped", "B") as other:
            assert _values(_take(other, 3)) == ["3", "4", "5"]
        stopped.start()
        assert _values(_take(stopped, 2)) == ["3", "4"]


@story
def who_is_not_heard_of_is_lost_and_told_so(system: System) -> None:
    with _reading(system.kafka, "queue-deliveries") as poll:
        heard: list[Any] = []
        system.say(Bind("lost", "ghost", 5))
        eventually(lambda: heard.extend(r for r in poll() if r.key == b"ghost") or len(heard) >= 6, "the records")
        with system.consumer("lost") as consumer:
            again = _take(consumer, 5)
            assert _values(again) == list("12345")
            assert {message.count for message in again} == {1}, "it has not shown that it has any"
        eventually(lambda: heard.extend(r for r in poll() if r.key == b"ghost") or len(heard) >= 7, "the records")
    assert queues.read_answer(heard[6].value) == Unbound("lost", "ghost", 5, "lost")


@story
def who_learns_that_its_session_is_over_binds_again(system: System) -> None:
    with system.consumer("again") as consumer:
        (first,) = _take(consumer, 1)
        system.say(Unbind("again", "A", first.delivery.session))
        (again,) = _take(consumer, 1)
        assert (again.id, again.count) == (first.id, 2)
        with pytest.raises(NotConnectedError, match="will be redelivered"):
            first.settle()
        again.settle()
        assert _values(_take(consumer, 1)) == ["2"]
        assert consumer.statistics.lost == 1


@story
def the_standby_of_an_exclusive_queue_takes_over(system: System) -> None:
    with system.consumer("standby", "active", backlog=2) as active, system.consumer("standby", "standby") as standby:
        messages = _take(active, 2)
        assert standby.receive(1.0) is None
        messages[0].settle()
        active.close()
        assert [(message.count, *_values([message])) for message in _take(standby, 4)] == [
            (2, "2"),
            # it was sent to the active one, whose application did not get it
            (1, "3"),
            (1, "4"),
            (1, "5"),
        ]


@story
def a_second_consumer_of_one_name_ends_the_first(system: System) -> None:
    replaced = pytest.raises(NotConnectedError, match="Another consumer named A")
    with system.consumer("twice") as first, system.consumer("twice"), replaced:
        # more than there are
        _take(first, 9)


@story
def sol_25_an_outcome_that_was_not_declared_is_an_error_and_the_message_stays(system: System) -> None:
    with system.consumer("undeclared") as consumer:
        message, *_ = _take(consumer, 1)
        with pytest.raises(OutcomeNotEnabledError):
            message.settle("failed")
        message.settle()
        assert (consumer.statistics.accepted, consumer.statistics.failed) == (1, 0)


@story
def sol_23_24_what_fails_too_often_or_is_rejected_becomes_a_dead_letter_as_it_was_published(system: System) -> None:
    with system.consumer("failing", outcomes=OUTCOMES, backlog=1) as consumer:
        (first,) = _take(consumer, 1)
        failed_at = time.monotonic()
        first.settle("failed")
        (other,) = _take(consumer, 1)
        # the first one waits
        assert _values([other]) == ["2"]
        other.settle("rejected")
        (again,) = _take(consumer, 1)
        while again.id != first.id:
            again.settle()
            (again,) = _take(consumer, 1)
        assert time.monotonic() - failed_at > 0.3
        assert again.count == 2
        again.settle("failed")
    dead = system.dead_letters("failing", 2)
    assert [(value, headers["reason"], headers["deliveries"]) for _, value, headers in dead] == [
        (b"2", b"rejected", b"1"),
        (b"1", b"max-deliveries", b"2"),
    ]
    key, _, headers = dead[0]
    # all that its publisher sent
    assert (key, headers["topic"], headers["colour"]) == (b"k", b"failing/x", b"red")
    assert (headers["client"].decode(), int(headers["seq"])) == (other.publisher, other.seq)
    assert headers["message"].decode() == other.id


@story
def amps_33_acknowledgements_are_sent_together_when_the_first_has_waited_long_enough(system: System) -> None:
    with _reading(system.kafka, "app-acks") as poll:
        with system.consumer("batched", "gatherer", ack_batch=10, ack_timeout=1.0) as consumer:
            messages = _take(consumer, 4)
            settled_ms = time.time() * 1000
            for message in messages:
                message.settle()
            sent: list[Any] = []

            def settlements() -> list[Any]:
                sent.extend(
                    record for record in poll() if record.key == b"gatherer" and b"queue_settle" in record.value
                )
                return sent

            (record,) = eventually(settlements, "the settlements")
        assert len(queues.read(record.value).messages) == 4
        assert 900 <= record.timestamp - settled_ms <= 1_040 + ALLOWANCE_MS


@story
def amps_38_the_consumer_with_the_largest_share_of_its_backlog_free_is_next(system: System) -> None:
    with ExitStack() as stack:

        def joined(name: str, backlog: int, messages: int) -> tuple[QueueConsumer, list[QueueMessage]]:
            """Let a consumer join and have so many messages."""
            consumer = stack.enter_context(system.consumer("fair", name, backlog=backlog))
            system.publish("fair", *["x"] * messages, stored=True)
            return consumer, _take(consumer, messages)

        # the one that joins is alone in having room, or has most of it
        _, of_a = joined("A", 2, 2)
        joined("B", 4, 3)
        of_c, _ = joined("C", 10, 4)
        of_a[0].settle()
        system.wait_for_exits("fair", 1)
        # now they have 1 of 2, 3 of 4 and 4 of 10
        system.publish("fair", "next", stored=True)
        assert _values(_take(of_c, 1)) == ["next"]


@story
def amps_35_the_second_cancel_makes_a_dead_letter(system: System) -> None:
    with system.consumer("cancelled", outcomes=OUTCOMES) as consumer:
        for count in (1, 2):
            (message,) = _take(consumer, 1)
            assert (message.count, *_values([message])) == (count, "1")
            message.settle("failed")
        assert [value for _, value, _ in system.dead_letters("cancelled", 1)] == [b"1"]


@story
def sol_29_amps_36_after_the_last_delivery_a_message_is_not_given_again(system: System) -> None:
    with system.consumer("once") as first:
        _take(first, 5)
    with system.consumer("once", "B") as second:
        assert second.receive(1.0) is None
    assert {headers["reason"] for *_, headers in system.dead_letters("once", 5)} == {b"max-deliveries"}


@story
def amps_31_a_lease_ends_though_the_consumer_lives_unless_it_goes_on_working(system: System) -> None:
    with system.consumer("leased") as consumer:
        assert (consumer.backlog, consumer.lease) == (1, 8)
        (first,) = _take(consumer, 1)
        assert first.lease_left is not None
        assert first.lease_left < 8
        for _ in range(32):
            # for two leases; neither is over, as the application goes on working
            first.working()
            assert consumer.receive(0.5) is None
            assert first.lease_left > 2
        missed = consumer.statistics.expired
        (again,) = _take(consumer, 1)
        # on a slow machine a lease may end before its message has arrived
        assert (again.id, again.count) == (first.id, first.count + 1 + consumer.statistics.expired - missed)


@story
def amps_32_sol_28_a_backlog_is_granted_up_to_the_limit_and_the_next_message_waits(system: System) -> None:
    with system.consumer("wide", backlog=10) as consumer:
        assert consumer.backlog == 3
        first, *_ = _take(consumer, 3)
        assert consumer.receive(1.0) is None
        first.settle()
        assert _values(_take(consumer, 1)) == ["4"]
    with system.consumer("wide", "B", backlog=2) as modest:
        assert modest.backlog == 2


@story
def amps_37_another_may_settle_where_the_queue_allows_it(system: System) -> None:
    with system.consumer("strict") as strict, system.consumer("sublet") as sublet:
        for consumer, queue in ((strict, "strict"), (sublet, "sublet")):
            (message,) = _take(consumer, 1)
            system.say(SettleMessages(queue, "B", 0, (message.id,)))
        assert _values(_take(sublet, 1)) == ["2"]
        eventually(lambda: any(event.event == "refused" for event in system.events("strict")), "the refusal")
        assert strict.receive(0.5) is None
    last = [event for event in system.events("strict") if event.event == "refused"]
    assert [(event.consumer, event.outcome, event.reason) for event in last] == [("B", "accepted", "held-by-another")]


@story
def sol_30_what_nobody_takes_in_time_expires(system: System) -> None:
    dead = system.dead_letters("short", 5)
    assert {(headers["reason"], headers["deliveries"]) for *_, headers in dead} == {(b"expired", b"0")}
    assert sorted(value for _, value, _ in dead) == [b"1", b"2", b"3", b"4", b"5"]
    # this one says itself how long it waits, and wants no dead letter
    system.wait_for_exits("mortal", 1)
    (event,) = system.events("mortal")
    assert (event.event, event.outcome, event.reason) == ("left", "discarded", "expired")
    assert (event.at - event.received_at).total_seconds() == 0.9


@story
def sol_22_a_message_whose_handler_raised_stays_with_its_consumer(system: System) -> None:
    with system.consumer("automatic", handler=_fail_first("3"), mode="auto") as consumer:
        eventually(lambda: consumer.statistics.accepted == 4, "the settlements")
    with system.consumer("automatic", "B", mode="auto") as second:
        (rest,) = _take(second, 1)
        assert (rest.count, *_values([rest])) == (2, "3")
        # asking for the next one accepts it
        assert second.receive(0.1) is None
        assert second.statistics.accepted == 1


@story
def amps_34_a_message_whose_handler_raised_is_given_back(system: System) -> None:
    with system.consumer("cancelling", handler=_fail_first("3"), mode="auto-cancel") as consumer:
        eventually(lambda: consumer.statistics.accepted == 5, "the settlements")
        assert (consumer.statistics.received, consumer.statistics.failed) == (6, 1)
    failed = [event for event in system.events("cancelling") if event.event == "returned"]
    assert [(event.consumer, event.reason) for event in failed] == [("A", "failed")]


def _fail_first(value: str) -> Callable[[QueueMessage], None]:
    def handle(message: QueueMessage) -> None:
        # where the library settles, this says nothing
        message.settle()
        if (*_values([message]), message.count) == (value, 1):
            raise ValueError(value)

    return handle


@story
def a_barrier_waits_for_all_before_it_and_goes_to_everybody(system: System) -> None:
    with system.consumer("gathered", backlog=5) as first:
        messages = _take(first, 5)
        with system.consumer("gathered", "B") as second:
            assert second.receive(0.5) is None
            for message in messages:
                message.settle()
            assert [_values(_take(consumer, 1)) for consumer in (first, second)] == [["6"], ["6"]]


@story
def what_does_not_fit_into_a_queue_is_a_dead_letter(system: System) -> None:
    dead = system.dead_letters("full", 3)
    assert sorted(value for _, value, _ in dead) == [b"3", b"4", b"5"]
    assert {headers["reason"] for *_, headers in dead} == {b"queue-full"}


@story
def a_queue_that_there_is_not_is_an_error(system: System) -> None:
    with pytest.raises(UnknownQueueError, match="nowhere"):
        system.consumer("nowhere")


@story
def what_cannot_be_read_is_a_dead_letter_and_stops_nothing(system: System) -> None:
    system.say_bytes(b'{"type": "queue_settle", "queue": "unbound", "consumer": 7}')
    with _reading(system.kafka, "dead-letters") as poll:
        found: list[Any] = []
        eventually(lambda: found.extend(r for r in poll() if r.key == b"nobody") or found, "the records")
    headers = dict(found[0].headers)
    assert b"not a record of a queue's consumer" in headers["reason"]
    assert headers["topic"].decode() == system.kafka.topic("app-acks")
    assert (headers["partition"].isdigit(), headers["offset"].isdigit()) == (True, True)


@pytest.mark.parametrize("name", sorted(story))
def test_story(stories: dict[str, Future[None]], name: str) -> None:
    stories[name].result(PATIENCE_SECONDS)


@pytest.mark.long
def test_sol_27_delays_double_up_to_the_longest(system: System) -> None:
    """Three minutes of delays."""
    expected = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]
    system.publish("delayed", "1", stored=True)
    with system.consumer("delayed", outcomes=OUTCOMES) as consumer:
        for _ in expected:
            _take(consumer, 1)[0].settle("failed")
        assert _take(consumer, 1)[0].count == len(expected) + 1
        events = system.events("delayed")
    delivered = [event.at for event in events if event.event == "delivered"][1:]
    returned = [event.at for event in events if event.event == "returned"]
    delays = [(again - failed).total_seconds() * 1000 for again, failed in zip(delivered, returned, strict=True)]
    assert all(least <= delay <= least + ALLOWANCE_MS for delay, least in zip(delays, expected, strict=True)), delays


def test_a_job_that_starts_again_loses_nothing_and_delivers_nothing_twice(system: System) -> None:
    with system.consumer("restarted") as consumer:
        system.publish("restarted", *"123", stored=True)
        first, second = _take(consumer, 2)
        system.stop()
        first.settle()
        system.publish("restarted", *"45", stored=True)
        # with more tasks, too
        system.settings = with_values(system.settings, {"queue.shuffle_partitions": 3})
        assert migrate(system.spark, system.settings, JOB) is not None
        system.start()
        (third,) = _take(consumer, 1)
        for message in (second, third):
            message.settle()
        rest = _take(consumer, 2)
        assert _values([first, second, third, *rest]) == list("12345")
        for message in rest:
            message.settle()
        system.wait_for_exits("restarted", 5)
        assert (consumer.statistics.received, consumer.statistics.lost) == (5, 0)
    assert Counter(event.event for event in system.events("restarted")) == {"delivered": 5, "left": 5}


def test_a_queue_that_is_taken_out_of_the_settings_keeps_its_messages_and_new_rules_apply_to_them(
    system: System,
) -> None:
    system.publish("retired", *"123", stored=True)
    with system.consumer("retired", backlog=1) as consumer:
        _take(consumer, 1)[0].settle()
        system.wait_for_exits("retired", 1)
    # else the queue is gone before it is told that the consumer is
    eventually(lambda: "returned" in [event.event for event in system.events("retired")], "the second to come back")
    system.stop()
    system.start(tuple(queue for queue in QUEUES if queue.name != "retired"))
    with pytest.raises(UnknownQueueError, match="retired"):
        system.consumer("retired")
    # under new settings the batch would be decided anew if it ran again
    system.query.processAllAvailable()
    system.stop()
    changed = _queue("retired", max_deliveries=1)
    system.start(tuple(changed if queue.name == "retired" else queue for queue in QUEUES))
    with system.consumer("retired", "B") as consumer:
        assert sorted(_values(_take(consumer, 2))) == ["2", "3"]
    assert [headers["reason"] for *_, headers in system.dead_letters("retired", 2)] == [b"max-deliveries"] * 2
    system.stop()
    system.start()


def test_a_new_checkpoint_begins_with_what_is_stored_from_now_on_and_never_beside_other_rows(
    system: System, tmp_path: Path
) -> None:
    apart = Lake(path=system.settings.lake.path, checkpoints=str(tmp_path))
    settings = system.settings.model_copy(update={"lake": apart})
    system.wait_for_exits("full", 3)
    with pytest.raises(StartError, match=r"set queue\.starting to earliest or to a time"):
        JOB.start(system.spark, settings)


EXAMPLES = pages.examples("docs/guides/share-work.md")


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_pages_runs(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    pages.run(EXAMPLES[number], system.settings, tmp_path, monkeypatch)


def test_a_message_that_kafka_has_deleted_is_in_the_table(system: System) -> None:
    system.publish("moved", "old", "new", stored=True)
    with system.consumer("moved") as consumer:
        old, new = _take(consumer, 2)
        place = TopicPartition(old.delivery.topic, old.delivery.partition)
        with connect_admin(system.settings.kafka) as client:
            client.delete_records({place: new.delivery.offset})
        both = [old.delivery, new.delivery]
        fetcher = MessageFetcher(connection_of(system.kafka), system.settings.lake)
        found = fetcher.fetch(both)
        fetcher.close()
        for message in (old, new):
            sample = found[message.id]
            assert (sample.value, sample.key, sample.headers) == (message.value, message.key, message.headers)
            assert sample.timestamp_ms == message.timestamp_ms
        fetcher = MessageFetcher(connection_of(system.kafka), None)
        assert list(fetcher.fetch(both)) == [new.id]
        fetcher.close()


def test_a_dead_letter_that_is_redriven_is_delivered_again_by_its_queue_alone(system: System) -> None:
    system.publish("revived", "one", "two", stored=True)
    with system.consumer("revived", outcomes=OUTCOMES) as consumer, system.consumer("bystander", "B") as bystander:
        first, _ = _take(consumer, 2)
        first.settle("rejected")
        for message in _take(bystander, 2):
            message.settle()
        system.wait_for_exits("revived", 1)
        report = redrive(system.settings, where="queue = 'revived' AND reason = 'rejected'")
        assert (report.chosen, report.redriven, report.unavailable) == (1, 1, [])
        again = _take(consumer, 1)[0]
        assert (again.value, again.topic, again.key, again.count) == (b"one", "revived/x", b"k", 1)
        assert again.headers["redriven-from"] == f"revived/{first.id}".encode()
        again.settle()
        system.wait_for_exits("revived", 2)
        assert bystander.receive(0) is None
    assert len({event.message for event in system.events("bystander")}) == 2
    assert redrive(system.settings, where="queue = 'revived'").earlier == 1


def test_without_the_job_a_bind_is_not_answered(kafka: Kafka) -> None:
    ensure_topics(Settings(kafka=kafka), (*JOB.topics, "messages"))
    with pytest.raises(BindTimeout, match="ackstream submit queues"):
        QueueConsumer(kafka, queue="q", name="A", bind_timeout=0.5)


def _in_terminal(system: System, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = directory / "ackstream.toml"
    kafka = f'[kafka]\nbootstrap = "{system.kafka.bootstrap}"\ntopic_prefix = "{system.kafka.topic_prefix}"\n'
    settings.write_text(f'{kafka}partitions = 2\n[lake]\npath = "{system.settings.lake.path}"\n')
    command = [sys.executable, "-m", "ackstream", "--settings", str(settings), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_an_operator_drains_a_queue_and_redrives_its_messages(system: System, tmp_path: Path) -> None:
    system.publish("drained", "scheduled", "held", "waiting", stored=True)
    refused: list[Any] = []
    with system.consumer("drained", outcomes=OUTCOMES, on_refused=refused.append) as consumer:
        _take(consumer, 1)[0].settle("failed")
        (held,) = _take(consumer, 1)
        assert held.value == b"held"
        done = _in_terminal(system, tmp_path, "drain", "drained")
        assert (done.returncode, done.stdout) == (0, "The queue drained is drained; messages given up: 3.\n"), (
            done.stderr
        )
        held.settle()
        system.publish("drained", "later")
        (later,) = _take(consumer, 1)
        assert (later.value, later.count) == (b"later", 1)
        later.settle()
        dead = system.dead_letters("drained", 3)
        assert {(value, headers["reason"]) for _, value, headers in dead} == {
            (value, b"drained") for value in (b"scheduled", b"held", b"waiting")
        }
        eventually(lambda: refused, "the refusal of the settlement")
        assert (refused[0].message, refused[0].reason) == (held.id, "not-in-queue")
        system.wait_for_exits("drained", 4)
        rows = [event for event in system.events("drained") if event.reason == "drained"]
        assert [(row.outcome, row.consumer) for row in rows] == [("dead-letter", operator(system.kafka))] * 3
        assert redrive(system.settings, where="queue = 'drained' AND reason = 'drained'").redriven == 3
        again = []
        for _ in range(3):
            (message,) = _take(consumer, 1)
            again.append(message.value)
            message.settle()
        assert sorted(again) == [b"held", b"scheduled", b"waiting"]
    unknown = _in_terminal(system, tmp_path, "drain", "nowhere")
    assert (unknown.returncode, "There is no queue nowhere" in unknown.stderr) == (1, True)


def test_a_queue_is_consumed_from_a_terminal(system: System, tmp_path: Path) -> None:
    system.publish("terminal", "one", "two")
    done = _in_terminal(system, tmp_path, "consume", "terminal", "--count", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["one", "two"]
    system.wait_for_exits("terminal", 2)
    assert {event.outcome for event in system.events("terminal") if event.event == "left"} == {"settled"}
