"""Decoding of JSON records: the errors a decoder may raise, the sentence about them, and the limit of nesting."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by a decoder for bytes that are not JSON, not of the expected shape, or nested too deeply."""

MAX_DEPTH = 200
"""Levels of nested objects and arrays allowed; far below the recursion limit of later readers."""


def decoded(decoder: msgspec.json.Decoder[T], value: bytes | None, what: str, error: Callable[[str], Exception]) -> T:
    """Decode a record.

    :param what: completes the sentence "This is no record of …"
    :raises Exception: ``error`` with that sentence, if the value cannot be decoded
    """
    try:
        return decoder.decode(value or b"")
    except UNREADABLE as problem:
        raise error(f"This is no record of {what}: {problem}.") from problem
