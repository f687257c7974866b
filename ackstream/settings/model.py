"""One frozen settings object a part, from ``conf/ackstream.toml``; the environment wins over the file.

Every key has an environment name ``ACKSTREAM_PART_KEY``: ``[correlate] shards`` is ``ACKSTREAM_CORRELATE_SHARDS``.
Lists and tables are written as JSON there. The file is ``conf/ackstream.toml`` in the working directory, or what
``ACKSTREAM_CONF`` names; without a file the defaults hold.
"""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from ackstream.errors import SettingsError
from ackstream.settings.connections import Connection
from ackstream.settings.destinations import Destination, check_places
from ackstream.settings.parts import UNKNOWN_KEY, Milliseconds, Part, nearest
from ackstream.settings.queues import QueueSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "ACKSTREAM_"
DEFAULT_FILE = Path("conf/ackstream.toml")


class Kafka(Part):
    """Where the broker is and what its topics are called."""

    bootstrap: str = Field("localhost:9092", min_length=1)
    topic_prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    partitions: int = Field(4, ge=1)
    replication: int = Field(1, ge=1)
    options: dict[str, str] = Field({})

    def topic(self, name: str) -> str:
        """Return the topic's real name: the prefix and the name of DESIGN 3."""
        return self.topic_prefix + name


class Local(Part):
    """The laptop's parts: one-node broker, data directory, JVM."""

    data: Path = Path(".ackstream")
    port: int = Field(9092, ge=1, le=65535)
    controller_port: int = Field(9093, ge=1, le=65535)
    heap: str = Field("512m", pattern=r"^\d+[kmgKMG]$")
    start_timeout: Milliseconds = Field("60s")  # type: ignore[assignment]


class Spark(Part):
    """What every Spark job shares."""

    master: str = "local[2]"
    driver_memory: str = Field("2g", pattern=r"^\d+[kmgKMG]$")
    conf: dict[str, str] = Field({})


class Correlate(Part):
    """The job that joins acknowledgements to requests."""

    # 6 keys fall evenly on two tasks by Spark's hash, 8 do not (5 and 3)
    shards: int = Field(6, ge=1, le=4096)
    shuffle_partitions: int = Field(2, ge=1)
    trigger: str = "0 seconds"
    max_offsets_per_trigger: int = Field(100_000, ge=1)
    default_timeout: Milliseconds = Field("65s")  # type: ignore[assignment]
    max_timeout: Milliseconds = Field("24h")  # type: ignore[assignment]
    orphan_hold: Milliseconds = Field("10s")  # type: ignore[assignment]
    recent_memory: Milliseconds = Field("60s")  # type: ignore[assignment]
    max_labels: int = Field(100, ge=1)
    max_value_bytes: int = Field(1_000_000, ge=1)
    reply_topics: tuple[str, ...] = ()
    group: str = "ackstream-correlate"
    state_store: str = Field("hdfs", pattern="^(hdfs|rocksdb)$")

    @field_validator("reply_topics")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression ({error})") from error
        return patterns


class Clock(Part):
    """The ticks that move event time on."""

    interval: Milliseconds = Field("1s")  # type: ignore[assignment]
    enabled: bool = True


class Archive(Part):
    """The job that writes the ledger to the Delta tables."""

    trigger: str = "5 seconds"
    max_offsets_per_trigger: int = Field(50_000, ge=1)
    group: str = "ackstream-archive"


class Twin(Part):
    """The job that keeps the things."""

    trigger: str = "0 seconds"
    max_offsets_per_trigger: int = Field(20_000, ge=1)
    index_trigger: str = "10 seconds"
    index_partitions: int = Field(1, ge=1)
    max_thing_bytes: int = Field(102_400, ge=1)
    group: str = "ackstream-twin"


class PublishRule(Part):
    """Lets clients publish to topics; ``*`` stands for any run of characters."""

    clients: tuple[str, ...] = Field(min_length=1)
    topics: tuple[str, ...] = ("*",)


