"""The base of all sections, the types of values, and sentences on wrong ones: key, value, remedy, never a secret."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import pydantic
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from ackstream.protocol.durations import MAX_MS, read_duration
from ackstream.protocol.errors import DittoError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

parse_toml = tomllib.loads
"""Read a text in TOML; raises ``ValueError``."""

UNKNOWN_KEY = "unknown_key"
"""The type of the error for an unknown key; its context holds the ``key`` and a ``hint``."""


def milliseconds(value: object, *, least: int = 1) -> int:
    """Read a duration of the settings or the command line, of ``least`` milliseconds or more; raises ``ValueError``."""
    found = read_duration(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            "a duration is a text with its unit, such as 250ms, 10s, 5m or 2h, or in ISO 8601, such as PT10S"
        )
    if found > MAX_MS:
        raise ValueError("a duration of millions of years is too long")
    if found < least:
        raise ValueError("must be longer than zero")
    return found


Milliseconds = Annotated[int, pydantic.BeforeValidator(milliseconds)]
"""A duration (``"65s"``, ``"250ms"``, ``"1h"``), held as milliseconds, more than zero."""

Pause = Annotated[int, pydantic.BeforeValidator(partial(milliseconds, least=0))]
"""A duration, which may be ``0s``."""

ENDLESS = 2**63 - 1
"""The milliseconds of ``never``: longer than any other duration."""

Endless = Annotated[int, pydantic.BeforeValidator(lambda value: ENDLESS if value == "never" else milliseconds(value))]
"""A duration, or ``never``."""

HomePath = pydantic.AfterValidator(lambda path: type(path)(os.path.expanduser(path)))  # noqa: PTH111 - also for texts
"""For file paths: a leading ``~`` is the home directory, as in a shell."""

duration: Any = pydantic.Field
"""The default of a :data:`Milliseconds` field, written as in the settings file."""


def accepted_by(read: Callable[[T], object]) -> Callable[[T], T]:
    """Return a validator of the values that ``read`` accepts."""

    def check(value: T) -> T:
        try:
            read(value)
        except DittoError as error:
            raise ValueError(f"{error.message} {error.description or ''}") from error
        return value

    return check


def _start(value: object) -> object:
    if value in ("earliest", "latest"):
        return value
    try:
        # Python 3.10 does not read Z
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError("must be earliest, latest, or a time with its zone, such as 2026-11-22T08:00:00Z")
    return time


Start = Annotated[datetime | Literal["earliest", "latest"], pydantic.BeforeValidator(_start)]
"""Where reading of a topic starts: at its beginning, its end, or the first record at or after a time."""

Limit = Annotated[int, pydantic.Field(ge=0)]
"""A maximum; 0 means no limit."""

UNLIMITED: Any = pydantic.Field(0, validate_default=False)
"""The default of a :data:`Milliseconds` field that sets no limit unless it is given."""


class Part(pydantic.BaseModel):
    """Base of all parts: frozen; an unknown key is an error that names the nearest known one."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _known_keys(cls, values: Any, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys together with other errors."""
        unknown = [key for key in values if key not in cls.model_fields] if isinstance(values, dict) else []
        if not unknown:
            return handler(values)
        errors = []
        for key in unknown:
            context = {"key": key, "hint": nearest(str(key), list(cls.model_fields))}
            errors.append(InitErrorDetails(type=PydanticCustomError(UNKNOWN_KEY, "unknown key", context), input=None))
        try:
            handler({key: value for key, value in values.items() if key not in unknown})
        except pydantic.ValidationError as error:
            errors += map(_again, error.errors())
        raise pydantic.ValidationError.from_exception_data(cls.__name__, errors)

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Self:
        self._check()
        return self

    def _check(self) -> None:
        """Raise a ``ValueError`` for values that contradict each other."""


def _again(entry: ErrorDetails) -> InitErrorDetails:
    """Return an error to be raised with others."""
    kind: Any = entry["type"]
    if kind not in _KINDS:
        kind = PydanticCustomError(kind, entry["msg"], entry.get("ctx"))
    return InitErrorDetails(type=kind, loc=entry["loc"], input=entry["input"], ctx=entry.get("ctx", {}))


_KINDS = frozenset(get_args(ErrorType))
"""The errors of pydantic itself."""


def nearest(name: str, known: Sequence[str], otherwise: str | None = None) -> str:
    """Return a hint from an unknown name to a known one; ``otherwise`` if none is similar, instead of all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"the nearest known one is {close[0]}" if close else otherwise or f"known are {', '.join(known)}"


ENV_PREFIX = "ACKSTREAM_"

_SENTENCES = parse_toml(Path(__file__).with_name("sentences.toml").read_text("utf-8"))
_PROBLEMS: dict[str, str] = _SENTENCES["problems"]
"""The ends of sentences, by the types of pydantic's errors."""
_FORMS: dict[str, str] = _SENTENCES["forms"]
"""The patterns in words."""


