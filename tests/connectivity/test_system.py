from __future__ import annotations

import re
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from msgspec import UNSET

from ackstream.client.errors import ClosedError, NotSentError
from ackstream.connectivity import system
from ackstream.connectivity.system import Identities, System
from ackstream.connectivity.transports.transport import ExternalMessage
from ackstream.protocol.ditto.connection_rules import SettlementAnswer
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES, is_too_long
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ledger import DEAD_LETTER_BYTES


def test_a_fresh_correlation_id_stays_as_it_is() -> None:
    assert Identities().take("a", redelivered=False) == "a"


def test_what_comes_again_gets_a_suffix() -> None:
    found = Identities()
    first, *others = [found.take("a", redelivered=False) for _ in range(3)]
    assert first == "a"
    assert len(set(others)) == 2
    assert all(re.fullmatch("a#[0-9a-f]{8}", other) for other in others)


def test_what_may_have_come_before_gets_a_suffix() -> None:
    assert Identities().take("a", redelivered=True).startswith("a#")


def test_a_suffix_makes_no_correlation_id_too_long() -> None:
    assert not is_too_long(Identities().take("x" * MAX_BYTES, redelivered=True))


def test_two_processes_do_not_use_the_same_suffix() -> None:
    assert Identities().take("a", redelivered=True) != Identities().take("a", redelivered=True)


def test_only_the_last_ones_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(system, "REMEMBERED", 2)
    found = Identities()
    assert [found.take(each, redelivered=False) for each in "abca"] == ["a", "b", "c", "a"]


def not_sent(cause: Exception | None) -> NotSentError:
    error = NotSentError("Kafka did not store the request.", "mine")
    error.__cause__ = cause
    return error


TOO_LARGE = MessageSizeTooLargeError("too large")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (not_sent(TOO_LARGE), TOO_LARGE),
        (not_sent(KafkaTimeoutError()), None),
        (not_sent(None), None),
        (ClosedError("closed", "mine"), None),
    ],
)
@pytest.mark.parametrize("responds", [True, False])
def test_that_a_request_can_never_be_sent_is_told_apart_from_what_may_pass(
    error: Exception,
    answer: Exception | None,
    responds: bool,  # noqa: FBT001 - a table
) -> None:
    future: Future[Any] = Future()
    future.set_exception(error)
    found = System.__new__(System)
    found._identities, found._lock = Identities(), system.threading.Lock()
    requester: Any = SimpleNamespace(send=lambda *_, **__: future, publish=lambda *_, **__: future)
    found._requester = requester
    request = SimpleNamespace(response_required=responds, waits_for_acks=False)
    asked: Any = SimpleNamespace(envelope=SimpleNamespace(headers={"correlation-id": "mine"}), request=request)
    answers: list[Any] = []
    found.ask(asked, redelivered=False, replied=print, received=answers.append)
    assert answers == [answer]


def test_a_message_is_settled_whatever_becomes_of_its_reply() -> None:
    def replied(_envelope: Any) -> None:
        raise ValueError

    envelope = Envelope(TopicPath.parse("a/b/things/live/messages/ask"), {}, "/inbox/messages/ask", UNSET, status=412)
    future: Future[Any] = Future()
    future.set_result(SimpleNamespace(envelope=envelope, completed_by="response", correlation_id="mine"))
    asked: Any = SimpleNamespace(request=SimpleNamespace(waits_for_acks=True, live=True))
    answers: list[Any] = []
    system._replied(asked, replied, answers.append, future)
    assert answers == [SettlementAnswer((412,), live=True)]


class Producer:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.records: list[dict[str, Any]] = []

    def send(self, _topic: str, **record: Any) -> Any:
        self.records.append(record)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(add_callback=lambda stored: stored(None), add_errback=lambda _failed: None)


@pytest.mark.parametrize("error", [None, TOO_LARGE])
def test_a_dead_letter_is_small_enough_for_its_topic_and_one_that_is_not_stored_is_delivered_again(
    error: Exception | None,
) -> None:
    found = System.__new__(System)
    found._producer, found._dead_letters = producer, _ = Producer(error), "dead-letters"
    much = "x" * 20_000_000
    answers: list[Any] = []
    found.give_up(ExternalMessage(much, {"kafka.key": much}, much.encode()), much, answers.append)
    (record,) = producer.records
    assert (len(record["value"]), len(record["key"])) == (DEAD_LETTER_BYTES, DEAD_LETTER_BYTES)
    assert len(record["headers"][0][1]) < DEAD_LETTER_BYTES
    assert answers == [None if error else system.STORED]
