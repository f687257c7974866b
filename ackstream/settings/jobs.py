"""The sections of the jobs, the queues and the destinations; the rules of the jobs read these objects themselves.

Durations are held in milliseconds. The meaning of each key is in ``conf/ackstream.toml``.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, ValidatorFunctionWrapHandler, field_validator, model_validator

from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings.base import UNLIMITED, Endless, HomePath, Limit, Milliseconds, Part, Pause, Start, duration

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""The name of a Kafka topic."""


def matches(patterns: Iterable[str], topic: str) -> bool:
    """Return whether the whole name of a topic matches one of the regular expressions."""
    return any(re.fullmatch(pattern, topic) for pattern in patterns)


class Spark(Part):
    """The settings of all Spark jobs."""

    master: str = "local[2]"
    driver_memory: str = Field("2g", pattern=r"^\d+[kmgKMG]$")
    conf: dict[str, str] = Field({}, repr=False)


class Correlate(Part):
    """The job that joins acknowledgements to requests."""

    shards: int = Field(2, ge=1, le=4096)
    shuffle_partitions: int = Field(2, ge=1)
    trigger: Pause = duration("0s")
    max_offsets_per_trigger: int = Field(100_000, ge=1)
    default_timeout: Milliseconds = duration("60s")
    max_timeout: Milliseconds = duration("24h")
    orphan_hold: Milliseconds = duration("10s")
    recent_memory: Milliseconds = duration("60s")
    max_labels: int = Field(100, ge=1)
    max_value_bytes: int = Field(1_000_000, ge=1)
    reply_topics: tuple[str, ...] = ()
    request_topics: tuple[str, ...] = ()
    ack_topics: tuple[str, ...] = ()
    store_values: bool = False
    refuse_undeclared: bool = False
    state_store: Literal["hdfs", "rocksdb"] = "hdfs"
    starting: Start = "earliest"

    @field_validator("default_timeout")
    @classmethod
    def _default_timeout(cls, timeout: int) -> int:
        if timeout > STREAM_TIMEOUT_MS:
            raise ValueError(
                f"must be {STREAM_TIMEOUT_MS // 1000}s or less, as connections and WebSockets wait no longer: a request"
                " that needs more sets its header timeout"
            )
        return timeout

    @field_validator("reply_topics", "request_topics", "ack_topics")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression ({error})") from error
        return patterns

    @property
    def record_bytes(self) -> int:
        """The size of the largest record that the job may have to write, in bytes (docs/operate/operations.md)."""
        # rewritten JSON has up to four times the size; each label has an entry with the correlation-id; a dead
        # letter keeps parts of a key and a value as base64
        return 4 * self.max_value_bytes + 2_048 * self.max_labels + 262_144

    def allows_reply_topic(self, topic: str) -> bool:
        """Return whether a request may choose a topic for its reply: a valid topic name that a pattern matches."""
        return _TOPIC.fullmatch(topic) is not None and matches(self.reply_topics, topic)

    def accepts_reply_topic(self, topic: str, replies: str) -> bool:
        """Return whether a request that names this topic for its reply is accepted; ``replies`` always is."""
        return topic == replies or self.allows_reply_topic(topic)


class Clock(Part):
    """The ticks that advance event time, and the signs of life of jobs."""

    interval: Milliseconds = duration("1s")
    slack: Milliseconds = duration("2s")


class Archive(Part):
    """The job that writes the ledger to the Delta tables."""

    trigger: Pause = duration("5s")
    max_offsets_per_trigger: int = Field(50_000, ge=1)


class Twin(Part):
    """The job that maintains the things."""

    trigger: Pause = duration("0s")
    max_offsets_per_trigger: int = Field(20_000, ge=1)
    index_trigger: Pause = duration("10s")
    index_partitions: int = Field(1, ge=1)
    starting: Literal["journal", "earliest", "latest"] = "journal"
    max_thing_bytes: int = Field(102_400, ge=1)


class PublishRule(Part):
    """Lets clients publish to topics; ``*`` stands for any run of characters."""

    clients: tuple[str, ...] = Field(min_length=1)
    topics: tuple[str, ...] = ("*",)

    def covers(self, client: str, topic: str) -> bool:
        """Return whether the rule applies to a client and a topic."""
        return matches_any(self.clients, client) and matches_any(self.topics, topic)


class Persist(Part):
    """The job that writes publishers' messages to their table and acknowledges them."""

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


