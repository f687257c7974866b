"""What every part of the settings is made of: frozen objects, and durations held as whole milliseconds."""

from __future__ import annotations

import difflib
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

UNKNOWN_KEY = "unknown_key"
"""The type of the error for an unknown key; its context holds the ``key`` and a ``hint``."""


def _milliseconds(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("a duration is a text with its unit, such as 250ms, 10s or 5m")  # noqa: TRY004 - of pydantic
    try:
        milliseconds = Duration.parse(value).milliseconds
    except Exception as error:
        raise ValueError(f"{error} Write a number and a unit, such as 250ms, 10s or 5m.") from error
    if milliseconds <= 0:
        raise ValueError("must be longer than zero")
    return milliseconds


Milliseconds = Annotated[int, BeforeValidator(_milliseconds)]
"""A duration in the protocol's grammar (``"65s"``, ``"250ms"``, ``"1h"``), held as milliseconds, more than zero."""


ENDLESS = 2**63 - 1
"""The milliseconds of ``never``: longer than any other duration."""

Endless = Annotated[int, BeforeValidator(lambda value: ENDLESS if value == "never" else _milliseconds(value))]
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

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    hint = nearest(str(key), list(cls.model_fields))
                    raise PydanticCustomError(UNKNOWN_KEY, "unknown key", {"key": key, "hint": hint})
        return values


def nearest(name: str, known: list[str]) -> str:
    """Return a hint from an unknown name to a known one."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"the nearest known one is {close[0]}" if close else f"known are {', '.join(known)}"
