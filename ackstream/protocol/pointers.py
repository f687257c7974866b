"""JSON pointers (RFC 6901, as Ditto uses them): looking into a JSON value, and making changed copies of it.

Arrays are values: a pointer does not go into them. Source of the rules: Eclipse Ditto, ``ImmutableJsonPointer``,
``ImmutableJsonObject``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ackstream.protocol.errors import BAD_REQUEST, DittoError
from ackstream.protocol.json import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Sequence

Keys = tuple[str, ...]


@lru_cache(maxsize=4096)
def parse(pointer: str) -> Keys:
    """Return the keys of a pointer; ``/`` and the empty text have none. The first slash may be left out.

    :raises DittoError: 400 ``json.pointer.invalid`` for an empty key, or more keys than levels a thing may have
    """
    text = pointer.removeprefix("/").removesuffix("/")
    if not text:
        return ()
    keys = text.split("/")
    if "" in keys:
        raise json_pointer_invalid(pointer)
    if len(keys) > MAX_DEPTH:
        raise pointer_too_deep(MAX_DEPTH)
    return tuple([key.replace("~1", "/").replace("~0", "~") for key in keys])


def write(keys: Sequence[str]) -> str:
    """Return the pointer that has these keys; it starts with a slash."""
    return "/" + "/".join([key.replace("~", "~0").replace("/", "~1") for key in keys])


def find(value: Any, keys: Sequence[str]) -> Any:
    """Return the value at the keys; ``UNSET`` where nothing is."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return UNSET
        value = value[key]
    return value


def put(value: Any, keys: Sequence[str], new: Any) -> Any:
    """Return a copy with ``new`` at the keys; what is on the way and no object becomes one."""
    if not keys:
        return new
    key, *rest = keys
    place = value if isinstance(value, dict) else {}
    return {**place, key: put(place.get(key), rest, new)}


def remove(value: Any, keys: Sequence[str]) -> Any:
    """Return a copy without what is at the keys; nothing there changes nothing."""
    key, *rest = keys
    if not isinstance(value, dict) or key not in value:
        return value
    if rest:
        return {**value, key: remove(value[key], rest)}
    return {name: entry for name, entry in value.items() if name != key}


def json_pointer_invalid(pointer: str) -> DittoError:
    """Refuse a path with an empty segment in it."""
    return DittoError(
        BAD_REQUEST,
        "json.pointer.invalid",
        f"The JSON pointer <{pointer}> is invalid!",
        "Consecutive slashes in JSON pointers are not supported.",
    )


def pointer_too_deep(levels: int) -> DittoError:
    """Refuse a pointer with more levels than a thing may have."""
    return DittoError(
        BAD_REQUEST,
        "json.pointer.invalid",
        f"The JSON pointer has more than {levels} levels!",
        "Check if the path is correct.",
    )
