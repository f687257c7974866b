"""JSON: the errors a decoder may raise, the limit of nesting, and pointers and field selectors to parts of a value.

Pointers are those of RFC 6901 as Ditto uses them: arrays are values, no pointer leads into them. Source of the rules:
Eclipse Ditto, ``ImmutableJsonPointer``, ``ImmutableJsonObject``, ``ImmutableJsonFieldSelectorFactory``.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET

from ackstream.protocol.errors import field_selector_invalid, json_pointer_deep, json_pointer_invalid

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by a decoder for bytes that are not JSON, not of the expected shape, or nested too deeply."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some programs write it before their JSON; readers ignore it (RFC 8259, 8.1)."""

MAX_DEPTH = 200
"""Levels of nested objects and arrays allowed; far below the recursion limit of later readers."""


def members(value: Any, most: int) -> int:
    """Return the number of members of all objects in a value, without arrays; stops a few above ``most``."""
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
    """Return a function that reads records of a kind, or raises :class:`RecordError`: "This is not a record of …"."""
    decode = msgspec.json.Decoder(kind).decode

    def read(value: bytes | None) -> Any:
        try:
            return decode((value or b"").removeprefix(BYTE_ORDER_MARK))
        except UNREADABLE as problem:
            raise RecordError(f"This is not a record of {what}: {problem}.") from problem

    return read


def optional_reader(kind: Any) -> Callable[[bytes | None], Any]:
    """Return a function that reads records of a kind, and returns ``None`` for everything else."""
    decode = msgspec.json.Decoder(kind).decode

    def read(value: bytes | None) -> Any:
        try:
            return decode((value or b"").removeprefix(BYTE_ORDER_MARK))
        except UNREADABLE:
            return None

    return read


Keys = tuple[str, ...]


@lru_cache(maxsize=4096)
def parse_pointer(pointer: str) -> Keys:
    """Return the keys of a pointer, whose first slash may be omitted; ``/`` and ``""`` have none. Raises 400."""
    text = pointer.removeprefix("/").removesuffix("/")
    if not text and pointer != "//":
        return ()
    keys = text.split("/")
    if "" in keys:
        raise json_pointer_invalid(pointer)
    if len(keys) > MAX_DEPTH:
        raise json_pointer_deep(MAX_DEPTH)
    return tuple([_unescape(key) for key in keys])


def keys_of(path: str) -> Keys:
    """Return the keys of a path that was checked before; empty ones are ignored."""
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


WILDCARD = "*"
"""Any feature in a field selector: ``features/*/properties``."""

_SELECTOR_CHARACTERS = 10_000
_SELECTOR_DEPTH = 250
_PARENTHESES = "Check, for example, if the amount of opening parentheses '(' matches the amount of closing ones ')'."
_SELECTED = re.compile(r"([^(),]*)([(),]|$)")


def select(value: Any, selector: str) -> Any:
    """Reduce a JSON object to the fields of a selector, in the object's own order; return other values unchanged."""
    # ``selector``: such as ``thingId,attributes(model,location/city),features/*/properties``
    tree = _tree(selector)
    return _select(value, [tree]) if isinstance(value, dict) else value


def parse_selector(selector: str) -> tuple[Keys, ...]:
    """Return the keys of the fields that a selector names. Raises 400 for a wrong selector or pointer."""
    if len(selector) > _SELECTOR_CHARACTERS:
        raise field_selector_invalid(selector, f"It may have {_SELECTOR_CHARACTERS} characters.")
    return _parsed(selector)


@lru_cache(maxsize=512)
def _parsed(selector: str) -> tuple[Keys, ...]:
    if not selector.strip() or selector.count("(") != selector.count(")") or selector.count("(") > _SELECTOR_DEPTH:
        raise field_selector_invalid(selector, _PARENTHESES)
    paths: list[Keys] = []
    outer: list[Keys] = [()]
    closed = False
    for text, end in _SELECTED.findall(selector):
        # nothing but the next field follows a closing parenthesis
        if closed and (text.strip() or end == "("):
            raise field_selector_invalid(selector, _PARENTHESES)
        if end == "(":
            outer.append(outer[-1] + parse_pointer(text.lstrip()))
        elif keys := parse_pointer(text.strip()):
            paths.append(outer[-1] + keys)
        closed = end == ")"
        if closed:
            outer.pop()
        if not outer:
            raise field_selector_invalid(selector, _PARENTHESES)
    return tuple(dict.fromkeys(paths))


_Tree = dict[str, Any]
"""The next keys of the paths of a selector, each with a tree of its own; ``None``: the whole value there."""


@lru_cache(maxsize=512)
def _tree(selector: str) -> _Tree:
    tree: _Tree = {}
    for path in parse_selector(selector):
        node: _Tree | None = tree
        for key in path[:-1]:
            # a part that is selected as a whole remains whole
            node = None if node is None else node.setdefault(key, {})
        if node is not None:
            node[path[-1]] = None
    return tree


def _select(value: dict[str, Any], trees: list[_Tree], *, depth: int = 0) -> dict[str, Any]:
    result = {}
    for key, entry in value.items():
        names = (key, WILDCARD) if depth == 1 else (key,)
        deeper = [tree[name] for tree in trees for name in names if name in tree]
        if None in deeper:
            result[key] = entry
        elif deeper and isinstance(entry, dict) and (found := _select(entry, deeper, depth=depth + 1)):
            # a path that leads nowhere creates no empty objects
            result[key] = found
    return result