class Persist(Part):
    """The job that writes publishers' messages to their table and acknowledges them."""

    interval: Milliseconds = Field("500ms")  # type: ignore[assignment]
    max_offsets_per_trigger: int = Field(100_000, ge=1)
    max_message_bytes: int = Field(1_000_000, ge=1)
    daily_quota_bytes: int = Field(0, ge=0)
    topics: tuple[str, ...] = ()
    entitlements: tuple[PublishRule, ...] = ()
    subscriptions: tuple[str, ...] = ()
    reject_no_match: bool = True
    reject_over_quota: bool = True
    group: str = "ackstream-persist"


class QueueJob(Part):
    """The job that serves the work queues."""

    interval: Milliseconds = Field("250ms")  # type: ignore[assignment]
    session: Milliseconds = Field("30s")  # type: ignore[assignment]
    shuffle_partitions: int = Field(2, ge=1)
    max_bytes_per_trigger: int = Field(16_000_000, ge=1)
    group: str = "ackstream-queues"


class Query(Part):
    """The job that carries out commands over the table of messages."""

    interval: Milliseconds = Field("100ms")  # type: ignore[assignment]
    max_offsets_per_trigger: int = Field(1_000, ge=1)
    group: str = "ackstream-query"


class Lake(Part):
    """The Delta tables."""

    path: str = ".ackstream/lake"
    checkpoints: str = ".ackstream/checkpoints"
    checkpoint_interval: int = Field(100, ge=1)
    retention: Milliseconds = Field("7d")  # type: ignore[assignment]

    def table(self, name: str) -> str:
        """Return a table's location."""
        return f"{self.path.rstrip('/')}/{name}"

    def checkpoint(self, job: str) -> str:
        """Return a job's checkpoint location."""
        return f"{self.checkpoints.rstrip('/')}/{job}"


class AccessRule(Part):
    """Grants READ or WRITE to subjects, on things, at a path and below; ``*`` stands for any run of characters."""

    subjects: tuple[str, ...] = Field(min_length=1)
    things: tuple[str, ...] = ("*",)
    path: str = Field("/", pattern="^/")
    grant: tuple[Literal["READ", "WRITE"], ...] = ("READ",)


