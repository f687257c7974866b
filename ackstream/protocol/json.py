"""JSON: the errors a decoder may raise, the limit of nesting, and pointers to parts of a value.

Pointers are those of RFC 6901 as Ditto uses them: arrays are values, no pointer leads into them. Source of the rules:
Eclipse Ditto, ``ImmutableJsonPointer``, ``ImmutableJsonObject``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.protocol.errors import BAD_REQUEST, DittoError, error_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by a decoder for bytes that are not JSON, not of the expected shape, or nested too deeply."""

MAX_DEPTH = 200
"""Levels of nested objects and arrays allowed; far below the recursion limit of later readers."""


def members(value: Any, most: int) -> int:
    """Return the number of members of all objects in a value, arrays apart; not more than a few above ``most``."""
    found, rest = 0, [value]
    while rest and found <= most:
        one = rest.pop()
        if isinstance(one, dict):
            found += len(one)
            rest.extend(one.values())
    return found


class RecordError(ValueError):
    """A record cannot be read; the text is the reason."""


def reader(kind: Any, what: str) -> Callable[[bytes | None], Any]:
    """Return a function that reads records of a kind; it raises :class:`RecordError`.

    :param what: completes the sentence "This is no record of …"
    """
    decode = msgspec.json.Decoder(kind).decode

    def read(value: bytes | None) -> Any:
        try:
            return decode(value or b"")
        except UNREADABLE as problem:
            raise RecordError(f"This is no record of {what}: {problem}.") from problem

    return read


json_pointer_invalid = error_factory(
    BAD_REQUEST,
    "json.pointer.invalid",
    "The JSON pointer <{}> is invalid!",
    "Consecutive slashes in JSON pointers are not supported.",
)

Keys = tuple[str, ...]


@lru_cache(maxsize=4096)
def parse_pointer(pointer: str) -> Keys:
    """Return the keys of a pointer; ``/`` and the empty text have none. The first slash may be omitted.

    :raises DittoError: 400 ``json.pointer.invalid`` for an empty key, or more keys than levels allowed
    """
    text = pointer.removeprefix("/").removesuffix("/")
    if not text and pointer != "//":
        return ()
    keys = text.split("/")
    if "" in keys:
        raise json_pointer_invalid(pointer)
    if len(keys) > MAX_DEPTH:
        raise DittoError(
            BAD_REQUEST,
            "json.pointer.invalid",
            f"The JSON pointer has more than {MAX_DEPTH} levels!",
            "Check if the path is correct.",
        )
    return tuple([_unescape(key) for key in keys])


def keys_of(path: str) -> Keys:
    """Return the keys of a path that someone else has checked; empty ones are ignored."""
    return tuple([_unescape(key) for key in path.split("/") if key])


def write_pointer(keys: Sequence[str]) -> str:
    """Return the pointer with these keys; it starts with a slash."""
    return "/" + "/".join(map(escape, keys))


def escape(key: str) -> str:
    """Return a key as it is written in a pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")


def find(value: Any, keys: Sequence[str]) -> Any:
    """Return the value at the keys, ``UNSET`` if it is absent."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return UNSET
        value = value[key]
    return value


def put(value: Any, keys: Sequence[str], new: Any) -> Any:
    """Return a copy with ``new`` at the keys; anything on the way that is not an object becomes one."""
    if not keys:
        return new
    key, *rest = keys
    parent = value if isinstance(value, dict) else {}
    return {**parent, key: put(parent.get(key), rest, new)}


def remove(value: Any, keys: Sequence[str]) -> Any:
    """Return a copy without the value at the keys; if it is absent, nothing changes."""
    key, *rest = keys
    if not isinstance(value, dict) or key not in value:
        return value
    if rest:
        return {**value, key: remove(value[key], rest)}
    return {name: entry for name, entry in value.items() if name != key}
