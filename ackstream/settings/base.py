"""What every part of the settings is made of: frozen objects, and durations held as whole milliseconds."""

from __future__ import annotations

import difflib
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from ackstream.protocol.durations import MAX_MS, read_duration
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_core import ErrorDetails
    from typing_extensions import Self

T = TypeVar("T")

UNKNOWN_KEY = "unknown_key"
"""The type of the error for an unknown key; its context holds the ``key`` and a ``hint``."""


def milliseconds(value: object, *, least: int = 1) -> int:
    """Read a duration of the settings or the command line: an amount with its unit, or one of ISO 8601.

    :param least: the shortest duration, in milliseconds
    :raises ValueError: with the end of a sentence
    """
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


Milliseconds = Annotated[int, BeforeValidator(milliseconds)]
"""A duration (``"65s"``, ``"250ms"``, ``"1h"``), held as milliseconds, more than zero."""

Pause = Annotated[int, BeforeValidator(partial(milliseconds, least=0))]
"""A duration that may be ``0s``: none."""

ENDLESS = 2**63 - 1
"""The milliseconds of ``never``: longer than any other duration."""

Endless = Annotated[int, BeforeValidator(lambda value: ENDLESS if value == "never" else milliseconds(value))]
"""A duration, or ``never``: it does not end."""


def duration(text: str) -> Any:
    """Return the default of a :data:`Milliseconds` field, written as in the settings file."""
    return Field(text)


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


Start = Annotated[datetime | Literal["earliest", "latest"], BeforeValidator(_start)]
"""Where the reading of a topic starts: at one of its ends, or with the first record of a time or later."""


UNLIMITED: Any = Field(0, validate_default=False)
"""The default of a :data:`Milliseconds` field that sets no limit unless it is given."""


class Part(BaseModel):
    """Base of all parts: frozen; an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys together with what is wrong with the others."""
        unknown = [key for key in values if key not in cls.model_fields] if isinstance(values, dict) else []
        if not unknown:
            return handler(values)
        errors = []
        for key in unknown:
            context = {"key": key, "hint": nearest(str(key), list(cls.model_fields))}
            errors.append(InitErrorDetails(type=PydanticCustomError(UNKNOWN_KEY, "unknown key", context), input=None))
        try:
            handler({key: value for key, value in values.items() if key not in unknown})
        except ValidationError as error:
            errors += map(_again, error.errors())
        raise ValidationError.from_exception_data(cls.__name__, errors)


def _again(entry: ErrorDetails) -> InitErrorDetails:
    """Return an error to be raised with others."""
    kind: Any = entry["type"]
    if kind not in _KINDS:
        kind = PydanticCustomError(kind, entry["msg"], entry.get("ctx"))
    return InitErrorDetails(type=kind, loc=entry["loc"], input=entry["input"], ctx=entry.get("ctx", {}))


_KINDS = frozenset(get_args(ErrorType))
"""The errors of pydantic itself."""


def nearest(name: str, known: Sequence[str], otherwise: str | None = None) -> str:
    """Return a hint from an unknown name to a known one.

    :param otherwise: what to say if none is like it, instead of all that are known
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f"the nearest known one is {close[0]}" if close else otherwise or f"known are {', '.join(known)}"
