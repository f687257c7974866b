"""``[[queues]]`` of the settings: which messages a work queue takes, and what it may do with them.

A key that is left out is as in the product that ``preset`` names; see ``delivery.queues.rules``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import Field, field_validator

from ackstream.errors import InconsistentQosError
from ackstream.settings.parts import Milliseconds, Part

Limit = Annotated[int, Field(ge=0)]
"""A number of messages or deliveries; 0 is no limit."""


class QueueBackoff(Part):
    """Delays before redeliveries: ``initial``, each time ``multiplier_percent`` / 100 of the one before, to ``max``."""

    initial: Milliseconds = Field("1s")  # type: ignore[assignment]
    multiplier_percent: int = Field(200, ge=100)
    max: Milliseconds = Field("64s")  # type: ignore[assignment]


class QueueSettings(Part):
    """One work queue."""

    name: str = Field(pattern=r"^[A-Za-z0-9._/-]+$")
    topics: tuple[str, ...] = Field(min_length=1)
    preset: Literal["solace", "amps"] = "solace"
    type: Literal["exclusive", "shared"] = "shared"
    max_backlog: Limit | None = None
    max_total_backlog: Limit | None = None
    lease: Milliseconds | None = None
    settler: Literal["holder", "strict", "sublet"] | None = None
    fairness: Literal["fast", "round-robin", "proportional"] | None = None
    at_most_once: bool | None = None
    max_deliveries: Limit | None = None
    max_failures: Limit | None = None
    backoff: QueueBackoff | None = None
    max_ttl: Milliseconds | None = None
    respect_ttl: bool | None = None
    dead_letters: bool | None = None
    respect_eligible: bool | None = None
    early: Milliseconds | None = None

    @field_validator("topics")
    @classmethod
    def _no_empty_topic(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        if "" in topics:
            raise ValueError("a topic is empty: name it, or write * for all")
        return topics


# -- How a queue behaves: one set of rules with which it is a Solace endpoint, an AMPS queue, or something between.


Fairness: TypeAlias = Literal["fast", "round-robin", "proportional"]
"""Who gets the next message: the first that has room, each in turn, or who uses the smallest part of its backlog."""

Settler: TypeAlias = Literal["holder", "strict", "sublet"]
"""Who may settle a message: who holds it; or anybody while nobody holds it; or anybody at any time."""

DAY_MS = 86_400_000


class Backoff(msgspec.Struct, frozen=True):
    """Delays before redeliveries, growing by ``multiplier_percent`` / 100 up to ``max_ms`` (S22)."""

    initial_ms: int = 1_000
    multiplier_percent: int = 200
    max_ms: int = 64_000

    def __post_init__(self) -> None:
        """Check the values.

        :raises InconsistentQosError: they would go backwards
        """
        if self.initial_ms < 0 or self.max_ms < 0 or self.multiplier_percent < 100:  # noqa: PLR2004 - once
            raise InconsistentQosError(
                f"Delays of {self.initial_ms} to {self.max_ms} ms, times {self.multiplier_percent} %: at least 0 ms and"
                " 100 % are needed."
            )

    def delay(self, redelivery: int) -> int:
        """Return the milliseconds before a redelivery, of which the first is 1."""
        delay = self.initial_ms
        for _ in range(redelivery - 1):
            if delay >= self.max_ms or self.multiplier_percent == 100 or not delay:  # noqa: PLR2004 - once
                break
            delay = delay * self.multiplier_percent // 100
        return min(delay, self.max_ms)


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue may do with its messages; the defaults are those of a Solace queue. 0 means no limit.

    :param exclusive: only the consumer that was first has messages, the others stand by (S25)
    :param max_backlog: messages one consumer may hold; a consumer may ask for fewer (A32, S19)
    :param max_total_backlog: messages all consumers together may hold (A32)
    :param lease_ms: a message is held so long at most (A31)
    :param settler: who may settle (A34)
    :param fairness: who gets the next message (A37)
    :param at_most_once: a message leaves when it is sent; settling it makes room, no more (A28)
    :param max_deliveries: after so many a message is not given again (A33; S21: redeliveries and one)
    :param max_failures: after so many settlements as failed a message leaves (A33: MaxCancels)
    :param backoff: delay after a failure; ``None`` for at once (S22)
    :param max_ttl_ms: a message leaves after this time in the queue, or after its own if that is less (S24, A33)
    :param respect_ttl: whether messages' own times count
    :param dead_letters: whether messages that leave unsettled go somewhere; otherwise they are discarded
    :param respect_eligible: whether messages that want no dead letter are discarded (S23)
    :param early_ms: settlements of messages that are not here yet are remembered so long (A35)
    """

    exclusive: bool = False
    max_backlog: int = 10_000
    max_total_backlog: int = 0
    lease_ms: int = 0
    settler: Settler = "holder"
    fairness: Fairness = "round-robin"
    at_most_once: bool = False
    max_deliveries: int = 0
    max_failures: int = 0
    backoff: Backoff | None = None
    max_ttl_ms: int = 0
    respect_ttl: bool = False
    dead_letters: bool = True
    respect_eligible: bool = True
    early_ms: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        :raises InconsistentQosError: a limit is below 0
        """
        limits = {
            name: getattr(self, name)
            for name in (
                "max_backlog",
                "max_total_backlog",
                "lease_ms",
                "max_deliveries",
                "max_failures",
                "max_ttl_ms",
                "early_ms",
            )
        }
        for name, value in limits.items():
            if value < 0:
                raise InconsistentQosError(f"{name} is {value}; it must be at least 0 (no limit).")


def solace(*, max_redelivery: int = 0, redelivery_enabled: bool = True, **rules: Any) -> QueueRules:
    """Return rules with Solace's words for the number of deliveries: the first, and the redeliveries after it (S21)."""
    deliveries = 1 if not redelivery_enabled else max_redelivery + 1 if max_redelivery else 0
    return QueueRules(**{"max_deliveries": deliveries} | rules)


def amps(**rules: Any) -> QueueRules:
    """Return rules with the defaults of an AMPS queue (A28 to A37)."""
    fairness = "round-robin" if rules.get("at_most_once") else "proportional"
    defaults: dict[str, Any] = {
        "max_backlog": 1,
        "settler": "sublet",
        "early_ms": DAY_MS,
        "respect_ttl": True,
        "fairness": fairness,
    }
    return QueueRules(**defaults | rules)


def rules_of(queue: QueueSettings) -> QueueRules:
    """Return the rules of a queue in the settings: its preset's, but for the keys that are given.

    :raises InconsistentQosError: delays that would go backwards
    """
    given = queue.model_dump(include=_SAME, exclude_none=True) | {
        name: value for name, value in ((f"{key}_ms", getattr(queue, key)) for key in _TIMES) if value is not None
    }
    if queue.backoff is not None:
        delays = queue.backoff
        given["backoff"] = Backoff(delays.initial, delays.multiplier_percent, delays.max)
    return (amps if queue.preset == "amps" else solace)(exclusive=queue.type == "exclusive", **given)


_SAME = {
    "max_backlog", "max_total_backlog", "settler", "fairness", "at_most_once", "max_deliveries", "max_failures",
    "respect_ttl", "dead_letters", "respect_eligible",
}  # fmt: skip
_TIMES = ("lease", "max_ttl", "early")
