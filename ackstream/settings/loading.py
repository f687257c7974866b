"""All settings: the sections of ``conf/ackstream.toml`` and of the environment, which overrides the file.

Every key has an environment name ``ACKSTREAM_PART_KEY``: ``[correlate] shards`` is ``ACKSTREAM_CORRELATE_SHARDS``,
``[kafka.security.tls] ca`` is ``ACKSTREAM_KAFKA_SECURITY_TLS_CA``. Lists and tables are written as JSON there. The file
is ``conf/ackstream.toml`` in the working directory, or the one that ``ACKSTREAM_CONF`` names; without a file the
defaults apply. The meaning of each key is in ``conf/ackstream.toml``.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from ackstream.errors import SettingsError
from ackstream.settings import jobs
from ackstream.settings.base import ENV_PREFIX, HomePath, Milliseconds, Part, duration, nearest, parse_toml, sentence
from ackstream.settings.connections import Connection, RouteSettings
from ackstream.settings.gateway import Gateway, Quota
from ackstream.settings.kafka import Kafka, Lake
from ackstream.settings.security import HostName, is_loopback

log = logging.getLogger(__name__)

DEFAULT_FILE = Path("conf/ackstream.toml")


class Local(Part):
    """The one-node broker of a laptop: its ports, data directory and JVM."""

    data: Annotated[Path, HomePath] = Path(".ackstream")
    port: int = Field(9092, ge=1, le=65535)
    controller_port: int = Field(9093, ge=1, le=65535)
    heap: str = Field("512m", pattern=r"^\d+[kmgKMG]$")
    start_timeout: Milliseconds = duration("60s")


class Metrics(Part):
    """The endpoint with ``/metrics``, ``/health/live`` and ``/health/ready``; ``port`` 0 turns it off."""

    host: HostName = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535)

    def warning(self) -> str:
        """Return a sentence if other hosts can read it, else an empty text."""
        if not self.port or is_loopback(self.host):
            return ""
        return (
            f"Metrics are served at {self.host}:{self.port} without a login: hosts that reach it can read counts, and"
            " the names of queues, destinations and connections."
        )


class Log(Part):
    """The log of a process, on standard error."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


def _location(path: str) -> str:
    has_scheme = ":" in path.partition("/")[0]
    return path.rstrip("/") if has_scheme else str(Path(path).resolve())


class Settings(Part):
    """All parts."""

    kafka: Kafka = Kafka()
    local: Local = Local()
    spark: jobs.Spark = jobs.Spark()
    correlate: jobs.Correlate = jobs.Correlate()
    clock: jobs.Clock = jobs.Clock()
    archive: jobs.Archive = jobs.Archive()
    twin: jobs.Twin = jobs.Twin()
    persist: jobs.Persist = jobs.Persist()
    settle: jobs.Settle = jobs.Settle()
    query: jobs.Query = jobs.Query()
    lake: Lake = Lake()
    gateway: Gateway = Gateway()
    metrics: Metrics = Metrics()
    log: Log = Log()
    connections: tuple[Connection, ...] = ()
    queue: jobs.QueueJob = jobs.QueueJob()
    queues: tuple[jobs.QueueSettings, ...] = ()
    quotas: tuple[Quota, ...] = ()
    destinations: tuple[jobs.Destination, ...] = ()
    routes: tuple[RouteSettings, ...] = ()

    def warnings(self) -> Iterator[str]:
        """Give a sentence for each setting that is allowed but exposes something."""
        parts = (self.kafka.security, *self.connections, *self.routes)
        yield from filter(None, [*(part.warning(self.kafka.bootstrap) for part in parts), self.metrics.warning()])

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
    def _different_locations(
        cls, found: tuple[jobs.Destination, ...], info: ValidationInfo
    ) -> tuple[jobs.Destination, ...]:
        used = {_location(info.data["lake"].path): "the lake's own (lake.path)"} if "lake" in info.data else {}
        for destination in found:
            location = _location(destination.path)
            if location in used:
                raise ValueError(f"the path of {destination.name} is {used[location]}: it would have messages twice")
            used[location] = f"that of {destination.name}"
        return found


