from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, RequestTimedOutError
from msgspec import UNSET

from ackstream.client import Command, Requester, RequestTimeout, subscription
from ackstream.client.core import lifetime, worker
from ackstream.client.core.arguments import Retry
from ackstream.client.core.lifetime import Lifetime
from ackstream.client.core.messages import Answers, Work
from ackstream.client.core.worker import Worker
from ackstream.client.errors import StoreError, ThreadDiedError
from ackstream.client.parties import receivers
from ackstream.client.parties.answers import Ack, After
from ackstream.client.parties.receivers import Responder, Subscriber
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_ack
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Kafka
from tests.client.connections import FakeConnection
from tests.harness.waiting import eventually


class Consumer:
    """Has records of partitions; a test gives it others than the first, and each change takes effect in a poll."""

    def __init__(self) -> None:
        self.closed = False
        self.records: list[Any] = []
        self.polls = 0
        self.given: list[Any] = []
        self.commits: list[dict[int, int]] = []
        self._owned: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._next: set[TopicPartition] | None = None
        self._listener: Any = None
        self._coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
        self._fetcher = SimpleNamespace(_next_partition_records=None)
        self.reached = True

    def subscribe(self, _topics: Any, listener: Any) -> None:
        self._listener = listener
        self.give(0)

    def give(self, *partitions: int) -> None:
        """Have the group assign partitions with the next poll."""
        self._next = {TopicPartition("signals", each) for each in partitions}

    def poll(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        self.polls += 1
        time.sleep(min(timeout_ms, 1) / 1000)
        if self._next is not None:
            owned, self._next = self._next, None
            self._listener.on_partitions_revoked(self._owned)
            self._owned = owned
            self._paused &= owned
            self._listener.on_partitions_assigned(owned)
        found: dict[Any, list[Any]] = {}
        for record in [each for each in self.records if each not in self.given][:max_records]:
            partition = TopicPartition("signals", record.partition)
            if self._listener is None or partition in self._owned - self._paused:
                self.given.append(record)
                found.setdefault(partition, []).append(record)
        return found

    def assignment(self) -> set[TopicPartition]:
        return set(self._owned)

    def position(self, partition: TopicPartition, **_: Any) -> int:
        offsets = [each.offset for each in self.records if each.partition == partition.partition]
        return min(offsets, default=0)

    def pause(self, *partitions: TopicPartition) -> None:
        assert self._owned.issuperset(partitions)
        self._paused.update(partitions)

    def paused(self) -> set[TopicPartition]:
        return set(self._paused)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused.difference_update(partitions)

    def commit(self, offsets: dict[Any, Any], **_: Any) -> None:
        self.commits.append({partition.partition: offset.offset for partition, offset in offsets.items()})

    def commit_async(self, offsets: dict[Any, Any], **_: Any) -> None:
        # as kafka-python
        assert not self.closed
        self.commit(offsets)

    def close(self, **_: Any) -> None:
        self.closed = True


class Closed:
    """A producer that notes that it is closed."""

    def __init__(self) -> None:
        self.closed = 0
        self._sender = None

    def close(self, timeout: float) -> None:  # noqa: ARG002
        self.closed += 1


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


def worker_of(
    consumer: Consumer,
    handle: Any = lambda *_: None,
    producer: Any = None,
    group: str | None = None,
    turn: Callable[[float], object] = lambda _now: None,
    **options: Any,
) -> Worker:
    connection = FakeConnection(consumer, producer or Closed())
    made = Worker(connection, ["signals"], handle, group, "latest", **options)
    made.turn = turn
    return made


def test_a_worker_whose_thread_dies_leaves_and_reports_it(consumer):
    errors: list[Exception] = []

    def turn(_now: float) -> None:
        raise KeyError("a bug")

    running = worker_of(consumer, turn=turn, life=Lifetime(None, errors.append))
    running.run()
    with pytest.raises(ThreadDiedError, match="a bug"):
        running.life.wait(10)
    assert consumer.closed
    running.close()
    assert len(errors) == 1


def test_a_handler_may_close_its_worker(consumer):
    handled, released = [], []
    consumer.records = signals(3)

    def handle(record: Any, _work: Work) -> None:
        handled.append(record.offset)
        running.close()

    running = worker_of(consumer, handle)
    running.release = lambda: released.append(consumer.closed)
    running.run()
    assert running.life.wait(10)
    # it ends after the record at hand, and the labels are others' once all is done
    assert (handled, released) == ([0], [True])
    running.close()
    assert released == [True]


def test_a_worker_whose_thread_dies_releases_its_labels(consumer):
    released = []

    def turn(_now: float) -> None:
        raise KeyError("a bug")

    running = worker_of(consumer, turn=turn)
    running.release = lambda: released.append(consumer.closed)
    running.run()
    with pytest.raises(ThreadDiedError):
        running.life.wait(10)
    assert released == [True]


def test_a_worker_may_be_closed_where_its_error_is_reported(consumer):
    producer = Closed()

    def turn(_now: float) -> None:
        raise KeyError("a bug")

    running = worker_of(consumer, producer=producer, turn=turn, life=Lifetime(None, lambda _: running.close()))
    running.run()
    running._loop.join()
    assert producer.closed == 1


def test_a_step_of_a_worker_that_kafka_refuses_is_tried_again(consumer, monkeypatch):
    monkeypatch.setattr(worker, "BACKOFF_SECONDS", 0.0)
    failures, done = [KafkaError("away"), KafkaError("away")], []

    def turn(now: float) -> None:
        if failures:
            raise failures.pop()
        done.append(now)
        running.life.close()

    running = worker_of(consumer, turn=turn)
    running.run()
    assert running.life.wait(10)
    running.close()
    assert done
    assert consumer.closed


def test_steps_of_a_worker_that_kafka_refuses_one_after_the_other_are_logged_in_growing_pauses(
    consumer, monkeypatch, caplog
):
    monkeypatch.setattr(worker, "BACKOFF_SECONDS", 0.0)
    times = [0.0] * 5 + [0.15] * 5

    def turn(_now: float) -> None:
        if not times:
            running.life.close()
            return
        connection.time = times.pop(0)
        raise KafkaError("away")

    connection = FakeConnection(consumer, Closed())
    connection.time = 0.0
    running = Worker(connection, ["signals"], lambda *_: None, None, "latest")
    running.turn = turn
    running.run()
    assert running.life.wait(10)
    running.close()
    logged = [record.getMessage() for record in caplog.records if "will be retried" in record.getMessage()]
    assert logged == ["A step of a worker failed and will be retried: KafkaError: away"] * 2


_STORED = SimpleNamespace(topic="signals", partition=0, offset=0, timestamp=0)


class Refusing(Closed):
    """A producer for which Kafka refuses records, for a reason that may pass, until it is :attr:`back`."""

    back = False

    def send(self, *_: Any, **__: Any) -> Any:
        error = None if self.back else RequestTimedOutError()
        return SimpleNamespace(
            add_callback=lambda report: report(_STORED) if error is None else None,
            add_errback=lambda report: None if error is None else report(error),
        )


def states_of(monkeypatch: Any) -> list[str]:
    monkeypatch.setattr(lifetime, "LASTING_SECONDS", 0.01)
    return []


@pytest.mark.parametrize("client", [Responder, partial(Subscriber, subscriptions=[subscription("events")])])
def test_a_receiver_that_reaches_no_broker_is_disconnected_until_it_does(consumer, monkeypatch, client):
    states = states_of(monkeypatch)
    monkeypatch.setattr(Answers, "ask_time", lambda _: None)
    with client(FakeConnection(consumer, Closed()), handler=print, on_connection=states.append):
        eventually(lambda: states == ["connected"], "the first state")
        consumer.reached = False
        eventually(lambda: states[1:] == ["disconnected"], "no broker")
        consumer.reached = True
        eventually(lambda: states[2:] == ["connected"], "a broker")


def test_a_receiver_whose_answers_kafka_does_not_store_is_disconnected_until_it_does(consumer, monkeypatch, caplog):
    states, producer = states_of(monkeypatch), Refusing()
    monkeypatch.setattr(Answers, "ask_time", lambda _: None)
    with Responder(FakeConnection(consumer, producer), handler=print, on_connection=states.append) as responder:
        eventually(lambda: states == ["connected"], "the first state")
        ack = write_ack(Acknowledgement("a:b", 200, UNSET, {}), "n:x")
        responder._worker.outbox.send("c", ack, Work(0))
        eventually(lambda: states[1:] == ["disconnected"], "the refusal")
        producer.back = True
        eventually(lambda: states[2:] == ["connected"], "it was sent again")
    assert "The Responder is disconnected" in caplog.text


def test_a_requester_is_disconnected_by_kafka_and_not_by_a_request_without_a_reply(consumer, monkeypatch):
    states, producer = states_of(monkeypatch), Refusing()
    producer.back = True
    with Requester(FakeConnection(consumer, producer), grace=0.0, on_connection=states.append) as requester:
        eventually(lambda: states == ["connected"], "the first state")
        command = Command.modify_attribute("n:x", "a", 1)
        with pytest.raises(RequestTimeout):
            requester.request(command, timeout=0.01)
        producer.back = False
        requester.publish(command)
        eventually(lambda: len(states) > 1, "Kafka does not store it")
        producer.back = True
        eventually(lambda: states == ["connected", "disconnected", "connected"], "Kafka has stored it")


def test_a_requester_that_reaches_no_broker_is_disconnected_until_it_does(consumer, monkeypatch):
    states = states_of(monkeypatch)
    with Requester(FakeConnection(consumer, Closed()), on_connection=states.append):
        eventually(lambda: states == ["connected"], "the first state")
        consumer.reached = False
        eventually(lambda: states[1:] == ["disconnected"], "no broker")
        consumer.reached = True
        eventually(lambda: states[2:] == ["connected"], "a broker")


def test_a_requester_whose_requests_wait_for_kafka_is_disconnected_until_they_are_stored(consumer, monkeypatch):
    states, waiting = states_of(monkeypatch), list[Any]()
    producer: Any = Closed()
    producer.send = lambda *_, **__: SimpleNamespace(add_callback=waiting.append, add_errback=waiting.append)
    with Requester(FakeConnection(consumer, producer), on_connection=states.append) as requester:
        eventually(lambda: states == ["connected"], "the first state")
        stored = requester.publish(Command.modify_attribute("n:x", "a", 1))
        eventually(lambda: states[1:] == ["disconnected"], "nothing is stored")
        waiting[0](_STORED)
        eventually(lambda: states[2:] == ["connected"], "it is stored")
        assert stored.result(0).offset == 0


def signals(number: int, partition: int = 0) -> list[Any]:
    return [
        SimpleNamespace(topic="signals", partition=partition, offset=offset, value=b"", headers=())
        for offset in range(number)
    ]


class _Lease:
    """Labels of which a test says whether their lease has lapsed."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready, self.taken = ready, False


@pytest.mark.parametrize("group", [None, "g"])
def test_records_wait_for_a_lease_while_the_group_is_polled(consumer, group, caplog):
    consumer.records = signals(3)
    labels, handled, turns = _Lease(), [], count()

    def handle(record: Any, _work: Any) -> None:
        handled.append(record.offset)
        labels.ready = record.offset > 0
        if len(handled) == 3:
            running.life.close()

    def turn(_now: float) -> None:
        labels.ready = labels.ready or next(turns) > 5

    # the second and the third one are read at once, and wait both
    running = worker_of(consumer, handle, group=group, turn=turn, labels=labels)
    running.run()
    assert running.life.wait(10)
    running.close()
    assert (handled, consumer.paused()) == ([0, 1, 2], set())
    assert consumer.polls > 6
    assert [record.getMessage() for record in caplog.records] == [
        "The labels are not held: records and answers wait until they are, or are taken.",
        "The labels are held again, or another client has them: records are handled.",
    ]


def test_a_worker_that_is_closed_before_its_lease_is_renewed_leaves_the_records_to_others(consumer, monkeypatch):
    monkeypatch.setattr(worker, "MAX_RECORDS", 2)
    consumer.records = signals(2)
    handled: list[int] = []
    labels = _Lease(ready=False)
    running = worker_of(consumer, lambda record, _: handled.append(record.offset), group="g", labels=labels)
    running.run()
    eventually(consumer.paused, "they wait")
    running.close()
    assert (handled, consumer.commits[-1]) == ([], {0: 0})


# -- slow handlers -----------------------------------------------------------------------------------------------------


class _Slow:
    """A handler that works until the test lets it go on."""

    def __init__(self) -> None:
        self.handled: list[tuple[int, int]] = []
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, record: Any, _work: Work) -> None:
        self.handled.append((record.partition, record.offset))
        self.begun.set()
        assert self.goes_on.wait(10)


def test_the_group_rebalances_while_a_handler_works(consumer, monkeypatch):
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.01)
    consumer.records = [*signals(3), *signals(3, 1)]
    slow = _Slow()
    running = worker_of(consumer, slow, group="g")
    consumer.give(0, 1)
    running.run()
    assert slow.begun.wait(10)
    busy = slow.handled[0]
    # the other partition goes to another member, and its records with it, although they are read
    consumer.give(busy[0])
    eventually(lambda: consumer.assignment() == {TopicPartition("signals", busy[0])}, "the group has rebalanced")
    # what is being handled is not done
    assert consumer.commits[-1] == {busy[0]: 0}
    slow.goes_on.set()
    eventually(lambda: len(slow.handled) == 3, "the rest of its own is handled")
    running.close()
    assert slow.handled == [(busy[0], offset) for offset in range(3)]
    assert consumer.commits[-1] == {busy[0]: 3}


def test_a_member_that_is_given_partitions_while_its_handler_works_loses_no_record(consumer, monkeypatch):
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.01)
    consumer.records = [*signals(2), *signals(2, 1)]
    slow = _Slow()
    running = worker_of(consumer, slow, group="g")
    running.run()
    assert slow.begun.wait(10)
    consumer.give(0, 1)
    eventually(lambda: len(consumer.assignment()) == 2, "the group has rebalanced")
    slow.goes_on.set()
    eventually(lambda: len(slow.handled) == 4, "all are handled")
    running.close()
    assert sorted(slow.handled) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert consumer.commits[-1] == {0: 2, 1: 2}


@pytest.mark.parametrize("group", [None, "g"])
def test_a_slow_handler_sees_that_its_request_is_cancelled_behind_others_that_wait(consumer, monkeypatch, group):
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.01)
    monkeypatch.setattr(Answers, "ask_time", lambda _: None)
    consumer.records = [order_of(offset) for offset in range(5)]
    seen: list[tuple[int, bool]] = []

    def handle(signal: Any) -> None:
        if signal.offset == 0:
            consumer.records.extend([cancellation(5, 0), cancellation(6, 3)])
            eventually(lambda: signal.cancelled, "the cancellation")
        seen.append((signal.offset, signal.cancelled))

    options: dict[str, Any] = {"labels": ["a-a"], "topics": ["signals"], "group": group, "handler": handle}
    connection = FakeConnection(consumer, Closed())
    connection.claim = lambda _labels: lambda: None
    with Responder(connection, **options) as responder:
        eventually(lambda: responder.statistics.received == 5, "all are handled, or skipped")
        assert (responder.statistics.handled, responder.statistics.cancelled) == (4, 1)
    assert seen == [(0, True), (1, False), (2, False), (4, False)]


@pytest.mark.parametrize("group", [None, "g"])
def test_requests_that_were_cancelled_before_the_start_are_not_handled(consumer, monkeypatch, group):
    monkeypatch.setattr(Answers, "ask_time", lambda _: None)
    consumer.records = [make for at in (0, 2) for make in (order_of(at), cancellation(at + 1, at))]
    connection, seen = FakeConnection(consumer, Closed()), list[int]()
    connection.claim = lambda _labels: lambda: None
    options: dict[str, Any] = {"group": group, "handler": lambda signal: seen.append(signal.offset)}
    with Responder(connection, labels=["a-a"], topics=["signals"], **options) as responder:
        eventually(lambda: responder.statistics.received == 2, "both are skipped")
    assert seen == []


@pytest.mark.parametrize("group", [None, "g"])
def test_a_record_is_noticed_within_a_second_of_handling_although_others_wait_before_it(consumer, group):
    consumer.records = [order_of(offset) for offset in range(50)]
    running, noticed, when = worker_of(consumer, group=group), list[int](), list[int]()
    clock = FakeConnection()
    clock.time = 0.0
    running.now, running.notice = clock.now, lambda record: noticed.append(record.offset)

    def handle(record: Any, _work: Work) -> None:
        if record.offset == 20:
            consumer.records.append(order_of(50))
        if 50 in noticed:
            when.append(record.offset)
        clock.time += 0.3

    running._handle = handle
    running.run()
    eventually(lambda: when[-1:] == [50], "all are handled")
    running.close()
    assert when[0] <= 24


@pytest.mark.parametrize("group", [None, "g"])
def test_a_responder_that_is_closed_between_two_calls_of_its_handler_leaves_the_signal_to_its_group(
    consumer, monkeypatch, group
):
    monkeypatch.setattr(Answers, "ask_time", lambda _: None)
    consumer.records = [order_of(0)]
    failed, producer = threading.Event(), Refusing()
    producer.back = True
    sent: list[Any] = []
    monkeypatch.setattr(Answers, "send", lambda _self, _id, message, *_: sent.append(message.status))

    def handle(_signal: Any) -> Any:
        failed.set()
        raise ValueError("no")

    connection = FakeConnection(consumer, producer)
    connection.claim = lambda _labels: lambda: None
    retry = Retry(2, backoff=3_600, longest=3_600)
    responder = Responder(connection, labels=["a-a"], topics=["signals"], group=group, handler=handle, retry=retry)
    assert failed.wait(10)
    began = time.monotonic()
    responder.close()
    assert time.monotonic() - began < 10
    assert (sent, consumer.commits[-1:]) == (([], [{0: 0}]) if group else ([500], []))


def fails(_signal: Any) -> Any:
    raise ValueError("no")


@pytest.mark.parametrize("handler", [lambda _: Ack(201, {"n": 1}), lambda _: After(5, Ack()), lambda _: None, fails])
def test_a_copy_of_a_request_that_was_carried_out_before_a_crash_is_answered_as_before(monkeypatch, tmp_path, handler):
    monkeypatch.setattr(Answers, "ask_time", lambda _: None)
    calls: list[int] = []
    sent: list[Any] = []
    monkeypatch.setattr(
        Answers, "send", lambda _self, key, message, _work, delay: sent.append((key, encode(message), delay))
    )

    def handle(signal: Any) -> Any:
        calls.append(signal.offset)
        return handler(signal)

    def run(number: int) -> Any:
        # what a crash leaves behind: the file, and offsets that are not committed
        reads = Consumer()
        reads.records = [order_of(offset) for offset in range(number)]
        connection = FakeConnection(reads, Closed())
        connection.claim = lambda _labels: lambda: None
        given: dict[str, Any] = {"labels": ["a-a"], "topics": ["signals"], "group": "g", "handler": handle}
        with Responder(connection, once=tmp_path / "inbox", **given) as responder:
            eventually(lambda: responder.statistics.received == number, "all")
            return responder.statistics

    assert (run(2).handled, calls) == (2, [0, 1])
    first = list(sent)
    statistics = run(3)
    assert (statistics.repeated, statistics.handled, calls) == (2, 1, [0, 1, 2])
    assert sent[len(first) :][: len(first)] == first


class Member:
    """Starts a responder of a group with a file, for one record that is read (again), and closes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.file, self.consumer = tmp_path / "inbox", Consumer()
        self.seen: list[Any] = []
        self.sent: list[str] = []
        self.errors: list[Exception] = []
        monkeypatch.setattr(Answers, "ask_time", lambda _: None)
        monkeypatch.setattr(Answers, "send", lambda _self, _key, message, *_: self.sent.append(message.topic.subject))

    def run(self, record: Any, labels: Iterable[str] = ("a-a",)) -> Any:
        self.consumer = Consumer()
        self.consumer.records = [record]
        connection = FakeConnection(self.consumer, Closed())
        connection.claim = lambda _labels: lambda: None
        self.sent.clear()
        options: dict[str, Any] = {"topics": ["signals"], "group": "g", "handler": self._handle}
        with Responder(connection, labels=labels, once=self.file, on_error=self.errors.append, **options) as responder:
            eventually(lambda: responder.statistics.received == 1, "it is handled, or answered")
            return responder.statistics

    def _handle(self, signal: Any) -> Ack:
        self.seen.append(signal.content)
        return Ack()


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Member:
    return Member(monkeypatch, tmp_path)


def test_a_request_at_the_same_place_of_a_topic_that_was_made_anew_is_another_one(member):
    member.run(order_of(0, b"old"))
    new = order_of(0, b"new")
    new.timestamp = 1
    assert (member.run(new).repeated, member.seen) == (0, [b"old", b"new"])
    assert (member.run(new).repeated, member.run(order_of(0, b"old")).repeated) == (1, 1)


def test_a_copy_that_is_read_after_the_first_timeout_is_answered_as_before_since_it_may_still_count(
    member, monkeypatch
):
    member.run(order_of(0))
    monkeypatch.setattr(Worker, "is_over", lambda *_: True)
    statistics = member.run(order_of(0))
    assert (statistics.repeated, statistics.expired, member.sent) == (1, 0, ["a-a"])
    statistics = member.run(order_of(1))
    assert (statistics.repeated, statistics.expired, member.sent) == (0, 1, [])


def test_answers_are_repeated_under_the_labels_that_are_still_issued(member, caplog):
    wanted = order_of(0)
    wanted.headers[0] = ("requested-acks", b"a-a,b-b")
    member.run(wanted, ["a-a", "b-b"])
    assert sorted(member.sent) == ["a-a", "b-b"]
    statistics = member.run(wanted)
    assert (member.sent, statistics.repeated, statistics.skipped) == (["a-a"], 1, 0)
    assert "1 answers to c-0 have labels that are no longer issued" in caplog.text


@pytest.mark.parametrize("damage", [b"\xc1", b"\x91\x92\x00\xc4\x01{"])
def test_a_damaged_answer_ends_the_responder_which_commits_nothing_and_dies_of_nothing_else(member, damage, caplog):
    member.run(order_of(0))
    with closing(sqlite3.connect(member.file)) as database, database:
        database.execute("UPDATE requests SET answers = ?", (damage,))
    member.run(order_of(0))
    assert [type(error) for error in member.errors] == [StoreError]
    assert "it is damaged, perhaps truncated" in str(member.errors[0])
    assert (len(member.seen), member.sent, member.consumer.commits, member.consumer.closed) == (1, [], [{0: 0}], True)
    assert "died" not in caplog.text


@pytest.mark.parametrize(("limit", "most"), [("MAX_RECORDS", 3), ("AHEAD_BYTES", 30)])
def test_a_bounded_number_of_records_is_read_ahead_to_be_noticed(consumer, monkeypatch, limit, most):
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.001)
    monkeypatch.setattr(worker, limit, most)
    consumer.records = [order_of(offset, b"x" * 10) for offset in range(4)]
    slow, noticed = _Slow(), list[int]()
    running = worker_of(consumer, slow)
    running.notice = lambda record: noticed.append(record.offset)
    running.run()
    assert slow.begun.wait(10)
    eventually(lambda: len(noticed) == 4, "three are read beside it")
    consumer.records.append(order_of(4))
    with running._lock:
        running._poll(0)
    assert noticed == [0, 1, 2, 3]
    slow.goes_on.set()
    eventually(lambda: len(slow.handled) == 5, "all are handled")
    running.close()


