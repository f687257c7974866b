"""The settings of the persist job: who may publish what, and how much."""

from __future__ import annotations

from pydantic import Field

from ackstream.protocol.patterns import matches_any
from ackstream.settings.base import Milliseconds, Part, duration


class PublishRule(Part):
    """Lets clients publish to topics; ``*`` stands for any run of characters."""

    clients: tuple[str, ...] = Field(min_length=1)
    topics: tuple[str, ...] = ("*",)

    def covers(self, client: str, topic: str) -> bool:
        """Return whether a client and a topic are of those."""
        return matches_any(self.clients, client) and matches_any(self.topics, topic)


class Persist(Part):
    """The job that writes publishers' messages to their table and acknowledges them.

    :ivar unlogged: topics whose messages are not written there: only Kafka has them (AMPS without a transaction log)
    """

    interval: Milliseconds = duration("500ms")
    max_offsets_per_trigger: int = Field(100_000, ge=1)
    max_message_bytes: int = Field(1_000_000, ge=1)
    daily_quota_bytes: int = Field(0, ge=0)
    topics: tuple[str, ...] = ()
    entitlements: tuple[PublishRule, ...] = ()
    subscriptions: tuple[str, ...] = ()
    unlogged: tuple[str, ...] = ()
    reject_no_match: bool = True
    reject_over_quota: bool = True
