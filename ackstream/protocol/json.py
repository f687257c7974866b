"""Reading JSON records: what may be wrong with the bytes has one list, and the sentence about it one form."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are no JSON of the wanted shape, or nested too deep."""


def decoded(decoder: msgspec.json.Decoder[T], value: bytes | None, what: str, error: Callable[[str], Exception]) -> T:
    """Return what a decoder reads.

    :param what: completes "This is no record of …"
    :raises Exception: the given error, where the value cannot be read
    """
    try:
        return decoder.decode(value or b"")
    except UNREADABLE as problem:
        raise error(f"This is no record of {what}: {problem}.") from problem
