from __future__ import annotations

from typing import Any

import pytest

from ackstream.delivery.queue_rules import Backoff, QueueRules, solace
from ackstream.delivery.redelivery import Dead, Redeliveries, Retry
from ackstream.protocol.app_acks import Outcome, Settlement


def _settle(redeliveries: Redeliveries, outcome: Outcome, delivery: int = 1, now: int = 0, **options: Any) -> Any:
    return redeliveries.settle(Settlement("c", "m", outcome, delivery), now, **options)


def test_a_failed_message_comes_again_later_and_later() -> None:
    redeliveries = Redeliveries(solace(backoff=Backoff()))
    assert _settle(redeliveries, "failed", 1, 100) == Retry("m", 2, 1_100)
    assert _settle(redeliveries, "failed", 2, 2_000) == Retry("m", 3, 4_000)
    assert redeliveries.failed == {"m": 2}
    assert _settle(redeliveries, "accepted", 3, 5_000) == "done"
    assert redeliveries.failed == {}


def test_the_same_settlement_twice_counts_once() -> None:
    redeliveries = Redeliveries(solace())
    assert _settle(redeliveries, "failed") == Retry("m", 2, 0)
    assert _settle(redeliveries, "failed") == "stale"
    assert _settle(Redeliveries(solace(), redeliveries.failed), "accepted") == "stale"


@pytest.mark.parametrize(
    ("rules", "reason"), [(solace(max_redelivery=1), "max-deliveries"), (QueueRules(max_failures=2), "max-failures")]
)
def test_after_the_limit_a_message_is_given_up(rules: QueueRules, reason: Any) -> None:
    redeliveries = Redeliveries(rules)
    assert _settle(redeliveries, "failed", 1) == Retry("m", 2, 0)
    assert _settle(redeliveries, "failed", 2) == Dead("m", 2, reason)
    assert redeliveries.failed == {}


def test_a_rejected_message_is_given_up_at_once() -> None:
    assert _settle(Redeliveries(solace()), "rejected") == Dead("m", 1, "rejected")


@pytest.mark.parametrize(("enqueued_at", "lives"), [(500, False), (501, True), (None, True)])
def test_a_message_that_would_be_too_old_is_given_up(enqueued_at: int | None, lives: bool) -> None:  # noqa: FBT001
    redeliveries = Redeliveries(solace(max_ttl_ms=2_000, backoff=Backoff()))
    decision = _settle(redeliveries, "failed", 1, 1_500, enqueued_at=enqueued_at)
    assert decision == (Retry("m", 2, 2_500) if lives else Dead("m", 1, "expired"))