def order_of(offset: int, value: bytes = b"x") -> Any:
    headers = [("requested-acks", b"a-a"), ("correlation-id", b"c-%d" % offset)]
    return SimpleNamespace(
        topic="signals", partition=0, offset=offset, timestamp=0, key=None, value=value, headers=headers
    )


def cancellation(offset: int, of: int) -> Any:
    identity = reply_id(f"c-{of}", "signals", 0, of)
    headers = [("cancel", identity.encode()), ("correlation-id", b"c-%d" % of)]
    return SimpleNamespace(
        topic="signals", partition=0, offset=offset, timestamp=0, key=None, value=None, headers=headers
    )


def test_close_ends_after_the_record_at_hand(consumer):
    consumer.records = signals(5)
    slow = _Slow()
    running = worker_of(consumer, slow, group="g")
    running.run()
    assert slow.begun.wait(10)
    closing = threading.Thread(target=running.close)
    closing.start()
    eventually(running._closing.is_set, "it is closing")
    slow.goes_on.set()
    closing.join(10)
    assert (slow.handled, consumer.commits[-1]) == ([(0, 0)], {0: 1})


def test_a_record_that_ends_its_thread_is_not_done(consumer):
    consumer.records = signals(2)

    def handle(_record: Any, _work: Work) -> None:
        raise SystemExit

    running = worker_of(consumer, handle, group="g")
    running.run()
    with pytest.raises(ThreadDiedError):
        running.life.wait(10)
    assert {each[0] for each in consumer.commits} == {0}