class Destination(Part):
    """A further lake that gets every message, written by one mirror job (AMPS replication; brokers.md A9, A12, A13)."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    path: Annotated[str, HomePath] = Field(min_length=1)
    type: Literal["sync", "async"]
    ack_conflation_interval: Milliseconds = duration("1s")
    check_interval: Milliseconds = duration("15s")
    downgrade_age: Milliseconds | None = None
    upgrade_age: Milliseconds | None = None

    def _check(self) -> None:
        if self.type == "async" and (self.downgrade_age or self.upgrade_age):
            raise ValueError(f"nothing waits for {self.name}, which is async: leave out downgrade_age and upgrade_age")
        if self.upgrade_age is None:
            return
        if self.downgrade_age is None:
            raise ValueError(f"{self.name} has an upgrade_age but is never downgraded: set downgrade_age, too")
        if self.upgrade_age >= self.downgrade_age:
            raise ValueError(
                f"{self.name} would be downgraded as soon as it is upgraded: set upgrade_age below downgrade_age,"
                " to about half of it"
            )


class RequiredRole(Part):
    """The number of different readers of a role that must acknowledge each sample of matching writers (R19)."""

    role: str = Field(min_length=1, max_length=255)
    quorum: int = Field(1, ge=1)
    writers: tuple[str, ...] = ("*",)


class Settle(Part):
    """The job that stores readers' acknowledgements and reports them to the writers."""

    interval: Milliseconds = duration("500ms")
    required: tuple[RequiredRole, ...] = ()
    reader_lease: Milliseconds = duration("30s")
    durable_lease: Endless = duration("never")
    reader_memory: Milliseconds = duration("24h")
    max_holes: int = Field(1_000, ge=1, le=100_000)
    shards: int = Field(6, ge=1, le=4096)
    shuffle_partitions: int = Field(2, ge=1)
    max_offsets_per_trigger: int = Field(100_000, ge=1)

    def _check(self) -> None:
        if self.durable_lease <= self.reader_lease:
            raise ValueError(
                "durable_lease must be longer than reader_lease, and than any outage, because a durable reader that is"
                ' silent for as long loses its samples; set it to 90d, or to "never"'
            )

    def quorums(self, writer: str) -> dict[str, int]:
        """Return the quorum of each role required for a writer's samples; the first rule for a role counts."""
        found: dict[str, int] = {}
        for rule in self.required:
            if matches_any(rule.writers, writer):
                found.setdefault(rule.role, rule.quorum)
        return found


class QueueJob(Part):
    """The job that serves the work queues."""

    interval: Milliseconds = duration("250ms")
    session: Milliseconds = duration("30s")
    shuffle_partitions: int = Field(2, ge=1)
    max_bytes_per_trigger: int = Field(16_000_000, ge=1)
    starting: Start = "latest"


class QueryRule(PublishRule):
    """Lets clients query topics and subscribe to them, and with ``delete`` remove records from their state."""

    delete: bool = False


class Query(Part):
    """The job that executes commands over the table of messages."""

    interval: Milliseconds = duration("100ms")
    max_offsets_per_trigger: int = Field(1_000, ge=1)
    entitlements: tuple[QueryRule, ...] = ()

    def entitles(self, client: str, topic: str, *, delete: bool = False) -> bool:
        """Return whether a client may read a topic, or delete records in it; everyone may where there are no rules."""
        return not self.entitlements or any(
            rule.covers(client, topic) and (rule.delete or not delete) for rule in self.entitlements
        )


Fairness: TypeAlias = Literal["fast", "round-robin", "proportional"]
"""The consumer that gets the next message: the first with room, each in turn, or that with the least used share of its
backlog."""

Settler: TypeAlias = Literal["holder", "strict", "sublet"]
"""Consumers that may settle a message: its holder; any while it has no holder; or any at any time."""

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


AMPS = {"max_backlog": 1, "settler": "sublet", "early": "24h", "respect_ttl": True, "fairness": "proportional"}
"""The defaults of an AMPS queue where they differ from those of Solace (A28 to A37)."""


class QueueSettings(Part):
    """One work queue, and its rules. Defaults are those of Solace; ``preset = "amps"`` sets those of AMPS instead.

    Durations are milliseconds; 0 means no limit.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._/-]+$")
    topics: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    preset: Literal["solace", "amps"] = "solace"
    ingress: Literal["open", "refuse", "discard"] = "open"
    type: Literal["exclusive", "shared"] = "shared"
    max_depth: Limit = 500_000
    max_backlog: Limit = 10_000
    max_total_backlog: Limit = 0
    lease: Milliseconds = UNLIMITED
    max_lease: Milliseconds = duration(None)
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

    @field_validator("max_lease", mode="wrap")
    @classmethod
    def _max_lease(cls, given: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> int:
        lease: int = info.data.get("lease", 0)
        longest: int = max(read("24h"), lease) if given is None else read(given)
        if longest < lease:
            raise ValueError(
                f"must be lease, which is {lease}ms, or more: raise max_lease, leave it out, or lower lease"
            )
        return longest
