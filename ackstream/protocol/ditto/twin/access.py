"""Access control: rights to read and write, by subject, thing and path.

A rule grants; everything else is refused. Paths are JSON pointers, and a rule applies to everything below its path too;
messages and live commands have paths of their own, such as ``/inbox/messages/ask``. In subjects, thing ids and labels
``*`` stands for any run of characters. A record of Kafka does not show its writer: gateway and connections name their
client in ``ditto-originator``, and sign the record with ``kafka.originator_key``; a header without that is removed.
"""

import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from ackstream.protocol.ditto.headers import ORIGINATOR
from ackstream.protocol.json import Keys, keys_of, write_pointer
from ackstream.protocol.rql.patterns import matches_any

Permission = Literal["READ", "WRITE"]


class Rule(msgspec.Struct, frozen=True):
    """Grants permissions on the things that match, at a path and below; and the right to declare labels."""

    subjects: tuple[str, ...]
    things: tuple[str, ...] = ("*",)
    path: str = "/"
    grant: tuple[Permission, ...] = ("READ",)
    labels: tuple[str, ...] = ()


_WHOLE: list[Keys] = [()]
"""The keys to all of a value."""


class Access:
    """A set of rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.replace(rules)

    def replace(self, rules: Iterable[Rule]) -> None:
        """Apply these rules from now on; may be called in another thread."""
        self._rules = own = tuple(rules)
        # decisions by the previous rules must be forgotten, too
        self._of = lru_cache(1_024)(lambda subjects: tuple(rule for rule in own if _any(rule.subjects, subjects)))

    def may(self, permission: Permission, subjects: Iterable[str], thing_id: str, path: str) -> bool:
        """Return whether one of the subjects has the permission at ``path`` and on everything below it."""
        return self._granted(permission, subjects, thing_id, path) == _WHOLE

    def denied_by_merge(self, subjects: Iterable[str], thing_id: str, path: str, patch: Any) -> str | None:
        """Return a path that a merge patch changes and the subjects may not, else ``None``."""
        # it changes values that are not objects, or empty ones, at ``path`` and below
        granted = self._granted("WRITE", subjects, thing_id, path)
        denied = None if granted == _WHOLE else _not_covered(granted, patch)
        return None if denied is None else write_pointer((*keys_of(path), *denied))

    def may_declare(self, subjects: Iterable[str], label: str) -> bool:
        """Return whether one of the subjects may hold a label: an acknowledgement under it counts as that party's."""
        subjects = tuple(subjects)
        return any(_any(rule.subjects, subjects) and matches_any(rule.labels, label) for rule in self._rules)

    def knows(self, subjects: Iterable[str], thing_id: str, path: str = "/") -> bool:
        """Return whether one of the subjects may read a part of the value at ``path``; to others it does not exist."""
        return bool(self._granted("READ", subjects, thing_id, path))

    def visible(self, subjects: Iterable[str], thing_id: str, path: str, value: Any) -> Any:
        """Return the part of the JSON value at ``path`` that the subjects may read, ``UNSET`` if that is nothing."""
        granted = self._granted("READ", subjects, thing_id, path)
        return value if granted == _WHOLE else _only(value, granted)

    def whole_things(self, subjects: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns of the things that the subjects may read entirely."""
        rules = self._of(tuple(subjects))
        patterns = [
            pattern for rule in rules if "READ" in rule.grant and not keys_of(rule.path) for pattern in rule.things
        ]
        return tuple(dict.fromkeys(patterns))

    def _granted(self, permission: Permission, subjects: Iterable[str], thing_id: str, path: str) -> list[Keys]:
        """Return the places at ``path`` and below where the permission applies, as keys from ``path`` on."""
        keys, below = keys_of(path), []
        for rule in self._of(tuple(subjects)):
            if permission in rule.grant and matches_any(rule.things, thing_id):
                granted = keys_of(rule.path)
                if keys[: len(granted)] == granted:
                    return _WHOLE
                if granted[: len(keys)] == keys:
                    below.append(granted[len(keys) :])
        return below


OPEN = Access([Rule(("*",), grant=("READ", "WRITE"), labels=("*",))])
"""Every client may do everything: without authentication there are no subjects to distinguish."""


def _any(patterns: tuple[str, ...], texts: tuple[str, ...]) -> bool:
    return any(matches_any(patterns, text) for text in texts)


def _not_covered(paths: list[Keys], patch: Any) -> Keys | None:
    """Return the keys of a change of a patch outside of the paths, none of which is empty."""
    if not paths or not isinstance(patch, dict) or not patch:
        return ()
    deeper = _by_key(paths)
    for key, inner in patch.items():
        rest = deeper.get(key, [])
        denied = None if () in rest else _not_covered(rest, inner)
        if denied is not None:
            return (key, *denied)
    return None


def _only(value: Any, paths: list[Keys]) -> Any:
    """Return a JSON object with only the parts at the paths, ``UNSET`` without any."""
    if not isinstance(value, dict):
        return UNSET
    kept = {}
    for key, rest in _by_key(paths).items():
        if key in value:
            found = value[key] if () in rest else _only(value[key], rest)
            if found is not UNSET:
                kept[key] = found
    if not kept:
        return UNSET
    return kept if len(kept) == 1 else {key: kept[key] for key in value if key in kept}


def _by_key(paths: list[Keys]) -> dict[str, list[Keys]]:
    """Return the remainders of paths by their first keys."""
    found: dict[str, list[Keys]] = {}
    for path in paths:
        found.setdefault(path[0], []).append(path[1:])
    return found


_LENGTH_BYTES = 4


def signature(key: str, correlation_id: str, value: bytes) -> bytes:
    """Return the signature of a record, for its header ``originator-signature``."""
    # it covers the whole value, and the correlation-id of the record header, so it fits no other command
    identity = correlation_id.encode()
    return hmac.digest(key.encode(), len(identity).to_bytes(_LENGTH_BYTES, "big") + identity + value, "sha256")


def believed(
    headers: dict[str, Any], key: str | None, correlation_id: str, value: bytes | None, signed: bytes | None
) -> dict[str, Any]:
    """Return headers that name a sender, without it unless the record is signed (see :func:`signature`)."""
    # ``key``: None: nothing is believed; ``signed``: the record header originator-signature
    if key and value and signed is not None and hmac.compare_digest(signature(key, correlation_id, value), signed):
        return headers
    return {name: text for name, text in headers.items() if name.lower() != ORIGINATOR}
