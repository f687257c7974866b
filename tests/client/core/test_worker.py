from __future__ import annotations

import json
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError

from ackstream.client.core import worker
from ackstream.client.core.messages import Work
from ackstream.client.core.worker import Worker
from ackstream.client.errors import ThreadDiedError
from ackstream.client.parties import receivers
from ackstream.client.parties.receivers import Responder, Subscriber
from ackstream.client.parties.signals import Ack
from ackstream.settings import Kafka
from tests.client.connections import FakeConnection


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
