"""What the correlation is told by the settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Settings


class Rules(msgspec.Struct, frozen=True):
    """Limits, spans (milliseconds) and topic names of the correlation."""

    signals: str = "signals"
    acks: str = "acks"
    replies: str = "replies"
    ledger: str = "ledger"
    dead_letters: str = "dead-letters"
    # topics a request may choose with its reply-to header
    reply_topics: frozenset[str] = frozenset()
    default_timeout_ms: int = 65_000
    max_timeout_ms: int = 86_400_000
    orphan_hold_ms: int = 10_000
    recent_memory_ms: int = 60_000
    max_labels: int = 100
    max_value_bytes: int = 1_000_000

    def source(self, number: int) -> str:
        """Return the topic a record's ``source`` stands for."""
        return self.acks if number else self.signals


def rules(settings: Settings, topics: Iterable[str] = ()) -> Rules:
    """Read the rules from the settings.

    :param topics: the topics that exist; a reply topic is one of them that a pattern of the settings matches whole, so
        that no request can send the sink to a topic that does not exist
    """
    correlate, kafka = settings.correlate, settings.kafka
    patterns = [re.compile(pattern) for pattern in correlate.reply_topics]
    return Rules(
        signals=kafka.topic("signals"),
        acks=kafka.topic("acks"),
        replies=kafka.topic("replies"),
        ledger=kafka.topic("ledger"),
        dead_letters=kafka.topic("dead-letters"),
        reply_topics=frozenset(topic for topic in topics if any(pattern.fullmatch(topic) for pattern in patterns)),
        default_timeout_ms=correlate.default_timeout,
        max_timeout_ms=correlate.max_timeout,
        orphan_hold_ms=correlate.orphan_hold,
        recent_memory_ms=correlate.recent_memory,
        max_labels=correlate.max_labels,
        max_value_bytes=correlate.max_value_bytes,
    )
