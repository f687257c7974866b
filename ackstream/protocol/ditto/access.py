"""Access control: who may read and write what, by subject, thing and path.

A rule grants; everything else is refused. Paths are JSON pointers, and a rule applies to everything below its path too;
messages and live commands have paths of their own, such as ``/inbox/messages/ask``. In subjects, thing ids and labels
``*`` stands for any run of characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET

from ackstream.protocol.json import Keys, keys_of
from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Permission = Literal["READ", "WRITE"]


class Rule(msgspec.Struct, frozen=True):
    """Grants permissions on the things that match, at a path and below; and the right to declare labels."""

    subjects: tuple[str, ...]
    things: tuple[str, ...] = ("*",)
    path: str = "/"
    grant: tuple[Permission, ...] = ("READ",)
    labels: tuple[str, ...] = ()


class Access:
    """A set of rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Apply these rules."""
        self._rules = tuple(rules)

    def may(self, permission: Permission, subjects: Iterable[str], thing_id: str, path: str) -> bool:
        """Return whether one of the subjects has the permission at ``path`` and on everything below it."""
        wanted = keys_of(path)
        return any(wanted[: len(granted)] == granted for granted in self._granted(permission, subjects, thing_id))

    def may_declare(self, subjects: Iterable[str], label: str) -> bool:
        """Return whether one of the subjects may hold a label: what it acknowledges counts as that party's word."""
        subjects = tuple(subjects)
        return any(_any(rule.subjects, subjects) and matches_any(rule.labels, label) for rule in self._rules)

    def knows(self, subjects: Iterable[str], thing_id: str, path: str = "/") -> bool:
        """Return whether one of the subjects may read any part of what is at ``path``; to others it does not exist."""
        wanted = keys_of(path)
        return any(
            wanted[: len(granted)] == granted[: len(wanted)] for granted in self._granted("READ", subjects, thing_id)
        )

    def visible(self, subjects: Iterable[str], thing_id: str, path: str, value: Any) -> Any:
        """Return the part of the JSON value at ``path`` that the subjects may read, ``UNSET`` if that is nothing."""
        keys = keys_of(path)
        below = []
        for granted in self._granted("READ", subjects, thing_id):
            if keys[: len(granted)] == granted:
                return value
            if granted[: len(keys)] == keys:
                below.append(granted[len(keys) :])
        return _only(value, below)

    def whole_things(self, subjects: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns of the things that the subjects may read entirely."""
        subjects = tuple(subjects)
        patterns = [
            pattern
            for rule in self._rules
            if "READ" in rule.grant and not keys_of(rule.path) and _any(rule.subjects, subjects)
            for pattern in rule.things
        ]
        return tuple(dict.fromkeys(patterns))

    def _granted(self, permission: Permission, subjects: Iterable[str], thing_id: str) -> Iterator[Keys]:
        subjects = tuple(subjects)
        for rule in self._rules:
            if permission in rule.grant and _any(rule.subjects, subjects) and matches_any(rule.things, thing_id):
                yield keys_of(rule.path)


OPEN = Access([Rule(("*",), grant=("READ", "WRITE"), labels=("*",))])
"""Everyone may do everything: without authentication there are no subjects to distinguish."""


def _any(patterns: tuple[str, ...], texts: tuple[str, ...]) -> bool:
    return any(matches_any(patterns, text) for text in texts)


def _only(value: Any, paths: list[Keys]) -> Any:
    """Return a JSON object with the parts at the paths alone, ``UNSET`` if there are none."""
    if not isinstance(value, dict):
        return UNSET
    kept = {}
    for key, inner in value.items():
        rest = [path[1:] for path in paths if path[0] == key]
        found = inner if () in rest else _only(inner, rest) if rest else UNSET
        if found is not UNSET:
            kept[key] = found
    return kept or UNSET
