"""Whether a publisher's message is accepted: names, size, age and quota (brokers.md 1.3, 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ackstream.protocol.messages import NOT_ENTITLED
from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from ackstream.settings import Persist

INVALID_TOPIC = "invalid topic"
MAX_TOPIC_BYTES = 1_024
TOO_LARGE = "message too large"
EXPIRED = "message expired"
NO_SUBSCRIPTION_MATCH = "no subscription match"
OVER_QUOTA = "spool over quota"


@dataclass(frozen=True)
class Verdict:
    """The reason to reject a message; without one, whether it is stored or acknowledged and dropped."""

    reason: str | None = None
    stored: bool = True


ACCEPTED = Verdict()
DROPPED = Verdict(stored=False)
"""Acknowledged but not stored, as Solace does where a rejection is not configured."""


class Admission:
    """Applies the limits of the settings; what depends on names alone is remembered."""

    def __init__(self, limits: Persist) -> None:
        """Take over the limits."""
        self.quota = limits.daily_quota_bytes
        self._limits = limits
        self._max_bytes = limits.max_message_bytes
        self._judge_names = lru_cache(maxsize=65_536)(self._names)

    def judge(self, client: str, topic: str, size: int, *, expired: bool, stored_today: int) -> Verdict:
        """Decide about a message with a value of ``size`` bytes.

        :param stored_today: bytes that the client has stored on the message's day
        """
        if size > self._max_bytes:
            return Verdict(TOO_LARGE)
        if expired:
            return Verdict(EXPIRED)
        verdict = self._judge_names(client, topic)
        if verdict is ACCEPTED and self.quota and stored_today + size > self.quota:
            return Verdict(OVER_QUOTA) if self._limits.reject_over_quota else DROPPED
        return verdict

    def _names(self, client: str, topic: str) -> Verdict:
        limits = self._limits
        if len(topic.encode()) > MAX_TOPIC_BYTES:
            return Verdict(INVALID_TOPIC)
        if limits.topics and not matches_any(limits.topics, topic):
            return Verdict(INVALID_TOPIC)
        if limits.entitlements and not any(
            matches_any(rule.clients, client) and matches_any(rule.topics, topic) for rule in limits.entitlements
        ):
            return Verdict(NOT_ENTITLED)
        if limits.subscriptions and not matches_any(limits.subscriptions, topic):
            return Verdict(NO_SUBSCRIPTION_MATCH) if limits.reject_no_match else DROPPED
        return ACCEPTED
