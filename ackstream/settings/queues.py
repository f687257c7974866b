"""``[[queues]]`` of the settings: which messages a work queue takes, and how it treats them.

With these keys a queue behaves like a Solace endpoint, like an AMPS queue, or like something in between.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from ackstream.settings.base import UNLIMITED, Milliseconds, Part, duration

Limit = Annotated[int, Field(ge=0)]
"""A number of messages or deliveries; 0 means no limit."""

Fairness: TypeAlias = Literal["fast", "round-robin", "proportional"]
"""Who gets the next message: the first consumer with room, each in turn, or the one that uses the smallest share of its
backlog."""

Settler: TypeAlias = Literal["holder", "strict", "sublet"]
"""Who may settle a message: its holder; anyone while nobody holds it; or anyone at any time."""

ONCE = 100
"""The multiplier, in percent, with which delays stay as they are."""


class QueueBackoff(Part):
    """Delays before redeliveries, growing by ``multiplier_percent`` / 100 from ``initial`` up to ``max`` (S22)."""

    initial: Milliseconds = duration("1s")
    multiplier_percent: int = Field(200, ge=ONCE)
    max: Milliseconds = duration("64s")

    def delay(self, redelivery: int) -> int:
        """Return the milliseconds to wait before a redelivery; the first one is number 1."""
        delay = self.initial
        for _ in range(redelivery - 1):
            if delay >= self.max or self.multiplier_percent == ONCE:
                break
            delay = delay * self.multiplier_percent // 100
        return min(delay, self.max)


AMPS = {
    "max_backlog": 1,
    "settler": "sublet",
    "early": "24h",
    "respect_ttl": True,
    "fairness": "proportional",
}
"""The defaults of an AMPS queue where they differ from those of Solace (A28 to A37)."""


class QueueSettings(Part):
    """One work queue, and its rules. Defaults are those of Solace; ``preset = "amps"`` sets those of AMPS instead.

    Durations are milliseconds; 0 means no limit.

    :ivar topics: patterns of the messages it takes, as their publishers name them
    :ivar ingress: ``refuse``: messages of its topics are refused as a whole, whatever other queue takes them, too;
        ``discard``: they pass this queue by (S8)
    :ivar type: ``exclusive``: only the consumer that bound first receives messages, the others stand by (S25)
    :ivar max_depth: messages in the queue, held or not; further ones are given up
    :ivar max_backlog: messages that one consumer may hold; a consumer may request fewer (A32, S19)
    :ivar max_total_backlog: messages that all consumers together may hold (A32)
    :ivar lease: how long a consumer may hold a message (A31)
    :ivar settler: who may settle (A34)
    :ivar fairness: who gets the next message (A37)
    :ivar at_most_once: a message leaves as soon as it is sent; settling it only frees backlog (A28)
    :ivar max_deliveries: deliveries after which a message is given up (A33; S21: the redeliveries and one)
    :ivar max_failures: settlements as failed after which a message is given up (A33: MaxCancels)
    :ivar backoff: delays after failures; ``None`` redelivers at once (S22)
    :ivar max_ttl: how long a message may stay in the queue; its own time to live counts too if it is less (S24, A33)
    :ivar respect_ttl: whether messages' own times to live count
    :ivar dead_letters: whether messages that are given up become dead letters; otherwise they are discarded
    :ivar respect_eligible: whether messages whose publishers want no dead letter are discarded (S23)
    :ivar early: how long a settlement is remembered whose message has not arrived yet (A35)
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._/-]+$")
    topics: tuple[str, ...] = Field(min_length=1)
    preset: Literal["solace", "amps"] = "solace"
    ingress: Literal["open", "refuse", "discard"] = "open"
    type: Literal["exclusive", "shared"] = "shared"
    max_depth: Limit = 500_000
    max_backlog: Limit = 10_000
    max_total_backlog: Limit = 0
    lease: Milliseconds = UNLIMITED
    settler: Settler = "holder"
    fairness: Fairness = "round-robin"
    at_most_once: bool = False
    max_deliveries: Limit = 0
    max_failures: Limit = 0
    backoff: QueueBackoff | None = None
    max_ttl: Milliseconds = UNLIMITED
    respect_ttl: bool = False
    dead_letters: bool = True
    respect_eligible: bool = True
    early: Milliseconds = UNLIMITED

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        if given.get("preset") != "amps":
            return given
        fairness = {"fairness": "round-robin"} if given.get("at_most_once") else {}
        return AMPS | fairness | given

    @field_validator("topics")
    @classmethod
    def _no_empty_topic(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        if "" in topics:
            raise ValueError("a topic is empty: name it, or write * for all")
        return topics
