"""JSON merge patches (RFC 7396): objects are merged, null removes, everything else replaces.

Source of the rules: Eclipse Ditto, ``JsonMergePatch`` and ``ModifyToCreateThingTransformer``.
"""

from __future__ import annotations

from typing import Any

from ackstream.twin.errors import merge_invalid


def merge(target: Any, patch: Any) -> Any:
    """Return the target with the patch applied; neither is changed.

    :raises DittoError: 400 ``things:merge.invalid`` for Ditto's ``{{/expression/}}: null``, which removes many keys
        there; here it would silently remove none
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is not None:
            merged[key] = merge(merged.get(key), value)
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
