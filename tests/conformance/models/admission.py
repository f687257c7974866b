"""Whether a message is taken by the queues its topic feeds: by all or by none (brokers.md 3.1 S8, S9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

QueueState: TypeAlias = Literal["ok", "full", "disabled"]
Reject: TypeAlias = Literal["never", "when-queue-enabled", "always"]

NO_SUBSCRIPTION_MATCH = "NO_SUBSCRIPTION_MATCH"
_REASONS: dict[QueueState, str] = {"full": "SPOOL_OVER_QUOTA", "disabled": "QUEUE_SHUTDOWN"}
_REFUSING: dict[Reject, frozenset[QueueState]] = {
    "never": frozenset(),
    "when-queue-enabled": frozenset({"full"}),
    "always": frozenset({"full", "disabled"}),
}


@dataclass(frozen=True)
class Admission:
    """A verdict: a reason, or the queues that get the message (none: it is acknowledged and gone)."""

    reason: str | None
    queues: tuple[str, ...]


def admit(queues: Mapping[str, QueueState], reject: Reject, *, reject_no_match: bool) -> Admission:
    """Decide about a message.

    :param queues: the state of each queue that subscribes to the message's topic
    :param reject: for which states the sender is told; what it is not told of is dropped for that queue, silently
    :param reject_no_match: whether the sender is told that nobody subscribes
    """
    if not queues:
        return Admission(NO_SUBSCRIPTION_MATCH if reject_no_match else None, ())
    for state in queues.values():
        if state in _REFUSING[reject]:
            return Admission(_REASONS[state], ())
    return Admission(None, tuple(name for name, state in queues.items() if state == "ok"))
