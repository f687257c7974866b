"""The sections of the settings, each a frozen object; the jobs' rules read these objects themselves.

Durations are held in milliseconds. What each key means is written in ``conf/ackstream.toml``.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS
from ackstream.protocol.patterns import matches_any
from ackstream.settings.base import Endless, Milliseconds, Part, Pause, Start, duration
from ackstream.settings.connections import Connection
from ackstream.settings.gateway import Gateway
from ackstream.settings.kafka import Kafka
from ackstream.settings.lake import Destination, Lake
from ackstream.settings.persist import Persist, PublishRule
from ackstream.settings.queues import QueueSettings
from ackstream.settings.quotas import Quota
from ackstream.settings.routes import RouteSettings
from ackstream.settings.telemetry import Log, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""A name of a topic of Kafka."""


class Local(Part):
    """The one-node broker of a laptop: its ports, data directory and JVM."""

    data: Path = Path(".ackstream")
    port: int = Field(9092, ge=1, le=65535)
    controller_port: int = Field(9093, ge=1, le=65535)
    heap: str = Field("512m", pattern=r"^\d+[kmgKMG]$")
    start_timeout: Milliseconds = duration("60s")


class Spark(Part):
    """What every Spark job shares."""

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
    refuse_undeclared: bool = False
    state_store: Literal["hdfs", "rocksdb"] = "hdfs"
    starting: Start = "earliest"

    @field_validator("default_timeout")
    @classmethod
    def _default_timeout(cls, timeout: int) -> int:
        if timeout > STREAM_TIMEOUT_MS:
            raise ValueError(
                f"must be {STREAM_TIMEOUT_MS // 1000}s or less, as connections and WebSockets wait no longer: a request"
                " that needs more says so in its header timeout"
            )
        return timeout

    @field_validator("reply_topics")
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
        """How many bytes a record may have that the job must write, whatever it reads (docs/operations.md)."""
        # JSON written anew has up to four times the size; each label has an entry with the correlation-id; what a dead
        # letter keeps of a key and a value is base64
        return 4 * self.max_value_bytes + 2_048 * self.max_labels + 262_144

    def allows_reply_topic(self, topic: str) -> bool:
        """Return whether a request may choose a topic for its reply: it is a name of Kafka that a pattern matches."""
        legal = _TOPIC.fullmatch(topic) is not None
        return legal and any(re.fullmatch(pattern, topic) for pattern in self.reply_topics)


class Clock(Part):
    """The ticks that advance event time, and the signs of life of jobs."""

    interval: Milliseconds = duration("1s")
    slack: Milliseconds = duration("2s")


class Archive(Part):
    """The job that writes the ledger to the Delta tables."""

    trigger: Pause = duration("5s")
    max_offsets_per_trigger: int = Field(50_000, ge=1)


class Twin(Part):
    """The job that keeps the things."""

    trigger: Pause = duration("0s")
    max_offsets_per_trigger: int = Field(20_000, ge=1)
    index_trigger: Pause = duration("10s")
    index_partitions: int = Field(1, ge=1)
    starting: Literal["journal", "earliest", "latest"] = "journal"
    max_thing_bytes: int = Field(102_400, ge=1)


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

    @model_validator(mode="after")
    def _leases(self) -> Self:
        if self.durable_lease <= self.reader_lease:
            raise ValueError(
                "durable_lease must be longer than reader_lease, and than any outage, because a durable reader that is"
                ' silent for as long loses its samples; set it to 90d, or to "never"'
            )
        return self

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


def _location(path: str) -> str:
    has_scheme = ":" in path.partition("/")[0]
    return path.rstrip("/") if has_scheme else str(Path(path).resolve())


class Settings(Part):
    """All parts."""

    kafka: Kafka = Kafka()
    local: Local = Local()
    spark: Spark = Spark()
    correlate: Correlate = Correlate()
    clock: Clock = Clock()
    archive: Archive = Archive()
    twin: Twin = Twin()
    persist: Persist = Persist()
    settle: Settle = Settle()
    query: Query = Query()
    lake: Lake = Lake()
    gateway: Gateway = Gateway()
    metrics: Metrics = Metrics()
    log: Log = Log()
    connections: tuple[Connection, ...] = ()
    queue: QueueJob = QueueJob()
    queues: tuple[QueueSettings, ...] = ()
    quotas: tuple[Quota, ...] = ()
    destinations: tuple[Destination, ...] = ()
    routes: tuple[RouteSettings, ...] = ()

    def warnings(self) -> Iterator[str]:
        """Give a sentence for each setting that is allowed but exposes something."""
        parts = (self.kafka.security, *self.connections, *self.routes)
        yield from filter(None, (part.warning(self.kafka.bootstrap) for part in parts))
        if text := self.metrics.warning():
            yield text

    @field_validator("queues", "quotas", "destinations", "connections", "routes")
    @classmethod
    def _different_names(cls, parts: tuple[Part, ...], info: ValidationInfo) -> tuple[Part, ...]:
        key = "id" if info.field_name == "connections" else "name"
        for value, count in Counter(getattr(part, key) for part in parts).items():
            if count > 1:
                raise ValueError(f"two {info.field_name} have the {key} {value!r}: give each its own")
        return parts

    @field_validator("routes")
    @classmethod
    def _other_systems(cls, routes: tuple[RouteSettings, ...], info: ValidationInfo) -> tuple[RouteSettings, ...]:
        kafka = info.data.get("kafka", Kafka())
        for route in routes:
            target = route.target(kafka)
            if (target.bootstrap, target.topic_prefix) == (kafka.bootstrap, kafka.topic_prefix):
                raise ValueError(f"the route {route.name} ends where it begins: give it a bootstrap or a topic_prefix")
        return routes

    @field_validator("destinations")
    @classmethod
    def _different_locations(cls, found: tuple[Destination, ...], info: ValidationInfo) -> tuple[Destination, ...]:
        used = {_location(info.data["lake"].path): "the lake's own (lake.path)"} if "lake" in info.data else {}
        for destination in found:
            location = _location(destination.path)
            if location in used:
                raise ValueError(f"the path of {destination.name} is {used[location]}: messages would be there twice")
            used[location] = f"that of {destination.name}"
        return found
