"""What operators see of work queues: what happened in a batch, and what a queue holds at its end."""

from __future__ import annotations

from ackstream.jobs.queues.endpoint import Endpoint
from ackstream.jobs.queues.figures import count
from ackstream.jobs.queues.model import Arrival, ConsumerReport
from ackstream.observe.catalogue import (
    DEAD_LETTERS,
    QUEUE_CONSUMERS,
    QUEUE_DELIVERIES,
    QUEUE_DEPTH,
    QUEUE_LEFT,
    QUEUE_OLDEST,
    QUEUE_REDELIVERIES,
)
from ackstream.observe.figures import Figures, Tally
from ackstream.protocol import queues
from ackstream.protocol.queues import Bind, SettleMessages, Unbind
from tests.jobs.queues.rules import solace


def _reports(*records: tuple[int, object]) -> list[ConsumerReport]:
    return [
        ConsumerReport(at, 0, offset, b"A", queues.write(record))  # type: ignore[arg-type]
        for offset, (at, record) in enumerate(records)
    ]


def test_deliveries_and_exits_count_by_queue_and_what_is_left_is_measured() -> None:
    endpoint, figures = Endpoint(solace(), 30_000), Figures()
    arrivals = [Arrival(at, "m", partition, 0, 5, "orders") for at, partition in ((1_000, 1), (2_000, 2), (3_000, 3))]
    outcomes = ("failed", "rejected")
    reports = _reports(
        (4_000, Bind("q", "A", 1, outcomes=outcomes)),
        (5_000, SettleMessages("q", "A", 1, ("m-1-0",), "accepted")),
        (6_000, SettleMessages("q", "A", 1, ("m-2-0",), "rejected")),
        (7_000, Unbind("q", "A", 1)),
        (8_000, Bind("q", "B", 1, outcomes=outcomes)),
    )
    endpoint.process(arrivals, reports, 0)
    endpoint.dump()
    count(endpoint.events, 2, figures)
    counted = figures.read().counters
    assert counted == {
        (QUEUE_DELIVERIES.name, "q"): 4,
        (QUEUE_REDELIVERIES.name, "q"): 1,
        (QUEUE_LEFT.name, "q", "settled"): 1,
        (QUEUE_LEFT.name, "q", "dead-letter"): 1,
        (DEAD_LETTERS.name, "queues", "rejected"): 1,
        (DEAD_LETTERS.name, "queues", "unreadable"): 2,
    }
    tally = Tally()
    endpoint.measure(tally)
    assert tally.gauges == {
        (QUEUE_DEPTH.name, "q"): 1, (QUEUE_CONSUMERS.name, "q"): 1, (QUEUE_OLDEST.name, "q"): 3.0,
    }  # fmt: skip


def test_an_empty_queue_has_no_oldest_message() -> None:
    tally = Tally()
    Endpoint(solace(), 30_000).measure(tally)
    assert tally.gauges == {(QUEUE_DEPTH.name, "q"): 0, (QUEUE_CONSUMERS.name, "q"): 0}
