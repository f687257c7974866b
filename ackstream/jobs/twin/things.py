"""Things as the twin keeps them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import Any

import msgspec

from ackstream.protocol.ditto.envelopes import check_storable
from ackstream.protocol.ditto.errors import json_invalid
from ackstream.protocol.ditto.thing_errors import merge_invalid
from ackstream.protocol.json import MAX_DEPTH

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Thing(msgspec.Struct, frozen=True, gc=False):
    """A thing after its last change; times in epoch milliseconds.

    ``content`` is its JSON (thingId, policyId, definition, attributes, features), ``None`` once it is deleted: a thing
    that is created again goes on with the next revision.
    """

    revision: int
    created: int
    modified: int
    content: bytes | None

    def whole(self) -> dict[str, Any]:
        """Return the thing's JSON with ``_revision``, ``_created``, ``_modified``, as filters and selectors see it."""
        return {
            **decode(self.content or b"{}"),
            "_revision": self.revision,
            "_created": instant(self.created),
            "_modified": instant(self.modified),
        }


def decode(content: bytes) -> Any:
    """Read JSON."""
    return _decode(content)


def encode(value: Any) -> bytes:
    """Write JSON."""
    return _encode(value)


def read_value(value: msgspec.Raw) -> Any:
    """Read the value of a command.

    :raises DittoError: 400 ``json.invalid``: numbers beyond 64 bits cannot be kept
    """
    read = _decode(value)
    try:
        check_storable(read)
    except OverflowError as error:
        raise json_invalid(f"Failed to parse JSON string: a number is out of range: {error}!") from error
    return read


def check_depth(content: bytes) -> None:
    """Keep merges from nesting a thing, patch within patch, more deeply than whoever reads it can follow.

    :raises DittoError: 400 ``json.invalid``
    """
    if content.count(b"{") + content.count(b"[") <= MAX_DEPTH:
        return
    level = [decode(content)]
    for _ in range(MAX_DEPTH):
        values = [entry for outer in level for entry in (outer.values() if isinstance(outer, dict) else outer)]
        level = [entry for entry in values if isinstance(entry, dict | list)]
        if not level:
            return
    raise json_invalid(f"Failed to parse JSON string: it is nested more than {MAX_DEPTH} levels deep!")


def instant(milliseconds: int) -> str:
    """Return epoch milliseconds as ISO 8601 in UTC, always with three digits: so texts are ordered as times are."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def thing_tag(revision: int) -> str:
    """Return the entity tag of a whole thing."""
    return f'"rev:{revision}"'


def part_tag(value: Any) -> str:
    """Return the entity tag of a part; equal JSON has equal tags."""
    return f'"hash:{blake2b(_encode_sorted(value), digest_size=4).hexdigest()}"'


# -- JSON merge patches (RFC 7396): objects are merged, null removes, everything else replaces.
# Source of the rules: Eclipse Ditto, ``JsonMergePatch`` and ``ModifyToCreateThingTransformer``.


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with the patch applied; neither is changed.

    :raises DittoError: 400 ``things:merge.invalid`` for Ditto's ``{{/expression/}}: null``, which removes many keys
        there; here it would silently remove none
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is not None:
            merged[key] = merge_patch(merged.get(key), value)
            continue
        if key.startswith("{{") and key.endswith("}}"):
            raise merge_invalid(f"The key <{key}> is a regular expression, which is not supported here.")
        merged.pop(key, None)
    return merged


def without_nulls(value: Any) -> Any:
    """Return what a patch makes of nothing at all: Ditto takes nulls out of arrays then, too."""
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        # an array within an array stays as it is
        return [without_nulls(entry) if isinstance(entry, dict) else entry for entry in value if entry is not None]
    return value