def load(path: Path | None = None, environment: dict[str, str] | None = None) -> Settings:
    """Read the settings.

    :param path: the file; ``None`` takes ``ACKSTREAM_CONF``, else ``conf/ackstream.toml`` where that exists
    :param environment: the environment variables; ``None`` takes the process's
    :raises SettingsError: with a sentence that names the key, the value and the fix
    """
    environment = dict(os.environ) if environment is None else environment
    file = path or settings_file(environment)
    values = {} if file is None else _read_file(file)
    log.info("The settings are those of %s", "the defaults" if file is None else file.absolute())
    for keys, value in _read_environment(environment):
        _put(values, keys, value)
    try:
        settings = Settings.model_validate(values, context={"environment": environment})
    except ValidationError as error:
        raise SettingsError("\n".join(sentence(each, Settings(), environment) for each in error.errors())) from None
    for warning in settings.warnings():
        log.warning(warning)
    return settings


def settings_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the settings file: that of ``ACKSTREAM_CONF``, else ``conf/ackstream.toml`` where it exists."""
    if named := environment.get(ENV_PREFIX + "CONF"):
        return Path(os.path.expanduser(named))  # noqa: PTH111 - leaves the name of an unknown user
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _put(values: Any, keys: list[str], value: Any) -> None:
    """Set a value in tables, of which some may not exist yet."""
    *tables, key = keys
    for name in tables:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            # an error of the file, which is reported by its key
            return
    values[key] = value


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = parse_toml(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"The settings file {path} does not exist; correct --settings or ACKSTREAM_CONF, or leave it out."
        ) from None
    except OSError as error:
        raise SettingsError(
            f"The settings file {path} cannot be read ({error.strerror}); correct its rights, --settings or "
            f"ACKSTREAM_CONF."
        ) from None
    except ValueError as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None
    return values


def _read_environment(environment: dict[str, str]) -> Iterator[tuple[list[str], Any]]:
    """Give each setting by the keys that lead to it; a table comes before its entries."""
    for name, text in sorted(environment.items()):
        # Kubernetes sets some in all pods for a Service such as ackstream-gateway
        of_service = _OF_SERVICE.search(name) or (name.endswith("_PORT") and "://" in text)
        if not name.startswith(ENV_PREFIX) or name == ENV_PREFIX + "CONF" or of_service:
            continue
        path, default = _find(Settings(), name[len(ENV_PREFIX) :].lower())
        if path[0] not in Settings.model_fields:
            known = [f"{ENV_PREFIX}{field.upper()}_…" for field in Settings.model_fields]
            raise SettingsError(
                f"The environment variable {name} names no part of the settings; {nearest(name, known)}."
            )
        # lists and tables are JSON; everything else stays text, which the typed field reads itself
        yield path, _read_json(name, text) if isinstance(default, (tuple, list, dict, Part)) else text


def _find(part: Part, key: str) -> tuple[list[str], Any]:
    """Return the keys that a variable's name stands for, from a part on, and the default that they lead to."""
    fields = type(part).model_fields
    if key in fields:
        return [key], getattr(part, key)
    for name in fields:
        inner = getattr(part, name)
        if key.startswith(f"{name}_") and isinstance(inner, Part):
            path, default = _find(inner, key.removeprefix(f"{name}_"))
            return [name, *path], default
    # an unknown one is reported by its key
    return [key], None


_OF_SERVICE = re.compile(r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")


def _read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        # the text may hold passwords
        raise SettingsError(
            f"The environment variable {name} is not JSON ({error}); write a list or table as JSON."
        ) from None


def with_values(settings: Settings, values: Mapping[str, object]) -> Settings:
    """Return the settings with other values by their full keys."""
    for key, value in values.items():
        part, _, name = key.partition(".")
        changed = getattr(settings, part).model_copy(update={name: value})
        settings = settings.model_copy(update={part: changed})
    return settings
