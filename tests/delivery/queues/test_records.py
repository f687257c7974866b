from __future__ import annotations

from ackstream.delivery.queues.records import Arrival, Said, in_order


def _said(timestamp: int, partition: int, offset: int) -> Said:
    return Said(timestamp, partition, offset, b"A", b"{}")


def test_the_id_of_a_message_is_where_it_is() -> None:
    assert Arrival(0, "t1-messages", 2, 7, 0).id == "t1-messages-2-7"


def test_the_records_of_a_batch_come_by_their_times_messages_first() -> None:
    arrivals = [Arrival(20, "m", 0, 1, 0), Arrival(10, "m", 0, 0, 0)]
    said = [_said(20, 1, 5), _said(15, 0, 9)]
    assert [(time, type(record).__name__) for time, record in in_order(arrivals, said)] == [
        (10, "Arrival"),
        (15, "Said"),
        (20, "Arrival"),
        (20, "Said"),
    ]


def test_a_clock_that_is_set_back_does_not_change_the_order_within_a_partition() -> None:
    said = [_said(30, 0, 1), _said(10, 0, 2), _said(20, 1, 1)]
    assert [(time, record.partition, record.offset) for time, record in in_order([], said)] == [
        (20, 1, 1),
        (30, 0, 1),
        (30, 0, 2),
    ]
