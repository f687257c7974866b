"""What the topics of all planes show; the records are written as the jobs and clients write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.kafka.parties import PARTIES
from ackstream.kafka.topics import TOPICS as ALL_TOPICS
from ackstream.observe.planes import LETTER_CHARACTERS, LETTERS, SHOWN, DestinationLine, Planes
from ackstream.observe.progress import PublisherLine, ReaderLine
from ackstream.protocol import messages, queues, readers
from ackstream.protocol.messages import Replicated, StoredRange
from ackstream.protocol.queues import Bind, MessageDelivered, SettleMessages
from ackstream.protocol.readers import AckInterval, AppAck, ReaderStart

NOW = 1_000_000


@dataclass
class Record:
    value: bytes | None
    timestamp: int = NOW
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)


class Seen:
    """Planes, and short words for what they take."""

    def __init__(self) -> None:
        self.planes = Planes(60_000)

    def stored(self, client: str, first: int, last: int, at: int = NOW, batch: int = 1, refused: Any = ()) -> None:
        value = messages.write_stored(StoredRange(client, first, last, batch, refused))
        self.planes.take("stored", Record(value, at))

    def report(self, report: Any, at: int = NOW) -> None:
        self.planes.take("app-acks", Record(readers.write(report), at))

    @property
    def view(self) -> Any:
        return self.planes.view(NOW)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_the_gateway_may_read_what_is_shown() -> None:
    assert Planes.TOPICS.keys() <= set(PARTIES["gateway"].reads) & ALL_TOPICS.keys()


def test_a_publisher_has_its_last_number_and_what_was_stored_and_refused(seen: Seen) -> None:
    seen.stored("orders", 1, 10, refused=((3, 4),))
    seen.stored("orders", 1, 10, refused=((3, 4),))
    seen.stored("orders", 11, 12, NOW + 5)
    seen.stored("old", 1, 1, NOW - 120_000)
    assert seen.view.publishers == [
        PublisherLine("old", 1, 0, 0, NOW - 120_000),
        PublisherLine("orders", 12, 10, 2, NOW + 5),
    ]
    assert (sum(seen.view.trends["messages"]), seen.view.newest["publishers"]) == (11, NOW + 5)


def test_a_destination_is_behind_by_the_batches_that_it_lacks(seen: Seen) -> None:
    seen.planes.take("destinations", Record(messages.write_replicated(Replicated("mirror", "t", 5)), 7))
    assert seen.view.destinations == [DestinationLine("mirror", None, 7)]
    seen.stored("orders", 1, 1, batch=8)
    assert seen.view.destinations == [DestinationLine("mirror", 3, 7)]


def test_a_reader_is_shown_with_what_it_has_acknowledged_and_lacks(seen: Seen) -> None:
    seen.stored("orders", 1, 10)
    seen.report(ReaderStart("log", 1, "Logger", durable=True))
    seen.report(AppAck("log", "orders", 1, 1, (AckInterval(1, 4),)))
    assert seen.view.readers == [ReaderLine("log", "Logger", durable=True, writers=1, acknowledged=4, behind=6, at=NOW)]
    assert (sum(seen.view.trends["acknowledged"]), seen.view.newest["readers"]) == (4, NOW)


def test_a_queue_is_seen_from_both_sides(seen: Seen) -> None:
    who = {"queue": "work", "consumer": "w1", "session": 1}
    seen.planes.take("app-acks", Record(queues.write(Bind(**who))))
    delivered = MessageDelivered(**who, number=1, message="m", topic="t", partition=0, offset=0, batch=1, count=1)
    seen.planes.take("queue-deliveries", Record(queues.write(delivered), NOW + 1))
    assert (seen.view.queues[0].held, seen.view.queues[0].consumers, sum(seen.view.trends["delivered"])) == (1, 1, 1)
    seen.planes.take("app-acks", Record(queues.write(SettleMessages(**who, messages=("m",))), NOW + 2))
    assert (seen.view.queues[0].held, seen.view.queues[0].settled) == (0, 1)
    assert seen.view.newest["queues"] == NOW + 2
    assert seen.view.in_all == {"publishers": 0, "readers": 0, "queues": 1}


def test_dead_letters_have_their_content_up_to_a_length_the_latest_first(seen: Seen) -> None:
    headers = [("reason", b"max-failures"), ("queue", b"work"), ("topic", b"orders")]
    seen.planes.take("dead-letters", Record(b"\xff{}", NOW - 1, b"k", headers))
    long = "é" * (LETTER_CHARACTERS + 1)
    seen.planes.take("dead-letters", Record(long.encode(), NOW, None, [("topic", b"signals")]))
    last, first = seen.view.dead_letters
    assert (first.reason, first.origin, first.key, first.content, first.size) == (
        "max-failures",
        "queue work",
        "k",
        "\ufffd{}",
        3,
    )
    assert (last.origin, last.content, last.size) == ("signals", long[:-1], 2 * LETTER_CHARACTERS + 2)
    assert seen.view.queues[0].dead == 1
    for _ in range(LETTERS):
        seen.planes.take("dead-letters", Record(None))
    assert len(seen.view.dead_letters) == LETTERS


def test_changes_of_things_are_counted(seen: Seen) -> None:
    seen.planes.take("events", Record(b"whatever", NOW - 61_000))
    seen.planes.take("events", Record(b"whatever"))
    assert (seen.view.changes, sum(seen.view.trends["changes"])) == (1, 2)


def test_of_many_those_are_shown_that_have_done_something_last(seen: Seen) -> None:
    for number in range(2 * SHOWN):
        seen.stored(f"p{number}", 1, 1, NOW + number)
    shown = [publisher.client for publisher in seen.view.publishers]
    assert shown == [f"p{number}" for number in reversed(range(SHOWN, 2 * SHOWN))]
    assert seen.view.in_all["publishers"] == 2 * SHOWN


def test_a_report_that_contradicts_itself_stops_nothing(seen: Seen) -> None:
    seen.report(AppAck("log", "orders", 1, 1, (AckInterval(9, 1),)))
    seen.stored("orders", 9, 1, refused=((7, 2),))
    seen.stored("orders", 1, 3, refused=((3, 2),))
    assert seen.view.readers[0].acknowledged == 0


@given(st.sampled_from(sorted(Planes.TOPICS)), st.binary() | st.none())
def test_nothing_that_anyone_writes_stops_the_page(topic: str, value: bytes | None) -> None:
    seen = Seen()
    seen.planes.take(topic, Record(value))
    assert seen.view.in_all["publishers"] == 0
