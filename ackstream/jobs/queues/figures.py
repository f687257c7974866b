"""What the queues job counts for its operators: of the events of a batch, and of what a queue holds at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.observe.catalogue import (
    DEAD_LETTERS,
    QUEUE_CONSUMERS,
    QUEUE_DELIVERIES,
    QUEUE_DEPTH,
    QUEUE_LEFT,
    QUEUE_OLDEST,
    QUEUE_REDELIVERIES,
)
from ackstream.observe.figures import FIGURES, Figures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.jobs.queues.model import Event
    from ackstream.jobs.queues.queue import Queue
    from ackstream.observe.figures import Tally

NAME = "queues"


def count(events: Iterable[Event], unreadable: int, figures: Figures = FIGURES) -> None:
    """Count the events of a batch, and the records that could not be read."""
    figures.count(DEAD_LETTERS, NAME, "unreadable", by=unreadable)
    for event in events:
        if event.event == "delivered":
            figures.count(QUEUE_DELIVERIES, event.queue)
            figures.count(QUEUE_REDELIVERIES, event.queue, by=event.count > 1)
        elif event.event == "left":
            figures.count(QUEUE_LEFT, event.queue, event.outcome or "")
            figures.count(DEAD_LETTERS, NAME, event.reason or "", by=event.outcome == "dead-letter")


def measure(tally: Tally, name: str, queue: Queue, oldest_ms: int | None) -> None:
    """Set the gauges of a queue.

    :param oldest_ms: when its oldest message was stored, epoch milliseconds; ``None``: there is none
    """
    tally.set(QUEUE_DEPTH, name, value=queue.depth)
    tally.set(QUEUE_CONSUMERS, name, value=len(queue.consumers))
    if oldest_ms is not None:
        tally.set(QUEUE_OLDEST, name, value=oldest_ms / 1000)
