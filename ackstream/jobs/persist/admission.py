"""Whether a publisher's message is taken: who may publish what, how large, how old, how much (brokers.md 1.3, 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ackstream.protocol.messages import NOT_ENTITLED
from ackstream.protocol.patterns import matches_any

INVALID_TOPIC = "invalid topic"
TOO_LARGE = "message too large"
EXPIRED = "message expired"
NO_SUBSCRIPTION_MATCH = "no subscription match"
OVER_QUOTA = "spool over quota"


@dataclass(frozen=True)
class Entitlement:
    """Clients, and the topics they may publish to; ``*`` stands for any run of characters."""

    clients: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """What is refused.

    :param topics: those there are; none: any
    :param entitlements: none: everybody may do everything
    :param subscriptions: topics that somebody subscribes to; ``None``: nobody asks
    :param reject_no_match: refuse what nobody subscribes to; otherwise it is acknowledged and gone, as Solace does
    :param daily_quota: bytes a client may store on one UTC day; 0: any
    :param reject_over_quota: refuse what is over the quota; otherwise it is acknowledged and gone
    """

    topics: tuple[str, ...] = ()
    entitlements: tuple[Entitlement, ...] = ()
    subscriptions: tuple[str, ...] | None = None
    reject_no_match: bool = True
    max_bytes: int = 1_000_000
    daily_quota: int = 0
    reject_over_quota: bool = True


@dataclass(frozen=True)
class Verdict:
    """A reason to refuse it, or whether it is stored at all."""

    reason: str | None = None
    stored: bool = True


_TAKEN = Verdict()
_GONE = Verdict(stored=False)


def judge(rules: Rules, client: str, topic: str, size: int, *, expired: bool, stored_today: int) -> Verdict:
    """Decide about a message.

    :param topic: what the publisher calls it; may be empty
    :param size: bytes of its value
    :param stored_today: bytes the client has stored on the message's day
    """
    if size > rules.max_bytes:
        return Verdict(TOO_LARGE)
    if expired:
        return Verdict(EXPIRED)
    verdict = _by_names(rules, client, topic)
    if verdict is _TAKEN and rules.daily_quota and stored_today + size > rules.daily_quota:
        return Verdict(OVER_QUOTA) if rules.reject_over_quota else _GONE
    return verdict


@lru_cache(maxsize=65_536)
def _by_names(rules: Rules, client: str, topic: str) -> Verdict:
    if rules.topics and not matches_any(rules.topics, topic):
        return Verdict(INVALID_TOPIC)
    if rules.entitlements and not any(
        matches_any(rule.clients, client) and matches_any(rule.topics, topic) for rule in rules.entitlements
    ):
        return Verdict(NOT_ENTITLED)
    if rules.subscriptions is not None and not matches_any(rules.subscriptions, topic):
        return Verdict(NO_SUBSCRIPTION_MATCH) if rules.reject_no_match else _GONE
    return _TAKEN
