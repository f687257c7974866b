"""Who may read and write what: rules by subject, thing and path.

A rule grants; what no rule grants is refused. Paths are JSON pointers and a rule holds for what lies below its path,
too; messages and live commands have theirs, such as ``/inbox/messages/ask``. In subjects and thing ids ``*`` stands for
any run of characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET

from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Permission = Literal["READ", "WRITE"]


class Rule(msgspec.Struct, frozen=True):
    """Grants permissions on the things that match, at a path and below."""

    subjects: tuple[str, ...]
    things: tuple[str, ...] = ("*",)
    path: str = "/"
    grant: tuple[Permission, ...] = ("READ",)


class Access:
    """A set of rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Hold these rules."""
        self._rules = tuple(rules)

    def may(self, permission: Permission, subjects: Iterable[str], thing_id: str, path: str) -> bool:
        """Tell whether one of the subjects has the permission at ``path`` and on everything below it."""
        wanted = segments(path)
        return any(wanted[: len(granted)] == granted for granted in self._granted(permission, subjects, thing_id))

    def knows(self, subjects: Iterable[str], thing_id: str) -> bool:
        """Tell whether one of the subjects may read anything of the thing; to others it does not exist."""
        return any(True for _ in self._granted("READ", subjects, thing_id))

    def visible(self, subjects: Iterable[str], thing_id: str, path: str, value: Any) -> Any:
        """Return what the subjects may read of the JSON value at ``path``; ``UNSET`` where that is nothing."""
        place = segments(path)
        below = []
        for granted in self._granted("READ", subjects, thing_id):
            if place[: len(granted)] == granted:
                return value
            if granted[: len(place)] == place:
                below.append(granted[len(place) :])
        return _only(value, below)

    def whole_things(self, subjects: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns of the things that the subjects may read entirely."""
        subjects = tuple(subjects)
        patterns = [
            pattern
            for rule in self._rules
            if "READ" in rule.grant and not segments(rule.path) and _any(rule.subjects, subjects)
            for pattern in rule.things
        ]
        return tuple(dict.fromkeys(patterns))

    def _granted(self, permission: Permission, subjects: Iterable[str], thing_id: str) -> Iterator[tuple[str, ...]]:
        subjects = tuple(subjects)
        for rule in self._rules:
            if permission in rule.grant and _any(rule.subjects, subjects) and _any(rule.things, (thing_id,)):
                yield segments(rule.path)


OPEN = Access([Rule(("*",), grant=("READ", "WRITE"))])
"""Everybody may do everything: without authentication there are no subjects to tell apart."""


def segments(path: str) -> tuple[str, ...]:
    """Return the parts of a JSON pointer; of the whole thing (``/`` or nothing) none."""
    return tuple(part for part in path.split("/") if part)


def _any(patterns: tuple[str, ...], texts: tuple[str, ...]) -> bool:
    return any(matches_any(patterns, text) for text in texts)


def _only(value: Any, paths: list[tuple[str, ...]]) -> Any:
    """Return a JSON object with what lies at the paths, ``UNSET`` where nothing does."""
    if not isinstance(value, dict):
        return UNSET
    kept = {}
    for key, inner in value.items():
        name = key.replace("~", "~0").replace("/", "~1")
        rest = [path[1:] for path in paths if path[0] == name]
        found = inner if () in rest else _only(inner, rest) if rest else UNSET
        if found is not UNSET:
            kept[key] = found
    return kept or UNSET
