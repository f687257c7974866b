"""Whether Kafka is away, asked by a driver that ends."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from types import SimpleNamespace
from unittest import mock

import pytest

from ackstream.errors import AccessRefusedError, SettingsError, UnreachableError
from ackstream.kafka import clients, connection
from ackstream.settings import Kafka

ANSWER, REFUSAL, SILENCE = mock.Mock(), AccessRefusedError("no"), UnreachableError("away")


class Brokers:
    """Answers by address; behind them, and for ``None``, the broker hangs."""

    def __init__(self) -> None:
        self.answers: dict[str, list[object]] = {}
        self.asked: defaultdict[str, int] = defaultdict(int)

    def connect(self, kafka: Kafka) -> object:
        address = kafka.bootstrap
        self.asked[address] += 1
        found = next(iter(self.answers[address][self.asked[address] - 1 :]), None)
        if found is None:
            threading.Event().wait()
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(clients, "connect_admin", found.connect)
    monkeypatch.setattr(connection, "SILENT_SECONDS", 1.0)
    sleep = time.sleep
    quick = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: sleep(seconds / 20))
    monkeypatch.setattr(connection, "time", quick)
    return found


@pytest.mark.parametrize(
    "answers",
    [
        {"a:1": [SILENCE]},
        {"a:1": [ANSWER, ANSWER, SILENCE]},
        {"a:1": [REFUSAL, SettingsError("a new certificate"), SILENCE]},
        {"a:1": [None], "b:1": [ANSWER, REFUSAL, ANSWER, SILENCE]},
        {"a:1": [SILENCE, SILENCE, ANSWER], "b:1": [None], "c:1": [SILENCE]},
    ],
    ids=["silent", "answers", "refuses", "one-hangs", "one-comes-back"],
)
def test_kafka_is_silent_once_no_broker_has_answered_for_a_time(
    brokers: Brokers, answers: dict[str, list[object]]
) -> None:
    brokers.answers = answers
    began = time.monotonic()
    connection.wait_for_silence(Kafka(bootstrap=",".join(answers)))
    assert time.monotonic() - began > 1.0
    for address, given in answers.items():
        assert brokers.asked[address] >= len(given)


def test_kafka_is_not_silent_while_one_broker_answers_and_the_others_hang(brokers: Brokers) -> None:
    brokers.answers = {"a:1": [None], "b:1": [ANSWER] * 1_000, "c:1": [None]}
    ended = threading.Event()
    waits = threading.Thread(
        target=lambda: (connection.wait_for_silence(Kafka(bootstrap="a:1,b:1,c:1")), ended.set()), daemon=True
    )
    waits.start()
    assert not ended.wait(2.0)
    brokers.answers = {"a:1": [], "b:1": [], "c:1": []}
    assert ended.wait(30)
