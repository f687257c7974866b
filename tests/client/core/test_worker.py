from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, OutOfOrderSequenceNumberError
from kafka.future import Future

from ackstream.client.core import connection as connection_module
from ackstream.client.core import messages, worker
from ackstream.client.core.group import Work
from ackstream.client.core.messages import Answers
from ackstream.client.core.worker import Worker
from ackstream.client.errors import ThreadDiedError
from ackstream.client.parties import receivers
from ackstream.client.parties.receivers import Responder, Subscriber
from ackstream.client.parties.signals import Ack
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_ack
from ackstream.protocol.ditto.envelopes import raw
from ackstream.settings import Kafka
from tests.client.connections import FakeConnection


class Producer:
    """Records what is sent; the test answers for the broker."""

    def __init__(self) -> None:
        self.futures: list[Future] = []
        self.sent: list[str] = []
        self.topics: list[str] = []
        self.refusal: Exception | None = None

    def send(self, topic: str, value: bytes, key: bytes, headers: list[tuple[str, bytes]]) -> Future:
        if self.refusal is not None:
            raise self.refusal
        assert (key, headers) == (b"org.acme:lamp", [("correlation-id", b"c-1")])
        self.sent.append(json.loads(value)["value"])
        self.topics.append(topic)
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def producer() -> Producer:
    return Producer()


@pytest.fixture
def outbox(producer: Any) -> Answers:
    connection = FakeConnection()
    connection.time = 0.0
    return Answers(connection_module.Producer(connection.kafka, producer), connection)


def put(outbox: Answers, value: str, delay: float = 0.0, topic: str = "acks") -> Work:
    work = Work(1)
    message = write_ack(Acknowledgement("meter", 200, raw(value)), "org.acme:lamp")
    outbox.send("c-1", message, work, delay, topic)
    return work


def counts(outbox: Answers) -> tuple[int, int, int, int]:
    return outbox.stored, outbox.sending, outbox.waiting, outbox.lost


def test_work_remains_until_the_broker_has_the_answer(outbox, producer):
    work = put(outbox, "a")
    outbox.turn(1.0)
    assert (work.remaining, counts(outbox)) == (1, (0, 1, 0, 0))
    producer.futures[0].success("metadata")
    outbox.turn(2.0)
    assert (work.remaining, counts(outbox)) == (0, (1, 0, 0, 0))


def test_delayed_answers_are_sent_in_the_order_of_their_times(outbox, producer):
    assert outbox.wait(0.0) is None
    for value, delay in (("late", 3.0), ("early", 1.0), ("same", 3.0)):
        put(outbox, value, delay)
    put(outbox, "now")
    assert outbox.wait(0.4) == pytest.approx(0.6)
    outbox.turn(0.9)
    assert producer.sent == ["now"]
    outbox.turn(1.0)
    assert producer.sent == ["now", "early"]
    assert outbox.wait(9.0) == 0.0
    outbox.turn(9.0)
    assert producer.sent == ["now", "early", "late", "same"]
    assert counts(outbox) == (0, 4, 0, 0)


@pytest.mark.parametrize("error", [KafkaTimeoutError("120 s"), OutOfOrderSequenceNumberError()])
def test_an_answer_that_failed_temporarily_is_sent_again(outbox, producer, error):
    work = put(outbox, "a")
    producer.futures[0].failure(error)
    outbox.turn(1.0)
    assert (work.remaining, counts(outbox)) == (1, (0, 0, 1, 0))
    outbox.turn(1.3)
    assert producer.sent == ["a", "a"]
    producer.futures[1].success("metadata")
    outbox.turn(1.4)
    assert (work.remaining, counts(outbox)) == (0, (1, 0, 0, 0))


def test_a_rejected_answer_is_logged_and_holds_nothing_up(outbox, producer, caplog):
    work = put(outbox, "a")
    producer.futures[0].failure(MessageSizeTooLargeError("big"))
    with caplog.at_level(logging.ERROR):
        outbox.turn(1.0)
    assert (work.remaining, counts(outbox)) == (0, (0, 0, 0, 1))
    assert "rejected an answer to c-1" in caplog.text


@pytest.mark.parametrize(
    ("error", "again"), [(KafkaTimeoutError(), 1), (ValueError(), 1), (MessageSizeTooLargeError(), 0)]
)
def test_a_producer_that_fails_at_once_is_treated_alike(outbox, producer, error, again):
    producer.refusal = error
    work = put(outbox, "a")
    outbox.turn(1.0)
    assert (work.remaining, outbox.waiting, outbox.lost) == (again, again, 1 - again)


def test_an_outbox_is_full_of_many_answers_or_of_large_ones(outbox, producer, monkeypatch):
    monkeypatch.setattr(messages, "MAX_SENDING", 2)
    monkeypatch.setattr(messages, "MAX_SENDING_BYTES", 1_000)
    full = []
    for value in ("a", "b", "c"):
        put(outbox, value)
        full.append(outbox.full)
    for future in producer.futures:
        future.success("metadata")
    outbox.turn(1.0)
    full.append(outbox.full)
    put(outbox, "x" * 1_000)
    full.append(outbox.full)
    producer.futures[-1].success("metadata")
    outbox.turn(2.0)
    assert [*full, outbox.full] == [False, False, True, False, True, False]


