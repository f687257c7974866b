from __future__ import annotations

from typing import Any

import pytest

from ackstream.connectivity.collector import IDLE_SECONDS, Collector
from ackstream.connectivity.replies import Failure
from ackstream.protocol.settlement import Answer
from tests.prose import each, prose


def collected(expected: int | None, *answers: Answer | Failure | None, after: float = 0.0) -> Any:
    collector = Collector(0.0)
    if expected is not None:
        collector.expect(expected, 0.0)
    for answer in answers:
        collector.receive(answer, 0.0)
    return collector.settlement(after)


@each("settlement", "collector-")
def test_prose_collected_answers(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answers = [Answer((each["status"],), live="live" in each["kind"]) for each in given_["responses"]]
    idle = IDLE_SECONDS if given_.get("collector") == "timed out" else 0.0
    assert collected(given_["expectedCount"], *answers, after=idle) == expect["settlement"]
    assert (collected(given_["expectedCount"], *answers) is not None) is expect["allArrived"]
    assert [answer.statuses[0] for answer in answers if answer.failed] == expect["failed"]


@each("settlement", "consumer-")
def test_prose_consumed_messages(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    outcome = given_["outcome"]
    answer: Answer | Failure = Answer((outcome["status"],))
    if outcome["kind"].startswith("error"):
        answer = Failure(outcome["status"])
    assert collected(len(given_["requested"]), answer) == expect["settlement"]


def test_prose_other_weak_ack_settles() -> None:
    assert "other-weak-ack" in prose("settlement")
    assert collected(1, Answer((200,))) == "settle"


def test_nothing_awaited_settles_at_once() -> None:
    assert collected(0) == "settle"


@pytest.mark.parametrize("answers", [[], [Answer((204,))]])
def test_as_long_as_something_may_come_nothing_is_decided(answers: list[Answer]) -> None:
    assert collected(2, *answers, after=IDLE_SECONDS - 1) is None
    assert collected(2, *answers, after=IDLE_SECONDS) == "reject-with-redelivery"


def test_news_prolong_the_wait() -> None:
    collector = Collector(0.0)
    collector.expect(2, 10.0)
    collector.receive(Answer((204,)), 90.0)
    assert collector.settlement(IDLE_SECONDS + 80) is None
    collector.receive(Answer((204,)), 180.0)
    assert collector.settlement(180.0) == "settle"


def test_what_will_never_come_is_not_waited_for() -> None:
    assert collected(2, None) == "reject-with-redelivery"
    assert collected(2, Answer((404,)), None) == "reject-without-redelivery"


@pytest.mark.parametrize(
    ("status", "settlement"),
    [(412, "settle"), (404, "reject-without-redelivery"), (503, "reject-with-redelivery")],
)
def test_an_error_decides_at_once(status: int, settlement: str) -> None:
    assert collected(3, Failure(status), Answer((204,))) == settlement
    assert collected(None, Failure(status)) == settlement