def test_a_member_that_its_group_has_ruled_out_handles_nothing_that_it_has_read(consumer):
    consumer.records = signals(4)
    slow = _Slow()
    running = worker_of(consumer, slow, group="g")
    running.run()
    assert slow.begun.wait(10)
    with running._lock:
        consumer._listener.on_partitions_lost(consumer.assignment())
        consumer.give(1)
    slow.goes_on.set()
    eventually(lambda: consumer.assignment() == {TopicPartition("signals", 1)}, "it has joined again")
    running.close()
    assert slow.handled == [(0, 0)]


# -- receivers ---------------------------------------------------------------------------------------------------------


def test_a_receiver_and_its_answers_wait_for_the_lease_of_its_labels(monkeypatch):
    made: list[Any] = []
    labels = SimpleNamespace(keep=None)

    def make(*_: Any, **options: Any) -> Any:
        made.append(options["labels"])
        return SimpleNamespace(life=None, run=lambda: None, ask_time=None)

    monkeypatch.setattr(receivers, "Labels", lambda *_: labels)
    monkeypatch.setattr(receivers, "Worker", make)
    Responder(Kafka(), handler=print, labels=["a-a"])
    Subscriber(Kafka(), handler=print, subscriptions=[], labels=["a-a"])
    assert made == [labels, labels]


def test_a_signal_during_which_the_lease_lapses_is_acknowledged_all_the_same():
    sent: list[str] = []
    responder: Any = Responder.__new__(Responder)
    responder.__dict__ |= {
        "_labels": SimpleNamespace(held=frozenset(), issued=frozenset({"a-a"})),
        "_responds": frozenset(),
        "_topics": [],
        "_counts": Counter(),
        "_orders": {},
        "_retry": None,
        "_inbox": None,
        "_handler": lambda _signal: Ack(204),
        "_worker": SimpleNamespace(
            originator_key=None,
            is_over=lambda *_: False,
            outbox=SimpleNamespace(send=lambda _id, message, *_: sent.append(message.topic.subject)),
        ),
    }
    command = {
        "topic": "org.acme/lamp/things/twin/commands/modify",
        "headers": {"correlation-id": "c-1", "requested-acks": ["a-a", "b-b"]},
        "path": "/attributes/x",
        "value": 1,
    }
    record = SimpleNamespace(
        topic="signals", partition=0, offset=0, timestamp=0, headers=[], value=json.dumps(command).encode()
    )
    responder._handle(record, Work(0))
    assert sent == ["a-a"]
