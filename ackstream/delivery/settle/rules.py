"""What settle is told by the settings: who must acknowledge whose samples, and how long a silent reader is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.delivery.settle.retention import MAX_HOLES
from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from ackstream.settings import Settings


class RequiredRole(msgspec.Struct, frozen=True):
    """So many different readers of a role must acknowledge each sample of the writers that match (R19)."""

    role: str
    quorum: int
    writers: tuple[str, ...] = ("*",)


class SettleRules(msgspec.Struct, frozen=True):
    """Required roles, limits, spans (milliseconds).

    :ivar lease_ms: a plain reader that was silent for longer is gone
    :ivar memory_ms: a plain reader that was silent for longer is forgotten: what it says then counts anew
    """

    required: tuple[RequiredRole, ...] = ()
    max_holes: int = MAX_HOLES
    lease_ms: int = 30_000
    memory_ms: int = 86_400_000
    shards: int = 1

    def quorums(self, writer: str) -> dict[str, int]:
        """Return the quorum of each role that is required for a writer's samples; of several rules the first counts."""
        found: dict[str, int] = {}
        for rule in self.required:
            if matches_any(rule.writers, writer):
                found.setdefault(rule.role, rule.quorum)
        return found


def settle_rules(settings: Settings) -> SettleRules:
    """Read the rules from the settings."""
    settle = settings.settle
    return SettleRules(
        tuple(RequiredRole(rule.role, rule.quorum, rule.writers) for rule in settle.required),
        settle.max_holes,
        settle.reader_lease,
        settle.reader_memory,
        settle.shards,
    )
