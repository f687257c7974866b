from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.connections import Source
from ackstream.connectivity.intake import Intake
from ackstream.connectivity.messages import ExternalMessage
from ackstream.connectivity.replies import Failure
from ackstream.protocol.settlement import Answer
from tests.prose import each

if TYPE_CHECKING:
    from ackstream.connectivity.messages import Outgoing

COMMAND = {"topic": "org.acme/lamp/things/twin/commands/modify", "headers": {}, "path": "/attributes/x", "value": 1}


class Other:
    """The system and the publisher: keeps what it gets."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.published: list[Outgoing] = []

    def ask(self, asked: Any, *, redelivered: bool, replied: Any, received: Any) -> None:
        self.asked.append((asked, redelivered, replied, received))

    def relay(self, envelope: Any, received: Any) -> None:
        self.asked.append((envelope, False, None, received))

    def publish(self, message: Outgoing, done: Any) -> None:
        self.published.append(message)
        done(ConnectionError("as if"))


class Taken:
    """An intake, and what it said of each message."""

    def __init__(self, **settings: Any) -> None:
        self.other = Other()
        self.settled: dict[str, str] = {}
        source = Source(addresses=("in",), reply_target={"address": "answers"}, **settings)
        self.intake = Intake("plant", source, self.other, self.other)  # type: ignore[arg-type]

    def take(self, identity: str, payload: Any = COMMAND, **options: Any) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()

        def done(settlement: str) -> None:
            self.settled[identity] = settlement

        self.intake.take(ExternalMessage(identity, {}, data), done, **options)

    def answer(self, index: int, answer: Answer | Failure | None) -> None:
        self.other.asked[index][3](answer)
        self.intake.turn()


def test_a_message_is_settled_when_its_answer_is_there() -> None:
    taken = Taken()
    taken.take("one")
    taken.intake.turn()
    assert taken.settled == {}
    taken.answer(0, Answer((204,)))
    assert taken.settled == {"one": "settle"}


@pytest.mark.parametrize(
    ("answers", "settlement"),
    [
        ([Answer((204,)), Answer((204,))], "settle"),
        ([Answer((204,)), Answer((404,))], "reject-without-redelivery"),
        ([Answer((204,)), None], "reject-with-redelivery"),
        ([Failure(503)], "reject-with-redelivery"),
    ],
)
def test_a_message_of_several_signals_waits_for_all_of_them(answers: list[Any], settlement: str) -> None:
    taken = Taken(payload_mapping=("ditto", {"topic": COMMAND["topic"], "path": "/attributes/raw"}))
    taken.take("one")
    assert len(taken.other.asked) == 2
    for index, answer in enumerate(answers):
        assert taken.settled == {}
        taken.answer(index, answer)
    assert taken.settled == {"one": settlement}


@each("settlement", "kafka-dre-qos1")
def test_prose_what_cannot_be_read_is_settled_and_its_error_published(
    given_: dict[str, Any], expect: dict[str, Any]
) -> None:
    assert given_["record"] == "transformation gives a Ditto error"
    assert expect == {"published": "error at reply-target", "offset": "committed"}
    taken = Taken()
    taken.take("one", b"?")
    assert taken.settled == {"one": "settle"}
    assert json.loads(taken.other.published[0].payload)["value"]["error"] == "json.invalid"


def test_headers_that_contradict_each_other_reject_a_message_for_good() -> None:
    taken = Taken()
    taken.take("one", COMMAND | {"headers": {"timeout": "0", "requested-acks": ["my-ack"]}})
    assert taken.settled == {"one": "reject-without-redelivery"}
    assert len(taken.other.published) == 1


def test_what_fails_unexpectedly_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken()
    monkeypatch.setattr(taken.intake._inbound, "read", lambda _message: 1 / 0)
    taken.take("one")
    assert taken.settled == {"one": "settle"}


def test_a_signal_that_cannot_be_sent_is_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken()
    monkeypatch.setattr(taken.other, "ask", lambda *_arguments, **_options: 1 / 0)
    taken.take("one")
    assert taken.settled == {"one": "reject-with-redelivery"}


@each("settlement", "kafka-backpressure")
def test_prose_beyond_the_limit_there_is_no_room(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["qos"] in (0, 1)
    assert expect["furtherRecords"] == "not processed until an earlier one is settled"
    taken = Taken()
    for number in range(200):
        assert taken.intake.room == 200 - number
        taken.take(str(number))
    assert taken.intake.room == 0
    taken.answer(7, Answer((204,)))
    assert (taken.intake.room, taken.settled) == (1, {"7": "settle"})


def test_it_is_passed_on_that_a_message_may_have_come_before() -> None:
    taken = Taken()
    taken.take("one", redelivered=True)
    taken.take("two")
    assert [redelivered for _, redelivered, _, _ in taken.other.asked] == [True, False]


def test_what_comes_after_the_end_counts_for_nothing() -> None:
    taken = Taken()
    taken.take("one")
    taken.intake.forget()
    taken.answer(0, Answer((204,)))
    assert taken.settled == {}
