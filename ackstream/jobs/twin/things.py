"""Things as the twin keeps them, their JSON, and JSON merge patches on them."""

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
decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Thing(msgspec.Struct, frozen=True, gc=False):
    """A thing after its last change; times in epoch milliseconds.

    ``content`` is its JSON (thingId, policyId, definition, attributes, features), ``None`` once it is deleted: a thing
    that is created again continues with the next revision.
    """

    revision: int
    created: int
    modified: int
    content: bytes | None

    def whole(self) -> dict[str, Any]:
        """Return the JSON that filters and selectors see: with ``_revision``, ``_created`` and ``_modified``."""
        return {
            **decode(self.content or b"{}"),
            "_revision": self.revision,
            "_created": instant(self.created),
            "_modified": instant(self.modified),
        }


def read_value(value: msgspec.Raw) -> Any:
    """Read the value of a command.

    :raises DittoError: 400 ``json.invalid`` for numbers beyond 64 bits, which cannot be stored
    """
    content = decode(value)
    try:
        check_storable(content)
    except OverflowError as error:
        raise json_invalid(f"Failed to parse JSON string: a number is out of range: {error}!") from error
    return content


def check_depth(content: bytes) -> None:
    """Reject a thing that merges have nested, patch within patch, more deeply than readers can follow.

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
    """Return epoch milliseconds as ISO 8601 in UTC, always with three digits, so that texts sort as times."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def thing_tag(revision: int) -> str:
    """Return the entity tag of a whole thing."""
    return f'"rev:{revision}"'


def part_tag(value: Any) -> str:
    """Return the entity tag of a part; equal JSON has equal tags."""
    return f'"hash:{blake2b(_encode_sorted(value), digest_size=4).hexdigest()}"'


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396): objects are merged, null removes, everything else replaces.

    Target and patch are not modified. Source of the rules: Eclipse Ditto, ``JsonMergePatch``.

    :raises DittoError: 400 ``things:merge.invalid`` for Ditto's ``{{/expression/}}: null``, which removes all matching
        keys there and would silently remove none here
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
    """Return the value that a patch creates from nothing: Ditto then removes nulls from arrays, too.

    Source of the rules: Eclipse Ditto, ``ModifyToCreateThingTransformer``.
    """
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        # an array within an array stays as it is
        return [without_nulls(entry) if isinstance(entry, dict) else entry for entry in value if entry is not None]
    return value
