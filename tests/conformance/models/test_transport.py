from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.errors import InconsistentQosError
from tests.conformance.models.transport import Retransmissions, TransportAcks


def _receive(flow: TransportAcks, *messages: int, now: int = 0) -> None:
    for message in messages:
        flow.receive(message, now)


@pytest.mark.parametrize(
    ("options", "threshold"),
    [
        ({}, 153),
        ({"window": 10}, 6),
        ({"window": 1}, 1),
        ({"window": 7}, 4),
        ({"window": 255, "max_unacknowledged": 100}, 60),
        ({"window": 50, "max_unacknowledged": 100}, 30),
        ({"window": 10, "threshold_percent": 100}, 10),
    ],
)
def test_the_threshold_is_a_part_of_the_window_or_of_the_smaller_cap(options: dict[str, int], threshold: int) -> None:
    flow = TransportAcks(**options)
    assert flow.threshold == threshold
    _receive(flow, *range(1, threshold))
    assert flow.due(0) is None
    _receive(flow, threshold)
    assert flow.due(0) == threshold
    assert (flow.due(0), flow.deadline) == (None, None)


def test_fewer_are_acknowledged_a_second_after_the_first_of_them() -> None:
    flow = TransportAcks(window=10)
    _receive(flow, 1, now=100)
    _receive(flow, 2, now=900)
    assert (flow.deadline, flow.due(1_099), flow.due(1_100)) == (1_100, None, 2)


def test_a_copy_is_not_for_the_application_and_is_acknowledged_again() -> None:
    flow = TransportAcks()
    assert flow.receive(1, 0)
    assert flow.due(1_000) == 1
    assert not flow.receive(1, 2_000)
    assert flow.due(3_000) == 1


def test_what_lies_behind_a_hole_is_not_acknowledged() -> None:
    flow = TransportAcks(window=5)
    _receive(flow, 2, 3, 4)
    assert flow.due(0) is None
    _receive(flow, 1, 6)
    assert flow.due(1_000) == 4


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"threshold_percent": 0}, {"threshold_percent": 101}, {"ack_ms": -1}]
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InconsistentQosError, match="at least 1, 1 to 100, and at least 0 are needed"):
        TransportAcks(**options)


def test_the_sender_sends_again_every_two_seconds_until_it_hears() -> None:
    sender = Retransmissions()
    sender.sent(1, 0)
    sender.sent(2, 500)
    assert (sender.deadline, sender.due(1_999), sender.due(2_000)) == (2_000, [], [1])
    assert (sender.due(2_500), sender.due(4_000)) == ([2], [1])
    sender.acknowledge(1)
    assert sender.due(60_000) == [2]
    sender.acknowledge(2)
    assert (sender.deadline, sender.due(90_000)) == (None, [])


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 12)), max_size=40), st.integers(1, 12))
def test_acknowledgements_rise_and_cover_what_was_received(arrivals: list[tuple[int, int]], window: int) -> None:
    flow = TransportAcks(window=window, ack_ms=100)
    seen: set[int] = set()
    told: list[int] = []
    now = 0
    for pause, message in arrivals:
        now += pause
        assert flow.receive(message, now) == (message not in seen)
        seen.add(message)
        told += [up_to for up_to in [flow.due(now)] if up_to is not None]
        assert told == sorted(told)
        assert not told or set(range(1, told[-1] + 1)) <= seen
    told += [up_to for up_to in [flow.due(now + 100)] if up_to is not None]
    contiguous = next(number - 1 for number in range(1, 100) if number not in seen)
    assert max(told, default=0) == contiguous
