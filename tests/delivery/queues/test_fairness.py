from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ackstream.delivery.queues.fairness import choose
from ackstream.delivery.queues.queued import Consumer

if TYPE_CHECKING:
    from ackstream.delivery.queues.rules import Fairness


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
    found = choose(consumers, fairness, last)
    assert (found.name if found else None) == chosen