def test_settling_sends_nothing(outbox, producer):
    put(outbox, "late", 1.0)
    work = put(outbox, "now")
    producer.futures[0].success("metadata")
    outbox.settle(5.0)
    assert (work.remaining, producer.sent) == (0, ["now"])


def test_answers_go_to_one_topic_unless_they_name_another(outbox, producer):
    put(outbox, "a")
    put(outbox, "b", topic="events")
    assert producer.topics == ["acks", "events"]


def test_work_that_is_held_remains_until_it_is_released(outbox, producer):
    work = put(outbox, "a")
    outbox.hold(work)
    producer.futures[0].success("metadata")
    outbox.turn(1.0)
    assert work.remaining == 1
    outbox.release(work)
    assert work.remaining == 0


class Consumer:
    """Has no records, or those that it gives from an offset on, unless it is paused."""

    def __init__(self) -> None:
        self.closed = self.is_paused = False
        self.records: list[Any] = []
        self.polls = self.position = 0
        self._coordinator = SimpleNamespace(rebalance_in_progress=lambda: False)
        self._fetcher = SimpleNamespace(_next_partition_records=None)

    def poll(self, **_: Any) -> dict[Any, Any]:
        self.polls += 1
        if self.is_paused:
            return {}
        records, self.position = self.records[self.position :], len(self.records)
        return {TopicPartition("signals", 0): records} if records else {}

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self.position = offset

    def pause(self, _partition: TopicPartition) -> None:
        self.is_paused = True

    def paused(self) -> set[TopicPartition]:
        return {TopicPartition("signals", 0)} if self.is_paused else set()

    def resume(self, _partition: TopicPartition) -> None:
        self.is_paused = False

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


def worker_of(consumer: Consumer, handle: Any = lambda *_: None, producer: Any = None, **options: Any) -> Worker:
    connection = FakeConnection(consumer, producer or Closed())
    return Worker(connection, ["signals"], handle, None, "latest", **options)


def test_a_worker_whose_thread_dies_leaves_and_reports_it(consumer):
    errors: list[Exception] = []

    def turn(_now: float) -> None:
        raise KeyError("a bug")

    running = worker_of(consumer, turn=turn, on_error=errors.append)
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
    # what was read with it is handled, and the labels are others' once all is done
    assert (handled, released) == ([0, 1, 2], [True])
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

    running = worker_of(consumer, producer=producer, turn=turn, on_error=lambda _: running.close())
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


def signals(number: int) -> list[Any]:
    return [
        SimpleNamespace(topic="signals", partition=0, offset=offset, value=b"", headers=()) for offset in range(number)
    ]


class _Lease:
    """Labels of which a test says whether their lease has lapsed."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready, self.taken = ready, False


def test_records_wait_for_a_lease_while_polling_goes_on(consumer, caplog):
    consumer.records = signals(3)
    labels, handled = _Lease(), []

    def handle(record: Any, _work: Any) -> None:
        handled.append(record.offset)
        labels.ready = record.offset > 0
        if len(handled) == 3:
            running.life.close()

    def turn(_now: float) -> None:
        labels.ready = labels.ready or consumer.polls > 5

    running = worker_of(consumer, handle, turn=turn, labels=labels)
    running.run()
    assert running.life.wait(10)
    running.close()
    assert (handled, consumer.polls > 6, consumer.is_paused) == ([0, 1, 2], True, False)
    assert [record.getMessage() for record in caplog.records] == [
        "The labels are not held: records and answers wait until they are, or are taken.",
        "The labels are held again, or another client has them: records are handled.",
    ]


def test_a_worker_that_is_closed_before_its_lease_is_renewed_leaves_the_records_to_others(consumer):
    consumer.records = signals(2)
    waits, handled = threading.Event(), []
    consumer.pause = lambda _partition: waits.set()
    labels = _Lease(ready=False)
    running = worker_of(consumer, lambda record, _: handled.append(record), labels=labels)
    running.run()
    assert waits.wait(10)
    running.close()
    assert (handled, running._progress.positions()) == ([], {})


def test_records_of_a_partition_that_another_member_has_by_now_are_not_read_again(consumer):
    running = worker_of(consumer, labels=_Lease(ready=False))

    def seek(*_: Any) -> None:
        raise ValueError("Unassigned partition")

    consumer.seek = seek
    running._put_back(signals(2))
    running.close()
    assert not consumer.is_paused


def test_a_receiver_and_its_answers_wait_for_the_lease_of_its_labels(monkeypatch):
    made: list[Any] = []
    labels = SimpleNamespace(keep=None)

    def make(*_: Any, **options: Any) -> Any:
        made.append(options["labels"])
        return SimpleNamespace(life=None, run=lambda: None)

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
        "_counts": Counter(),
        "_handler": lambda _signal: Ack(204),
        "_worker": SimpleNamespace(
            originator_key=None,
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
