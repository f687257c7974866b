"""``[[queues]]`` of the settings: which messages a work queue takes, and what it may do with them.

A key that is left out is as in the product that ``preset`` names; see ``delivery.queues.rules``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from ackstream.parts import Milliseconds, Part

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
