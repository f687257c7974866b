from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ackstream.jobs.queues.records import Arrival, ConsumerReport, coordinates
from ackstream.jobs.queues.state import Consumer, QueuedMessage, choose
from ackstream.spark.records import timed
from tests.jobs.queues.rules import amps

if TYPE_CHECKING:
    from ackstream.settings.jobs import Fairness


def _consumer(name: str, held: int, backlog: int) -> Consumer:
    return Consumer(name, backlog, frozenset(), dict.fromkeys(map(str, range(held))))


@pytest.mark.parametrize(
    ("load", "fairness", "last", "chosen"),
    [
        ({"A": (1, 2), "B": (3, 4), "C": (4, 10)}, "proportional", None, "C"),
        ({"A": (1, 2), "B": (2, 4)}, "proportional", None, "A"),
        ({"A": (1, 2), "B": (9, 0)}, "proportional", None, "B"),
        ({"A": (2, 2), "B": (1, 4)}, "fast", None, "B"),
        ({"A": (1, 2), "B": (0, 4)}, "fast", "A", "A"),
        ({"A": (0, 2), "B": (0, 2), "C": (0, 2)}, "round-robin", None, "A"),
        ({"A": (0, 2), "B": (0, 2), "C": (0, 2)}, "round-robin", "A", "B"),
        ({"A": (0, 2), "B": (2, 2), "C": (0, 2)}, "round-robin", "A", "C"),
        ({"A": (0, 2), "B": (0, 2), "C": (0, 2)}, "round-robin", "C", "A"),
        ({"A": (0, 2), "B": (0, 2)}, "round-robin", "gone", "A"),
        ({"A": (2, 2), "B": (4, 4)}, "proportional", None, None),
        ({}, "fast", None, None),
    ],
)
def test_who_gets_the_next_message(
    load: dict[str, tuple[int, int]], fairness: Fairness, last: str | None, chosen: str | None
) -> None:
    consumers = [_consumer(name, *entry) for name, entry in load.items()]
    message = QueuedMessage("m", 1, None, eligible=True, barrier=False)
    found = choose(message, consumers, amps(fairness=fairness), last)
    assert [one.name for one in found] == ([] if chosen is None else [chosen])


def _said(timestamp: int, partition: int, offset: int) -> ConsumerReport:
    return ConsumerReport(timestamp, partition, offset, b"A", b"{}")


def test_the_id_of_a_message_is_where_it_is() -> None:
    assert Arrival(0, "t1-messages", 2, 7, 0).id == "t1-messages-2-7"


def test_the_records_of_a_batch_come_by_their_times_messages_first() -> None:
    arrivals = [Arrival(20, "m", 0, 1, 0), Arrival(10, "m", 0, 0, 0)]
    said = [_said(20, 1, 5), _said(15, 0, 9)]
    assert [(time, type(record).__name__) for time, record in timed([*arrivals, *said], coordinates)] == [
        (10, "Arrival"),
        (15, "ConsumerReport"),
        (20, "Arrival"),
        (20, "ConsumerReport"),
    ]
