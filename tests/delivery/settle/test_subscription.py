from __future__ import annotations

from typing import Any

import pytest

from ackstream.delivery.settle.subscription import Subscription
from ackstream.protocol.app_acks import AckInterval, AppAck, ProtocolAck
from ackstream.protocol.intervals import Intervals


def _known(**others: Any) -> Subscription:
    return Subscription(Intervals(start=3), role="Logger", epoch=2, count=5, **others)


@pytest.mark.parametrize(
    ("epoch", "count", "role", "refusal"),
    [
        (1, 9, "Logger", "stale-epoch"),
        (2, 4, "Logger", "stale-count"),
        (2, 5, "Logger", None),
        (2, 6, None, "role-changed"),
        (3, 1, "Processor", None),
    ],
)
def test_the_newest_report_counts(epoch: int, count: int, role: str | None, refusal: str | None) -> None:
    assert _known().refusal(AppAck("A", "w1", epoch, count, (), role)) == refusal


def test_a_protocol_acknowledgement_has_no_count_and_reaches_from_the_first_sample() -> None:
    known = _known(present=False)
    report = ProtocolAck("A", "w1", 2, 7, "Logger")
    assert known.refusal(report) is None
    known.hear(report)
    assert (known.count, known.present) == (5, True)
    assert known.intervals(report) == (AckInterval(3, 7),)
    assert known.intervals(ProtocolAck("A", "w1", 2, 2)) == ()
