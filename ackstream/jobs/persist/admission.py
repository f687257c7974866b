"""Whether a publisher's message is accepted: names, size, age and quota (brokers.md 1.3, 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ackstream.protocol.dispositions import (
    EXPIRED,
    INVALID_TOPIC,
    NO_SUBSCRIPTION_MATCH,
    NOT_ENTITLED,
    OVER_QUOTA,
    QUEUE_SHUTDOWN,
    TOO_LARGE,
)
from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Persist
    from ackstream.settings.queues import QueueSettings

MAX_TOPIC_BYTES = 1_024


@dataclass(frozen=True)
class Verdict:
    """The reason to reject a message; without one, whether it is stored or acknowledged and dropped.

    :ivar logged: whether its topic has a log; its ack is merged with others only then
    """

    reason: str | None = None
    stored: bool = True
    logged: bool = True


ACCEPTED = Verdict()
DROPPED = Verdict(stored=False)
"""Acknowledged but not stored, as Solace does where a rejection is not configured."""
UNLOGGED = Verdict(stored=False, logged=False)
"""Only Kafka has it (brokers.md 1.1 A10)."""


class Admission:
    """Applies the limits of the settings; what depends on names alone is remembered."""

    def __init__(self, limits: Persist, queues: Iterable[QueueSettings] = ()) -> None:
        """Take over the limits.

        :param queues: a message goes to all that take it, or is refused if one of them refuses it
        """
        self.quota = limits.daily_quota_bytes
        self._limits = limits
        self._closed = tuple(topic for queue in queues if queue.ingress == "refuse" for topic in queue.topics)
        self._max_bytes = limits.max_message_bytes
        self._judge_names = lru_cache(maxsize=65_536)(self._names)

    def judge(self, client: str, topic: str, size: int, *, expired: bool, stored_today: int) -> Verdict:
        """Decide about a message with a value of ``size`` bytes.

        :param stored_today: bytes that the client has stored on the message's day
        """
        verdict = self._judge_names(client, topic)
        if size > self._max_bytes:
            return Verdict(TOO_LARGE, logged=verdict.logged)
        if expired:
            return Verdict(EXPIRED, logged=verdict.logged)
        if verdict is ACCEPTED and self.quota and stored_today + size > self.quota:
            return Verdict(OVER_QUOTA) if self._limits.reject_over_quota else DROPPED
        return verdict

    def _names(self, client: str, topic: str) -> Verdict:
        limits = self._limits
        logged = not (limits.unlogged and matches_any(limits.unlogged, topic))
        reason = None
        if len(topic.encode()) > MAX_TOPIC_BYTES or (limits.topics and not matches_any(limits.topics, topic)):
            reason = INVALID_TOPIC
        elif limits.entitlements and not any(rule.covers(client, topic) for rule in limits.entitlements):
            reason = NOT_ENTITLED
        elif limits.subscriptions and not matches_any(limits.subscriptions, topic):
            if not limits.reject_no_match:
                return DROPPED if logged else UNLOGGED
            reason = NO_SUBSCRIPTION_MATCH
        elif self._closed and matches_any(self._closed, topic):
            reason = QUEUE_SHUTDOWN
        if reason is not None:
            return Verdict(reason, logged=logged)
        return ACCEPTED if logged else UNLOGGED
