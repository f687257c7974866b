"""Rules of work queues for tests, with durations in milliseconds and 0 for no limit."""

from __future__ import annotations

from typing import Any

from ackstream.settings.jobs import QueueBackoff, QueueSettings

DURATIONS = ("lease_ms", "max_lease_ms", "max_ttl_ms", "early_ms")


def solace(*, max_redelivery: int = 0, redelivery_enabled: bool = True, **rules: Any) -> QueueSettings:
    """Return the rules of a Solace queue; it counts redeliveries, which are the deliveries after the first (S21)."""
    deliveries = 1 if not redelivery_enabled else max_redelivery + 1 if max_redelivery else 0
    return _queue("solace", {"max_deliveries": deliveries} | rules)


def amps(**rules: Any) -> QueueSettings:
    """Return the rules of an AMPS queue."""
    return _queue("amps", rules)


def backoff(initial_ms: int = 1_000, multiplier_percent: int = 200, max_ms: int = 64_000) -> QueueBackoff:
    return QueueBackoff(initial=f"{initial_ms}ms", multiplier_percent=multiplier_percent, max=f"{max_ms}ms")  # type: ignore[arg-type]


def _queue(preset: str, rules: dict[str, Any]) -> QueueSettings:
    rest = {key: value for key, value in rules.items() if key not in (*DURATIONS, "exclusive")}
    rest["type"] = "exclusive" if rules.get("exclusive") else "shared"
    durations = {key.removesuffix("_ms"): rules[key] for key in DURATIONS if key in rules}
    given = {key: f"{milliseconds}ms" for key, milliseconds in durations.items() if milliseconds}
    queue = QueueSettings.model_validate({"name": "q", "topics": ("*",), "preset": preset} | rest | given)
    return queue.model_copy(update={key: 0 for key, milliseconds in durations.items() if not milliseconds})
