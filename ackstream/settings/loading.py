"""Read the settings from ``conf/ackstream.toml`` and the environment, which wins over the file.

Every key has an environment name ``ACKSTREAM_PART_KEY``: ``[correlate] shards`` is ``ACKSTREAM_CORRELATE_SHARDS``,
``[kafka.security.tls] ca`` is ``ACKSTREAM_KAFKA_SECURITY_TLS_CA``. Lists and tables are written as JSON there. The file
is ``conf/ackstream.toml`` in the working directory, or the one that ``ACKSTREAM_CONF`` names; without a file the
defaults hold.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ackstream.errors import SettingsError
from ackstream.settings.base import Part, nearest
from ackstream.settings.model import Settings
from ackstream.settings.sentences import ENV_PREFIX, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)

DEFAULT_FILE = Path("conf/ackstream.toml")


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
        raise SettingsError("\n".join(map(sentence, error.errors()))) from None
    for warning in settings.warnings():
        log.warning(warning)
    return settings


def settings_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the settings file: that of ``ACKSTREAM_CONF``, else ``conf/ackstream.toml`` where it exists."""
    if named := environment.get(ENV_PREFIX + "CONF"):
        return Path(named)
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
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"The settings file {path} does not exist; correct --settings or ACKSTREAM_CONF, or leave it out."
        ) from None
    except OSError as error:
        raise SettingsError(
            f"The settings file {path} cannot be read ({error.strerror}); correct its rights, --settings or "
            f"ACKSTREAM_CONF."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None
    return values


def _read_environment(environment: dict[str, str]) -> Iterator[tuple[list[str], Any]]:
    """Give each setting by the keys that lead to it; a table comes before what stands in it."""
    for name, text in sorted(environment.items()):
        if not name.startswith(ENV_PREFIX) or name == ENV_PREFIX + "CONF" or _names_service(name, text):
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


def _names_service(name: str, text: str) -> bool:
    """Return whether Kubernetes set the variable, which it does in all pods for a Service such as ackstream-gateway."""
    return bool(_OF_SERVICE.search(name)) or (name.endswith("_PORT") and "://" in text)


def _read_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        # the text may hold passwords
        raise SettingsError(
            f"The environment variable {name} is not JSON ({error}); write a list or table as JSON."
        ) from None
