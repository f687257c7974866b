from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, OutOfOrderSequenceNumberError
from kafka.future import Future

from ackstream.client.core import connection as connection_module
from ackstream.client.core import messages
from ackstream.client.core.messages import Answers, OffsetProgress, Work
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, write_ack
from ackstream.protocol.ditto.envelopes import raw
from tests.client.connections import FakeConnection


def test_the_position_is_that_of_the_first_unfinished_record():
    progress = OffsetProgress()
    works = [progress.begin("p", offset) for offset in range(10, 14)]
    works[1].remaining = 2
    assert progress.positions() == {"p": 11}
    works[1].remaining -= 1
    assert progress.positions() == {"p": 11}
    works[1].remaining -= 1
    assert progress.positions() == {"p": 14}


def test_a_partition_without_records_is_where_it_started():
    progress = OffsetProgress()
    progress.start("p", 7)
    progress.start("p", 3)
    assert progress.positions() == {"p": 7}


def test_a_record_is_taken_up_once():
    progress = OffsetProgress()
    assert progress.begin("p", 5)
    assert progress.begin("p", 5) is None
    assert progress.begin("p", 4) is None
    # offsets may have gaps
    assert progress.begin("p", 9)


def test_what_is_finished_behind_a_record_that_is_not_takes_no_memory():
    progress = OffsetProgress()
    progress.start("p", 0)
    first = progress.begin("p", 0)
    first.remaining = 1
    for offset in range(1, 5_000):
        progress.begin("p", offset)
    last = progress.begin("p", 5_000)
    last.remaining = 1
    assert len(progress._tracked["p"].work) <= 2_000
    assert progress.positions() == {"p": 0}
    first.remaining = 0
    assert progress.positions() == {"p": 5_000}
    last.remaining = 0
    assert progress.positions() == {"p": 5_001}


def test_partitions_of_other_members_are_forgotten():
    progress = OffsetProgress()
    for partition in "ab":
        progress.begin(partition, 1)
    progress.keep(["b", "c"])
    assert progress.positions() == {"b": 2}
    # it may come back, and then begins anew
    assert progress.begin("a", 0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_no_position_passes_unfinished_work_and_finished_work_leads_to_the_end(answers, random):
    progress = OffsetProgress()
    works = []
    for offset, number in enumerate(answers):
        work = progress.begin("p", offset)
        work.remaining = number
        works.append(work)
    parts = [work for work in works for _ in range(work.remaining)]
    random.shuffle(parts)
    for part in parts:
        assert progress.positions()["p"] == min(work.offset for work in works if work.remaining)
        part.remaining -= 1
    assert progress.positions() == {"p": len(answers)}


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
