from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.core.connection import Connection
from ackstream.client.errors import SettleTimeout
from ackstream.client.reading import _reader_link as module
from ackstream.client.reading._reader_link import delete_durable_subscription, known_readers
from ackstream.errors import BadParameterError
from ackstream.kafka.clients import Closing
from ackstream.protocol.readers import Answer, KnownReader, KnownReaders, ReaderRemoved, ReaderStop, read, write
from ackstream.settings import Kafka

PATIENCE_SECONDS = 30.0


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Let settle answer everything that is sent with these; returns what is sent."""
    answers: list[Answer] = []
    sent: list[Any] = []

    class Link(Closing):
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def send(self, value: bytes) -> None:
            sent.append(read(value))

        def read(self) -> list[Any]:
            return [SimpleNamespace(value=b"?"), *(SimpleNamespace(value=write(answer)) for answer in answers)]

        def close(self) -> None:
            """There is nothing to close."""

    def answer(*given: Answer) -> list[Any]:
        answers[:] = given
        return sent

    monkeypatch.setattr(Connection, "link", Link)
    return answer


def test_a_subscription_is_deleted_once_every_shard_says_so(settle: Callable[..., list[Any]]) -> None:
    settle(*(ReaderRemoved("r1", shard, 3, 1) for shard in (0, 2, 0)))
    with pytest.raises(SettleTimeout, match="removal of reader r1 was not confirmed"):
        delete_durable_subscription(Kafka(), name="r1", timeout=0.05)
    sent = settle(*(ReaderRemoved("r1", shard, 3, 1) for shard in (0, 2, 1)))
    delete_durable_subscription(Kafka(), name="r1", timeout=PATIENCE_SECONDS)
    assert set(sent) == {ReaderStop("r1")}
    with pytest.raises(BadParameterError, match="name has 0 characters: give 1 to 255"):
        delete_durable_subscription(Kafka(), name="")


def test_the_subscriptions_are_complete_with_every_part_of_every_shard(settle: Callable[..., list[Any]]) -> None:
    one = KnownReaders("ops", 0, 2, (KnownReader("A", durable=True, seen=5, unacknowledged=3),), 0, 2)
    other = KnownReaders("ops", 0, 2, (KnownReader("B", "Logger", seen=4),), 1, 2)
    rest = KnownReaders("ops", 1, 2, (KnownReader("A", durable=True, seen=9, unacknowledged=4),))
    settle(one, rest, one)
    with pytest.raises(SettleTimeout, match="ackstream submit settle"):
        known_readers(Kafka(), timeout=0.05)
    sent = settle(rest, other, one)
    assert known_readers(Kafka(), timeout=PATIENCE_SECONDS) == [
        KnownReader("B", "Logger", seen=4),
        KnownReader("A", durable=True, seen=9, unacknowledged=7),
    ]
    assert {question.name for question in sent} == {"ackstream-readers"}


def test_a_shard_that_answers_again_in_fewer_parts_is_complete(settle: Callable[..., list[Any]]) -> None:
    earlier = KnownReaders(module.ASKING, 0, 1, (KnownReader("gone"),), part=0, parts=2)
    settle(earlier, KnownReaders(module.ASKING, 0, 1, (KnownReader("A"),)))
    assert known_readers(Kafka(), timeout=PATIENCE_SECONDS) == [KnownReader("A")]


def test_parts_of_answers_to_different_questions_are_not_mixed(settle: Callable[..., list[Any]]) -> None:
    """A reader may have moved from one part to another in between."""
    first = [KnownReaders(module.ASKING, 0, 1, (KnownReader(name),), part, 2, 7) for part, name in enumerate("AB")]
    again = [KnownReaders(module.ASKING, 0, 1, (KnownReader(name),), part, 2, 8) for part, name in enumerate("BC")]
    sent = settle(first[0], again[1])
    with pytest.raises(SettleTimeout):
        known_readers(Kafka(), timeout=0.05)
    settle(first[0], again[1], again[0])
    assert known_readers(Kafka(), timeout=PATIENCE_SECONDS) == [KnownReader("B"), KnownReader("C")]
    assert all(question.number for question in sent)
