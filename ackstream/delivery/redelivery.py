"""What a settlement means where the messages are in a log: again later, never again, or nothing more to do.

A log gives nothing back, so a failed message is written to the topic of retries with a time before which it must not be
read, and one that is given up to the dead letters. Kept are only messages that failed. Rules: brokers.md S20 to S24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from ackstream.delivery.queue_rules import QueueRules
    from ackstream.protocol.app_acks import Settlement


class Retry(msgspec.Struct, frozen=True):
    """Deliver the message again, as delivery ``delivery``, not before a time (epoch milliseconds)."""

    message: str
    delivery: int
    not_before: int


DeadReason: TypeAlias = Literal["rejected", "max-deliveries", "max-failures", "expired"]


class Dead(msgspec.Struct, frozen=True):
    """Give the message up after so many deliveries."""

    message: str
    deliveries: int
    reason: DeadReason


Decision: TypeAlias = Retry | Dead | Literal["done", "stale"]


class Redeliveries:
    """The messages that failed and are not done."""

    def __init__(self, rules: QueueRules, failed: dict[str, int] | None = None) -> None:
        """Begin, or go on with the ``failed`` of an earlier one."""
        self._rules = rules
        self.failed = dict(failed or {})
        """How many deliveries of a message were settled as failed."""

    def settle(self, settlement: Settlement, now: int, *, enqueued_at: int | None = None) -> Decision:
        """Decide about a message; ``stale`` where this delivery, or a later one, was settled before.

        :param now: time of the settlement's record
        :param enqueued_at: time of the message's own record, for the time to live
        """
        message = settlement.message
        if settlement.delivery <= self.failed.get(message, 0):
            return "stale"
        if settlement.outcome == "accepted":
            self.failed.pop(message, None)
            return "done"
        not_before = now
        if settlement.outcome == "failed" and self._rules.backoff is not None:
            not_before += self._rules.backoff.delay(settlement.delivery)
        reason = self._limit(settlement, not_before, enqueued_at)
        if reason is not None:
            self.failed.pop(message, None)
            return Dead(message, settlement.delivery, reason)
        self.failed[message] = settlement.delivery
        return Retry(message, settlement.delivery + 1, not_before)

    def _limit(self, settlement: Settlement, not_before: int, enqueued_at: int | None) -> DeadReason | None:
        """Return why there is no further delivery."""
        rules = self._rules
        if settlement.outcome == "rejected":
            return "rejected"
        if rules.max_failures and settlement.delivery >= rules.max_failures:
            return "max-failures"
        if rules.max_deliveries and settlement.delivery >= rules.max_deliveries:
            return "max-deliveries"
        if rules.max_ttl_ms and enqueued_at is not None and not_before >= enqueued_at + rules.max_ttl_ms:
            return "expired"
        return None
