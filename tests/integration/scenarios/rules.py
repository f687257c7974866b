"""What scenarios and the running system call alike: ends of messages, and the settings that bring them about."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conformance.scenarios import Scenario

Json = dict[str, Any]

VALUE, LARGE = b"message", b"x" * 1_000

OUTCOMES: dict[str, tuple[str, bytes]] = {
    "ok": ("open", VALUE),
    "not entitled": ("secret", VALUE),
    "invalid topic": ("nowhere", VALUE),
    "no subscription match": ("lonely", VALUE),
    "message too large": ("open", LARGE),
    "unlogged": ("unlogged", VALUE),
    # it is as good as any other, but comes a second time
    "duplicate": ("open", VALUE),
}
"""Subject and value of a message with each outcome, under these rules."""

RULES: Json = {
    "topics": ["open", "secret", "lonely", "unlogged"],
    "entitlements": [{"clients": ["*"], "topics": ["open", "nowhere", "lonely", "unlogged"]}],
    "subscriptions": ["open", "secret", "unlogged"],
    "unlogged": ["unlogged"],
    "max_message_bytes": len(LARGE) - 1,
}


REFUSING = RULES | {"daily_quota_bytes": 1, "reject_over_quota": True, "reject_no_match": True}
SWALLOWING = RULES | {"daily_quota_bytes": 1, "reject_over_quota": False, "reject_no_match": False}
"""Rules under which a message that cannot be stored is refused, or acknowledged and gone."""


def _closed(ingress: str) -> Json:
    return {"persist": RULES, "queues": [{"name": "q1", "topics": ["open"], "ingress": ingress}]}


CLOSED, PASSING = _closed("refuse"), _closed("discard")
"""A queue that takes no messages: they are refused, or pass it by."""


def is_silent(scenario: Scenario) -> bool:
    """Tell whether the service is silent for a while, or throughout."""
    if any(word in scenario.given for word in ("broker", "lose_broker_acks")):
        return True
    answering = {"logon", "reconnect", "server_ack"}
    return "store_unacked" in scenario.given and not any(step["op"] in answering for step in scenario.when)


def client_of(scenario: Scenario) -> str:
    return f"{scenario.id}-{scenario.given['client']}"


def now() -> int:
    """Return the time as the broker of this machine has it."""
    return time.time_ns() // 1_000_000


def sleep_until(moment: int) -> None:
    time.sleep(max(0, moment - now()) / 1000)