def problem(entry: Any) -> str:
    """Return the reason of an error of pydantic, without key and value, as the end of a sentence."""
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == UNKNOWN_KEY:
        return f"is not known; {context['hint']}"
    if kind in ("too_short", "string_too_short") and context["min_length"] == 1:
        return "must not be empty"
    if kind == "string_pattern_mismatch" and context["pattern"] in _FORMS:
        return _FORMS[context["pattern"]]
    if kind in _PROBLEMS:
        return _PROBLEMS[kind].format(**context)
    # raised by a validator of this package
    return str(entry["msg"]).removeprefix("Value error, ").rstrip(".")


def without_secrets(address: str) -> str:
    """Return an address or URL without user and query, which may be secrets."""
    return _CREDENTIALS.sub("…", address)


def key(entry: Any) -> str:
    """Return the key that an error is about, such as ``connections.0.type``."""
    location = _location(entry)
    if entry["type"] == UNKNOWN_KEY:
        location.append(entry["ctx"]["key"])
    elif entry["type"].startswith("union_tag"):
        location.append(entry["ctx"]["discriminator"].strip("'"))
    return ".".join(map(str, location))


def sentence(entry: Any, settings: Part, environment: Collection[str] = ()) -> str:
    """Return the sentence about an error of the settings. ``settings``: all of them, with their defaults."""
    text = problem(entry)
    if entry["type"] == UNKNOWN_KEY:
        name = ENV_PREFIX + key(entry).replace(".", "_").upper()
        return f"The setting {key(entry)}{f' (variable {name})' if name in environment else ''} {text}."
    location = _location(entry)
    place = f"in the settings file or in {_variable(location, settings)}."
    if text == _PROBLEMS["missing"]:
        return f"The setting {key(entry)} {text}: write it {place}"
    value = entry["ctx"]["tag"] if entry["type"] == "union_tag_invalid" else entry["input"]
    if isinstance(value, str) and _ADDRESS.search(str(location[-1])):
        value = without_secrets(value)
    hidden = value != entry["input"] or any(step in _HEADERS for step in location)
    if hidden and entry["type"] == "value_error" and isinstance(value, str):
        # the reason contains a part of the text
        text = "a placeholder or a function in it is unknown, or is not closed"
    value = f" is {value!r}"
    if entry["type"] != "union_tag_invalid" and _holds_secrets(location, entry):
        value, text = "", text.replace(str(entry["input"]) or "…", "…")
    return f"The setting {key(entry)}{value}: {text}. Correct it {place}"


def _location(entry: Any) -> list[Any]:
    """Return the keys that lead to the wrong value."""
    location = list(entry["loc"])
    if location[:1] == ["connections"] and len(location) > _TYPE:
        del location[_TYPE]
    return location


def _variable(location: list[Any], settings: Part) -> str:
    """Return the environment name of the wrong setting."""
    found: Any = settings
    names = []
    for step in location:
        if not isinstance(found, Part) or step not in type(found).model_fields:
            break
        names.append(step)
        found = getattr(found, step)
    return ENV_PREFIX + "_".join(names).upper()


def _holds_secrets(location: list[Any], entry: Any) -> bool:
    """Return whether a wrong value may be, or contain, a password, which must not be logged."""
    value = entry["input"]
    tables = isinstance(value, (dict, list, tuple)) or entry["type"] in _NO_TABLE
    # an environment variable for a text may hold a table by mistake
    tables |= isinstance(value, str) and value.lstrip().startswith(("{", "["))
    return tables or any(_SECRET.search(str(step)) for step in location)


_HEADERS = ("header_mapping", "headers")
_SECRET = re.compile(r"(?i)pass|secret|token|credential|key|^url$|options$|^users$|^conf$|^headers$|^header_mapping$")
"""Keys and tables whose values may be secrets."""
_ADDRESS = re.compile(r"^(address|host|issuer|jwks_url|bootstrap)$")
_CREDENTIALS = re.compile(r"(^|(?<=//))[^/?#]*@|(?<=//).*@.*|^[^/]*:(?!/).*@.*|(?<=\?).+", re.DOTALL)
_NO_TABLE = ("dict_type", "list_type", "tuple_type", "model_type", "model_attributes_type")
"""Types of errors about a value in place of a table or list."""

_TYPE = 2
"""Position of the connection's type in an error's location; it follows the number and is not a key."""