class Gateway(Part):
    """HTTP and WebSocket."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535)
    max_body_bytes: int = Field(1_000_000, ge=1)
    max_timeout: Milliseconds = Field("60s")  # type: ignore[assignment]
    max_claim_timeout: Milliseconds = Field("10m")  # type: ignore[assignment]
    fire_and_forget_wait: Milliseconds = Field("3s")  # type: ignore[assignment]
    delivery_timeout: Milliseconds = Field("10s")  # type: ignore[assignment]
    default_namespace: str = Field("org.ackstream", pattern=r"^[A-Za-z]\w*([.-]\w+)*$")
    page_window: Milliseconds = Field("60s")  # type: ignore[assignment]
    users: dict[str, str] = Field({})
    jwt_key_file: str = ""
    jwt_jwks_file: str = ""
    jwt_algorithms: tuple[str, ...] = ("RS256",)
    jwt_issuer: str = ""
    jwt_audience: str = ""
    access: tuple[AccessRule, ...] = ()


class RequiredRole(Part):
    """So many readers of a role must acknowledge what the writers write; ``*`` stands for any run of characters."""

    role: str = Field(min_length=1, max_length=255)
    quorum: int = Field(1, ge=1)
    writers: tuple[str, ...] = ("*",)


class Settle(Part):
    """The job that stores what readers acknowledge, and tells the writers."""

    interval: Milliseconds = Field("500ms")  # type: ignore[assignment]
    required: tuple[RequiredRole, ...] = ()
    reader_lease: Milliseconds = Field("30s")  # type: ignore[assignment]
    reader_memory: Milliseconds = Field("24h")  # type: ignore[assignment]
    max_holes: int = Field(1_000, ge=1, le=100_000)
    # 6 keys fall evenly on two tasks by Spark's hash, 8 do not (5 and 3)
    shards: int = Field(6, ge=1, le=4096)
    shuffle_partitions: int = Field(2, ge=1)
    max_offsets_per_trigger: int = Field(100_000, ge=1)
    group: str = "ackstream-settle"


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
    connections: tuple[Connection, ...] = ()
    queue: QueueJob = QueueJob()
    queues: tuple[QueueSettings, ...] = ()
    destinations: tuple[Destination, ...] = ()

    @field_validator("queues")
    @classmethod
    def _different_names(cls, queues: tuple[QueueSettings, ...]) -> tuple[QueueSettings, ...]:
        names = [queue.name for queue in queues]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two queues have the name {name!r}: give each its own")
        return queues

    @field_validator("destinations")
    @classmethod
    def _different_places(cls, found: tuple[Destination, ...], info: ValidationInfo) -> tuple[Destination, ...]:
        if "lake" in info.data:
            check_places(found, info.data["lake"].path)
        return found

    @field_validator("connections")
    @classmethod
    def _different_ids(cls, connections: tuple[Connection, ...]) -> tuple[Connection, ...]:
        ids = [connection.id for connection in connections]
        for identity in ids:
            if ids.count(identity) > 1:
                raise ValueError(f"two connections have the id {identity!r}: give each its own")
        return connections


def load(path: Path | None = None, environment: dict[str, str] | None = None) -> Settings:
    """Read the settings.

    :param path: the file; ``None`` takes ``ACKSTREAM_CONF``, else ``conf/ackstream.toml`` where that exists
    :param environment: the environment variables; ``None`` takes the process's
    :raises SettingsError: with a sentence that names the key, the value and the fix
    """
    environment = dict(os.environ) if environment is None else environment
    named = path or (Path(environment[ENV_PREFIX + "CONF"]) if environment.get(ENV_PREFIX + "CONF") else None)
    values = _read_file(named or DEFAULT_FILE, required=named is not None)
    for part, keys in _read_environment(environment).items():
        values[part] = {**values.get(part, {}), **keys} if isinstance(keys, dict) else keys
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_sentences(error)) from None


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    if not path.exists():
        if required:
            raise SettingsError(f"The settings file {path} does not exist; correct ACKSTREAM_CONF or leave it out.")
        return {}
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None
    return values


def _read_environment(environment: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in sorted(environment.items()):
        if not name.startswith(ENV_PREFIX) or name == ENV_PREFIX + "CONF":
            continue
        part, _, key = name[len(ENV_PREFIX) :].lower().partition("_")
        if part not in Settings.model_fields:
            known = [f"{ENV_PREFIX}{field.upper()}_…" for field in Settings.model_fields]
            raise SettingsError(
                f"The environment variable {name} names no part of the settings; {nearest(name, known)}."
            )
        if isinstance(Settings.model_fields[part].default, tuple):
            found[part] = _read_json(name, text)
        else:
            found.setdefault(part, {})[key] = _read_text(part, key, text)
    return found


def _read_text(part: str, key: str, text: str) -> Any:
    """Read lists and tables from JSON; everything else stays text, which the typed field reads itself."""
    section = Settings.model_fields[part].default
    if isinstance(getattr(section, key, None), (tuple, list, dict)):
        return _read_json(f"{ENV_PREFIX}{part}_{key}".upper(), text)
    return text


def _read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise SettingsError(
            f"The environment variable {name} is {text!r}, which is not JSON; write a list or table as JSON."
        ) from None


def _sentences(error: ValidationError) -> str:
    return " ".join(_sentence(entry) for entry in error.errors())


def _sentence(entry: Any) -> str:
    location = list(entry["loc"])
    if location[:1] == ["connections"] and len(location) > _KIND:
        # behind the number stands the type of connection, which is no key
        del location[_KIND]
    key = ".".join(map(str, location))
    if entry["type"] == UNKNOWN_KEY:
        context = entry["ctx"]
        return f"The setting {'.'.join(filter(None, (key, context['key'])))} is not known; {context['hint']}."
    problem = entry["msg"].removeprefix("Value error, ").rstrip(".")
    # a table may hold a password
    value = "" if isinstance(entry["input"], dict) else f" is {entry['input']!r}"
    name = ENV_PREFIX + "_".join(takewhile(lambda step: isinstance(step, str), location[:2])).upper()
    return f"The setting {key}{value}: {problem}. Correct it in the settings file or in {name}."


_KIND = 2
